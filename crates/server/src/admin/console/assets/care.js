// The view Care: what klad checks about itself, its configuration, checkpoints and compactions.
import { html, useEffect, useRef, useState } from "./html.js";
import { isLoggedOut, readJson, send, words } from "./api.js";
import { bytes, dateTime, duration, seconds } from "./format.js";
import { Sign } from "./now.js";
import { Confirm } from "./data.js";

/** The interval at which the page reads the state of checks and of maintenance, ms. */
const EVERY_MS = 3000;
/** A poll that takes longer than this counts as failed, ms. */
const TIMEOUT_MS = 10000;
const LEVELS = ["error", "warn", "info", "debug", "trace"];

export function Care({ session }) {
    const canWrite = session.access === "read-write";
    return html`
        ${!canWrite && html`<p class="quiet">Your token may only read, so nothing can be changed here.</p>`}
        <${Checks} />
        <${Drain} canWrite=${canWrite} />
        <${Maintenance} canWrite=${canWrite} />
        <${Configuration} canWrite=${canWrite} />`;
}

/**
 * Calls `load` now and every `EVERY_MS` while the page is visible, one call at a time. Returns what `load` returned
 * last, the problem, and a function that reads again at once. `load` gets a signal that aborts it after `TIMEOUT_MS`.
 */
function usePolled(load) {
    const [found, setFound] = useState(null);
    const [problem, setProblem] = useState("");
    const running = useRef(null);
    const ask = () => {
        running.current = load(AbortSignal.timeout(TIMEOUT_MS))
            .then(
                (read) => {
                    setFound(read);
                    setProblem("");
                },
                (error) => setProblem(words(error)),
            )
            .finally(() => {
                running.current = null;
            });
        return running.current;
    };
    // A request that began before a change may not show the change. So wait for its end, then ask again.
    const again = () => (running.current ? running.current.then(again) : ask());
    useEffect(() => {
        const poll = () => document.hidden || isLoggedOut() || running.current || ask();
        poll();
        const timer = setInterval(poll, EVERY_MS);
        document.addEventListener("visibilitychange", poll);
        return () => {
            clearInterval(timer);
            document.removeEventListener("visibilitychange", poll);
        };
    }, []);
    return [found, problem, again];
}

/** Returns a function that makes a change, and then reads the state again. `problem` says why the change failed. */
function useAction(again) {
    const [problem, setProblem] = useState("");
    const act = async (change) => {
        try {
            await change();
            setProblem("");
        } catch (error) {
            setProblem(words(error));
        }
        await again();
    };
    return [act, problem];
}

async function readChecks(signal) {
    // A status of 503 is a valid answer here. It means that a check fails.
    const answer = await fetch("/readyz?verbose", { cache: "no-store", signal });
    const lines = (await answer.text())
        .split("\n")
        .map((line) => /^\[([+-])\](\S+) (.*)$/.exec(line))
        .filter(Boolean);
    return lines.map(([, sign, name, state]) => ({
        name,
        passes: sign === "+",
        state: state.replace(/^failed: /, ""),
    }));
}

function Checks() {
    const [checks, problem] = usePolled(readChecks);
    return html`<section aria-labelledby="checks">
        <h2 id="checks">Checks</h2>
        <p class="problem" role="alert">${problem}</p>
        <ul class="checks">${(checks || []).map(
            ({ name, passes, state }) => html`<li key=${name}>
            <${Sign} level=${passes ? "good" : "bad"} /> <b>${name}</b> ${state}</li>`,
        )}</ul>
    </section>`;
}

function Drain({ canWrite }) {
    const [state, problem, again] = usePolled((signal) => readJson("/drain", { signal }));
    const [act, failed] = useAction(again);
    const isDraining = Boolean(state && state.draining);
    return html`<section aria-labelledby="drain">
        <h2 id="drain">Drain</h2>
        <p class="quiet">While klad drains, /readyz answers 503, so that load balancers send nothing more. klad serves
            what still arrives.</p>
        <p class="problem" role="alert">${problem || failed}</p>
        <div class="toolbar"><span role="status">${isDraining ? "klad drains." : "klad does not drain."}</span>
            ${
                canWrite &&
                html`<button type="button" class="button"
                    onClick=${() => act(() => send("/drain", { method: isDraining ? "DELETE" : "POST" }))}>
                ${isDraining ? "Stop draining" : "Drain"}</button>`
            }</div>
    </section>`;
}

