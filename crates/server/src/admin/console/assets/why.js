// The view Why: the slowest requests with their phases, profiles with flame graphs, and what each thread does.
import { html, useEffect, useMemo, useState } from "./html.js";
import { OPS } from "./now.js";
import { readJson, readText, words } from "./api.js";
import { Flame, parseStacks } from "./flame.js";
import { bytes, clock, grouped, seconds } from "./format.js";

const PHASES = ["receive", "queue", "engine", "sync", "write", "worker"];
/** What it means if this phase took most of the time. The advice is that of docs/operations.md. */
const ADVICE = {
    receive: "The client sent its body slowly.",
    write: "The client took its answer slowly.",
    queue: "Other requests were ahead. Look at their phases: they say what storage was busy with.",
    engine:
        "Storage took the time. With many block reads it is the disk: give klad more --memory, or use a faster disk. " +
        "With many skipped removals, compact.",
    sync:
        "The write waited for the sync of the log. Use a disk with a faster sync, or async writes where they are " +
        "enough.",
    worker:
        "The worker served other connections, or wrote a large answer. See Workers' loop iterations in the view Now.",
};

const KINDS = [
    { id: "profile", name: "CPU", hint: "What uses the processors." },
    { id: "allocs", name: "allocations", hint: "What allocates memory, freed or not." },
    { id: "heap", name: "memory growth", hint: "What holds more memory at the end than at the beginning." },
    { id: "mutex", name: "locks", hint: "What waits for something that another thread holds." },
    { id: "block", name: "all waits", hint: "All waits, also those of threads that have nothing to do." },
];
/** The largest number of profiles that the page keeps. A new profile replaces the oldest. */
const PROFILES_MAX = 8;

export function Why() {
    return html`<${Slowest} /><${Profiles} /><${Threads} />`;
}

function Slowest() {
    const [op, setOp] = useState("");
    const [refreshes, setRefreshes] = useState(0);
    return html`<section aria-labelledby="slowest">
        <h2 id="slowest">Slowest requests of the last minute</h2>
        <div class="toolbar">
            <label class="field">Operation <select value=${op} onChange=${(event) => setOp(event.target.value)}>
                <option value="">all</option>
                ${OPS.map((name) => html`<option>${name}</option>`)}
            </select></label>
            <button type="button" class="button" onClick=${() => setRefreshes(refreshes + 1)}>Refresh</button>
            <ul class="key">${PHASES.map((phase) => html`<li><i class=${"phase " + phase}></i>${phase}</li>`)}</ul>
        </div>
        <${SlowRequests} key=${op} op=${op} refreshes=${refreshes} />
    </section>`;
}

/**
 * The list for one operation. Another operation has another list, so a late answer is never shown below the wrong
 * operation. The list is read again when `refreshes` changes.
 */
function SlowRequests({ op, refreshes }) {
    const [requests, setRequests] = useState(null);
    const [problem, setProblem] = useState("");
    useEffect(() => {
        readJson("/debug/slow?limit=16" + (op ? "&op=" + op : "")).then(
            (found) => {
                setRequests(found.requests);
                setProblem("");
            },
            (error) => setProblem(words(error)),
        );
    }, [refreshes]);
    const shown = requests || [];
    const slowest = Math.max(...shown.map((one) => one.total_ms), 0.001);
    return html`<p class="problem" role="alert">${problem}</p>
        ${requests && shown.length === 0 && html`<p class="quiet">No request has ended in the last minute.</p>`}
        <ol class="slow">
            ${shown.map((one) => html`<${SlowRequest} key=${one.started + one.worker + one.total_ms} one=${one}
                slowest=${slowest} />`)}</ol>`;
}

function SlowRequest({ one, slowest }) {
    const parts = PHASES.map((phase) => [phase, one.phases[phase + "_ms"] || 0]);
    const spoken = parts
        .filter(([, ms]) => ms > 0)
        .map(([phase, ms]) => phase + " " + seconds(ms / 1000))
        .join(", ");
    const facts = [
        ["started", clock(Date.parse(one.started)) + one.started.slice(19, 23)],
        ["phases", spoken],
        ["status", one.status + " " + one.outcome],
        ["durability", one.durability],
        ["answered by", one.answered_by],
        [
            "bytes",
            "key " +
                grouped(one.key_bytes) +
                ", received " +
                bytes(one.received_bytes) +
                ", sent " +
                bytes(one.sent_bytes),
        ],
        ["worker", one.worker],
        ["client", one.peer],
        ["request id", one.request_id],
        ["trace id", one.trace_id],
        ...Object.entries(one.storage || {}).map(([name, value]) => [
            name.replace(/_(ms|bytes)$/, "").replaceAll("_", " "),
            storageFigure(name, value),
        ]),
    ].filter(([, value]) => value !== null && value !== undefined);
    return html`<li><details>
        <summary>
            <span class="op">${one.op}</span>
            <b class="total">${seconds(one.total_ms / 1000)}</b>
            <span class="bar" role="img" aria-label=${spoken}>${parts.map(
                ([phase, ms]) =>
                    ms > 0 &&
                    html`
                <i class=${"phase " + phase} title=${phase + " " + seconds(ms / 1000)}
                    style=${{ width: (ms / slowest) * 100 + "%" }}></i>`,
            )}</span>
            <span class="mostly">${one.mostly}</span>
        </summary>
        <p>${ADVICE[one.mostly]}</p>
        <dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    </details></li>`;
}

