// Reads and writes keys through /console/data, which answers as /v1 does on the data listener.
import { ApiError, readJson, send } from "./api.js";
import { fromBase64, fromText, toBase64Url } from "./bytes.js";

/** Larger values are not shown: only their beginning, and a download. */
export const SHOWN_BYTES_MAX = 256 * 1024;
const PREVIEW_BYTES = 4096;

function addressOf(key, parameters = {}) {
    return "/console/data/v1/kv?" + new URLSearchParams({ key64: toBase64Url(key), ...parameters });
}

/** Returns a page of keys: `{ keys, prefixes, next }`. `cursor`: `next` of the page before, or null. */
export async function list(prefix, delimiter, limit, cursor) {
    const parameters = { keys_only: "true", limit };
    if (cursor) parameters.cursor = cursor;
    else if (prefix.length > 0) parameters.prefix64 = toBase64Url(prefix);
    if (delimiter && !cursor) parameters.delimiter = delimiter;
    const page = await readJson("/console/data/v1/kv?" + new URLSearchParams(parameters));
    const bytes = (entry, name) => (entry[name] === undefined ? fromBase64(entry[name + "64"]) : fromText(entry[name]));
    return {
        keys: page.entries.map((entry) => ({ ...entry, key: bytes(entry, "key") })),
        prefixes: (page.prefixes || []).map((entry) => bytes(entry, "prefix")),
        next: page.complete ? null : page.next,
    };
}

/**
 * Reads a key. Returns null if it has no value, otherwise `{ bytes, size, etag, type, encoding, ttl, modified, meta,
 * readAt }`. If the value is large, `bytes` is only its beginning.
 */
export async function read(key) {
    const stop = new AbortController();
    let answer;
    try {
        answer = await send(addressOf(key), { signal: stop.signal });
    } catch (error) {
        if (error instanceof ApiError && error.status === 404) return null;
        throw error;
    }
    const { headers } = answer;
    const size = Number(headers.get("content-length"));
    const isLarge = size > SHOWN_BYTES_MAX;
    if (isLarge) {
        stop.abort();
        answer = await send(addressOf(key), {
            headers: { Range: "bytes=0-" + (PREVIEW_BYTES - 1), "If-Match": headers.get("etag") },
        });
    }
    const ttl = headers.get("klad-ttl");
    return {
        bytes: new Uint8Array(await answer.arrayBuffer()),
        size,
        isLarge,
        etag: headers.get("etag"),
        type: headers.get("content-type"),
        encoding: headers.get("content-encoding"),
        ttl: ttl === null ? null : parseFloat(ttl),
        modified: headers.get("last-modified"),
        meta: Array.from(headers).filter(([name]) => name.startsWith("klad-meta-")),
        readAt: Date.now(),
    };
}

/** The seconds that a value still lives, or null if it does not expire. */
export function left(value) {
    return value.ttl === null ? null : Math.max(0.001, value.ttl - (Date.now() - value.readAt) / 1000);
}

/** Stores a value if the key still has `etag`; with null, if the key has no value. Returns the new ETag. */
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

/** Lets the browser save the value as a file. */
export async function download(key, name) {
    const blob = await (await send(addressOf(key))).blob();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
