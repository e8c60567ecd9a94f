#!/bin/sh
# Checks that the machine has what a build needs, and with the word `test` what the tests need too. Every target of
# the Makefile but `help`, `install` and `uninstall` calls it first.
#
# Prints nothing and takes milliseconds if nothing is missing. On Debian and Ubuntu it installs what is missing, with
# sudo unless it runs as root. On other systems it prints what to install, and fails. It never installs Rust.
#
#   tools/setup.sh [test|dist]      both also check the programs that make and test Debian packages, if dpkg is present
#   tools/setup.sh bench            valgrind and the runner of `cargo bench`
#   tools/setup.sh cluster          Java 17 and Cassandra, for `make cluster` and the tests of `--engine cassandra`
set -eu

cd "$(dirname "$0")/.."
. tools/env.sh

say() { echo "klad: $*" >&2; }

purpose=${1:-build}
# Directory of programs that are unpacked and not installed; tests/it/support/programs.rs looks here too.
programs="${XDG_CACHE_HOME:-$HOME/.cache}/klad/tools"

# --- Rust ------------------------------------------------------------------------------------------------------------

rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)

if ! command -v cargo >/dev/null 2>&1 || ! command -v rustc >/dev/null 2>&1; then
    say "cargo is missing. Install Rust $rust_wanted or newer with rustup (https://rustup.rs), open a new shell, and try again:"
    say "    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    exit 1
fi

