#!/bin/sh
# `make bench`: builds klad and runs `klad bench` with `ARGS`.
set -eu

cd "$(dirname "$0")/.."
program=$(tools/build.sh)
exec "$program" bench "$@"
