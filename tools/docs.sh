#!/bin/sh
# `make docs`: generates the marked blocks of docs/configuration.md, and deploy/klad.toml, from the definitions of the
# options and exit codes.
set -eu

cd "$(dirname "$0")/.."
program=$(tools/build.sh)

# Written to other files first, so that a failure does not leave an empty page.
new=$(mktemp -d)
trap 'rm -r "$new"' EXIT
"$program" config reference --page docs/configuration.md >"$new/configuration.md"
"$program" config reference >"$new/klad.toml"
mkdir -p deploy
cp "$new/configuration.md" docs/configuration.md
cp "$new/klad.toml" deploy/klad.toml
