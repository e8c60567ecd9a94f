#!/bin/sh
# `make docs`: the generated blocks of docs/configuration.md, and deploy/klad.toml, from the definitions in src/cli.rs.
set -eu

cd "$(dirname "$0")/.."
program=$(tools/build.sh)

# By way of other files: a program that fails must not leave an empty page behind.
new=$(mktemp -d)
trap 'rm -r "$new"' EXIT
"$program" config reference --page docs/configuration.md >"$new/configuration.md"
"$program" config reference >"$new/klad.toml"
mkdir -p deploy
cp "$new/configuration.md" docs/configuration.md
cp "$new/klad.toml" deploy/klad.toml
