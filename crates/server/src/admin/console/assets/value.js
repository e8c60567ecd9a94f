// Shows a value as text, JSON, bytes or a picture. Whatever a value contains becomes a text node. Pictures are shown
// only if their type is in IMAGES, because these types cannot hold scripts.
import { html, useEffect, useMemo, useState } from "./html.js";
import { hexDump, pieces, toText, fromText } from "./bytes.js";
import { bytes as size } from "./format.js";
import { Choice } from "./now.js";

const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"];
/** JSON that is nested deeper than this is not indented, because it would be mostly spaces. */
const DEPTH_MAX = 64;

/**
 * Text with escapes marked. With `doubles` backslashes are doubled, as in the form that a user can type. <bdi> keeps
 * right-to-left letters from moving the text around them.
 */
export function Escaped({ bytes, keepsLines, doubles }) {
    const found = useMemo(() => pieces(bytes, keepsLines), [bytes]);
    const plain = (text) => (doubles ? text.replaceAll("\\", "\\\\") : text);
    return html`<bdi dir="ltr">${found.map(({ text, isEscape }) => (isEscape ? html`<mark>
        ${text}</mark>` : plain(text)))}</bdi>`;
}

/**
 * Indents JSON without a change of any number or text. Returns null if the text is not JSON, or is nested too deeply.
 */
export function prettyJson(text) {
    try {
        JSON.parse(text);
    } catch {
        return null;
    }
    let written = "";
    let depth = 0;
    const line = () => "\n" + "  ".repeat(depth);
    const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g);
    for (let at = 0; at < tokens.length; at += 1) {
        const token = tokens[at];
        if (token === "{" || token === "[") {
            if ("}]".includes(tokens[at + 1])) {
                written += token + tokens[at + 1];
                at += 1;
                continue;
            }
            depth += 1;
            if (depth > DEPTH_MAX) return null;
            written += token + line();
        } else if (token === "}" || token === "]") {
            depth -= 1;
            written += line() + token;
        } else if (token === ",") written += "," + line();
        else written += token === ":" ? ": " : token;
    }
    return written;
}

function imageType(type) {
    return IMAGES.find((known) => (type || "").toLowerCase().split(";")[0].trim() === known);
}

/** Shows a value that `read` has returned, and says which part of it is not shown. */
export function Stored({ value: { bytes, isLarge, encoding, size: stored, type } }) {
    return html`
        ${
            encoding !== null &&
            html`<p class="quiet">The value is stored with Content-Encoding: ${encoding}. It cannot be edited here,
            because the browser decodes it.</p>`
        }
        ${
            bytes === null &&
            html`<p class="problem">This value could not be read or decoded. Reload it, or download the stored
            bytes.</p>`
        }
        ${
            isLarge &&
            html`<p class="quiet">The value is too large to be shown. These are the first ${size(bytes.length)} of
            ${encoding === null ? " " + size(stored) : " the decoded value"}; download it to see all.</p>`
        }
        ${bytes !== null && html`<${Value} bytes=${bytes} type=${isLarge ? null : type} />`}`;
}

export function Value({ bytes, type }) {
    const json = useMemo(() => {
        const text = toText(bytes);
        return text !== null && /^\s*[[{"]/.test(text) ? prettyJson(text) : null;
    }, [bytes]);
    const forms = [
        imageType(type) && ["image", "image"],
        json !== null && ["json", "JSON"],
        ["text", "text"],
        ["hex", "hex"],
    ].filter(Boolean);
    const first = forms[0][0] === "text" && toText(bytes) === null ? "hex" : forms[0][0];
    const [chosen, setChosen] = useState(null);
    const form = forms.some(([id]) => id === chosen) ? chosen : first;
    const shown = {
        image: () => html`<${Picture} bytes=${bytes} type=${imageType(type)} />`,
        json: () => html`<pre class="value"><${Escaped} bytes=${fromText(json)} keepsLines /></pre>`,
        text: () => html`<pre class="value"><${Escaped} bytes=${bytes} keepsLines /></pre>`,
        hex: () => html`<pre class="value hex">${hexDump(bytes, innerWidth < 560 ? 8 : 16)}</pre>`,
    };
    return html`<div>
        <${Choice} label="Shown as" value=${form} options=${forms} onChange=${setChosen} />
        ${bytes.length === 0 ? html`<p class="quiet value">The value is empty.</p>` : shown[form]()}
    </div>`;
}

function Picture({ bytes, type }) {
    const [address, setAddress] = useState(null);
    const [isBroken, setBroken] = useState(false);
    useEffect(() => {
        const made = URL.createObjectURL(new Blob([bytes], { type }));
        setAddress(made);
        setBroken(false);
        return () => URL.revokeObjectURL(made);
    }, [bytes, type]);
    if (isBroken) return html`<p class="problem">The value is not a picture of the type ${type}.</p>`;
    return html`<p class="value">
        ${address && html`<img src=${address} alt="the value" onError=${() => setBroken(true)} />`}</p>`;
}
