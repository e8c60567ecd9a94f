#!/bin/sh
# `make build`: the program, and where it is.
set -eu

cd "$(dirname "$0")/.."
. tools/env.sh
# make's job server is not cargo's.
unset MAKEFLAGS MFLAGS MAKELEVEL

tools/rocksdb-is-built.sh || echo "klad: compiling RocksDB once, about 15 minutes" >&2
cargo build --release --locked --workspace
echo "$CARGO_TARGET_DIR/release/klad"
