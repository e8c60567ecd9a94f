#!/usr/bin/env bash
# Runs the phases of the checks, prints the name of each when it begins, and at the end the time of each. `make test`
# runs all phases, `make lint` three. The first phase that fails ends the run.
#
#   tools/test.sh [PHASE...]        format, build, clippy, clippy-measure, fjall-alone, memory-engine, test, dist
#
# The phases that need RocksDB use `--release --locked`. Another profile, or flags in RUSTFLAGS, would compile its C++
# a second time.
set -euo pipefail

cd "$(dirname "$0")/.."
. tools/env.sh
# Most tests wait for a server, a timeout or a sync, so more of them than cores run at once.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-10}"
# The job server of make is not the one of cargo.
unset MAKEFLAGS MFLAGS MAKELEVEL

all=(format build clippy clippy-measure fjall-alone memory-engine test dist)

# Prints the command of a phase on one line.
command_of() {
    case "$1" in
    format) echo cargo fmt --all --check ;;
    # The first phase that compiles, so that the time for C++ is not counted in another phase.
    build) echo cargo test --release --locked --workspace --no-run ;;
    clippy) echo cargo clippy --release --locked --workspace --all-targets -- -D warnings ;;
    # `--all-targets` leaves out a target with `test = false`.
    clippy-measure) echo cargo clippy --release --locked --workspace --test measure -- -D warnings ;;
    # klad with fjall alone has no C++, and keeps data on a disk. It is only compiled: the phase `test` tests fjall.
    fjall-alone)
        echo cargo check --locked --package klad --tests --no-default-features --features fjall --target-dir "$CARGO_TARGET_DIR/memory-engine"
        ;;
    # klad without RocksDB and fjall: compiles it without optimization, and runs the contract tests. The target
    # directory is not the usual one, so that this klad does not replace the complete one.
    memory-engine)
        echo cargo test --locked --package klad --no-default-features --target-dir "$CARGO_TARGET_DIR/memory-engine" --test it -- contract
        ;;
    test) echo tools/cargo-test.sh --release --locked --workspace ;;
    # Tests packages of the program that an earlier phase has built.
    dist) echo tools/dist-test.sh ;;
    *) return 1 ;;
    esac
}

phases=("$@")
[ $# -gt 0 ] || phases=("${all[@]}")
for phase in "${phases[@]}"; do
    if ! command_of "$phase" >/dev/null; then
        echo "there is no phase $phase; there are: ${all[*]}" >&2
        exit 2
    fi
done

for component in fmt clippy; do
    if ! cargo "$component" --version >/dev/null 2>&1; then
        echo "cargo $component is missing: rustup component add rustfmt clippy" >&2
        exit 1
    fi
done

summary=()

report() {
    printf '%s\n' "${summary[@]}" "total: $SECONDS s"
}

SECONDS=0
for phase in "${phases[@]}"; do
    read -r -a command <<<"$(command_of "$phase")"
    echo "== phase $phase: ${command[*]}"
    begin=$SECONDS
    if "${command[@]}"; then
        summary+=("phase $phase: $((SECONDS - begin)) s")
    else
        status=$?
        summary+=("phase $phase: failed after $((SECONDS - begin)) s")
        report
        exit "$status"
    fi
done
report
