// Preact with templates instead of JSX. Everything that a template contains becomes a text node or an attribute, and is
// never read as HTML. No file of the console may use innerHTML or Preact's dangerouslySetInnerHTML.
import { h } from "./preact.mjs";
import htm from "./htm.mjs";

export { render } from "./preact.mjs";
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./hooks.mjs";

export const html = htm.bind(h);
