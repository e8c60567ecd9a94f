// The view Now: sentences that say what is late, a few figures, and the charts.
import { html, useRef, useState } from "./html.js";
import { Chart } from "./chart.js";
import { bytes, count, share } from "./format.js";
import { verdict } from "./verdict.js";

const MINUTES = [2, 5, 15];
/** The operations by which klad counts requests. */
export const OPS = ["get", "put", "delete", "update", "batch", "range", "remove_range", "changes", "status", "other"];
const DURATION = "klad_http_request_duration_seconds";

/** `store` has `{ samples, help }` of the stream. `charts` has the charts of charts.json. */
export function Now({ store, charts, theme, view, session }) {
    const [minutes, setMinutes] = useState(5);
    const [op, setOp] = useState("");
    const [isPaused, setPaused] = useState(false);
    // While the page is paused, it shows the samples of the moment at which the user paused it.
    const held = useRef(null);
    if (!isPaused) held.current = null;
    else if (!held.current) held.current = store.samples.slice();
    const samples = held.current || store.samples;
    const found = verdict(samples, session.threads);
    const shown = { samples, help: store.help, minutes, op: op || null, theme };
    const own = charts.filter((chart) => chart.view === view);
    return html`
        ${view === "now" && html`<${Verdict} found=${found} store=${store} isStarted=${samples.length > 0} />`}
        ${view === "now" && found && html`<${Tiles} now=${found.now} />`}
        <div class="toolbar" role="group" aria-label="What the charts show">
            <${Choice} label="Time range" value=${minutes} onChange=${setMinutes}
                options=${MINUTES.map((value) => [value, value + " min"])} />
            ${
                view === "now" &&
                html`<label class="field">Latency of
                <select value=${op} onChange=${(event) => setOp(event.target.value)}>
                    <option value="">all operations</option>
                    ${OPS.map((name) => html`<option value=${name}>${name}</option>`)}
                </select></label>`
            }
            <button type="button" class="button" aria-pressed=${String(isPaused)}
                onClick=${() => setPaused(!isPaused)}>${isPaused ? "Continue" : "Pause"}</button>
            <span class="quiet" role="status">${isPaused ? "Paused. The charts do not change." : ""}</span>
        </div>
        ${samples.length < 2 && html`<p class="quiet">Waiting for the first figures …</p>`}
        <div class="charts">
            ${own.map((chart) => html`<${Chart} key=${chart.id} chart=${chart} view=${shown} />`)}</div>`;
}

/** A row of buttons, of which one is chosen. */
export function Choice({ label, value, options, onChange }) {
    return html`<div class="switch" role="group" aria-label=${label}>${options.map(
        ([option, name]) => html`
        <button type="button" aria-pressed=${String(option === value)} onClick=${() => onChange(option)}>
            ${name}</button>`,
    )}</div>`;
}

function Verdict({ found, store, isStarted }) {
    // The figures in the sentences change each second. A screen reader gets new text only when the list of findings
    // changes.
    const spoken = useRef({ key: "", text: "" });
    if (!found)
        return (
            isStarted &&
            html`<section class="verdict" aria-label="What klad waits for">
            <p>klad has just started. What is late is not known yet.</p></section>`
        );
    if (store.isGone || store.refusal)
        return html`<section class="verdict bad" aria-label="What klad waits for">
        <p>${store.refusal ? "klad sends no figures." : "klad does not answer."}
            ${" These are the last figures."}</p></section>`;
    const { findings, summary } = found;
    const key = findings.map(({ see, level }) => see + level).join();
    if (spoken.current.key !== key) spoken.current = { key, text: findings.map(({ text }) => text).join(" ") };
    const level = findings.length === 0 ? "good" : findings[0].level;
    return html`<section class=${"verdict " + level} aria-label="What klad waits for">
        <p class="hidden" role="status">${spoken.current.text}</p>
        <div>
            ${findings.length === 0 && html`<p><${Sign} level="good" /> <strong>Nothing is late.</strong></p>`}
            ${findings.map(({ level, text, see }) => html`<p key=${see + level}><${Sign} level=${level} /> <strong>
                ${text}</strong> <${See} see=${see} /></p>`)}
        </div>
        <p class="summary">${summary}</p>
    </section>`;
}

const SIGNS = { good: ["✓", "good"], warning: ["!", "warning"], bad: ["✕", "bad"] };

export function Sign({ level }) {
    const [letter, name] = SIGNS[level];
    return html`<span class=${"sign " + level} role="img" aria-label=${name}>${letter}</span>`;
}

function See({ see }) {
    if (see.startsWith("#/")) return html`<a href=${see}>details</a>`;
    const show = (event) => {
        event.preventDefault();
        const chart = document.getElementById("chart-" + see);
        if (!chart) return;
        chart.scrollIntoView({ block: "center" });
        chart.setAttribute("tabindex", "-1");
        chart.focus({ preventScroll: true });
    };
    return html`<a href=${"#/now"} onClick=${show}>show the chart</a>`;
}

function Tiles({ now }) {
    const latency = (quantile) => now.quantileWords(DURATION, quantile, { op: { not: "changes" } }) ?? "–";
    const number = (value, format) => (value == null ? "–" : format(value));
    const refused = now.rate(DURATION + "_count", { outcome: "refused" });
    const budget = now.value("klad_memory_budget_bytes", { part: "total" });
    const resident = now.value("process_resident_memory_bytes");
    const tiles = [
        [
            "Requests",
            number(now.rate(DURATION + "_count"), count) + "/s",
            number(now.value("klad_http_requests_in_flight"), count) + " in flight",
        ],
        ["p50", latency(0.5), "half of the requests take longer"],
        ["p99", latency(0.99), "1 of 100 takes longer"],
        ["p99.9", latency(0.999), "1 of 1,000 takes longer"],
        ["Rejected", number(refused, count) + "/s", "503 and 507"],
        [
            "CPU",
            number(now.rate("process_cpu_seconds_total"), (value) => value.toFixed(2)) + " cores",
            "of all threads",
        ],
        ["Memory", number(resident, bytes), budget ? share(resident / budget) + " of --memory" : ""],
        [
            "Connections",
            number(now.value("klad_connections_open"), count),
            "limit " + number(now.value("klad_connections_limit"), count),
        ],
    ];
    return html`<dl class="tiles" aria-label="The last ten seconds">${tiles.map(
        ([name, value, note]) => html`
        <div><dt>${name}</dt><dd>${value}</dd><dd class="note">${note}</dd></div>`,
    )}</dl>`;
}
