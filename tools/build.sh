#!/bin/sh
# `make build`: builds the program and prints its path.
set -eu

cd "$(dirname "$0")/.."
. tools/env.sh
# The job server of make is not the one of cargo.
unset MAKEFLAGS MFLAGS MAKELEVEL

tools/rocksdb-is-built.sh || echo "klad: compiling RocksDB once, about 15 minutes" >&2
cargo build --release --locked --workspace
echo "$CARGO_TARGET_DIR/release/klad"
