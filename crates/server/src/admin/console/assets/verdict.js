// Says in short sentences what klad waits for, from the figures of the last ten seconds. The rules are a list of
// functions. Each returns a finding, or null if all is well. A finding is `{ level, text, see }`: `level` is "bad" or
// "warning", and `see` is the id of a chart, or a route.
import { Between } from "./figures.js";
import { bytes, count, plain, seconds, share } from "./format.js";

const WINDOW_MS = 10000;
/**
 * Seconds. The page says that writes wait for the disk only if the p99 of syncs is longer than this, and that reads
 * wait for storage only if the p99 of gets is longer. A fast disk syncs in a tenth of this time.
 */
const SYNC_SLOW_S = 0.01;
const SYNC_BAD_S = 0.1;
/** A queue is standing if the waiting time of its oldest operation never fell below this, seconds. */
const QUEUE_AGE_S = 0.05;

/**
 * The error codes of answers with status 503 and 507. The codes of 4xx are mistakes of the clients, and count as
 * another outcome.
 */
const REFUSALS = [
    "overloaded",
    "no-room",
    "stalled",
    "no-space",
    "memory-full",
    "writes-stopped",
    "stopping",
    "no-version",
];

const DURATION = "klad_http_request_duration_seconds";
const PHASE = "klad_http_request_phase_seconds";

const PHASES = {
    receive: "the clients to send their bodies",
    queue: "storage to take them from its queues",
    engine: "storage",
    sync: "the sync of the log",
    write: "the clients to take their answers",
    worker: "the workers' own work",
};

const bad = (see, text) => ({ level: "bad", see, text });
const warning = (see, text) => ({ level: "warning", see, text });

/** Returns how the time of requests divides into phases, `[[phase, share], ...]`, the largest first. */
function phasesOf(figures, op) {
    const where = { op: op || { not: "changes" } };
    const all = figures.rate(DURATION + "_sum", where);
    if (!all) return [];
    const parts = figures.rates(PHASE + "_sum", "phase", where);
    const rest = all - parts.reduce((sum, [, rate]) => sum + rate, 0);
    return [...parts, ["worker", Math.max(0, rest)]]
        .map(([phase, rate]) => [phase, rate / all])
        .sort((a, b) => b[1] - a[1]);
}

function partOf(figures, op, phase) {
    const found = phasesOf(figures, op).find(([name]) => name === phase);
    return found ? found[1] : 0;
}

