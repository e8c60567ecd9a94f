#!/bin/sh
# `make bench`: builds klad and becomes `klad bench`, with what `ARGS` says.
set -eu

cd "$(dirname "$0")/.."
program=$(tools/build.sh)
exec "$program" bench "$@"
