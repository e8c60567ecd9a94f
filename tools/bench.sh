#!/bin/sh
# `make bench`: builds the load tester, which needs no C++, and runs it with what `ARGS` says.
set -eu

cd "$(dirname "$0")/.."
. tools/env.sh
# The job server of make is not the one of cargo.
unset MAKEFLAGS MFLAGS MAKELEVEL

cargo build --release --locked --package klad-bench
exec "$CARGO_TARGET_DIR/release/klad-bench" "$@"
