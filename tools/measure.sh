#!/bin/sh
# `make measure`: runs the measurements of a release: the tests in tests/measure, one at a time, then all measurements
# of xtask except `cluster`, then the experiment `overload`, which prints where its report is. Takes about an hour and a
# half on a quiet machine, and needs redis-server, redis-benchmark and vmtouch. ARGS has options of `klad lab run`, such
# as --scale 0.1.
set -eu

cd "$(dirname "$0")/.."
. tools/env.sh
program=$(tools/build.sh)
failed=

echo "== tests/measure"
cargo test --release --locked --workspace --test measure -- --test-threads=1 || failed="$failed tests/measure"
for chore in bench-truth bulk memory restart stops profile-cost console-cost yardstick; do
    echo "== $chore"
    "$CARGO_TARGET_DIR/release/xtask" "$chore" || failed="$failed $chore"
done
echo "== overload"
out=$CARGO_TARGET_DIR/measure/overload-$(date -u +%Y%m%dT%H%M%S)
"$program" lab run overload --out "$out" "$@" || failed="$failed overload"
if [ -n "$failed" ]; then
    echo "exceeded or failed:$failed" >&2
    exit 1
fi
