// Keys and values as text, without loss. Bytes that are not UTF-8 become \xNN. Characters that cannot be seen, or that
// change the direction or place of others (control, bidirectional, zero-width, blank), become \n, \r, \t, \xNN or
// \u{NNNN}.

const HIDDEN = /[\p{C}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]|(?! )\p{Zs}/u;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
const encoder = new TextEncoder();

export function fromText(text) {
    return encoder.encode(text);
}

/** Returns the bytes as text, or null if they are not UTF-8. */
export function toText(bytes) {
    try {
        return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
        return null;
    }
}

export function fromBase64(text) {
    const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    return Uint8Array.from(binary, (letter) => letter.charCodeAt(0));
}

/** Base64url without padding, as in `key64=`. */
export function toBase64Url(bytes) {
    let binary = "";
    for (const byte of bytes) binary += String.fromCharCode(byte);
    return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The length of the UTF-8 character at `at`, or 0 if there is none. */
function lengthAt(bytes, at) {
    const first = bytes[at];
    const length =
        first < 0x80
            ? 1
            : first >= 0xc2 && first < 0xe0
              ? 2
              : first >= 0xe0 && first < 0xf0
                ? 3
                : first >= 0xf0 && first < 0xf5
                  ? 4
                  : 0;
    return length > 1 && toText(bytes.subarray(at, at + length)) === null ? 0 : length;
}

function escapeOf(letter) {
    const code = letter.codePointAt(0);
    return SHORT[letter] || (code < 0x80 ? hexByte(code) : "\\u{" + code.toString(16) + "}");
}

function hexByte(byte) {
    return "\\x" + byte.toString(16).padStart(2, "0");
}

/**
 * Divides bytes into pieces `{ text, isEscape }`. A piece is either plain text or an escape. With `keepsLines`, line
 * feeds and tabs stay plain text.
 */
export function pieces(bytes, keepsLines = false) {
    const found = [];
    const add = (text, isEscape) => {
        const last = found[found.length - 1];
        if (last && last.isEscape === isEscape) last.text += text;
        else found.push({ text, isEscape });
    };
    const addText = (text) => {
        for (const letter of text) {
            const isHidden = HIDDEN.test(letter) && !(keepsLines && (letter === "\n" || letter === "\t"));
            add(isHidden ? escapeOf(letter) : letter, isHidden);
        }
    };
    const whole = toText(bytes);
    if (whole !== null) {
        addText(whole);
        return found;
    }
    for (let at = 0; at < bytes.length;) {
        const length = lengthAt(bytes, at);
        if (length === 0) add(hexByte(bytes[at]), true);
        else addText(toText(bytes.subarray(at, at + length)));
        at += Math.max(1, length);
    }
    return found;
}

/** Returns the bytes as one text, from which `unescape` makes the same bytes. Backslashes are doubled. */
export function escape(bytes, keepsLines = false) {
    return pieces(bytes, keepsLines)
        .map(({ text, isEscape }) => (isEscape ? text : text.replaceAll("\\", "\\\\")))
        .join("");
}

/**
 * Reads what `escape` writes, and what a user writes in the same form.
 *
 * @throws {Error} if a backslash does not begin an escape.
 */
export function unescape(text) {
    const parts = [];
    const PART = /\\(?:x([0-9a-fA-F]{2})|u\{([0-9a-fA-F]{1,6})\}|([nrt\\]))|\\|[^\\]+/g;
    for (const [part, byte, code, short] of text.matchAll(PART)) {
        if (byte !== undefined) parts.push(Uint8Array.of(parseInt(byte, 16)));
        else if (code !== undefined && isCharacter(parseInt(code, 16)))
            parts.push(fromText(String.fromCodePoint(parseInt(code, 16))));
        else if (short !== undefined) parts.push(fromText({ n: "\n", r: "\r", t: "\t", "\\": "\\" }[short]));
        else if (part.startsWith("\\"))
            throw new Error("A backslash begins \\xNN, \\u{NNNN}, \\n, \\r or \\t; write \\\\ for a backslash itself.");
        else parts.push(fromText(part));
    }
    const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
        all.set(part, at);
        at += part.length;
    }
    return all;
}

/** Whether UTF-8 can encode the code point `code`. UTF-8 cannot encode surrogates, the halves of UTF-16 pairs. */
function isCharacter(code) {
    return code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
}

/**
 * Whether a text field keeps the bytes unchanged. A text field changes line ends, and does not show invisible
 * characters.
 */
export function isPlainText(bytes) {
    return pieces(bytes, true).every(({ isEscape }) => !isEscape);
}

/** Returns lines of `width` bytes, each with offset, hexadecimal digits and ASCII. */
export function hexDump(bytes, width = 16) {
    const lines = [];
    for (let at = 0; at < bytes.length; at += width) {
        const row = Array.from(bytes.subarray(at, at + width));
        const digits = row
            .map((byte) => byte.toString(16).padStart(2, "0"))
            .join(" ")
            .padEnd(3 * width - 1);
        const letters = row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
        lines.push(at.toString(16).padStart(6, "0") + "  " + digits + "  " + letters);
    }
    return lines.join("\n");
}
