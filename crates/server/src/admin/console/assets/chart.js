// A chart: a title, a button that explains the chart, a legend with the values at the cursor or now, and lines or a
// heat map. uPlot draws the chart. Each second uPlot gets new data, without being created again.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { Figures } from "./figures.js";
import { UNITS, clock, count, seconds } from "./format.js";

const HEIGHT = 190;
/**
 * The largest number of lines, because more are hard to tell apart. The chart leaves out the smallest lines, and the
 * legend says so.
 */
const LINES_MAX = 8;
/** Width of a column of a heat map, CSS pixels. */
const CELL = 5;

/** Steps of an axis of bytes. */
const POWERS_OF_TWO = Array.from({ length: 50 }, (_, power) => 2 ** power);

const PALETTE = ["blue", "orange", "green", "purple", "red", "yellow", "teal", "grey"];
/** Colours of names that occur in several charts, or that have a meaning. */
const COLOURS = {
    ok: "blue",
    not_found: "grey",
    client_error: "yellow",
    refused: "orange",
    deadline: "purple",
    error: "red",
    aborted: "teal",
    receive: "green",
    queue: "orange",
    engine: "blue",
    sync: "red",
    write: "purple",
    worker: "grey",
    get: "blue",
    put: "orange",
    range: "green",
    delete: "red",
    update: "purple",
    batch: "yellow",
    p50: "blue",
    p99: "orange",
    "p99.9": "red",
    delayed: "orange",
    stopped: "red",
    storage: "orange",
    memory: "blue",
};

/** Returns the value of a colour of the style sheet, in the form that a canvas needs. */
function colour(name) {
    const probe = document.getElementById("probe");
    probe.style.color = "var(--" + name + ")";
    return getComputedStyle(probe).color;
}

function colourOf(line, index) {
    return line.item.of === "limit" ? "muted" : COLOURS[line.label] || PALETTE[index % PALETTE.length];
}

/**
 * Returns the lines to draw, at most `LINES_MAX`. Leaves out lines of a group that were always zero, and lines without
 * values.
 */
function worthDrawing({ lines, at, columns }) {
    const most = columns.map((column) =>
        column.reduce((most, value) => (value != null && value > most ? value : most), 0),
    );
    const few = lines
        .map((line, index) => index)
        .filter((index) => !lines[index].item.by || most[index] > 0)
        .filter((index) => columns[index].some((value) => value != null));
    const ranked = few
        .slice()
        .sort((a, b) => most[b] - most[a])
        .slice(0, LINES_MAX);
    const kept = few.filter((index) => ranked.includes(index));
    return {
        at,
        lines: kept.map((index) => ({ ...lines[index], colour: colourOf(lines[index], index) })),
        columns: kept.map((index) => columns[index]),
        left: few.length - kept.length,
    };
}

function axes(unit, width) {
    const font = "12px system-ui, sans-serif";
    const common = {
        font,
        stroke: colour("muted"),
        grid: { stroke: colour("grid"), width: 1 },
        ticks: { show: false },
    };
    const format = UNITS[unit];
    return [
        { ...common, size: 24, gap: 4, space: 70, values: (u, splits) => splits.map((at) => time(at, u)) },
        {
            ...common,
            size: width < 400 ? 60 : 68,
            gap: 6,
            space: 32,
            incrs: unit.startsWith("bytes") ? POWERS_OF_TWO : undefined,
            values: (u, splits) => splits.map((value) => (value == null ? "" : format(value))),
        },
    ];
}

/** Returns the label of a time. The label is empty where the edge of the chart would cut it off. */
function time(at, u) {
    if (u.valToPos(at, "x") > u.bbox.width / devicePixelRatio - 20) return "";
    const text = clock(at * 1000);
    return u.scales.x.max - u.scales.x.min > 240 ? text.slice(0, 5) : text;
}

