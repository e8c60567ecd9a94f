// Sends requests to klad. Each request has the token, which exists only in the memory of this page: it is never stored,
// and never part of an address.

let token = null;
let isOut = false;
let onUnauthorized = () => {};

/** The error of an answer that is not a success. `problem` is klad's problem document, if the answer has one. */
export class ApiError extends Error {
    constructor(status, problem, etag) {
        super(problem.detail || problem.title || "klad answered " + status);
        Object.assign(this, { status, problem, etag, code: problem.code || "" });
    }
}

export function setToken(wanted) {
    token = wanted;
}

/** Whether klad has rejected the last request because of its token. */
export function isLoggedOut() {
    return isOut;
}

/** Calls `listener` whenever klad answers that the token is missing or unknown. */
export function whenUnauthorized(listener) {
    onUnauthorized = listener;
}

/**
 * Sends a request and returns the answer, if it is a success.
 *
 * @throws {ApiError} if klad answers with an error.
 * @throws {TypeError} if klad does not answer.
 */
export async function send(path, options = {}) {
    const headers = new Headers(options.headers);
    if (token !== null) headers.set("Authorization", "Bearer " + token);
    const answer = await fetch(path, {
        ...options,
        headers,
        cache: "no-store",
        credentials: "omit",
        redirect: "error",
    });
    isOut = answer.status === 401;
    if (answer.ok) return answer;
    if (isOut) onUnauthorized();
    const problem = await answer.json().catch(() => ({}));
    throw new ApiError(answer.status, problem, answer.headers.get("etag"));
}

export async function readJson(path, options) {
    return (await send(path, options)).json();
}

export async function readText(path, options) {
    return (await send(path, options)).text();
}

/** Says an error in words for the user. */
export function words(error) {
    if (error instanceof ApiError)
        return error.message + (error.code ? " (" + error.status + " " + error.code + ")" : "");
    const isSilent = error instanceof TypeError || error.name === "TimeoutError";
    return isSilent ? "klad does not answer." : String(error.message || error);
}
