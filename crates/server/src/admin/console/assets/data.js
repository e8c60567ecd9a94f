import { html } from "./html.js";
export function Data() { return html`<p>…</p>`; }