/** Returns the marks of a logarithmic axis: powers of ten, and for a small range also halves and quarters of them. */
function logSplits(u, axis, from, to) {
    const steps = Math.log10(to / from) > 2.5 ? [1] : [1, 2.5, 5];
    const splits = [];
    for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power += 1) {
        for (const step of steps) splits.push(Number((step * 10 ** power).toPrecision(2)));
    }
    return splits.filter((value) => value >= from * 0.999 && value <= to * 1.001);
}

/**
 * Returns the range of the y axis, which begins at 0. The range includes a limit only if the limit is less than four
 * times the largest value.
 */
function linearRange(u) {
    const most = (wanted) =>
        u.series
            .slice(1)
            .filter((series) => series.isLimit === wanted && series.max != null)
            .reduce((most, series) => Math.max(most, series.max), 0);
    const [values, limit] = [most(false), most(true)];
    const top = limit < 4 * values ? Math.max(values, limit) : values;
    return [0, top > 0 ? top * 1.08 : 1];
}

function yScale(isLog) {
    if (!isLog) return { range: linearRange };
    return {
        distr: 3,
        range: (u, from, to) =>
            from > 0 ? [10 ** Math.floor(Math.log10(from)), 10 ** Math.ceil(Math.log10(to) + 1e-9)] : [1e-5, 1],
    };
}

/** Makes the parts of uPlot's options that lines and heat maps share. */
function options(chart, width, range, onCursor) {
    const isLog = chart.scale === "log" || chart.what[0].of === "heat";
    const made = {
        width,
        height: HEIGHT,
        padding: [8, 8, 0, 0],
        legend: { show: false },
        cursor: {
            y: false,
            drag: { x: false, y: false },
            points: { size: 6 },
            sync: { key: "console", setSeries: false },
        },
        scales: { x: { time: false, range: () => range.current }, y: yScale(isLog) },
        axes: axes(chart.unit, width),
        hooks: { setCursor: [(u) => onCursor(u.cursor.left < 0 || u.cursor.idx == null ? null : u.cursor.idx)] },
    };
    if (isLog) made.axes[1].splits = logSplits;
    return made;
}

function lineSeries(line) {
    const isLimit = line.item.of === "limit";
    const stroke = colour(line.colour);
    return {
        isLimit,
        stroke,
        width: isLimit ? 1 : 1.5,
        dash: isLimit ? [6, 4] : undefined,
        points: { show: false },
        spanGaps: false,
    };
}

/**
 * Keeps a uPlot object in `place` and gives it `data`. Creates the object again only if `key` changes, which stands for
 * lines, width and colours.
 */
function usePlot(place, make, key, data) {
    const plot = useRef(null);
    useLayoutEffect(() => {
        plot.current = data && place.current ? make(place.current) : null;
        return () => {
            if (plot.current) plot.current.destroy();
            plot.current = null;
        };
    }, [key, data == null]);
    useLayoutEffect(() => {
        if (plot.current && data) plot.current.setData(data);
    });
}

/** Returns the width of an element. The component is drawn again when the width changes. */
function useWidth(place) {
    const [width, setWidth] = useState(0);
    useLayoutEffect(() => {
        const observer = new ResizeObserver(() => setWidth(Math.floor(place.current.clientWidth)));
        observer.observe(place.current);
        setWidth(Math.floor(place.current.clientWidth));
        return () => observer.disconnect();
    }, []);
    return width;
}

/**
 * `view`: `{ samples, help, minutes, op, theme }`. The text in the legend is also the text form of the chart for screen
 * readers; the drawing is hidden from screen readers.
 */
export function Chart({ chart, view }) {
    const isHeat = chart.what[0].of === "heat";
    const figures = useMemo(() => new Figures(chart, view.op), [chart, view.op]);
    const last = view.samples[view.samples.length - 1];
    if (!last || !figures.isKnown(last.set)) return null;
    const from = last.t - view.minutes * 60000;
    const Body = isHeat ? Heat : Lines;
    return html`<figure class="chart" id=${"chart-" + chart.id}>
        <figcaption><h3>${chart.title}</h3><${Explanation} chart=${chart} help=${view.help} /></figcaption>
        <${Body} chart=${chart} figures=${figures} view=${view} from=${from} to=${last.t} />
    </figure>`;
}

