#!/usr/bin/env bash
# `make dist`: packages the built program into dist/: a tarball, and a .deb if dpkg is present.
#
#   tools/dist.sh [--binary FILE] [--out DIR]
#
# The same commit and program give the same bytes: names are sorted, times are those of the commit, and the owner is
# root.
set -euo pipefail

cd "$(dirname "$0")/.."
. tools/env.sh
umask 022
binary=
out=dist
while [ $# -gt 0 ]; do
    case "$1" in
    --binary) binary=$2 ;;
    --out) out=$2 ;;
    *)
        echo "klad: usage: tools/dist.sh [--binary FILE] [--out DIR]" >&2
        exit 2
        ;;
    esac
    shift 2
done
[ -n "$binary" ] || binary=$(tools/build.sh)

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
if [ "$("$binary" --version)" != "klad $version" ]; then
    echo "klad: $binary is $("$binary" --version), and Cargo.toml says $version: build it anew" >&2
    exit 1
fi
# Time stamp of all files in packages. For a source tree without git, the environment can set it.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}"
scratch=$(mktemp -d)
trap 'rm -r "$scratch"' EXIT
mkdir -p "$out"
export KLAD_BINARY=$binary THIRD_PARTY=$scratch/THIRD-PARTY.txt
tools/third-party.sh >"$THIRD_PARTY"

# Sets the time stamp of every file in a tree.
settle() {
    find "$1" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
}

tarball() {
    local name
    name=klad-$version-$(uname -m)-linux
    DESTDIR=$scratch/tar PREFIX=/usr/local tools/install.sh install
    mv "$scratch/tar/usr/local" "$scratch/$name"
    # Documents are at the top. The configuration is an example that the user copies into place.
    cp README.md LICENSE "$scratch/$name/"
    settle "$scratch/$name"
    tar --create --directory "$scratch" --format gnu --sort name --owner 0 --group 0 --numeric-owner "$name" |
        gzip --no-name >"$out/$name.tar.gz"
    echo "$out/$name.tar.gz"
}

# Prints the packages of the libraries that the program is linked to, as Debian's own tool finds them.
libraries() {
    mkdir -p "$scratch/shlibs/debian"
    printf 'Source: klad\n\nPackage: klad\nArchitecture: any\n' >"$scratch/shlibs/debian/control"
    (cd "$scratch/shlibs" && dpkg-shlibdeps -O "$1") | sed -n 's/^shlibs:Depends=//p'
}

debian() {
    local arch tree=$scratch/deb maintainer='the klad maintainers <maintainers@klad.invalid>'
    arch=$(dpkg --print-architecture)
    DESTDIR=$tree PREFIX=/usr ZSHDIR=/usr/share/zsh/vendor-completions tools/install.sh install
    # The place and the format that Debian requires.
    gzip --no-name --best "$tree"/usr/share/man/man1/*.1
    rm "$tree/usr/share/doc/klad/LICENSE"
    printf 'klad (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md beside this file.\n\n -- %s  %s\n' "$version" \
        "$maintainer" "$(LC_ALL=C date --utc --rfc-email --date "@$SOURCE_DATE_EPOCH")" |
        gzip --no-name --best >"$tree/usr/share/doc/klad/changelog.gz"
    install -m 644 deploy/debian/copyright "$tree/usr/share/doc/klad/copyright"
    install -D -m 644 deploy/debian/lintian-overrides "$tree/usr/share/lintian/overrides/klad"
    mkdir "$tree/DEBIAN"
    install -m 755 deploy/debian/postinst deploy/debian/prerm deploy/debian/postrm "$tree/DEBIAN/"
    echo /etc/klad/klad.toml >"$tree/DEBIAN/conffiles"
    (cd "$tree" && find etc usr -type f ! -path etc/klad/klad.toml -print0 | LC_ALL=C sort -z | xargs -0 md5sum) \
        >"$tree/DEBIAN/md5sums"
    local depends
    depends=$(libraries "$tree/usr/bin/klad")
    cat >"$tree/DEBIAN/control" <<CONTROL
Package: klad
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du --summarize --apparent-size --block-size=1024 --exclude=DEBIAN "$tree" | cut -f 1)
Depends: $depends, systemd | systemd-standalone-sysusers
Suggests: ca-certificates
Section: database
Priority: optional
Description: durable key-value store with an HTTP interface
 klad keeps keys and values, each any bytes, on an embedded RocksDB, and serves
 them over HTTP/1.1: points, and ranges in key order. Every write says what it
 has survived by the time it is answered. Memory, queues and waits are bounded,
 and overload is refused before anything has happened.
 .
 The package holds the server with its service for systemd, the client for the
 command line, and a load tester for any HTTP server.
CONTROL
    chmod 644 "$tree"/DEBIAN/control "$tree"/DEBIAN/conffiles "$tree"/DEBIAN/md5sums
    settle "$tree"
    dpkg-deb --root-owner-group --build "$tree" "$out/klad_${version}_$arch.deb" >/dev/null
    echo "$out/klad_${version}_$arch.deb"
}

tarball
if command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null; then
    debian
else
    echo "klad: no .deb: it needs dpkg-deb and dpkg-shlibdeps (package dpkg-dev)" >&2
fi
