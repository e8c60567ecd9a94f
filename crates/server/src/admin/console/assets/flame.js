// Flame graphs, drawn from stacks in the collapsed format: one stack on a line, root first, with its value. The root
// is at the top. A second profile gives colours for the difference. Every box is a button: Tab and the arrow keys move
// between boxes, Enter zooms, Escape zooms out.
import { html, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { bytes, count, seconds, share } from "./format.js";

/** Boxes that are narrower than this part of the visible width are not drawn. */
const PART_MIN = 0.001;

/** Reads a profile. Returns `{ title, unit, facts, root }`; a node is `{ name, value, self, children, parent }`. */
export function parseStacks(text) {
    const profile = { title: "profile", unit: "count", facts: [], root: node("all", null) };
    for (const line of text.split("\n")) {
        if (line.startsWith("# ")) addFact(profile, line.slice(2));
        else if (line !== "") addStack(profile.root, line);
    }
    return profile;
}

function node(name, parent) {
    return { name, parent, value: 0, self: 0, children: new Map() };
}

function addFact(profile, fact) {
    const colon = fact.indexOf(": ");
    const [name, value] = colon < 0 ? ["comment", fact] : [fact.slice(0, colon), fact.slice(colon + 2)];
    if (name === "title") profile.title = value;
    else if (name === "value") profile.unit = value.split(" ").pop();
    else if (name !== "root") profile.facts.push([name, value]);
}

function addStack(root, line) {
    const space = line.lastIndexOf(" ");
    const value = Number(line.slice(space + 1));
    // A stack can have a negative value, if it holds less memory than at the beginning. Such a stack is not drawn.
    if (!(value > 0)) return;
    let at = root;
    at.value += value;
    for (const name of line.slice(0, space).split(";")) {
        if (!at.children.has(name)) at.children.set(name, node(name, at));
        at = at.children.get(name);
        at.value += value;
    }
    at.self += value;
}

export function amount(value, unit) {
    if (unit === "nanoseconds") return seconds(value / 1e9);
    return unit === "bytes" ? bytes(value) : count(value);
}

/** Returns the node with the same stack in another profile, or null. */
function sameIn(root, wanted) {
    if (!root || !wanted.parent) return root;
    const parent = sameIn(root, wanted.parent);
    return (parent && parent.children.get(wanted.name)) || null;
}

/** Returns the boxes of the visible part: `{ node, depth, left, width }`, left and width as parts of the whole. */
function boxesOf(root, zoomed) {
    const boxes = [];
    const above = [];
    for (let at = zoomed.parent; at; at = at.parent) above.unshift(at);
    above.forEach((at, depth) => boxes.push({ node: at, depth, left: 0, width: 1, isAbove: true }));
    const place = (at, depth, left) => {
        const width = at.value / zoomed.value;
        if (width < PART_MIN) return;
        boxes.push({ node: at, depth, left, width });
        const children = Array.from(at.children.values()).sort((a, b) => b.value - a.value);
        for (const child of children) {
            place(child, depth + 1, left);
            left += child.value / zoomed.value;
        }
    };
    if (zoomed.value > 0) place(zoomed, above.length, 0);
    return boxes;
}

/** Returns the part of all values that is below a function whose name contains `text`, each value counted once. */
export function shareOf(root, text) {
    const found = (at) =>
        isMatch(at, text) ? at.value : Array.from(at.children.values()).reduce((sum, child) => sum + found(child), 0);
    return root.value > 0 ? found(root) / root.value : 0;
}

function isMatch(at, text) {
    return text !== "" && at.parent !== null && at.name.toLowerCase().includes(text.toLowerCase());
}

/**
 * Returns the owner of a function, such as "klad" or "rocksdb". The owner decides the colour, as in klad's other flame
 * graphs.
 */
function ownerOf(at) {
    if (!at.parent || !at.parent.parent) return "thread";
    if (/^(klad_|<klad_|klad::|core::ptr::drop_in_place<klad_)/.test(at.name)) return "klad";
    if (/^(rust_)?rocksdb/.test(at.name)) return "rocksdb";
    return at.name.includes("::") ? "rust" : "c";
}

/** Returns the CSS class for a difference of shares. There are three steps for more and three for less. */
function changeOf(difference) {
    const size = Math.abs(difference);
    const step = size < 0.002 ? 0 : size < 0.02 ? 1 : size < 0.08 ? 2 : 3;
    return step === 0 ? "same" : (difference > 0 ? "more" : "less") + step;
}

/** `before`: the profile to compare with, or null. */
export function Flame({ profile, before }) {
    const { root, unit } = profile;
    const [zoomed, setZoomed] = useState(root);
    const [current, setCurrent] = useState(root);
    const [text, setText] = useState("");
    const place = useRef(null);
    // Not useEffect: it runs after the paint, and would undo a click that comes before it.
    useLayoutEffect(() => {
        setZoomed(root);
        setCurrent(root);
    }, [root]);
    const visible = isBelow(zoomed, root) ? zoomed : root;
    const boxes = useMemo(() => boxesOf(root, visible), [root, visible]);
    const rows = boxes.reduce((most, box) => Math.max(most, box.depth), 0) + 1;
    const shareBefore = (at) => {
        const same = before && sameIn(before.root, at);
        return same ? same.value / before.root.value : 0;
    };
    const says = (at) => {
        const part = root.value > 0 ? at.value / root.value : 0;
        const compared = before ? ", before " + share(shareBefore(at)) : "";
        return (
            at.name +
            ", " +
            share(part) +
            " (" +
            amount(at.value, unit) +
            "), itself " +
            amount(at.self, unit) +
            compared
        );
    };
    const focusOn = (at) => {
        setCurrent(at);
        const index = boxes.findIndex((box) => box.node === at);
        const button = place.current.querySelectorAll("button")[index];
        if (button) button.focus();
    };
    const onKey = (event) => {
        const at = boxes.findIndex((box) => box.node === current);
        const step = {
            ArrowDown: () => boxes.find((box) => box.node.parent === current),
            ArrowUp: () => boxes.find((box) => box.node === current.parent),
            ArrowRight: () => boxes.find((box, index) => index > at && box.depth === boxes[at].depth),
            ArrowLeft: () => boxes.findLast((box, index) => index < at && box.depth === boxes[at].depth),
        }[event.key];
        if (event.key === "Escape") setZoomed(root);
        else if (step) {
            const next = step();
            if (next) focusOn(next.node);
        } else return;
        event.preventDefault();
    };
    const box = ({ node: at, depth, left, width, isAbove }) => {
        const colours = before ? changeOf(at.value / root.value - shareBefore(at)) : ownerOf(at);
        const marks = (isMatch(at, text) ? " found" : text !== "" ? " other" : "") + (isAbove ? " above" : "");
        return html`<button type="button" role="treeitem" aria-level=${depth + 1} class=${"box " + colours + marks}
            style=${{ left: left * 100 + "%", width: width * 100 + "%", top: depth * 1.25 + "rem" }}
            tabindex=${at === current ? 0 : -1} aria-label=${says(at)} aria-selected=${String(at === current)}
            onFocus=${() => setCurrent(at)} onMouseEnter=${() => setCurrent(at)} onClick=${() => setZoomed(at)}>
                ${at.name}</button>`;
    };
    return html`<div class="flame">
        <div class="toolbar">
            <label class="field">Search functions <input type="search" value=${text}
                onInput=${(event) => setText(event.target.value.trim())} /></label>
            <span class="quiet" role="status">
                ${text === "" ? "" : share(shareOf(root, text)) + " contain “" + text + "”"}</span>
            <button type="button" class="button" disabled=${visible === root}
                onClick=${() => setZoomed(root)}>Zoom out</button>
        </div>
        <p class="current mono" aria-hidden="true">${says(current)}</p>
        <div class="boxes" role="tree" aria-label=${profile.title + ", flame graph"} ref=${place} onKeyDown=${onKey}
            style=${{ height: rows * 1.25 + "rem" }}>${boxes.map(box)}</div>
        ${root.value === 0 && html`<p class="quiet">The profile has no events.</p>`}
        <${Key} isDifference=${Boolean(before)} />
    </div>`;
}

function isBelow(at, root) {
    while (at.parent) at = at.parent;
    return at === root;
}

function Key({ isDifference }) {
    const keys = isDifference
        ? [
              ["more3", "more than before"],
              ["same", "the same"],
              ["less3", "less than before"],
          ]
        : [
              ["klad", "klad"],
              ["rocksdb", "RocksDB"],
              ["rust", "other Rust and C++"],
              ["c", "C and the system"],
              ["thread", "thread"],
          ];
    return html`<ul class="key">${keys.map(([kind, name]) => html`<li><i class=${"box " + kind}></i>${name}</li>`)}
        <li class="quiet">A box is a function. Its width is its share; the functions that it calls are below it.</li>
        </ul>`;
}