# "rustc 1.95.0 (59807616e 2026-04-14)" becomes 1 and 95.
rust_found=$(rustc --version | cut -d ' ' -f 2)
found_major=${rust_found%%.*}
found_minor=${rust_found#*.}
found_minor=${found_minor%%.*}
wanted_major=${rust_wanted%%.*}
wanted_minor=${rust_wanted#*.}
wanted_minor=${wanted_minor%%.*}
if [ "$found_major" -lt "$wanted_major" ] ||
    { [ "$found_major" -eq "$wanted_major" ] && [ "$found_minor" -lt "$wanted_minor" ]; }; then
    say "rustc is $rust_found, klad needs $rust_wanted or newer (rust-version in Cargo.toml): rustup update stable"
    exit 1
fi

# --- Everything else -------------------------------------------------------------------------------------------------

any() {
    for path in "$@"; do
        if [ -e "$path" ]; then return 0; fi
    done
    return 1
}

# libclang and its own headers. Without them the generator of the bindings does not find stddef.h.
have_libclang() {
    if [ -n "${LIBCLANG_PATH:-}" ]; then return 0; fi
    any /usr/lib/llvm*/lib/libclang.so* /usr/lib/llvm*/lib/libclang-*.so* /usr/lib/libclang.so* /usr/lib64/libclang.so* \
        /usr/lib64/llvm*/lib*/libclang.so* /usr/lib/*/libclang-*.so* /usr/local/lib/libclang.so* \
        /Library/Developer/CommandLineTools/usr/lib/libclang.dylib \
        /Applications/Xcode.app/Contents/Developer/Toolchains/XcodeDefault.xctoolchain/usr/lib/libclang.dylib \
        /opt/homebrew/opt/llvm/lib/libclang.dylib /usr/local/opt/llvm/lib/libclang.dylib || return 1
    [ "$(uname)" = Darwin ] ||
        any /usr/lib/llvm*/lib/clang/*/include/stddef.h /usr/lib/clang/*/include/stddef.h \
            /usr/lib64/clang/*/include/stddef.h /usr/lib64/llvm*/lib*/clang/*/include/stddef.h \
            /usr/local/lib/clang/*/include/stddef.h
}

# Debian has Chromium without windows as a program of its own, which starts with a third of the CPU time.
have_browser() {
    [ -x /usr/lib/chromium/chromium-headless-shell ] ||
        { ! command -v apt-get >/dev/null 2>&1 && command -v chromium >/dev/null 2>&1; }
}

# Sets `missing` to the names of the missing things; `package` maps these names to packages.
look() {
    missing=
    command -v cc >/dev/null 2>&1 && command -v c++ >/dev/null 2>&1 || missing="$missing compiler"
    command -v make >/dev/null 2>&1 || missing="$missing make"
    have_libclang || missing="$missing libclang"
    command -v ccache >/dev/null 2>&1 || missing="$missing ccache"
    command -v curl >/dev/null 2>&1 || missing="$missing curl"
    if [ "$purpose" = bench ]; then
        command -v valgrind >/dev/null 2>&1 || missing="$missing valgrind"
        return
    fi
    if [ "$purpose" = cluster ]; then
        any /usr/lib/jvm/java-17-openjdk*/bin/java || java -version 2>&1 | grep -q 'version "17\.' || missing="$missing java"
        command -v mvn >/dev/null 2>&1 || missing="$missing maven"
        return
    fi
    if [ "$purpose" != build ] && command -v dpkg-deb >/dev/null 2>&1; then
        command -v dpkg-shlibdeps >/dev/null 2>&1 || missing="$missing dpkg-dev"
        command -v systemd-analyze >/dev/null 2>&1 || missing="$missing systemd"
    fi
    # Checks /metrics, the alerts and the dashboard.
    [ "$purpose" != test ] || [ -x "$programs/promtool" ] || command -v promtool >/dev/null 2>&1 ||
        missing="$missing promtool"
    # Check profiles: `go tool pprof` reads them, and a browser opens their pictures.
    [ "$purpose" != test ] || command -v go >/dev/null 2>&1 || missing="$missing go"
    [ "$purpose" != test ] || have_browser || missing="$missing browser"
    # Drives chromium in the tests of the console.
    [ "$purpose" != test ] || command -v chromedriver >/dev/null 2>&1 || missing="$missing chromedriver"
    # The terminal of the tests of `klad top`.
    [ "$purpose" != test ] || command -v tmux >/dev/null 2>&1 || missing="$missing tmux"
    # Runs schemathesis, which tests the OpenAPI document against a server.
    [ "$purpose" != test ] || python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python"
    # Runs the same scripts as `klad bench`, for comparison.
    [ "$purpose" != test ] || command -v wrk >/dev/null 2>&1 || missing="$missing wrk"
    # Proxies in front of klad.
    for proxy in nginx haproxy; do
        [ "$purpose" != test ] || [ -x "$programs/$proxy" ] || [ -x "/usr/sbin/$proxy" ] ||
            command -v "$proxy" >/dev/null 2>&1 || missing="$missing $proxy"
    done
}

# The module that checks histories, in the version of tests/porcupine/go.sum. Does nothing if it is in Go's cache.
fetch_modules() {
    [ "$purpose" != test ] || (cd tests/porcupine && GO111MODULE=on GOFLAGS='' GOTOOLCHAIN=local go mod download)
}

# Debian's packages of servers would start them, so this extracts only the one program.
#   unpack PACKAGE PATH
unpack() {
    scratch=$(mktemp -d)
    (
        cd "$scratch" && apt-get download -qq "$1" 2>/dev/null && dpkg-deb --fsys-tarfile "$1"_*.deb | tar -x "./$2" &&
            mkdir -p "$programs" && mv "$2" "$programs/${2##*/}"
    ) && status=0 || status=1
    rm -r "$scratch"
    [ $status -eq 0 ] || say "cannot extract ${2##*/} from Debian's package $1"
}

# Prints the libraries that a package needs.
libraries() {
    apt-cache depends "$1" | sed -n 's/^ *Depends: \(lib[^ ]*\|zlib1g\)$/\1/p'
}

# Prints the package of a thing on a system, or "-" if the system contains it.
package() {
    case "$1:$2" in
    debian:compiler) echo g++ ;;
    debian:libclang) echo libclang-dev ;;
    debian:promtool | debian:nginx | debian:haproxy) echo "-" ;;
    debian:browser) echo chromium-headless-shell ;;
    *:browser) echo chromium ;;
    debian:chromedriver) echo chromium-driver ;;
    debian:go) echo golang-go ;;
    debian:python) echo python3-venv ;;
    debian:java) echo openjdk-17-jdk-headless ;;
    fedora:java) echo java-17-openjdk-headless ;;
    arch:java) echo jdk17-openjdk ;;
    macos:java) echo openjdk@17 ;;
    fedora:python) echo python3 ;;
    arch:chromedriver) echo chromium ;;
    fedora:go) echo golang ;;
    fedora:compiler) echo gcc-c++ ;;
    fedora:libclang) echo clang-devel ;;
    fedora:promtool) echo golang-github-prometheus ;;
    arch:promtool | macos:promtool) echo prometheus ;;
    arch:compiler) echo gcc ;;
    arch:libclang) echo clang ;;
    macos:compiler | macos:make | macos:libclang) echo "-" ;;
    *) echo "$2" ;;
    esac
}

