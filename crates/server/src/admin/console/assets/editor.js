// Edits a value, or makes a new key. klad stores the value only if the key has not changed since the page read it. If
// the key has changed, the editor shows both values and the user decides.
import { html, useLayoutEffect, useRef, useState } from "./html.js";
import { words } from "./api.js";
import { escape, fromText, isPlainText, toText, unescape } from "./bytes.js";
import { expiryOf, left, read, write } from "./store.js";
import { Choice } from "./now.js";
import { Stored, Value } from "./value.js";

let hasUnsaved = false;

export function isUnsaved() {
    return hasUnsaved;
}

/** Asks the user before unsaved text is lost. Returns whether the editor may be left. */
export function mayLeave() {
    return !hasUnsaved || confirm("The editor has changes that are not saved. Leave it and lose them?");
}

/** While there are changes, the browser asks before it closes the page, and `mayLeave` asks too. */
function useUnsaved(isChanged) {
    // Not useEffect: it runs after the paint, and until then the page could be left without a question.
    useLayoutEffect(() => {
        if (!isChanged) return undefined;
        const ask = (event) => event.preventDefault();
        hasUnsaved = true;
        addEventListener("beforeunload", ask);
        return () => {
            hasUnsaved = false;
            removeEventListener("beforeunload", ask);
        };
    }, [isChanged]);
}

/**
 * `of` is the key. Without `of`, the user types a key, and `first` is the proposed beginning. `value` is what `read`
 * returned, or null.
 */
export function Editor({ of: key, first, value, onStored, onDone, onCancel }) {
    const [name, setName] = useState(key ? "" : escape(first));
    // The value that the change is based on. After a conflict it is the other client's value.
    const [base, setBase] = useState(value || null);
    const begin = value ? value.bytes : new Uint8Array();
    // A text field changes line ends and hides some characters, so such values are edited with escapes.
    const [isEscaped, setEscaped] = useState(!isPlainText(begin));
    const [text, setText] = useState(isEscaped ? escape(begin, true) : toText(begin));
    const [type, setType] = useState(value ? value.type : "text/plain; charset=utf-8");
    const [expiry, setExpiry] = useState(value && value.ttl !== null ? "keep" : "never");
    const [ttl, setTtl] = useState("");
    const [theirs, setTheirs] = useState(undefined);
    const [problem, setProblem] = useState("");
    const [isChanged, setChanged] = useState(false);
    useUnsaved(isChanged);
    const [isSaving, setSaving] = useState(false);
    const isHere = useRef(true);
    // Not useEffect: it runs after the paint. If the user has left the editor and a save ends before the paint, the
    // page would open the saved key.
    useLayoutEffect(
        () => () => {
            isHere.current = false;
        },
        [],
    );

    const bytes = () => (isEscaped ? unescape(text) : fromText(text));
    const turn = (wanted) => {
        try {
            const current = bytes();
            if (!wanted && !isPlainText(current))
                throw new Error("This value has characters that a plain text field does not keep.");
            setText(wanted ? escape(current, true) : toText(current));
            setEscaped(wanted);
            setProblem("");
        } catch (error) {
            setProblem(error.message);
        }
    };
    const save = async (onto) => {
        setSaving(true);
        try {
            const target = key || unescape(name);
            if (target.length === 0) throw new Error("A key has at least one byte.");
            const lives = {
                keep: () => (onto && left(onto) !== null ? left(onto).toFixed(3) + "s" : null),
                never: () => null,
                set: () => ttl.trim(),
            }[expiry]();
            try {
                await write(target, bytes(), {
                    etag: onto ? onto.etag : null,
                    type,
                    ttl: lives,
                    meta: onto ? onto.meta : [],
                });
            } catch (error) {
                if (error.status !== 412) throw error;
                setTheirs(await read(target));
                setProblem("");
                return;
            }
            onStored();
            // The user has left the editor in the meantime.
            if (!isHere.current) return;
            // `onDone` may open another key before this editor is removed. Then the page must not ask about unsaved
            // text.
            hasUnsaved = false;
            await onDone(target);
        } catch (error) {
            setProblem(words(error));
        } finally {
            setSaving(false);
        }
    };
    const overwrite = () => {
        setBase(theirs);
        setTheirs(undefined);
        return save(theirs);
    };
    return html`<form class="editor" onInput=${() => setChanged(true)} onSubmit=${(event) => {
        event.preventDefault();
        save(base);
    }}><fieldset disabled=${isSaving}>
        ${!key && html`<label class="field grows">Key <input class="mono" value=${name} required spellcheck=${false}
            autocomplete="off" onInput=${(event) => setName(event.target.value)} /></label>`}
        <div class="toolbar">
            <${Choice} label="Written as" value=${isEscaped} options=${[
                [false, "text"],
                [true, "text with escapes"],
            ]} onChange=${turn} />
            <label class="field">Type <input value=${type} size="26"
                onInput=${(event) => setType(event.target.value)} /></label>
            <label class="field">Expires <select value=${expiry} onChange=${(event) => setExpiry(event.target.value)}>
                ${base && base.ttl !== null && html`<option
                    value="keep">as now, ${expiryOf(base)}</option>`}
                <option value="never">never</option><option value="set">in …</option></select></label>
            ${expiry === "set" && html`<input value=${ttl} required placeholder="1h 30m"
                aria-label="Time until it expires" onInput=${(event) => setTtl(event.target.value)} />`}
        </div>
        <textarea class="code" rows="14" aria-label="Value" spellcheck=${false} value=${text}
            onInput=${(event) => setText(event.target.value)}></textarea>
        <p class="problem" role="alert">${problem}</p>
        ${
            theirs !== undefined &&
            html`<${Conflict} theirs=${theirs} base=${base} mine=${mineOf(bytes)} type=${type}
            onOverwrite=${overwrite} onTake=${onCancel} onClose=${() => setTheirs(undefined)} />`
        }
        <div class="toolbar">
            <button type="submit" class="button primary" disabled=${theirs !== undefined}>Save</button>
            <button type="button" class="button" onClick=${onCancel}>Cancel</button>
        </div>
    </fieldset></form>`;
}

function mineOf(bytes) {
    try {
        return bytes();
    } catch {
        return new Uint8Array();
    }
}

function Conflict({ theirs, base, mine, type, onOverwrite, onTake, onClose }) {
    const says =
        theirs === null
            ? "Another client has deleted this key."
            : base === null
              ? "This key has a value already."
              : "Another client has changed this key. You have edited version " + base.etag + ".";
    return html`<div class="panel warning conflict" role="alertdialog" aria-label="Conflict"
        ref=${(panel) => panel && !panel.contains(document.activeElement) && panel.focus()} tabindex="-1">
        <p><strong>${says}</strong> Nothing was stored.</p>
        <div class="both">
            <div><h3>The value in klad</h3>
                ${
                    theirs === null
                        ? html`<p class="quiet">none</p>`
                        : html`<p class="quiet">version ${theirs.etag}, expires ${expiryOf(theirs)}</p>
                        <${Stored} value=${theirs} />`
                }</div>
            <div><h3>Your value</h3><${Value} bytes=${mine} type=${type} /></div>
        </div>
        <div class="toolbar">
            <button type="button" class="button" onClick=${onTake}>Keep the value in klad</button>
            <button type="button" class="button danger" onClick=${onOverwrite}>Overwrite it with mine</button>
            <button type="button" class="button" onClick=${onClose}>Edit further</button>
        </div></div>`;
}
