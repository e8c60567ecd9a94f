#!/bin/sh
# `make deny`: licences, sources and unwanted crates, by deny.toml. cargo-deny is installed into a root of klad's own, beside
# the target directory's default place, so that no other project meets this version.
set -eu

cd "$(dirname "$0")/.."
. tools/env.sh
# make's job server is not cargo's.
unset MAKEFLAGS MFLAGS MAKELEVEL

version=0.20.2
root="${XDG_CACHE_HOME:-$HOME/.cache}/klad/tools"
program="$root/bin/cargo-deny"

if [ "$("$program" --version 2>/dev/null)" != "cargo-deny $version" ]; then
    echo "klad: installing cargo-deny $version into $root, some minutes" >&2
    # In a target directory of its own: klad's must hold nothing but klad's.
    env -u CARGO_TARGET_DIR cargo install --locked --version "$version" --root "$root" --force cargo-deny
fi
exec "$program" check bans licenses sources
