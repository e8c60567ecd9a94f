#!/usr/bin/env bash
# Prints the notices of all code in the program: each licence text once, with the names of the projects that use it.
# The licences that deny.toml allows require only their texts, except CDDL (inferno), which also requires the place of
# the source.
# uPlot, which draws the charts of pages, is not a crate: it is in crates/page/src/vendor. Nor are Preact and htm, with
# which the console is written.
set -euo pipefail

cd "$(dirname "$0")/.."
. tools/env.sh
registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT

# Finds the licence texts of one crate by their file names. RocksDB's and jemalloc's crates contain other projects one
# level down.
texts() {
    find "$1" -maxdepth 3 -type f \( -iname 'licen[sc]e*' -o -iname 'copying*' -o -iname 'notice*' -o -iname 'unlicense*' \) \
        ! -name '*.rs' ! -path '*/tests/*' ! -path '*/test/*' ! -path '*/docs/*' ! -path '*/java/*' ! -path '*/examples/*' ! -path '*/programs/*' | LC_ALL=C sort
}

crates=$(cargo tree --locked --offline --package klad --edges normal,no-proc-macro --prefix none --format '{p}|{l}' |
    sed 's/ (\*)$//; s/ (proc-macro)//' | LC_ALL=C sort -u | grep -v -E '^klad(-[a-z]+)? v')
while IFS='|' read -r crate licence; do
    name=${crate%% *}
    version=${crate#* v}
    directory=$(find "$registry" -mindepth 2 -maxdepth 2 -name "$name-${version%% *}" | head -n 1)
    if [ -z "$directory" ]; then
        echo "klad: $name ${version%% *} is not below $registry" >&2
        exit 1
    fi
    echo "$name ${version%% *} ($licence)" >>"$scratch/list"
    while read -r file; do
        [ -n "$file" ] || continue
        # RocksDB and Zstandard have a choice of two licences, and klad uses them under the other one.
        ! head -n 3 "$file" | grep -q 'GNU GENERAL PUBLIC LICENSE' || continue
        sum=$(sha256sum <"$file" | cut -d ' ' -f 1)
        echo "$name ${version%% *}: ${file#"$directory"/}" >>"$scratch/$sum.from"
        [ -e "$scratch/$sum.text" ] || cp "$file" "$scratch/$sum.text"
    done <<<"$(texts "$directory")"
done <<<"$crates"

# The source of LuaJIT comes with a build dependency, and is compiled into the program.
luajit_version=$(sed -n '/^name = "luajit-src"$/{n;s/^version = "\(.*\)"$/\1/p}' Cargo.lock)
luajit=$(find "$registry" -mindepth 2 -maxdepth 2 -name "luajit-src-$luajit_version" | head -n 1)
echo "LuaJIT (luajit-src $luajit_version) (MIT)" >>"$scratch/list"
echo "LuaJIT: COPYRIGHT" >>"$scratch/luajit.from"
cp "$luajit/luajit2/COPYRIGHT" "$scratch/luajit.text"

uplot=crates/page/src/vendor
uplot_version=$(head -n 1 "$uplot/uPlot.iife.min.js" | sed -n 's/.*(v\([0-9.]*\)).*/\1/p')
echo "uPlot $uplot_version (MIT)" >>"$scratch/list"
echo "uPlot $uplot_version: LICENSE" >>"$scratch/uplot.from"
cp "$uplot/LICENSE" "$scratch/uplot.text"

console=crates/server/src/admin/console/assets/vendor
while read -r project licence; do
    version=$(sed -n "s/.*npm package \`$project\` \([0-9.]*\) .*/\1/p" "$console/README.md")
    echo "$project $version ($licence)" >>"$scratch/list"
    echo "$project $version: LICENSE" >>"$scratch/$project.from"
    cp "$console/LICENSE-$project" "$scratch/$project.text"
done <<'END'
htm Apache-2.0
preact MIT
END

echo "klad holds code of these projects; the source of each is on https://crates.io under this name and version, that of uPlot"
echo "on https://github.com/leeoniya/uPlot, and that of Preact and htm on https://www.npmjs.com. Their licences follow."
echo
cat "$scratch/list"
for from in "$scratch"/*.from; do
    printf '\n%s\n' "-------------------------------------------------------------------------------"
    cat "$from"
    echo
    cat "${from%.from}.text"
done
