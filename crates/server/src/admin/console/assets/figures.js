// Computes what charts show from samples of raw series: rates of counters, percentiles of histograms, sums over labels.
//
// A sample is `{ t, up, values, set }`: a Unix time in ms for the axis, the time since klad was started in ms for all
// rates, and the value of each series of the set, or null.

import { seconds } from "./format.js";

/** The number of samples over which percentiles, means and ratios are computed. */
const WINDOW = 5;
/**
 * Selects all operations except change feeds. A change feed lasts as long as its client wants, so its time is not a
 * latency.
 */
const LATENT = { not: "changes" };

/** The names of the series of samples, and the positions of each family's series. */
export class SeriesSet {
    /** `startedMs` identifies the process. After a restart of klad it is another value. */
    constructor(names, intervalMs, startedMs) {
        Object.assign(this, { intervalMs, startedMs });
        this.found = new Map();
        this.families = new Map();
        names.forEach((text, position) => {
            const { name, labels } = parseName(text);
            if (!this.families.has(name)) this.families.set(name, []);
            this.families.get(name).push({ labels, position });
        });
    }

    has(family) {
        return ["", "_count", "_sum", "_bucket"].some((part) => this.families.has(family + part));
    }

    /**
     * Groups the series of a family by the label `by`. Returns `{ group: [position, ...] }` as a Map; without `by`
     * there is one group, "". `where` selects labels: a text, or `{ not: text }`.
     */
    groups(name, by, where) {
        const key = JSON.stringify([name, by, where]);
        if (!this.found.has(key)) this.found.set(key, this.find(name, by, where));
        return this.found.get(key);
    }

    find(name, by, where) {
        const wanted = [...Object.keys(where || {}), ...(by ? [by] : [])];
        const groups = new Map();
        for (const series of this.families.get(name) || []) {
            if (!wanted.every((label) => label in series.labels) || !matches(series.labels, where)) continue;
            const group = by ? series.labels[by] : "";
            if (!groups.has(group)) groups.set(group, []);
            groups.get(group).push(series.position);
        }
        return groups;
    }
}

function matches(labels, where) {
    return Object.entries(where || {}).every(([label, wanted]) =>
        typeof wanted === "string" ? labels[label] === wanted : labels[label] !== wanted.not,
    );
}

