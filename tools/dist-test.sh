#!/usr/bin/env bash
# `make test`, phase dist: makes packages of the built program and checks them. Each check is a function that prints
# what is wrong. Some checks also run on something wrong, which they must find.
set -euo pipefail

cd "$(dirname "$0")/.."
. tools/env.sh
umask 022
binary=${KLAD_BINARY:-$CARGO_TARGET_DIR/release/klad}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
[ -x "$binary" ] || {
    echo "klad: there is no program at $binary; run make build" >&2
    exit 1
}
as_root=
[ "$(id -u)" -eq 0 ] || as_root='unshare --map-root-user'
scratch=$(mktemp -d)
server=
finish() {
    status=$?
    [ -z "$server" ] || kill -9 "$server" 2>/dev/null || true
    rm -r "$scratch"
    exit "$status"
}
trap finish EXIT

passed() { echo "ok: $*"; }
fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# Runs a check that must print nothing.
holds() {
    local what=$1 found
    shift
    found=$("$@" 2>&1) || fail "$what: $found"
    [ -z "$found" ] || fail "$what: $found"
    passed "$what"
}

# Runs a check on something wrong, which it must report.
notices() {
    local what=$1 found
    shift
    if found=$("$@" 2>&1) && [ -z "$found" ]; then
        fail "$what was not noticed: the check does not work"
    fi
    passed "noticed: $what"
}

# --- Checks ----------------------------------------------------------------------------------------------------------

commands=$("$binary" --help | awk '/^Commands:/ { on = 1; next } /^$/ { on = 0 } on && /^  [a-z]/ { print $1 }')

# missing TREE ZSH ENDING: prints files that an installation needs and that are not in a tree. The top of the tree is
# the prefix.
missing() {
    local file pages
    pages=$(for name in $commands; do echo "share/man/man1/klad-$name.1$3"; done)
    for file in bin/klad share/man/man1/klad.1"$3" $pages share/bash-completion/completions/klad "$2/_klad" \
        share/fish/vendor_completions.d/klad.fish lib/systemd/system/klad.service lib/sysusers.d/klad.conf \
        share/doc/klad/README.md share/doc/klad/docs/operations.md share/doc/klad/docs/http-api.md share/doc/klad/deploy/klad.toml \
        share/doc/klad/deploy/Containerfile; do
        # Pages that are elsewhere in the repository, or nowhere, are not part of a package.
        case "$file" in
        share/doc/klad/docs/*) [ -e "${file#share/doc/klad/}" ] || continue ;;
        esac
        [ -s "$1/$file" ] || echo "$file is missing"
    done
}

# serves PROGRAM: starts the program, stores and reads a value, and stops it.
serves() {
    local data=$scratch/data-$RANDOM log=$scratch/log url said
    "$1" serve --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --data "$data" --disk-reserve 1MiB >"$log" 2>&1 &
    server=$!
    for _ in $(seq 600); do
        # The log line in text or JSON.
        url=$(grep -oE '\blisten"?[=:]"?127\.0\.0\.1:[0-9]+' "$log" | head -n 1 | grep -oE '127.*' || true)
        [ -z "$url" ] || break
        kill -0 "$server" || break
        sleep 0.1
    done
    if [ -z "$url" ]; then
        echo "does not serve: $(cat "$log")"
        kill -9 "$server" 2>/dev/null || true
        return
    fi
    export KLAD_URL="http://$url"
    "$1" put --quiet packed 'in a box'
    said=$("$1" get packed)
    [ "$said" = 'in a box' ] || echo "returns $said"
    kill -TERM "$server"
    wait "$server" || echo "ends with $?: $(cat "$log")"
    server=
}

# unit FILE PROGRAM: checks that systemd accepts the unit and rates its exposure as good.
unit() {
    local directory=$scratch/unit-$RANDOM
    mkdir "$directory"
    # The program and the manual page that the unit names must exist for this check.
    sed -e "s|^ExecStart=[^ ]*|ExecStart=$2|" -e '/^Documentation=/d' "$1" >"$directory/klad.service"
    systemd-analyze verify "$directory/klad.service" 2>&1 | grep klad || true
    # The scale goes to 100; systemd rates less than 20 as good.
    systemd-analyze security --no-pager --offline=true --threshold=20 "$directory/klad.service" >"$directory/security" 2>&1 ||
        tail -n 1 "$directory/security"
}

# versions DIRECTORY: checks that the version is the same everywhere.
versions() {
    local tarball deb
    tarball=$(ls "$1"/klad-*.tar.gz)
    case "$tarball" in */klad-"$version"-*-linux.tar.gz) ;; *) echo "the tarball is $tarball" ;; esac
    [ "$("$binary" --version)" = "klad $version" ] || echo "the program is $("$binary" --version)"
    "$binary" man | grep -qF "\"klad $version\"" || echo "the manual page says $("$binary" man | grep '^.TH')"
    grep -qE "^## (Unreleased|$version)" CHANGELOG.md || echo "CHANGELOG.md does not know $version"
    deb=$(ls "$1"/klad_*.deb 2>/dev/null || true)
    [ -z "$deb" ] || [ "$(dpkg-deb --field "$deb" Version)" = "$version" ] || echo "the .deb is $deb"
}

