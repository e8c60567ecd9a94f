#!/bin/sh
# `make install` and `make uninstall`: install klad and its files into a tree, and remove them. tools/dist.sh makes
# the packages from such trees, so there is only one list of files.
#
#   tools/install.sh install|uninstall
#
# PREFIX (default /usr/local) and DESTDIR have their usual meaning. SYSCONFDIR is the directory of the configuration
# (default /etc), and ZSHDIR the one of zsh's completions. KLAD_BINARY names the program; the default is the one that
# `make build` has built. This script builds nothing, because root may run it. THIRD_PARTY names the file with the
# notices of other projects.
set -eu

cd "$(dirname "$0")/.."
umask 022
prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}
sysconf=${SYSCONFDIR:-/etc}
doc=$prefix/share/doc/klad
man=$prefix/share/man/man1
bash=$prefix/share/bash-completion/completions
zsh=${ZSHDIR:-$prefix/share/zsh/site-functions}
fish=$prefix/share/fish/vendor_completions.d
units=$prefix/lib/systemd/system
users=$prefix/lib/sysusers.d
config=$sysconf/klad/klad.toml

say() { echo "klad: $*" >&2; }

find_binary() {
    if [ -n "${KLAD_BINARY:-}" ]; then
        echo "$KLAD_BINARY"
        return
    fi
    # The target directory of tools/env.sh. Under sudo, it is that of the user who called sudo and has built klad.
    home=$HOME
    [ -z "${SUDO_USER:-}" ] || home=$(getent passwd "$SUDO_USER" | cut -d : -f 6)
    echo "${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$home/.cache}/klad/target}/release/klad"
}

# put MODE FILE DESTINATION
put() {
    install -D -m "$1" "$2" "$root$3"
}

install_all() {
    binary=$(find_binary)
    if [ ! -x "$binary" ]; then
        say "there is no program at $binary; run make build, or set KLAD_BINARY=..."
        exit 1
    fi
    scratch=$(mktemp -d)
    trap 'rm -r "$scratch"' EXIT

    put 755 "$binary" "$prefix/bin/klad"
    mkdir "$scratch/man"
    "$binary" man --dir "$scratch/man"
    for page in "$scratch"/man/*.1; do
        put 644 "$page" "$man/$(basename "$page")"
    done
    for shell in bash zsh fish; do
        "$binary" completions "$shell" >"$scratch/$shell"
    done
    put 644 "$scratch/bash" "$bash/klad"
    put 644 "$scratch/zsh" "$zsh/_klad"
    put 644 "$scratch/fish" "$fish/klad.fish"
    sed -e "s|/usr/bin/klad|$prefix/bin/klad|" -e "s|/etc/klad|$sysconf/klad|" deploy/klad.service >"$scratch/klad.service"
    put 644 "$scratch/klad.service" "$units/klad.service"
    put 644 deploy/klad.sysusers "$users/klad.conf"

    for file in README.md CHANGELOG.md LICENSE; do
        put 644 "$file" "$doc/$file"
    done
    find docs deploy -type f ! -path 'deploy/debian/*' ! -name klad.service ! -name klad.sysusers | while read -r file; do
        put 644 "$file" "$doc/$file"
    done
    [ -z "${THIRD_PARTY:-}" ] || put 644 "$THIRD_PARTY" "$doc/THIRD-PARTY.txt"
    # An existing configuration is never replaced.
    [ -e "$root$config" ] || put 644 deploy/klad.toml "$config"
}

uninstall_all() {
    rm -f "$root$prefix/bin/klad" "$root$man/klad.1" "$root$man"/klad-*.1 "$root$bash/klad" "$root$zsh/_klad" \
        "$root$fish/klad.fish" "$root$units/klad.service" "$root$users/klad.conf"
    rm -rf "${root:?}$doc"
    say "the configuration and the data are kept: $config, /var/lib/klad, and the user klad"
}

# An empty DESTDIR means the machine itself. `rm` above needs a name for it.
[ -n "$root" ] || root=/
case "${1:-}" in
install) install_all ;;
uninstall) uninstall_all ;;
*)
    say "usage: tools/install.sh install|uninstall"
    exit 2
    ;;
esac