function Explanation({ chart, help }) {
    const [open, setOpen] = useState(false);
    const id = "about-" + chart.id;
    const families = Array.from(new Set(chart.what.map((item) => item.family)));
    const close = (event) => {
        if (event.key === "Escape") setOpen(false);
    };
    return html`<div class="about" onKeyDown=${close} onFocusOut=${() => setOpen(false)}>
        <button type="button" class="question" aria-label=${"What does “" + chart.title + "” mean?"}
            aria-expanded=${String(open)}
            aria-controls=${id} onClick=${() => setOpen(!open)}>?</button>
        <div class="tip" id=${id} role="note" data-open=${String(open)}>
            <ul>${families.filter((family) => help[family]).map((family) => html`<li><code>
                ${family}</code> ${help[family]}</li>`)}</ul>
            <p><strong>When it looks bad:</strong> ${chart.bad}</p>
        </div>
    </div>`;
}

function Lines({ chart, figures, view, from, to }) {
    const [cursor, setCursor] = useState(null);
    const place = useRef(null);
    const width = useWidth(place);
    const range = useRef([0, 1]);
    range.current = [from / 1000, to / 1000];
    const { lines, at, columns, left } = worthDrawing(figures.of(view.samples, from));
    const isLog = chart.scale === "log";
    // A logarithmic axis has no place for 0.
    const drawn = isLog ? columns.map((column) => column.map((value) => (value > 0 ? value : null))) : columns;
    const key = JSON.stringify([lines.map((line) => [line.label, line.colour]), width, view.theme]);
    const make = (element) =>
        new uPlot(
            { ...options(chart, width, range, setCursor), series: [{}, ...lines.map(lineSeries)] },
            [at, ...drawn],
            element,
        );
    usePlot(place, make, key, lines.length > 0 && width > 0 ? [at, ...drawn] : null);
    const index = cursor == null || cursor >= at.length ? lastKnown(columns) : cursor;
    return html`
        <${Legend} chart=${chart} lines=${lines} left=${left} values=${columns.map((column) => column[index])}
            at=${cursor == null ? null : at[index]} />
        <div class="plot" ref=${place} aria-hidden="true">
            ${lines.length === 0 && html`<p class="nothing">nothing in this time</p>`}</div>`;
}

function lastKnown(columns) {
    const ends = columns.map((column) => column.findLastIndex((value) => value != null));
    return ends.length > 0 ? Math.max(...ends) : -1;
}

function Legend({ chart, lines, left, values, at }) {
    const format = UNITS[chart.unit];
    return html`<ul class=${"legend" + (chart.what.some((item) => item.by) ? " long" : "")}>
        ${lines.map(
            (line, index) => html`<li key=${line.label}>
            <i class=${"swatch of-" + line.colour + (line.item.of === "limit" ? " dashed" : "")}></i>
            <span>${line.label}</span> <b>${values[index] == null ? "–" : format(values[index])}</b>
        </li>`,
        )}
        ${left > 0 && html`<li class="quiet">and ${left} smaller</li>`}
        <li class="at" aria-hidden="true">${at == null ? "" : clock(at * 1000)}</li>
    </ul>`;
}