# Runs dpkg in an empty tree, like on a machine without klad's dependencies.
dpkg_in() {
    local root=$1
    shift
    # Without root rights in a user namespace, in which files can belong to root.
    ${as_root:-} dpkg --root="$root" --force-script-chrootless --force-depends --log=/dev/null "$@"
}

bare_root() {
    mkdir -p "$1/var/lib/dpkg/updates" "$1/var/lib/dpkg/info" "$1/etc"
    touch "$1/var/lib/dpkg/status" "$1/var/lib/dpkg/available"
}

# removable ROOT DEB: checks that a removal keeps the configuration, and that a purge keeps the data.
removable() {
    mkdir -p "$1/var/lib/klad/data"
    touch "$1/var/lib/klad/data/precious"
    dpkg_in "$1" --install "$2" >"$scratch/again" 2>&1 || cat "$scratch/again"
    # dpkg warns of directories that are not empty.
    dpkg_in "$1" --remove klad >"$scratch/remove" 2>&1 || cat "$scratch/remove"
    [ ! -e "$1/usr/bin/klad" ] || echo "the program is still there"
    [ -e "$1/etc/klad/klad.toml" ] || echo "the removal deleted the configuration"
    dpkg_in "$1" --purge klad >"$scratch/purge" 2>&1 || cat "$scratch/purge"
    [ ! -e "$1/etc/klad/klad.toml" ] || echo "the purge kept the configuration"
    [ -e "$1/var/lib/klad/data/precious" ] || echo "the purge deleted the data"
    grep -q /var/lib/klad "$scratch/purge" || echo "the purge does not print the directory of the data"
}

# --- Runs ------------------------------------------------------------------------------------------------------------

# A release compresses more, in 25 s of CPU time instead of 4 s.
export DPKG_DEB_COMPRESSOR_LEVEL=1
tools/dist.sh --binary "$binary" --out "$scratch/one" &
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md) \
    tools/dist.sh --binary "$binary" --out "$scratch/two" >/dev/null
wait $!
holds "the same program gives the same packages" diff --recursive "$scratch/one" "$scratch/two"
holds "versions agree" versions "$scratch/one"

name=$(basename "$(ls "$scratch"/one/klad-*.tar.gz)" .tar.gz)
tar --extract --directory "$scratch" --file "$scratch/one/$name.tar.gz"
holds "the tarball is complete" missing "$scratch/$name" share/zsh/site-functions ""
grep -q '^ring .*:' "$scratch/$name/share/doc/klad/THIRD-PARTY.txt" || fail "the notices of other projects are missing"
grep -q '^uPlot .*: LICENSE' "$scratch/$name/share/doc/klad/THIRD-PARTY.txt" || fail "the notice of uPlot is missing"
grep -q '^LuaJIT: COPYRIGHT' "$scratch/$name/share/doc/klad/THIRD-PARTY.txt" || fail "the notice of LuaJIT is missing"
holds "the tarball's program serves" serves "$scratch/$name/bin/klad"
printf '#!/bin/sh\necho broken >&2\nexit 1\n' >"$scratch/broken"
chmod +x "$scratch/broken"
notices "a program that does not serve" serves "$scratch/broken"
rm "$scratch/$name/share/man/man1/klad-put.1"
notices "a missing page" missing "$scratch/$name" share/zsh/site-functions ""

