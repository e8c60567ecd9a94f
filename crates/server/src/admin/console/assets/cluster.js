// The view Cluster, with the Cassandra engine: the nodes as this klad sees them, and its requests to them.
import { html, useEffect, useState } from "./html.js";
import { readJson } from "./api.js";
import { Between } from "./figures.js";
import { count, seconds } from "./format.js";
import { Now, Sign } from "./now.js";

const WINDOW_MS = 10000;

/** Returns a row for each node: `{ node, isConnected, answered, failed, mean }`, rates per second, mean in seconds. */
function nodesOf(samples) {
    const now = Between.of(samples, WINDOW_MS);
    if (!now) return [];
    const rates = (name) => Object.fromEntries(now.rates(name, "node"));
    const [answered, failed, busy] = ["answered_total", "failed_total", "seconds_total"].map((name) =>
        rates("klad_cluster_node_" + name),
    );
    return Object.entries(now.values("klad_cluster_node_connected", "node"))
        .map(([node, isConnected]) => {
            const attempts = (answered[node] || 0) + (failed[node] || 0);
            return {
                node,
                isConnected: isConnected === 1,
                answered: answered[node] || 0,
                failed: failed[node] || 0,
                mean: attempts > 0 ? (busy[node] || 0) / attempts : null,
            };
        })
        .sort((a, b) => a.node.localeCompare(b.node, "en", { numeric: true }));
}

export function Cluster(properties) {
    const { store } = properties;
    const [copies, setCopies] = useState(null);
    useEffect(() => {
        readJson("/console/data/v1/limits").then(
            (limits) => setCopies(limits.copies),
            () => {},
        );
    }, []);
    const nodes = nodesOf(store.samples);
    return html`
        <p>${copies !== null && "The cluster keeps " + copies + (copies === 1 ? " copy" : " copies") + " of each key."}
        </p>
        <p class="quiet">These figures are those of this klad, and not of the whole cluster.</p>
        ${store.leftOut && html`<p class="quiet">Some values are not shown: there are too many series.</p>`}
        <div class="scroll"><table>
            <thead><tr><th scope="col">Node</th><th scope="col">Connection</th>
            <th scope="col" class="figures">Answers</th><th scope="col" class="figures">Failures</th>
            <th scope="col" class="figures">Mean time</th></tr></thead>
            <tbody>${nodes.map(
                (one) => html`<tr key=${one.node}>
                <th scope="row" class="mono">${one.node}</th>
                <td><${Sign} level=${one.isConnected ? "good" : "bad"} /> ${one.isConnected ? "connected" : "lost"}</td>
                <td class="figures">${count(one.answered)}/s</td><td class="figures">${count(one.failed)}/s</td>
                <td class="figures">${one.mean === null ? "–" : seconds(one.mean)}</td></tr>`,
            )}</tbody></table></div>
        <${Now} ...${properties} />`;
}