/** Parses `name{label="value",...}`. */
function parseName(text) {
    const open = text.indexOf("{");
    if (open < 0) return { name: text, labels: {} };
    const labels = {};
    for (const [, label, value] of text.slice(open).matchAll(/([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g)) {
        labels[label] = value.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
    }
    return { name: text.slice(0, open), labels };
}

/** Whether two samples are of the same process. Only then may their counters and times be subtracted. */
export function isSameProcess(one, other) {
    return one.set.startedMs === other.set.startedMs;
}

/** Returns the sum of a group's values, or null if none is known. */
function sum(sample, name, by, where, group) {
    const positions = sample.set.groups(name, by, where).get(group);
    if (!positions) return null;
    let total = null;
    for (const position of positions) {
        const value = sample.values[position];
        if (value != null) total = (total || 0) + value;
    }
    return total;
}

/** The smallest of several limits. */
function least(sample, name, where) {
    const known = (sample.set.groups(name, null, where).get("") || []).map((position) => sample.values[position]);
    return known.length === 0 || known.includes(null) ? null : Math.min(...known);
}

/**
 * Returns the growth of a counter between two samples, or null if it is unknown or if klad was restarted between them.
 */
function growth(from, to, name, by, where, group) {
    if (!isSameProcess(from, to)) return null;
    const [before, after] = [sum(from, name, by, where, group), sum(to, name, by, where, group)];
    return before == null || after == null || after < before ? null : after - before;
}

/**
 * Returns the growth of each bucket of a histogram as `[[upper bound, count], ...]`, or null if it is unknown. The
 * counts are not cumulative.
 */
function buckets(from, to, family, where) {
    const name = family + "_bucket";
    const bounds = Array.from(to.set.groups(name, "le", where).keys()).sort((a, b) => bound(a) - bound(b));
    const counts = [];
    let below = 0;
    for (const le of bounds) {
        const upTo = growth(from, to, name, "le", where, le);
        if (upTo == null) return null;
        counts.push([bound(le), Math.max(0, upTo - below)]);
        below = Math.max(below, upTo);
    }
    return counts.length > 0 ? counts : null;
}

function bound(le) {
    return le === "+Inf" ? Infinity : Number(le);
}

/** Estimates a quantile as Prometheus does, linearly within its bucket. Returns null if there are no values. */
export function quantileOf(counts, quantile) {
    const total = totalOf(counts);
    if (total === 0) return null;
    let left = quantile * total;
    let lower = 0;
    for (const [upper, count] of counts) {
        if (count > 0 && left <= count) return upper === Infinity ? lower : lower + (upper - lower) * (left / count);
        left -= count;
        if (upper !== Infinity) lower = upper;
    }
    return lower;
}

function totalOf(counts) {
    return counts.reduce((sum, [, count]) => sum + count, 0);
}

/** Computes figures of the time between two samples, for the sentences and the tiles at the top of the view Now. */
export class Between {
    constructor(samples) {
        const [from, to] = [samples[0], samples[samples.length - 1]];
        Object.assign(this, { from, to, elapsed: (to.up - from.up) / 1000, samples });
    }

    /** Spans the last `lastMs` of the samples. Returns null if fewer than two of them are of the current process. */
    static of(samples, lastMs) {
        const last = samples[samples.length - 1];
        const within = samples.filter((one) => isSameProcess(one, last) && one.up >= last.up - lastMs - 200);
        return within.length > 1 ? new Between(within) : null;
    }

    value(name, where) {
        return sum(this.to, name, null, where, "");
    }

    /** `[group, value]` of the group whose smallest value in this time is the largest. */
    steadiest(name, by) {
        const groups = Array.from(this.to.set.groups(name, by).keys());
        const least = (group) => Math.min(...this.samples.map((sample) => sum(sample, name, by, null, group) || 0));
        return groups
            .map((group) => [group, least(group)])
            .reduce((most, one) => (one[1] > most[1] ? one : most), ["", 0]);
    }

    values(name, by) {
        const groups = Array.from(this.to.set.groups(name, by).keys());
        return Object.fromEntries(groups.map((group) => [group, sum(this.to, name, by, null, group)]));
    }

    rate(name, where) {
        const grown = growth(this.from, this.to, name, null, where, "");
        return grown == null ? null : grown / this.elapsed;
    }

    /** `[[group, rate], ...]`, the largest first, without zeros. */
    rates(name, by, where) {
        const groups = Array.from(this.to.set.groups(name, by, where).keys());
        const rates = groups.map((group) => [
            group,
            (growth(this.from, this.to, name, by, where, group) || 0) / this.elapsed,
        ]);
        return rates.filter(([, rate]) => rate > 0).sort((a, b) => b[1] - a[1]);
    }

    quantile(family, quantile, where) {
        const counts = buckets(this.from, this.to, family, where);
        return counts && quantileOf(counts, quantile);
    }

    /**
     * Returns a quantile of times in words. If it is in the last bucket, only its lower bound is known, for example ">
     * 60 s". Returns null if there are no values.
     */
    quantileWords(family, quantile, where) {
        const counts = buckets(this.from, this.to, family, where);
        const value = counts && quantileOf(counts, quantile);
        if (value == null) return null;
        const within = totalOf(counts.filter(([upper]) => isFinite(upper)));
        return (quantile * totalOf(counts) > within ? "> " : "") + seconds(value);
    }
}

/**
 * The figures of one chart. `op` selects the requests of one operation, or is null. It applies to charts with `byOp` in
 * charts.json.
 */
export class Figures {
    constructor(chart, op) {
        this.chart = chart;
        const only = chart.byOp ? { op: op || LATENT } : {};
        this.items = chart.what.map((item) => ({ ...item, where: { ...item.where, ...only } }));
        this.set = null;
        this.lines = [];
    }

    /** Returns whether klad has figures for the chart. Each engine has its own families of metrics. */
    isKnown(set) {
        return this.items.some((item) => set.has(item.family));
    }

    /**
     * Returns `{ lines, at, columns }` of the samples from `from` on: the lines, the times in seconds, and the values
     * of each line. Where samples are missing, a row of nulls makes a gap.
     */
    of(samples, from) {
        const set = samples[samples.length - 1].set;
        if (set !== this.set) {
            this.set = set;
            this.lines = this.items.flatMap((item) => linesOf(item, set));
            this.rows = new WeakMap();
        }
        const at = [];
        const columns = this.lines.map(() => []);
        samples.forEach((sample, index) => {
            if (sample.t < from) return;
            const before = samples[index - 1];
            const isGap =
                before && (sample.t - before.t > 3.5 * set.intervalMs || !isSameProcess(before, sample));
            if (isGap && before.t >= from) {
                at.push((before.t + sample.t) / 2000);
                columns.forEach((column) => column.push(null));
            }
            if (!this.rows.has(sample)) {
                this.rows.set(
                    sample,
                    this.lines.map((line) => valueOf(line, samples, index)),
                );
            }
            at.push(sample.t / 1000);
            this.rows.get(sample).forEach((value, line) => columns[line].push(value));
        });
        return { lines: this.lines, at, columns };
    }

    /**
     * Returns a heat map of the samples from `from` on: `{ bounds, cells }`, with `cells[column]` = `{ from, to,
     * counts }` in seconds. Each column has `step` samples.
     */
    heat(samples, from, step) {
        const item = this.items[0];
        const cells = [];
        let bounds = [];
        const first = samples.findIndex((sample) => sample.t >= from);
        if (first < 0) return { bounds, cells };
        // Columns keep their place when time passes: they begin at multiples of their length.
        const lengthMs = step * samples[first].set.intervalMs;
        let begin = samples[Math.max(0, first - 1)];
        for (let index = Math.max(1, first); index < samples.length; index += 1) {
            const end = samples[index];
            const ends =
                index + 1 === samples.length ||
                Math.floor(end.t / lengthMs) !== Math.floor(samples[index + 1].t / lengthMs);
            if (!ends) continue;
            const gap = end.t - begin.t > lengthMs + 2.5 * end.set.intervalMs;
            const counts = gap ? null : buckets(begin, end, item.family, item.where);
            if (counts) {
                bounds = counts.map(([upper]) => upper);
                cells.push({ from: begin.t / 1000, to: end.t / 1000, counts: counts.map(([, count]) => count) });
            }
            begin = end;
        }
        return { bounds, cells };
    }
}

function linesOf(item, set) {
    if (item.quantiles) {
        const known = set.groups(item.family + "_bucket", "le", item.where).size > 0;
        return known
            ? item.quantiles.map((quantile) => ({ item, quantile, group: "", label: "p" + quantile * 100 }))
            : [];
    }
    const groups = Array.from(set.groups(nameOf(item, set), item.by, item.where).keys());
    groups.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const label = (group) =>
        item.by && item.label ? item.label + " " + group : item.by ? group : item.label || item.of;
    return groups.map((group) => ({ item, group, label: label(group) }));
}

/**
 * Returns the name of the series of an item. For a histogram, that is the series of counts, or of sums if the item
 * needs times.
 */
function nameOf(item, set) {
    if (set.families.has(item.family)) return item.family;
    const wantsSum = item.by === "phase" || item.of === "rest";
    return item.family + (wantsSum ? "_sum" : "_count");
}

function valueOf({ item, quantile, group }, samples, index) {
    const to = samples[index];
    const { family, by, where } = item;
    if (item.of === "limit") return least(to, family, where);
    if (item.of === "value") return sum(to, family, by, where, group);
    const overWindow = item.of !== "rate" || by === "phase";
    const before = samples.slice(Math.max(0, index - (overWindow ? WINDOW : 1)), index + 1);
    const from = before.find((sample) => isSameProcess(sample, to));
    const elapsed = (to.up - from.up) / 1000;
    // If more time has passed, samples are missing.
    if (from === to || elapsed > (2 * (overWindow ? WINDOW : 1) * to.set.intervalMs) / 1000 + 1) return null;
    const grown = (name, byLabel = by) => growth(from, to, name, byLabel, where, group);
    const parts = {
        rate: () => ratio(grown(nameOf(item, to.set)), elapsed),
        quantile: () => {
            const counts = buckets(from, to, family, where);
            return counts && quantileOf(counts, quantile);
        },
        mean: () => ratio(grown(family + "_sum"), grown(family + "_count")),
        per: () =>
            ratio(
                grown(family),
                item.per.reduce((sum, name) => sum + (grown(name) || 0), 0),
            ),
        rest: () => {
            const [all, rest] = [grown(family + "_sum"), grown(item.less + "_sum")];
            return all == null || rest == null ? null : Math.max(0, all - rest) / elapsed;
        },
    };
    return parts[item.of]();
}

function ratio(above, below) {
    return above == null || !below ? null : above / below;
}