tree=$scratch/tree
make --no-print-directory install DESTDIR="$tree" PREFIX=/opt/klad KLAD_BINARY="$binary" >/dev/null
holds "make install is complete" missing "$tree/opt/klad" share/zsh/site-functions ""
grep -q '^ExecStart=/opt/klad/bin/klad ' "$tree/opt/klad/lib/systemd/system/klad.service" || fail "the unit starts another program"
echo '# mine' >"$tree/etc/klad/klad.toml"
make --no-print-directory install DESTDIR="$tree" PREFIX=/opt/klad KLAD_BINARY="$binary" >/dev/null
make --no-print-directory uninstall DESTDIR="$tree" PREFIX=/opt/klad 2>/dev/null
left=$(cd "$tree" && find . -type f)
[ "$left" = ./etc/klad/klad.toml ] && [ "$(cat "$tree/etc/klad/klad.toml")" = '# mine' ] || fail "make uninstall leaves: $left"
passed "make uninstall keeps the changed configuration, and nothing else"

# The tarball must contain what the image copies.
grep -oE '^COPY --from=unpack (--[^ ]+ )?/klad/[^ ]+' deploy/Containerfile | grep -oE '/klad/.*' | while read -r file; do
    [ -e "$scratch/$name/${file#/klad/}" ] || fail "the container file copies $file, which is not in the tarball"
done
passed "the container file copies only files of the tarball"

if ! command -v systemd-analyze >/dev/null; then
    echo "not run: systemd-analyze is missing, so the unit was not verified"
else
    holds "systemd accepts the unit" unit deploy/klad.service "$binary"
    sed 's/^ProtectSystem=strict/ProtectSystem=stirct/' deploy/klad.service >"$scratch/misspelt"
    notices "a misspelt unit" unit "$scratch/misspelt" "$binary"
    notices "a unit whose program is missing" unit deploy/klad.service /nowhere/klad
    grep -v -E '^(Protect|Private|Restrict|SystemCall|Capab)' deploy/klad.service >"$scratch/unguarded"
    notices "a unit without protection" unit "$scratch/unguarded" "$binary"
fi

deb=$(ls "$scratch"/one/klad_*.deb 2>/dev/null || true)
if [ -z "$deb" ]; then
    echo "not run: dpkg-deb or dpkg-shlibdeps is missing, so no .deb was made"
else
    root=$scratch/root
    bare_root "$root"
    dpkg_in "$root" --install "$deb" >"$scratch/install" 2>&1 || fail "the .deb does not install: $(cat "$scratch/install")"
    passed "the .deb installs into a bare tree"
    holds "the .deb is complete" missing "$root/usr" share/zsh/vendor-completions .gz
    grep -q '^klad:' "$root/etc/passwd" || fail "the .deb creates no user klad"
    holds "the .deb's program serves" serves "$root/usr/bin/klad"
    (cd "$root" && md5sum --quiet --check var/lib/dpkg/info/klad.md5sums) || fail "the checksums of the .deb do not match its files"
    holds "the .deb keeps the data" removable "$root" "$deb"
    dpkg-deb --raw-extract "$deb" "$scratch/raw"
    printf '#!/bin/sh\nrm -rf "$DPKG_ROOT/var/lib/klad"\n' >"$scratch/raw/DEBIAN/postrm"
    dpkg-deb -Znone --build "$scratch/raw" "$scratch/greedy.deb" >/dev/null
    notices "a .deb that deletes the data" removable "$root" "$scratch/greedy.deb"
fi
echo "dist: all checks passed in $SECONDS s"
