#!/bin/sh
# `make install` and `make uninstall`: puts klad and what belongs to it into a tree, and takes it out again. The packages are made
# from such trees (tools/dist.sh), so that there is one list of files.
#
#   tools/install.sh install|uninstall
#
# PREFIX (default /usr/local) and DESTDIR are what they are elsewhere; SYSCONFDIR is /etc, and ZSHDIR where zsh looks. KLAD_BINARY
# names the program, which is otherwise the one that `make build` has built; nothing is built here, because it may be root who
# installs. THIRD_PARTY names the notices of other projects, where they were gathered.
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
    # As tools/env.sh has it; below sudo for whoever called it, who has built.
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
        say "there is no program at $binary: make build, or say KLAD_BINARY=..."
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
    # The configuration belongs to whoever changes it.
    [ -e "$root$config" ] || put 644 deploy/klad.toml "$config"
}

uninstall_all() {
    rm -f "$root$prefix/bin/klad" "$root$man/klad.1" "$root$man"/klad-*.1 "$root$bash/klad" "$root$zsh/_klad" \
        "$root$fish/klad.fish" "$root$units/klad.service" "$root$users/klad.conf"
    rm -rf "${root:?}$doc"
    say "what was configured and stored is kept: $config, /var/lib/klad, and the user klad"
}

# An empty DESTDIR is the machine itself, which `rm` above must be able to say.
[ -n "$root" ] || root=/
case "${1:-}" in
install) install_all ;;
uninstall) uninstall_all ;;
*)
    say "usage: tools/install.sh install|uninstall"
    exit 2
    ;;
esac
