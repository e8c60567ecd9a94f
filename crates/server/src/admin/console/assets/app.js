// The frame of the console: login, navigation, the connection to klad, colours, and the view that the address names.
import { html, render, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { readJson, setToken, whenUnauthorized, words } from "./api.js";
import { clock } from "./format.js";
import { Stream } from "./stream.js";
import { Now } from "./now.js";
import { Why } from "./why.js";
import { Data } from "./data.js";
import { Care } from "./care.js";
import { Cluster } from "./cluster.js";
import { isUnsaved, mayLeave } from "./editor.js";

const VIEWS = [
    { id: "now", title: "Now", isFor: () => true },
    { id: "why", title: "Why", isFor: () => true },
    { id: "data", title: "Data", isFor: () => true },
    { id: "care", title: "Care", isFor: () => true },
    { id: "cluster", title: "Cluster", isFor: (session) => session.engine === "cassandra" },
];

/** Returns the view and the rest of the address: `#/data/users` gives `["data", "users"]`. */
function route() {
    const [, view, rest] = /^#\/([a-z]+)\/?(.*)$/.exec(location.hash) || [];
    return VIEWS.some((known) => known.id === view) ? [view, rest] : ["now", ""];
}

function useRoute() {
    const [current, setCurrent] = useState(route);
    // Not useEffect: it runs after the paint, and a change of the address before it would not be seen.
    useLayoutEffect(() => {
        let shown = location.hash;
        const changed = () => {
            if (mayLeave()) {
                shown = location.hash;
                setCurrent(route());
            } else history.pushState(null, "", shown);
        };
        addEventListener("hashchange", changed);
        return () => removeEventListener("hashchange", changed);
    }, []);
    return current;
}

/** The colour scheme, "light" or "dark". It is the system's until the user chooses one. */
function useTheme() {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const [chosen, setChosen] = useState(() => localStorage.getItem("klad-theme"));
    const [system, setSystem] = useState(dark.matches ? "dark" : "light");
    // Not useEffect: it runs after the paint, and a change of the system's scheme before it would not be seen.
    useLayoutEffect(() => {
        const changed = () => setSystem(dark.matches ? "dark" : "light");
        dark.addEventListener("change", changed);
        return () => dark.removeEventListener("change", changed);
    }, []);
    const theme = chosen || system;
    document.documentElement.dataset.theme = theme;
    const choose = (wanted) => {
        localStorage.setItem("klad-theme", wanted);
        setChosen(wanted);
    };
    return [theme, choose];
}

/** Reads klad's stream of samples while the page is visible, so that klad sends nothing to a hidden page. */
function useStream(isLoggedIn) {
    const [, setTick] = useState(0);
    const stream = useRef(null);
    if (!stream.current) stream.current = new Stream(() => setTick((tick) => tick + 1));
    useEffect(() => {
        if (!isLoggedIn) return undefined;
        const follow = () => (document.hidden ? stream.current.stop() : stream.current.start());
        follow();
        document.addEventListener("visibilitychange", follow);
        return () => {
            document.removeEventListener("visibilitychange", follow);
            stream.current.stop();
        };
    }, [isLoggedIn]);
    return stream.current;
}

function App({ charts }) {
    const [session, setSession] = useState(null);
    const [isOut, setOut] = useState(false);
    const [error, setError] = useState(null);
    const [theme, chooseTheme] = useTheme();
    const [view, rest] = useRoute();
    const stream = useStream(session !== null && !isOut);
    const heading = useRef(null);

    const enter = async () => {
        const session = await readJson("/console/session");
        const threads = (await readJson("/config")).options.find((option) => option.name === "threads");
        setSession({ ...session, threads: Number(threads.value ?? threads.effective) });
        setError(null);
        setOut(false);
    };
    const tryToEnter = () => {
        // A hidden page sends no requests.
        if (document.hidden) document.addEventListener("visibilitychange", tryToEnter, { once: true });
        else
            enter().catch((error) => {
                setError(error);
                if (error.status !== 401) setTimeout(tryToEnter, 2000);
            });
    };
    useEffect(() => {
        whenUnauthorized(() => setOut(true));
        tryToEnter();
    }, []);
    const started = stream.set && stream.set.startedMs;
    useEffect(() => {
        // After a restart klad may be another version, with other options.
        if (session && started !== null && started !== session.started_ms) tryToEnter();
    }, [started]);
    // Not useEffect: it runs after the paint, and would take the focus from a field that the user has entered already.
    useLayoutEffect(() => {
        const name = VIEWS.find((known) => known.id === view).title;
        document.title = name + " · klad console";
        // When the view changes, move the focus to its heading, so that screen readers begin there. The focus stays
        // where it is when nothing has the focus, for instance when the page has just been opened.
        if (heading.current && document.activeElement !== document.body) heading.current.focus();
    }, [view]);

    const login = isOut && html`<${Login} onEnter=${enter} />`;
    // If nothing is unsaved, remove the view. It loads again after the login.
    if (isOut && !isUnsaved()) return login;
    if (!session) return login || html`<p class="start" role="status">${error ? words(error) : "Asking klad …"}</p>`;
    const known = VIEWS.filter((one) => one.isFor(session));
    const Shown = { now: Now, why: Why, data: Data, care: Care, cluster: Cluster }[view];
    // Unsaved changes must not be lost when klad rejects the token. So the page is only hidden while the login is
    // shown.
    return html`${login}<div hidden=${isOut}>
        <a class="skip" href=${"#main"} onClick=${(event) => {
            event.preventDefault();
            heading.current.focus();
        }}>Skip to the content</a>
        <header class="top">
            <p class="brand"><b>klad</b> <span>
                ${session.version} · ${session.engine}, ${session.execution} · ${location.host}</span></p>
            <nav aria-label="Views">${known.map(
                ({ id, title }) => html`
                <a href=${"#/" + id} aria-current=${id === view ? "page" : null}>${title}</a>`,
            )}</nav>
            <div class="states">
                <${Live} stream=${stream} />
                ${session.access === "read-only" && html`<span class="quiet">read only</span>`}
                <button type="button" class="button" onClick=${() => chooseTheme(theme === "dark" ? "light" : "dark")}
                    aria-label=${"Use " + (theme === "dark" ? "light" : "dark") + " colours"}>
                        ${theme === "dark" ? "Light" : "Dark"}</button>
            </div>
        </header>
        <${Gone} stream=${stream} />
        <main id="main">
            <h1 tabindex="-1" ref=${heading}>${known.find((one) => one.id === view)?.title || "Now"}</h1>
            <${Shown} key=${view} view=${view} rest=${rest} store=${stream} charts=${charts} theme=${theme}
                session=${session} />
        </main></div>`;
}

function Live({ stream }) {
    const words = stream.isLive ? "live" : stream.isGone ? "no answer" : "connecting";
    return html`<span class="live" data-live=${String(stream.isLive)}>${words}</span>`;
}

/** Says that klad sends no samples. The element always exists, so that screen readers notice when its text changes. */
function Gone({ stream }) {
    const { isGone: gone, refusal } = stream;
    return html`<div class="gone" role="alert" hidden=${!gone && !refusal}>
        ${refusal && html`<p>
        <strong>klad sends no figures: ${words(refusal)}.</strong> The page tries again by itself.</p>`}
        ${gone && html`<p>
        <strong>klad has not answered since ${clock(stream.answeredAt)}.</strong> The page tries again by itself, and
        shows the last figures until then.</p>`}
    </div>`;
}

function Login({ onEnter }) {
    const [message, setMessage] = useState("");
    const submit = async (event) => {
        event.preventDefault();
        setToken(event.target.elements.token.value.trim());
        try {
            await onEnter();
        } catch (error) {
            setToken(null);
            setMessage(error.status === 401 ? "klad does not know this token." : words(error));
        }
    };
    return html`<main class="login">
        <h1>klad console</h1>
        <form onSubmit=${submit}>
            <label for="token">Token</label>
            <input id="token" name="token" type="password" autocomplete="off" required autofocus />
            <button type="submit" class="button primary">Log in</button>
            <p class="problem" role="alert">${message}</p>
        </form>
        <p class="quiet">A token from klad's --token-file. It stays in the memory of this page until you close or
            reload it.</p>
    </main>`;
}

const charts = (await (await fetch("/console/charts.json")).json()).charts;
const place = document.getElementById("app");
place.replaceChildren();
render(html`<${App} charts=${charts} />`, place);