function storageFigure(name, value) {
    if (name.endsWith("_ms")) return seconds(value / 1000);
    return name.endsWith("_bytes") ? bytes(value) : grouped(value);
}

function Profiles() {
    const [kind, setKind] = useState("profile");
    const [length, setLength] = useState(5);
    const [taken, setTaken] = useState([]);
    const [shown, setShown] = useState(null);
    const [beforeId, setBeforeId] = useState("");
    const [running, setRunning] = useState(null);
    const [problem, setProblem] = useState("");
    const take = async () => {
        const wanted = KINDS.find((one) => one.id === kind);
        const stop = new AbortController();
        setRunning({ stop, ends: Date.now() + length * 1000, name: wanted.name });
        setProblem("");
        try {
            const text = await readText("/debug/pprof/" + kind + "?seconds=" + length + "&format=collapsed", {
                signal: stop.signal,
            });
            const profile = {
                ...parseStacks(text),
                id: String(Date.now()),
                kind,
                name: wanted.name + ", " + length + " s, " + clock(Date.now()),
            };
            setTaken((all) => [...all, profile].slice(-PROFILES_MAX));
            setShown(profile);
        } catch (error) {
            if (error.name !== "AbortError") setProblem(words(error));
        }
        setRunning(null);
    };
    const comparable = taken.filter((one) => shown && one.kind === shown.kind && one !== shown);
    const before = comparable.find((one) => one.id === beforeId) || null;
    return html`<section aria-labelledby="profiles">
        <h2 id="profiles">Profiles</h2>
        <div class="toolbar">
            <label class="field">Profile of <select value=${kind} onChange=${(event) => setKind(event.target.value)}>
                ${KINDS.map((one) => html`<option value=${one.id}>${one.name}</option>`)}</select></label>
            <label class="field">for <select value=${length}
                onChange=${(event) => setLength(Number(event.target.value))}>
                ${[1, 5, 10, 30, 60].map((value) => html`<option value=${value}>${value} s</option>`)}</select></label>
            ${
                running
                    ? html`<button type="button" class="button" onClick=${() => running.stop.abort()}>Cancel</button>`
                    : html`<button type="button" class="button primary" onClick=${take}>Take a profile</button>`
            }
            ${running && html`<${Countdown} ends=${running.ends} />`}
            <span class="quiet">${KINDS.find((one) => one.id === kind).hint}</span>
        </div>
        <p class="problem" role="alert">${problem}</p>
        ${
            shown &&
            html`<div class="toolbar">
            <label class="field">Shown <select value=${shown.id}
                onChange=${(event) => setShown(taken.find((one) => one.id === event.target.value))}>
                ${taken.map((one) => html`<option value=${one.id}>${one.name}</option>`)}</select></label>
            <label class="field">compared with <select value=${before ? before.id : ""}
                onChange=${(event) => setBeforeId(event.target.value)}>
                <option value="">nothing</option>
                ${comparable.map((one) => html`<option value=${one.id}>${one.name}</option>`)}</select></label>
        </div>
        <p class="quiet">${shown.facts.map(([name, value]) => name + ": " + value).join(" · ")}</p>
        <${Flame} profile=${shown} before=${before} />`
        }
    </section>`;
}

function Countdown({ ends }) {
    const [, setTick] = useState(0);
    useEffect(() => {
        const timer = setInterval(() => setTick((tick) => tick + 1), 500);
        return () => clearInterval(timer);
    }, []);
    const left = Math.ceil((ends - Date.now()) / 1000);
    return html`<span class="quiet">${left > 0 ? left + " s left" : "klad finds the functions' names …"}</span>`;
}

function Threads() {
    const [text, setText] = useState(null);
    const [wanted, setWanted] = useState("");
    const [problem, setProblem] = useState("");
    const load = async () => {
        try {
            setText(await readText("/debug/pprof/threads"));
            setProblem("");
        } catch (error) {
            setProblem(words(error));
        }
    };
    const blocks = useMemo(
        () =>
            text === null
                ? []
                : text
                      .split(/\n\n+/)
                      .slice(1)
                      .map((block) => block.trim())
                      .filter(Boolean),
        [text],
    );
    const found = blocks.filter((block) => block.toLowerCase().includes(wanted.toLowerCase()));
    return html`<section aria-labelledby="threads">
        <h2 id="threads">Threads</h2>
        <div class="toolbar">
            <button type="button" class="button" onClick=${load}>
                ${text === null ? "List the threads" : "List them again"}</button>
            ${
                text !== null &&
                html`<label class="field">Only with <input type="search" value=${wanted}
                    onInput=${(event) => setWanted(event.target.value)} /></label>
            <span class="quiet" role="status">${found.length} of ${blocks.length}</span>`
            }
        </div>
        <p class="problem" role="alert">${problem}</p>
        ${found.map((block) => html`<details class="thread"><summary class="mono">
            ${block.split("\n")[0]}</summary><pre>${block}</pre></details>`)}
    </section>`;
}