const RULES = [
    function notReady(now) {
        if (now.value("klad_ready") !== 0) return null;
        const failed = Object.entries(now.values("klad_ready_check", "check")).filter(([, passes]) => passes === 0);
        const names = failed.map(([name]) => name).join(", ");
        return bad("#/care", "klad is not ready" + (names ? ": the check " + names + " fails." : "."));
    },
    function writesStopped(now) {
        if (now.value("klad_storage_writes_stopped") !== 1) return null;
        return bad(
            "#/care",
            "klad takes no writes until it is started again: a write or sync has failed, or the data directory is " +
                "gone.",
        );
    },
    function storageSilent(now) {
        const age = now.value("klad_storage_observation_age_seconds");
        return age > 5
            ? bad("phases", "Storage has not answered for " + seconds(age) + ": a call to the disk hangs.")
            : null;
    },
    function diskFull(now) {
        const [free, reserve] = [
            now.value("klad_storage_disk_free_bytes"),
            now.value("klad_storage_disk_reserve_bytes"),
        ];
        if (free == null || free >= 3 * reserve) return null;
        if (free < reserve)
            return bad(
                "disk",
                "The disk is full: " +
                    bytes(free) +
                    " are free, less than the reserve of " +
                    bytes(reserve) +
                    ". PUTs are answered 507.",
            );
        return warning(
            "disk",
            "The disk is almost full: " + bytes(free) + " are free, the reserve is " + bytes(reserve) + ".",
        );
    },
    function backgroundErrors(now) {
        return now.rate("klad_rocksdb_background_errors_total") > 0
            ? bad("compaction", "A flush or compaction has failed. The file LOG in the data directory says why.")
            : null;
    },
    function writeStalls(now) {
        const states = now.values("klad_rocksdb_write_stall", "state");
        const rates = Object.fromEntries(now.rates("klad_rocksdb_write_stall_seconds_total", "state"));
        const pending = now.value("klad_rocksdb_pending_compaction_bytes");
        const why = ": flushes and compactions do not keep up" + (pending > 0 ? ", " + bytes(pending) + " wait." : ".");
        if (states.stopped === 1 || rates.stopped > 0.05) return bad("stalls", "RocksDB stops writes" + why);
        if (states.delayed === 1 || rates.delayed > 0.2) return warning("stalls", "RocksDB slows writes down" + why);
        return null;
    },
    function slowSyncs(now) {
        const sync = now.quantile("klad_wal_sync_seconds", 0.99);
        if (!(sync > SYNC_SLOW_S)) return null;
        const took = now.quantileWords("klad_wal_sync_seconds", 0.99);
        const put = now.quantileWords(DURATION, 0.99, { op: "put" });
        const waits = partOf(now, "put", "sync") + partOf(now, "put", "queue");
        // Async writes do not wait for syncs.
        if (put == null || waits < 0.5) return null;
        const text = "Writes wait for the disk: a sync takes " + took + " (p99), a put " + put + ".";
        return sync > SYNC_BAD_S ? bad("syncs", text) : warning("syncs", text);
    },
    function refusals(now) {
        const refused = now.rate(DURATION + "_count", { outcome: "refused" });
        if (!(refused > 0)) return null;
        const all = now.rate(DURATION + "_count");
        const reason = now.rates("klad_refused_total", "reason").find(([name]) => REFUSALS.includes(name));
        const why = reason ? ", mostly " + reason[0] : "";
        const text = "klad rejects " + count(refused) + " requests/s (" + share(refused / all) + why + ").";
        return refused > 0.05 * all ? bad("rejections", text) : warning("rejections", text);
    },
    function failures(now) {
        const failed = now.rate(DURATION + "_count", { outcome: "error" });
        return failed > 0
            ? bad("outcomes", count(failed) + " requests/s fail inside klad (5xx). klad's log says why.")
            : null;
    },
    function deadlines(now) {
        const passed = now.rate("klad_deadline_dropped_total");
        return passed > 0
            ? warning("queue-age", count(passed) + " requests/s wait longer than their clients allow (Klad-Timeout).")
            : null;
    },
    function standingQueue(now) {
        const [queue, age] = now.steadiest("klad_queue_oldest_seconds", "queue");
        if (!(age > QUEUE_AGE_S)) return null;
        const depth = now.values("klad_queue_depth", "queue")[queue];
        const limit = now.values("klad_queue_limit", "queue")[queue];
        const text =
            "The queue " +
            queue +
            " is standing: " +
            count(depth) +
            " of at most " +
            count(limit) +
            " operations wait, the oldest for at least " +
            seconds(age) +
            ".";
        return depth > 0.8 * limit ? bad("queues", text) : warning("queue-age", text);
    },
    function slowReads(now) {
        const read = now.quantile(DURATION, 0.99, { op: "get" });
        if (!(read > SYNC_SLOW_S) || partOf(now, "get", "engine") < 0.5) return null;
        return warning(
            "reads",
            "Reads wait for storage: a get takes " +
                now.quantileWords(DURATION, 0.99, { op: "get" }) +
                " (p99). Values that are not in memory are read from the disk.",
        );
    },
    function busyWorkers(now, threads) {
        const busy = now.rate("klad_thread_cpu_seconds_total", { group: "worker" });
        if (!(threads > 0) || !(busy > 0.95 * threads)) return null;
        return warning(
            "cpu",
            "The workers use " +
                plain(busy) +
                " of their " +
                threads +
                " cores: klad serves as much as --threads allows.",
        );
    },
    function slowClients(now) {
        const late = now.quantile(DURATION, 0.99, { op: { not: "changes" } });
        const [phase, part] = phasesOf(now)[0] || ["", 0];
        if (!(late > 0.1) || part < 0.5 || !["receive", "write"].includes(phase)) return null;
        return warning(
            "phases",
            "Clients are slow: requests wait for " + PHASES[phase] + " (" + share(part) + " of their time).",
        );
    },
    function memory(now) {
        const [resident, budget] = [
            now.value("process_resident_memory_bytes"),
            now.value("klad_memory_budget_bytes", { part: "total" }),
        ];
        if (budget == null || resident < 1.1 * budget + 2 ** 26) return null;
        return warning(
            "memory",
            "klad uses " + bytes(resident) + " of memory, more than --memory allows (" + bytes(budget) + ").",
        );
    },
    function bodyBudget(now) {
        const [used, limit] = ["klad_body_budget_used_bytes", "klad_body_budget_limit_bytes"].map((name) =>
            now.value(name, { share: "all" }),
        );
        return used > 0.9 * limit
            ? warning("memory", "The memory for bodies is almost used up: " + bytes(used) + " of " + bytes(limit) + ".")
            : null;
    },
    function connections(now) {
        const [open, limit] = [now.value("klad_connections_open"), now.value("klad_connections_limit")];
        return open > 0.9 * limit
            ? warning(
                  "in-flight",
                  count(open) + " of at most " + count(limit) + " connections are open. At the limit clients wait.",
              )
            : null;
    },
    function descriptors(now) {
        const [open, limit] = [now.value("process_open_fds"), now.value("process_max_fds")];
        return open > 0.9 * limit
            ? warning("in-flight", count(open) + " of at most " + count(limit) + " file descriptors are open.")
            : null;
    },
    function reload(now) {
        return now.value("klad_config_last_reload_success") === 0
            ? warning("#/care", "The last reload of the configuration has failed. klad's log says why.")
            : null;
    },
    function lostNodes(now) {
        const lost = Object.entries(now.values("klad_cluster_node_connected", "node")).filter(([, is]) => is === 0);
        return lost.length > 0
            ? bad("#/cluster", "klad has no connection to " + lost.map(([node]) => node).join(", ") + ".")
            : null;
    },
];

/**
 * Returns `{ findings, summary, now }`, or null if the last ten seconds have fewer than two samples of the current
 * process. `threads`: the number of workers.
 */
export function verdict(samples, threads) {
    const now = Between.of(samples, WINDOW_MS);
    if (!now) return null;
    const findings = RULES.map((rule) => rule(now, threads)).filter((found) => found !== null);
    findings.sort((a, b) => (a.level === b.level ? 0 : a.level === "bad" ? -1 : 1));
    return { findings, summary: summaryOf(now), now };
}

/** One sentence about how much klad serves, and what its requests mostly wait for. */
function summaryOf(now) {
    const rate = now.rate(DURATION + "_count");
    if (rate == null) return "The number of requests is not known yet.";
    if (rate === 0) return "No requests in the last ten seconds.";
    const late = now.quantileWords(DURATION, 0.99, { op: { not: "changes" } });
    const [phase, part] = phasesOf(now)[0] || [];
    const where = phase ? " Most of their time (" + share(part) + ") goes to " + PHASES[phase] + "." : "";
    return count(rate) + " requests/s" + (late == null ? "." : ", p99 " + late + ".") + where;
}
