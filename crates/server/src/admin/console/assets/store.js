// Reads and writes keys through /console/data, which answers as /v1 does on the data listener.
import { ApiError, readJson, send } from "./api.js";
import { fromBase64, fromText, toBase64Url } from "./bytes.js";
import { until } from "./format.js";

/**
 * The largest value that the page shows, bytes. For a larger value it shows only the beginning, and offers a download.
 */
export const SHOWN_BYTES_MAX = 256 * 1024;
const PREVIEW_BYTES = 4096;

function addressOf(key, parameters = {}) {
    return "/console/data/v1/kv?" + new URLSearchParams({ key64: toBase64Url(key), ...parameters });
}

/**
 * Returns the bytes of a part of an entry. klad writes parts that are not UTF-8 in base64, under the part's name with
 * "64".
 */
function bytesOf(entry, name) {
    return entry[name] === undefined ? fromBase64(entry[name + "64"]) : fromText(entry[name]);
}

/** Returns a page of keys: `{ keys, prefixes, next }`. `cursor`: `next` of the page before, or null. */
export async function list(prefix, delimiter, limit, cursor) {
    const parameters = { keys_only: "true", limit };
    if (cursor) parameters.cursor = cursor;
    else if (prefix.length > 0) parameters.prefix64 = toBase64Url(prefix);
    if (delimiter && !cursor) parameters.delimiter = delimiter;
    const page = await readJson("/console/data/v1/kv?" + new URLSearchParams(parameters));
    return {
        keys: page.entries.map((entry) => ({ ...entry, key: bytesOf(entry, "key") })),
        prefixes: (page.prefixes || []).map((entry) => bytesOf(entry, "prefix")),
        next: page.complete ? null : page.next,
    };
}

/**
 * Reads at most about `max` bytes of a body. The limit is needed because the decoded body may be much longer than what
 * klad has sent.
 */
async function beginningOf(body, max) {
    const reader = body.getReader();
    const parts = [];
    for (let length = 0; length < max;) {
        const { value, done } = await reader.read();
        if (done) break;
        parts.push(value);
        length += value.length;
    }
    reader.cancel();
    return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/**
 * Reads a key. Returns null if it has no value, otherwise
 * `{ bytes, isLarge, size, etag, type, encoding, ttl, modified, meta, readAt }`. `size` counts the stored bytes.
 * `bytes` are the decoded bytes, but only their beginning if the value is large. `bytes` is null if the value has a
 * Content-Encoding, and the browser could not read or decode it.
 */
export async function read(key) {
    let answer;
    try {
        answer = await send(addressOf(key));
    } catch (error) {
        if (error instanceof ApiError && error.status === 404) return null;
        throw error;
    }
    const { headers } = answer;
    const encoding = headers.get("content-encoding");
    const bytes = await beginningOf(answer.body, SHOWN_BYTES_MAX + 1).catch((error) => {
        if (encoding === null) throw error;
        return null;
    });
    const isLarge = bytes !== null && bytes.length > SHOWN_BYTES_MAX;
    const ttl = headers.get("klad-ttl");
    return {
        bytes: isLarge ? bytes.slice(0, PREVIEW_BYTES) : bytes,
        isLarge,
        size: Number(headers.get("content-length")),
        etag: headers.get("etag"),
        type: headers.get("content-type"),
        encoding,
        ttl: ttl === null ? null : parseFloat(ttl),
        modified: headers.get("last-modified"),
        meta: Array.from(headers).filter(([name]) => name.startsWith("klad-meta-")),
        readAt: Date.now(),
    };
}

/** Returns how many seconds a value still lives, or null if it does not expire. */
export function left(value) {
    return value.ttl === null ? null : Math.max(0.001, value.ttl - (Date.now() - value.readAt) / 1000);
}

/** When a value expires, in words. */
export function expiryOf(value) {
    return value.ttl === null ? "never" : "in " + until(left(value));
}

/**
 * Stores a value only if the key still has `etag`, or, if `etag` is null, only if the key has no value. Returns the new
 * ETag.
 */
export async function write(key, bytes, { etag, type, ttl, meta }) {
    const headers = new Headers(meta || []);
    if (type) headers.set("Content-Type", type);
    if (etag === null) headers.set("If-None-Match", "*");
    else headers.set("If-Match", etag);
    const answer = await send(addressOf(key, ttl ? { ttl } : {}), { method: "PUT", headers, body: bytes });
    return answer.headers.get("etag");
}

export async function remove(key, etag) {
    await send(addressOf(key), { method: "DELETE", headers: { "If-Match": etag } });
}

/** Changes when a value expires: `ttl` is a time such as "1h 30m", or "none". */
export async function expire(key, etag, ttl) {
    await send(addressOf(key, { op: "expire", ttl }), { method: "POST", headers: { "If-Match": etag } });
}

/**
 * Reads the stored bytes of a value that the browser cannot decode. It reads a page of entries, which has no
 * Content-Encoding.
 */
async function readStored(key) {
    const bounds = { start64: toBase64Url(key), end64: toBase64Url([...key, 0]) };
    const [entry] = (await readJson("/console/data/v1/kv?" + new URLSearchParams(bounds))).entries;
    if (!entry) throw new Error("This key has no value.");
    return bytesOf(entry, "value");
}

/** Lets the browser save the value as a file. The value is decoded if the browser can decode it. */
export async function download(key, name) {
    const answer = await send(addressOf(key));
    const content = await answer.blob().catch((error) => {
        if (answer.headers.get("content-encoding") === null) throw error;
        return readStored(key);
    });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content], { type: "application/octet-stream" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
