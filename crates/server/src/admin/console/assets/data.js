// The view Data: browse keys by prefix, see a value, change it. The address is #/data/PREFIX/KEY, with both parts in
// base64url, so that the browser's history works. The browser does not send this part of the address to a server.
import { html, useEffect, useLayoutEffect, useState } from "./html.js";
import { words } from "./api.js";
import { escape, fromBase64, toBase64Url, unescape } from "./bytes.js";
import { Editor, isUnsaved, mayLeave } from "./editor.js";
import { bytes as size, dateTime, until } from "./format.js";
import { download, expire, expiryOf, list, read, remove } from "./store.js";
import { Escaped, Stored } from "./value.js";

const PAGE = 100;
/** The name of an empty prefix or key in an address, because an empty part would not be seen. */
const EMPTY = "-";

function addressOf(prefix, key) {
    const part = (bytes) => (bytes.length === 0 ? EMPTY : toBase64Url(bytes));
    return "#/data/" + part(prefix) + (key ? "/" + part(key) : "");
}

function readAddress(rest) {
    const part = (text) => {
        try {
            return !text || text === EMPTY ? new Uint8Array() : fromBase64(text);
        } catch {
            return new Uint8Array();
        }
    };
    const [prefix, key] = rest.split("/");
    return [part(prefix), key ? part(key) : null];
}

export function Data(properties) {
    // After a restart klad may give no data. Then the page keeps what the user has typed.
    if (properties.session.data !== false || isUnsaved()) return html`<${Browser} ...${properties} />`;
    return html`<p>klad shows data only on a page that is opened by an IP address or as localhost, because it has no
        tokens:
        otherwise another web page could read it. Open the console as <a
            href=${"http://127.0.0.1:" + location.port + "/console#/data"}>127.0.0.1</a>,
        or give klad a --token-file.</p>`;
}

function Browser({ rest, session }) {
    const [prefix, key] = readAddress(rest);
    // The number of the editor for a new key, or 0 if there is none. Each new editor has its own number and its own
    // text.
    const [isNew, setNew] = useState(0);
    const [changes, setChanges] = useState(0);
    const canWrite = session.access === "read-write";
    const changed = () => setChanges((count) => count + 1);
    // Not useEffect: it runs after the paint, and would undo a click that comes before it.
    useLayoutEffect(() => setNew(0), [rest]);
    const open = (key) => {
        setNew(0);
        location.hash = addressOf(prefix, key);
    };
    return html`
        <${Search} key=${"search" + rest} prefix=${prefix}
            onNew=${canWrite ? () => mayLeave() && setNew(isNew + 1) : null} />
        <div class=${"data" + (key || isNew ? " has-entry" : "")}>
            <${Keys} key=${toBase64Url(prefix)} prefix=${prefix} selected=${key} changes=${changes}
                session=${session} />
            ${
                isNew > 0 &&
                html`<section class="entry" aria-label="A new key">
                <${Editor} key=${isNew} first=${prefix} onStored=${changed} onDone=${open} onCancel=${() => setNew(0)} /></section>`
            }
            ${!isNew && key && html`<${Entry} key=${toBase64Url(key)} prefix=${prefix} of=${key} canWrite=${canWrite}
                onChange=${changed} />`}
        </div>`;
}

/** One field for a key or a prefix, in the form in which keys are shown. */
function Search({ prefix, onNew }) {
    const [text, setText] = useState(escape(prefix));
    const [problem, setProblem] = useState("");
    const go = (isKey) => {
        try {
            const wanted = unescape(text);
            if (isKey && wanted.length === 0) throw new Error("A key has at least one byte.");
            setProblem("");
            location.hash = isKey ? addressOf(prefix, wanted) : addressOf(wanted);
        } catch (error) {
            setProblem(error.message);
        }
    };
    return html`<form class="toolbar" role="search" onSubmit=${(event) => {
        event.preventDefault();
        go(false);
    }}>
        <label class="field grows">Prefix or key <input class="mono" value=${text} spellcheck=${false}
            autocapitalize="off" autocomplete="off"
            aria-describedby="search-hint" onInput=${(event) => setText(event.target.value)} /></label>
        <button type="submit" class="button">Browse</button>
        <button type="button" class="button" onClick=${() => go(true)}>Open the key</button>
        ${onNew && html`<button type="button" class="button" onClick=${onNew}>New key</button>`}
        <p class="problem" role="alert">${problem}</p>
        <p class="quiet hint"
            id="search-hint">Bytes that cannot be seen are written <code>\\xNN</code>, <code>\\u{NNNN}
            </code>, <code>\\n</code>; a backslash is <code>\\\\</code>.</p>
    </form>`;
}