packages() {
    system=$1
    list=
    for thing in $missing; do
        name=$(package "$system" "$thing")
        [ "$name" = "-" ] || list="$list $name"
    done
    echo "${list# }"
}

# Installs the version that Cargo.toml names, because gungraun rejects others.
bring_runner() {
    runner=$(sed -n 's/^gungraun = { version = "=\([^"]*\)".*/\1/p' Cargo.toml)
    case "$(gungraun-runner --version 2>/dev/null)" in
    *"$runner"*) ;;
    *)
        say "installing the runner of cargo bench: gungraun-runner $runner"
        env -u CARGO_TARGET_DIR cargo install --quiet --locked --version "$runner" gungraun-runner
        ;;
    esac
}

# Installs schemathesis with pip into a directory of its own, again if its versions have changed.
bring_schemathesis() {
    versions=tests/schemathesis/requirements.txt
    directory="$programs/schemathesis"
    # The copy is the last file that is written.
    if cmp -s "$versions" "$directory/requirements.txt"; then return 0; fi
    say "installing schemathesis into $directory"
    rm -rf "$directory"
    if ! { python3 -m venv "$directory" &&
        "$directory/bin/pip" install --quiet --disable-pip-version-check --requirement "$versions" &&
        cp "$versions" "$directory/requirements.txt"; }; then
        say "cannot install schemathesis (see above)"
        exit 1
    fi
}

# Copies Cassandra's jars into a directory of its own, again if the version has changed.
bring_cassandra() {
    directory="$programs/cassandra"
    # The copy is the last file that is written.
    if cmp -s tools/cassandra/pom.xml "$directory/pom.xml"; then return 0; fi
    say "copying Cassandra's jars into $directory"
    rm -rf "$directory"
    if ! { mvn --quiet --batch-mode --file tools/cassandra/pom.xml dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$directory/lib" && cp tools/cassandra/pom.xml "$directory/"; }; then
        say "cannot fetch Cassandra's jars (see above)"
        exit 1
    fi
}

# Brings what comes from other places than the system's packages.
bring() {
    fetch_modules
    case "$purpose" in
    test) bring_schemathesis ;;
    cluster) bring_cassandra ;;
    esac
}

look
[ "$purpose" != bench ] || bring_runner
if [ -z "$missing" ]; then
    bring
    exit 0
fi

case "$(uname)" in
Darwin) system=macos ;;
*)
    if command -v apt-get >/dev/null 2>&1; then
        system=debian
    elif command -v dnf >/dev/null 2>&1; then
        system=fedora
    elif command -v pacman >/dev/null 2>&1; then
        system=arch
    else
        system=other
    fi
    ;;
esac

list=$(packages "$system")
case "$system" in
debian)
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        as_root=sudo
        if ! command -v sudo >/dev/null 2>&1; then
            say "missing:$missing. As root: apt-get update && apt-get install -y $list, then try again"
            exit 1
        fi
    fi
    say "installing what is missing:$missing${list:+ (${as_root:+$as_root }apt-get install $list)}"
    # shellcheck disable=SC2086
    if ! { $as_root apt-get update -qq && { [ -z "$list" ] ||
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $list >/dev/null; }; }; then
        say "apt-get failed (see above); missing:$missing"
        exit 1
    fi
    for thing in $missing; do
        case "$thing" in
        promtool) unpack prometheus usr/bin/promtool ;;
        nginx | haproxy)
            # shellcheck disable=SC2046
            $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
                $(libraries "$thing") >/dev/null
            unpack "$thing" "usr/sbin/$thing"
            ;;
        esac
    done
    look
    if [ -n "$missing" ]; then
        say "still missing after the installation:$missing"
        exit 1
    fi
    bring
    ;;
fedora)
    say "missing:$missing. Install with: sudo dnf install $list"
    exit 1
    ;;
arch)
    say "missing:$missing. Install with: sudo pacman -S --needed $list"
    exit 1
    ;;
macos)
    say "missing:$missing. Install with: xcode-select --install${list:+, and: brew install $list}"
    exit 1
    ;;
*)
    say "missing:$missing. Install a C and C++ compiler, make, libclang with its headers, ccache, curl, for the tests promtool, go, chromium with chromedriver, tmux, python 3, wrk, nginx and haproxy, and for a cluster Java 17 and maven"
    exit 1
    ;;
esac
