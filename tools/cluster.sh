#!/usr/bin/env bash
# `make cluster`: runs three Cassandra nodes and three klads on this machine, and prints their addresses and process
# ids. Ctrl-C stops the klads and then the nodes. Their data stays in ./cluster; the next run continues with it.
#
# The addresses are 127.0.7.1 to 127.0.7.3. CLUSTER_BLOCK in the environment replaces the 7.
set -euo pipefail

cd "$(dirname "$0")/.."
block=${CLUSTER_BLOCK:-7}
program=$(tools/build.sh)
directory="$PWD/cluster/$block"
mkdir -p "$directory"
nodes=() klads=()

# start LOG COMMAND...: starts the command in a process group of its own, so that Ctrl-C reaches this script alone.
# Sets `started` to its process id.
start() {
    local log=$1
    shift
    set -m
    "$@" >"$log" 2>&1 </dev/null &
    set +m
    started=$!
}

stop() {
    trap '' INT TERM
    for group in klads nodes; do
        local -n processes=$group
        [ ${#processes[@]} -gt 0 ] || continue
        echo "stopping the $group"
        kill "${processes[@]}" 2>/dev/null || true
        # A stopped process (SIGSTOP) ends only after SIGCONT.
        kill -CONT "${processes[@]}" 2>/dev/null || true
        wait "${processes[@]}" 2>/dev/null || true
    done
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# wait_for WHAT LOG PROCESS COMMAND...: waits until the command succeeds. Ends the script if the process ends.
wait_for() {
    local what=$1 log=$2 process=$3
    shift 3
    until "$@"; do
        if ! kill -0 "$process" 2>/dev/null; then
            echo "$what has ended; the end of $log:" >&2
            tail -n 20 "$log" >&2
            exit 1
        fi
        sleep 0.2
    done
}

if (exec 3<>"/dev/tcp/127.0.$block.1/9042") 2>/dev/null; then
    echo "127.0.$block.1:9042 is in use: CLUSTER_BLOCK=8 make cluster" >&2
    exit 1
fi

echo "starting three Cassandra nodes, which takes about half a minute"
for number in 1 2 3; do
    start "$directory/node$number.log" tools/cassandra/node.sh "$directory/node$number" "$block" "$number" 3
    nodes+=("$started")
done
for number in 1 2 3; do
    log="$directory/node$number.log"
    wait_for "node $number" "$log" "${nodes[number - 1]}" grep -q 'Startup complete' "$log"
done

for number in 1 2 3; do
    for other in 1 2 3; do
        [ "$number" = "$other" ] && continue
        log="$directory/node$number.log"
        wait_for "node $number" "$log" "${nodes[number - 1]}" grep -q "/127.0.$block.$other:7000 .*now UP" "$log"
    done
done

points="127.0.$block.1,127.0.$block.2,127.0.$block.3"
"$program" cluster init --contact-points "$points" --replication datacenter1:3

for number in 1 2 3; do
    start "$directory/klad$number.log" "$program" serve --engine cassandra --contact-points "$points" \
        --local-datacenter datacenter1 --listen "127.0.$block.$number:8080" --admin-listen "127.0.$block.$number:8081"
    klads+=("$started")
done
for number in 1 2 3; do
    ready="http://127.0.$block.$number:8081/readyz"
    wait_for "klad $number" "$directory/klad$number.log" "${klads[number - 1]}" curl -sfo /dev/null "$ready"
done

echo
for number in 1 2 3; do
    echo "node $number: 127.0.$block.$number:9042, process ${nodes[number - 1]}, log $directory/node$number.log"
done
for number in 1 2 3; do
    echo "klad $number: http://127.0.$block.$number:8080, process ${klads[number - 1]}, log $directory/klad$number.log"
done
cat <<END

Try it (docs/cluster.md says more):
    curl -X PUT --data-binary hello 'http://127.0.$block.1:8080/v1/kv/greeting'
    kill -9 ${nodes[2]}
    curl 'http://127.0.$block.2:8080/v1/kv/greeting'
Ctrl-C stops the klads and the nodes.
END
wait "${nodes[@]}" "${klads[@]}" || true
