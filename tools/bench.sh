#!/bin/sh
# `make bench`: builds the load tester, which needs no C++, and runs it with what `ARGS` says.
set -eu

cd "$(dirname "$0")/.."
. tools/env.sh
# make's job server is not cargo's.
unset MAKEFLAGS MFLAGS MAKELEVEL

cargo build --release --locked --package klad-bench
exec "$CARGO_TARGET_DIR/release/klad-bench" "$@"
