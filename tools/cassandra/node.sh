#!/bin/sh
# Runs one Cassandra node of a small cluster on this machine, for `make cluster` and the tests. The node replaces this
# process, and logs to standard output. `tools/setup.sh cluster` installs what it needs.
#
#   tools/cassandra/node.sh DIRECTORY BLOCK NODE NODES
#
# The nodes count from 1. Node 2 of block 7 has the address 127.0.7.2, port 9042 for clients and 7000 for other nodes.
# Its data is in DIRECTORY; a node that starts there again keeps it.
set -eu

directory=$1 block=$2 node=$3 nodes=$4
address="127.0.$block.$node"
jars="${XDG_CACHE_HOME:-$HOME/.cache}/klad/tools/cassandra/lib"

# Cassandra 5.0 runs on Java 17, which need not be the default of the machine.
java=java
for found in /usr/lib/jvm/java-17-openjdk*/bin/java; do
    [ ! -x "$found" ] || java=$found
done

mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
echo $$ >"$directory/pid"

# All nodes may start at the same time, because each knows its token and waits for no other one. A production cluster
# has other settings: docs/cluster.md.
cat >"$directory/cassandra.yaml" <<END
cluster_name: klad
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "127.0.$block.1"
listen_address: $address
rpc_address: $address
num_tokens: 1
initial_token: $((-9223372036854775807 - 1 + (node - 1) * (9223372036854775807 / nodes * 2)))
auto_bootstrap: false
commitlog_sync: batch
storage_compatibility_mode: NONE
paxos_variant: v2
paxos_state_purging: repaired
# Notices within seconds that a node is down.
phi_convict_threshold: 5
END
# Settings of the tests, one on each line.
echo "${CASSANDRA_YAML:-}" >>"$directory/cassandra.yaml"
cat >"$directory/logback.xml" <<'END'
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date %level %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="OUT" /></root>
</configuration>
END

set --
for name in java.base/jdk.internal.misc java.base/java.lang.ref java.management.rmi/com.sun.jmx.remote.internal.rmi \
    java.rmi/sun.rmi.registry java.rmi/sun.rmi.server java.sql/java.sql jdk.unsupported/sun.misc; do
    set -- "$@" --add-exports "$name=ALL-UNNAMED"
done
for name in java.base/java.lang.module java.base/jdk.internal.loader java.base/jdk.internal.ref \
    java.base/jdk.internal.reflect java.base/jdk.internal.math java.base/jdk.internal.module \
    java.base/jdk.internal.util.jar jdk.management/com.sun.management.internal java.base/sun.nio.ch java.base/java.io \
    java.base/java.lang java.base/java.lang.reflect java.base/java.util java.base/java.nio; do
    set -- "$@" --add-opens "$name=ALL-UNNAMED"
done
# A small heap, and only the quick compiler: a node starts in seconds and takes about 550 MB. Cassandra reads the clock
# every 20 ms for most purposes: with its default of 2 ms an idle node takes twice as much CPU time.
exec "$java" -Xms256M -Xmx256M -Xss512k -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:MaxDirectMemorySize=256M \
    -XX:ReservedCodeCacheSize=96m -XX:+ExitOnOutOfMemoryError -Djdk.attach.allowAttachSelf=true "$@" \
    -Dcassandra.config="file://$directory/cassandra.yaml" -Dcassandra.storagedir="$directory" \
    -Dcassandra.logdir="$directory" -Dcassandra-foreground=yes -Dcassandra.skip_wait_for_gossip_to_settle=0 \
    -Dcassandra.superuser_setup_delay_ms=0 -Dcassandra.approximate_time_precision_ms=20 \
    -Dlogback.configurationFile="$directory/logback.xml" -cp "$jars/*" org.apache.cassandra.service.CassandraDaemon
