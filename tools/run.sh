#!/bin/sh
# `make run`: builds klad and becomes `klad serve`, with what `ARGS` adds. Defaults: ./data, 127.0.0.1:8080.
set -eu

cd "$(dirname "$0")/.."
program=$(tools/build.sh)
exec "$program" serve "$@"