function sourceWords({ kind, variable, path, line }) {
    const words = {
        "command-line": () => "command line",
        environment: () => "environment " + variable,
        file: () => path + ", line " + line,
        admin: () => "changed here, until the next reload or start",
        default: () => "default",
    };
    return words[kind] ? words[kind]() : kind;
}

function Configuration({ canWrite }) {
    const [config, setConfig] = useState(null);
    const [text, setText] = useState("");
    const [isLiveOnly, setLiveOnly] = useState(false);
    const [problem, setProblem] = useState("");
    const [message, setMessage] = useState("");
    const load = () => readJson("/config").then(setConfig, (error) => setProblem(words(error)));
    useEffect(() => {
        load();
    }, []);
    const change = async (name, value) => {
        try {
            await send("/config", { method: "PATCH", body: JSON.stringify({ [name]: value }) });
            setProblem("");
            setMessage(name + " is changed, until the next reload or start.");
            await load();
            return true;
        } catch (error) {
            setMessage("");
            setProblem(words(error));
            return false;
        }
    };
    const options = config ? config.options : [];
    const found = options.filter(
        (option) =>
            (!isLiveOnly || option.live) &&
            (option.name + " " + option.value).toLowerCase().includes(text.toLowerCase()),
    );
    const level = options.find((option) => option.name === "log-level");
    const waiting = config ? config.needs_restart.map((option) => option.name) : [];
    return html`<section aria-labelledby="config">
        <h2 id="config">Configuration</h2>
        <div class="toolbar">
            <label class="field">Only with <input type="search" value=${text}
                onInput=${(event) => setText(event.target.value)} /></label>
            <label class="field">
            <input type="checkbox" checked=${isLiveOnly}
                onChange=${(event) => setLiveOnly(event.target.checked)} /> only what can change now</label>
            ${
                level &&
                html`<label class="field">Log level <select value=${level.value} disabled=${!canWrite}
                    onChange=${(event) => change("log-level", event.target.value)}>
                ${Array.from(new Set([level.value, ...LEVELS])).map((name) => html`<option>
                    ${name}</option>`)}</select></label>`
            }
            <span class="quiet" role="status">${message}</span>
        </div>
        <p class="problem" role="alert">${problem}</p>
        ${waiting.length > 0 && html`<p
            class="panel warning">These options wait for a restart: ${waiting.join(", ")}.</p>`}
        <table class="options">
            <thead><tr><th scope="col">Option</th><th scope="col">Value</th><th scope="col" class="wide">Source</th>
            <th scope="col"><span class="hidden">Change</span></th></tr></thead>
            <tbody>${found.map((option) => html`<${Option} key=${option.name} option=${option} canWrite=${canWrite}
                onChange=${change} />`)}</tbody>
        </table>
    </section>`;
}

/** Focuses a field when it appears, and not when it is drawn again. */
function focusFirst(field) {
    if (field && !field.dataset.seen) field.focus();
    if (field) field.dataset.seen = "true";
}

function Option({ option, canWrite, onChange }) {
    const [text, setText] = useState(null);
    const isEdited = text !== null;
    const save = async (event) => {
        event.preventDefault();
        if (await onChange(option.name, text)) setText(null);
    };
    const value =
        option.value === null
            ? option.effective === undefined
                ? "–"
                : String(option.effective)
            : String(option.value);
    const why = option.how ? sourceWords(option.source) + ": " + option.how : sourceWords(option.source);
    const canReset = option.source.kind !== "default";
    return html`<tr>
        <th scope="row" class="mono">${option.name}</th>
        <td>${
            isEdited
                ? html`<form class="inline" onSubmit=${save}>
                <input class="mono" aria-label=${"New value of " + option.name} value=${text}
                    ref=${focusFirst}
                    onInput=${(event) => setText(event.target.value)} />
                <button type="submit" class="button primary">Change</button>
                ${
                    canReset &&
                    html`<button type="button" class="button" onClick=${async () => {
                        if (await onChange(option.name, null)) setText(null);
                    }}>Default</button>`
                }
                <button type="button" class="button" onClick=${() => setText(null)}>Cancel</button></form>`
                : html`<span class="mono">${value}</span> <span class="quiet narrow">${why}</span>`
        }</td>
        <td class="wide quiet">${why}</td>
        <td class="figures">${
            option.live &&
            canWrite &&
            !isEdited &&
            html`<button type="button" class="button" aria-label=${"Change " + option.name}
            onClick=${() => setText(option.value === null ? "" : String(option.value))}>Change</button>`
        }
            ${!option.live && html`<span class="quiet" title="Changes at the next start">restart</span>`}</td>
    </tr>`;
}