/**
 * The list of keys. It is read again when `changes` or `session` changes, that is after a change of a key and after a
 * login.
 */
function Keys({ prefix, selected, changes, session }) {
    const [grouped, setGrouped] = useState(true);
    // The cursors of the pages up to this one; null is the first page.
    const [cursors, setCursors] = useState([null]);
    const [page, setPage] = useState(null);
    const [problem, setProblem] = useState("");
    const cursor = cursors[cursors.length - 1];
    // Identifies the request. A shown page whose `asked` differs is an old one, so its `next` must not be used.
    const asked = grouped + " " + cursor;
    useEffect(() => {
        let isCurrent = true;
        list(prefix, grouped ? "/" : null, PAGE, cursor).then(
            (found) => {
                if (isCurrent) {
                    setPage({ ...found, asked });
                    setProblem("");
                }
            },
            (error) => {
                if (isCurrent) setProblem(words(error));
            },
        );
        return () => {
            isCurrent = false;
        };
    }, [grouped, cursor, changes, session]);
    const isSelected = (key) => selected !== null && toBase64Url(key) === toBase64Url(selected);
    const isEmpty = page && page.keys.length + page.prefixes.length === 0;
    return html`<section class="keys" aria-label="Keys">
        <${Path} prefix=${prefix} />
        <div class="toolbar">
            <label class="field"><input type="checkbox" checked=${grouped} onChange=${(event) => {
                setCursors([null]);
                setGrouped(event.target.checked);
            }} /> Group by “/”</label>
            <span class="pages">
                <button type="button" class="button" disabled=${cursors.length === 1}
                    onClick=${() => setCursors(cursors.slice(0, -1))}>Previous</button>
                <span class="quiet" role="status">page ${cursors.length}</span>
                <button type="button" class="button" disabled=${!page || page.next === null || page.asked !== asked}
                    onClick=${() => setCursors([...cursors, page.next])}>Next</button>
            </span>
        </div>
        <p class="problem" role="alert">${problem}</p>
        ${isEmpty && html`<p class="quiet">
            ${page.next === null ? "No keys." : "No keys on this page; there are more."}</p>`}
        ${
            page &&
            !isEmpty &&
            html`<table>
            <thead><tr><th scope="col">Key</th><th scope="col" class="figures">Size</th>
            <th scope="col" class="wide">Type</th><th scope="col" class="wide">Changed</th></tr></thead>
            <tbody>
                ${page.prefixes.map((one) => html`<tr key=${"p" + toBase64Url(one)}><td colspan="4">
                <a href=${addressOf(one)}><${Key} bytes=${one} />…</a></td></tr>`)}
                ${page.keys.map(
                    (
                        entry,
                    ) => html`<tr key=${"k" + toBase64Url(entry.key)} data-selected=${String(isSelected(entry.key))}>
                    <td><a href=${addressOf(prefix, entry.key)} aria-current=${isSelected(entry.key) ? "true" : null}>
                    <${Key} bytes=${entry.key} /></a>
                        ${entry.ttl !== undefined && html` <span class="quiet">expires in ${until(entry.ttl)}</span>`}
                        </td>
                    <td class="figures">${size(entry.bytes)}</td>
                    <td class="wide">${entry.content_type || ""}</td>
                    <td class="wide">${entry.modified_ms === undefined ? "" : dateTime(entry.modified_ms)}</td></tr>`,
                )}
            </tbody></table>`
        }
    </section>`;
}

/** Shows a key in the form in which a user types it into the field above, so backslashes are escaped too. */
function Key({ bytes }) {
    return html`<${Escaped} bytes=${bytes} doubles />`;
}

function Path({ prefix }) {
    const parts = [];
    let begin = 0;
    prefix.forEach((byte, at) => {
        if (byte === 0x2f || at === prefix.length - 1) {
            parts.push([prefix.subarray(begin, at + 1), prefix.slice(0, at + 1)]);
            begin = at + 1;
        }
    });
    return html`<nav class="path" aria-label="Prefix"><a href=${addressOf(new Uint8Array())}>all keys</a>
        ${parts.map(([part, upTo]) => html` › <a href=${addressOf(upTo)}><${Key} bytes=${part} /></a>`)}</nav>`;
}

