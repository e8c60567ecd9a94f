#!/usr/bin/env bash
# Runs the phases of the checks, prints the name of each when it begins, and at the end the time of each. `make test`
# runs all phases, `make lint` two. The first phase that fails ends the run.
#
#   tools/test.sh [PHASE...]        format, build, clippy, fjall-alone, memory-engine, test, dist
#
# All phases use `--release --locked`. Another profile, or flags in RUSTFLAGS, would compile RocksDB's C++ again.
set -euo pipefail

cd "$(dirname "$0")/.."
. tools/env.sh
# The job server of make is not the one of cargo.
unset MAKEFLAGS MFLAGS MAKELEVEL

all=(format build clippy fjall-alone memory-engine test dist)

# Prints the command of a phase on one line.
command_of() {
    case "$1" in
    format) echo cargo fmt --all --check ;;
    # The first phase that compiles, so that the time for C++ is not counted in another phase.
    build) echo cargo test --release --locked --workspace --no-run ;;
    clippy) echo cargo clippy --release --locked --workspace --all-targets -- -D warnings ;;
    # An engine on a disk without C++. This phase only compiles; `test` runs the tests of this engine.
    fjall-alone)
        echo cargo check --release --locked --package klad --tests --no-default-features --features fjall --target-dir "$CARGO_TARGET_DIR/memory-engine"
        ;;
    # Without RocksDB and fjall klad has only the memory engine. The program goes to another target directory, so that
    # it does not replace the full one.
    memory-engine)
        echo cargo test --release --locked --package klad --no-default-features --target-dir "$CARGO_TARGET_DIR/memory-engine"
        ;;
    test) echo cargo test --release --locked --workspace ;;
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
