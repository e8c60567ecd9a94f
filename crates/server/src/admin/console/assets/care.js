import { html } from "./html.js";
export function Care() { return html`<p>…</p>`; }