function Maintenance({ canWrite }) {
    const [status, problem, again] = usePolled((signal) => readJson("/compact", { signal }));
    const [act, failed] = useAction(again);
    const [name, setName] = useState("");
    const [doomed, setDoomed] = useState(null);
    const [isBottommost, setBottommost] = useState(false);
    // klad reads the list of checkpoints from the disk. So the page asks for it only once, and after each change.
    const list = () => send("/checkpoints").then(again, again);
    useEffect(() => {
        list();
    }, []);
    const make = (event) => {
        event.preventDefault();
        act(async () => {
            await send("/checkpoint" + (name ? "?" + new URLSearchParams({ name }) : ""), { method: "POST" });
            setName("");
            await list();
        });
    };
    const remove = () =>
        act(async () => {
            setDoomed(null);
            await send("/checkpoint?" + new URLSearchParams({ name: doomed }), { method: "DELETE" });
            await list();
        });
    const compact = () => act(() => send("/compact" + (isBottommost ? "?bottommost=true" : ""), { method: "POST" }));
    const running = status && status.running;
    return html`
        <section aria-labelledby="checkpoints">
            <h2 id="checkpoints">Checkpoints</h2>
            <p class="quiet">A checkpoint is a directory that klad can serve, with everything that was acknowledged
                before. It is on the same disk: copy it to another one for a backup.</p>
            <p class="problem" role="alert">${failed || problem}</p>
            ${
                canWrite &&
                html`<form class="toolbar" onSubmit=${make}>
                <label class="field">Name <input value=${name} placeholder="the time" maxlength="64"
                    onInput=${(event) => setName(event.target.value)} /></label>
                <button type="submit" class="button" disabled=${Boolean(running)}>Make a checkpoint</button></form>`
            }
            ${doomed && html`<${Confirm} action="Remove" onYes=${remove}
                onNo=${() => setDoomed(null)}>Remove the checkpoint <b>
                    ${doomed}</b>? This cannot be undone.</${Confirm}>`}
            ${status && status.checkpoints.length === 0 && html`<p class="quiet">There are no checkpoints in <span
                class="mono">${status.directory}</span>.</p>`}
            ${
                status &&
                status.checkpoints.length > 0 &&
                html`<table>
                <thead><tr><th scope="col">Checkpoint</th><th scope="col" class="figures">Size</th>
                <th scope="col">Made</th><th scope="col"><span class="hidden">Remove</span></th></tr></thead>
                <tbody>${status.checkpoints.map(
                    (
                        one,
                    ) => html`<tr key=${one.name}><th scope="row">${one.name}</th><td class="figures">
                        ${bytes(one.bytes)}</td><td>${dateTime(Date.parse(one.made))}</td>
                    <td class="figures">
                        ${canWrite && html`<button type="button" class="button" aria-label=${"Remove " + one.name}
                            onClick=${() => setDoomed(one.name)}>Remove</button>`}</td></tr>`,
                )}</tbody></table>`
            }
        </section>
        <section aria-labelledby="compaction">
            <h2 id="compaction">Compaction</h2>
            <p class="quiet">A full compaction gives back the space of overwritten and removed entries at once.
                Requests continue meanwhile.</p>
            <${Progress} status=${status} />
            ${
                canWrite &&
                html`<div class="toolbar">
                <button type="button" class="button" disabled=${Boolean(running)}
                    onClick=${compact}>Compact everything</button>
                <label class="field">
                <input type="checkbox" checked=${isBottommost}
                    onChange=${(event) => setBottommost(event.target.checked)} /> rewrite the last level too</label>
                <button type="button" class="button" disabled=${!running || running.what !== "compaction"}
                    onClick=${() => act(() => send("/compact", { method: "DELETE" }))}>Cancel it</button>
            </div>`
            }
        </section>`;
}

function Progress({ status }) {
    if (!status) return null;
    const { running, last } = status;
    const time = (value) => (value < 60 ? seconds(Number(value.toFixed(1))) : duration(value));
    return html`<div role="status">
        ${
            running &&
            html`<p>${running.what}, since ${time(running.seconds)}
                ${running.pieces > 0 ? ": " + running.pieces_done + " of " + running.pieces + " pieces" : ""}
            ${running.pieces > 0 && html` <progress max=${running.pieces} value=${running.pieces_done}
                aria-label="Progress"></progress>`}</p>`
        }
        ${!running && html`<p class="quiet">Nothing is running.${last ? " The last job: " + last : ""}</p>`}
    </div>`;
}
