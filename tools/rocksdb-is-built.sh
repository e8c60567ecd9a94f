#!/bin/sh
# Succeeds if a build compiles no C++: the target directory contains RocksDB in the version of Cargo.lock, or an
# installed RocksDB is linked.
set -eu

cd "$(dirname "$0")/.."
. tools/env.sh

case "${ROCKSDB_COMPILE:-}" in
1 | [Tt][Rr][Uu][Ee]) ;;
*)
    if [ -n "${ROCKSDB_LIB_DIR+set}" ]; then exit 0; fi
    case "${ROCKSDB_USE_PKG_CONFIG:-}" in
    1 | [Tt][Rr][Uu][Ee]) exit 0 ;;
    esac
    ;;
esac

version=$(sed -n '/^name = "rust-librocksdb-sys"$/{n;s/^version = "\(.*\)"$/\1/p;}' Cargo.lock)
for output in "$CARGO_TARGET_DIR"/release/build/rust-librocksdb-sys-*/output; do
    # Cargo writes the output of the build script after its success. It names the directory of the sources.
    if [ -e "${output%output}out/librocksdb.a" ] && grep -q -F "/rust-librocksdb-sys-$version" "$output"; then exit 0; fi
done
exit 1