function Heat({ chart, figures, view, from, to }) {
    const [cursor, setCursor] = useState(null);
    const place = useRef(null);
    const width = useWidth(place);
    const range = useRef([0, 1]);
    range.current = [from / 1000, to / 1000];
    const step = Math.max(1, Math.ceil((view.minutes * 60 * CELL) / Math.max(width, 200)));
    const found = figures.heat(view.samples, from, step);
    const current = useRef(found);
    current.current = found;
    const has = found.cells.length > 0 && width > 0;
    const edges = edgesOf(found);
    const at = found.cells.map((cell) => cell.to);
    const make = (element) => {
        const made = options(chart, width, range, setCursor);
        made.scales.y = {
            distr: 3,
            range: () => {
                const all = edgesOf(current.current);
                return [all[0], all[all.length - 1]];
            },
        };
        made.hooks.draw = [(u) => drawHeat(u, current.current)];
        made.series = [{}, { paths: () => null, points: { show: false } }];
        return new uPlot(made, [at, at.map(() => null)], element);
    };
    usePlot(place, make, JSON.stringify([width, view.theme]), has ? [at, at.map(() => null)] : null);
    const cell = found.cells[cursor == null || cursor >= found.cells.length ? found.cells.length - 1 : cursor];
    return html`
        <ul class="legend">
            <li><i class="ramp"></i> few – many requests</li>
            ${cell && html`<li class="at">${clock(cell.to * 1000)}: ${heatWords(cell, found.bounds)}</li>`}
        </ul>
        <div class="plot" ref=${place} aria-hidden="true">
            ${!has || edges.length === 0 ? html`<p class="nothing">nothing in this time</p>` : null}</div>`;
}

/** Says in words which range of times the requests of a column have. */
function heatWords(cell, bounds) {
    const total = cell.counts.reduce((sum, value) => sum + value, 0);
    if (total === 0) return "no requests";
    const first = cell.counts.findIndex((value) => value > 0);
    const last = cell.counts.findLastIndex((value) => value > 0);
    const lower = first === 0 ? "0" : seconds(bounds[first - 1]);
    const upper = bounds[last] === Infinity ? "more than " + seconds(bounds[last - 1]) : seconds(bounds[last]);
    return count(total) + " requests of " + lower + " to " + upper;
}

/** Returns the edges of the rows that contain requests. There is one edge more than rows. */
function edgesOf({ bounds, cells }) {
    let [first, last] = [bounds.length, -1];
    for (const { counts } of cells) {
        counts.forEach((value, row) => {
            if (value > 0) [first, last] = [Math.min(first, row), Math.max(last, row)];
        });
    }
    if (last < 0) [first, last] = [0, bounds.length - 1];
    // Show one more row on each side, because a single row would be one bar without a comparison.
    [first, last] = [Math.max(0, first - 1), Math.min(bounds.length - 1, last + 1)];
    const edges = [first === 0 ? bounds[0] / 2.5 : bounds[first - 1]];
    for (let row = first; row <= last; row += 1)
        edges.push(bounds[row] === Infinity ? bounds[row - 1] * 2.5 : bounds[row]);
    return edges;
}

function drawHeat(u, { bounds, cells }) {
    const ramp = [1, 2, 3, 4, 5, 6].map((step) => colour("heat" + step));
    const most = Math.max(1, ...cells.map((cell) => Math.max(...cell.counts)));
    const { ctx } = u;
    const { left, top, width, height } = u.bbox;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, width, height);
    ctx.clip();
    const y = (value) => Math.round(u.valToPos(value, "y", true));
    for (const cell of cells) {
        const [x0, x1] = [cell.from, cell.to].map((at) => Math.round(u.valToPos(at, "x", true)));
        cell.counts.forEach((value, row) => {
            if (value === 0) return;
            const part = most > 1 ? Math.log(value + 1) / Math.log(most + 1) : 1;
            ctx.fillStyle = ramp[Math.min(ramp.length - 1, Math.floor(part * ramp.length))];
            const upper = bounds[row] === Infinity ? bounds[row - 1] * 2.5 : bounds[row];
            const lower = row === 0 ? bounds[0] / 2.5 : bounds[row - 1];
            ctx.fillRect(x0, y(upper), Math.max(1, x1 - x0), Math.max(1, y(lower) - y(upper)));
        });
    }
    ctx.restore();
}
