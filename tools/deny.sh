#!/bin/sh
# `make deny`: checks licences, sources and unwanted crates by deny.toml. Installs cargo-deny into a directory beside
# the default target directory, so that other projects do not use this version.
set -eu

cd "$(dirname "$0")/.."
. tools/env.sh
# The job server of make is not the one of cargo.
unset MAKEFLAGS MFLAGS MAKELEVEL

version=0.20.2
root="${XDG_CACHE_HOME:-$HOME/.cache}/klad/tools"
program="$root/bin/cargo-deny"

if [ "$("$program" --version 2>/dev/null)" != "cargo-deny $version" ]; then
    echo "klad: installing cargo-deny $version into $root; this takes some minutes" >&2
    # In another target directory, because klad's must contain only klad.
    env -u CARGO_TARGET_DIR cargo install --locked --version "$version" --root "$root" --force cargo-deny
fi
exec "$program" check bans licenses sources
