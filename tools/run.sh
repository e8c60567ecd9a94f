#!/bin/sh
# `make run`: builds klad and runs `klad serve` with `ARGS`. Defaults: ./data, 127.0.0.1:8080.
set -eu

cd "$(dirname "$0")/.."
program=$(tools/build.sh)
exec "$program" serve "$@"
