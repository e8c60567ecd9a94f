import { html } from "./html.js";
export function Why() { return html`<p>…</p>`; }
