#!/usr/bin/env bash
# `make test`, phase test: runs `cargo test ARGS`. If at most three tests failed, runs these again, one at a time.
#
# A test that passes then needs a quiet machine. That is a defect of the test: mend it. It does not fail the run, because
# a change must not wait for a defect that is older than it. The line `FLAKY: NAME` names it.
set -euo pipefail

log=$(mktemp)
trap 'rm "$log"' EXIT
if cargo test --no-fail-fast "$@" 2>&1 | tee "$log"; then
    exit 0
fi
# Each binary lists the names of its failed tests, indented, after its last line `failures:`.
mapfile -t names < <(sed -n '/^failures:$/,/^test result:/s/^    \([a-z0-9_:]*\)$/\1/p' "$log" | sort -u)
failed=$(sed -n 's/^test result: FAILED\. [0-9]* passed; \([0-9]*\) failed;.*/\1/p' "$log" | awk '{ sum += $1 } END { print sum + 0 }')
binaries=$(sed -n 's/^error: \([0-9]*\) targets\? failed:$/\1/p' "$log")
told=$(grep -c '^test result: FAILED' "$log" || true)
# A binary that ended by a signal names no test, and neither does code that does not compile.
if [ "$failed" -lt 1 ] || [ "$failed" -gt 3 ] || [ "$failed" -ne "${#names[@]}" ] || [ "$told" != "$binaries" ]; then
    exit 101
fi
echo "== again, one at a time: ${names[*]}"
cargo test "$@" -- --exact --test-threads 1 "${names[@]}" 2>&1 | tee "$log"
passed=$(sed -n 's/^test result: ok\. \([0-9]*\) passed;.*/\1/p' "$log" | awk '{ sum += $1 } END { print sum + 0 }')
if [ "$passed" -lt "${#names[@]}" ]; then
    echo "only $passed of ${#names[@]} tests ran again" >&2
    exit 101
fi
printf 'FLAKY: %s\n' "${names[@]}"