function Entry({ prefix, of: key, canWrite, onChange }) {
    const [value, setValue] = useState(undefined);
    const [mode, setMode] = useState("view");
    const [problem, setProblem] = useState("");
    const load = () =>
        read(key).then(
            (found) => {
                setValue(found);
                setProblem("");
            },
            (error) => setProblem(words(error)),
        );
    useEffect(() => {
        load();
    }, []);
    const done = () => {
        setMode("view");
        return load();
    };
    const act = async (change) => {
        try {
            await change();
            onChange();
            await done();
        } catch (error) {
            setMode("view");
            await load();
            setProblem(
                error.status === 412
                    ? "Nothing was done: another client has changed this key meanwhile. Its value is now the one below."
                    : words(error),
            );
        }
    };
    const name =
        escape(key)
            .replace(/[^\w.-]+/g, "_")
            .slice(-80) || "value";
    const canEdit = canWrite && value && !value.isLarge && value.encoding === null;
    return html`<section class="entry" aria-label="Value">
        <p class="back"><a href=${addressOf(prefix)}>Back to the keys</a></p>
        <h2 class="mono key-name"><${Key} bytes=${key} /></h2>
        <p class="problem" role="alert">${problem}</p>
        ${value === null && mode === "view" && html`<p>This key has no value. ${canWrite && html`<button type="button"
            class="button" onClick=${() => setMode("edit")}>Create it</button>`}</p>`}
        ${
            mode === "edit" &&
            html`<${Editor} of=${key} value=${value} onStored=${onChange} onDone=${done} onCancel=${() => {
                setMode("view");
                load();
            }} />`
        }
        ${
            value &&
            mode !== "edit" &&
            html`
            <${Facts} value=${value} />
            <div class="toolbar">
                ${canEdit && html`<button type="button" class="button" onClick=${() => setMode("edit")}>Edit</button>`}
                ${canWrite && html`<button type="button" class="button"
                    onClick=${() => setMode("expire")}>Expiry</button>`}
                <button type="button" class="button"
                    onClick=${() =>
                        download(key, name).catch((error) => setProblem(words(error)))}>Download</button>
                <button type="button" class="button" onClick=${load}>Reload</button>
                ${canWrite && html`<button type="button" class="button danger"
                    onClick=${() => setMode("delete")}>Delete</button>`}
            </div>
            ${
                mode === "delete" &&
                html`<${Confirm} action="Delete" onYes=${() => act(() => remove(key, value.etag))}
                    onNo=${() => setMode("view")}>
                Delete <b class="mono"><${Key} bytes=${key} /></b>? This cannot be undone.</${Confirm}>`
            }
            ${mode === "expire" && html`<${Expiry} onSet=${(ttl) => act(() => expire(key, value.etag, ttl))}
                onCancel=${() => setMode("view")} />`}
            <${Stored} value=${value} />`
        }
    </section>`;
}

function Facts({ value }) {
    const facts = [
        ["version", value.etag],
        ["type", value.type],
        ["size", size(value.size)],
        ["expires", expiryOf(value)],
        ["changed", value.modified ? dateTime(Date.parse(value.modified)) : "unknown (stored by /v0)"],
        ...value.meta,
    ];
    return html`<dl class="facts">${facts.map(([name, fact]) => html`<div><dt>${name}</dt><dd>
        ${fact}</dd></div>`)}</dl>`;
}

/** Asks the user before an action that cannot be undone. */
export function Confirm({ action, onYes, onNo, children }) {
    return html`<div class="panel warning" role="alertdialog" aria-label=${action}
        onKeyDown=${(event) => event.key === "Escape" && onNo()}>
        <p>${children}</p>
        <div class="toolbar">
            <button type="button" class="button danger" onClick=${onYes}>${action}</button>
            <button type="button" class="button" onClick=${onNo}
                ref=${(button) => button && button.focus()}>Cancel</button>
        </div></div>`;
}

function Expiry({ onSet, onCancel }) {
    const [ttl, setTtl] = useState("");
    return html`<form class="panel" onSubmit=${(event) => {
        event.preventDefault();
        onSet(ttl.trim());
    }}>
        <label class="field">Expires in <input value=${ttl} required placeholder="1h 30m"
            onInput=${(event) => setTtl(event.target.value)} /></label>
        <button type="submit" class="button primary">Set</button>
        <button type="button" class="button" onClick=${() => onSet("none")}>Never expires</button>
        <button type="button" class="button" onClick=${onCancel}>Cancel</button>
    </form>`;
}
