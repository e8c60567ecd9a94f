//! Shows a page in a browser, in frames as wide as a phone and as a wide screen, in light or dark, and counts errors,
//! requests and pixels from outside.

use serde_json::{Value, json};

use super::tools::browse;

/// Widths in which every page must be usable, CSS pixels.
pub(crate) const WIDTHS: [u64; 2] = [390, 1280];

/// Minimum size of text, CSS pixels.
const FONT_MIN: f64 = 11.0;

/// Minimum number of pixels with the colour of a visible series.
const PIXELS_MIN: u64 = 8;

/// Runs before the scripts of the page: records errors, and requests to elsewhere.
const LISTENING: &str = "<script>window.seen = { errors: [], refused: [], media: [] };\
    (function () {\
        var ask = window.matchMedia.bind(window);\
        window.seen.isDark = function () { return ask('(prefers-color-scheme: dark)').matches; };\
        window.matchMedia = function (query) { var media = ask(query); window.seen.media.push(media); return media; };\
    }());\
    window.addEventListener('error', function (event) { window.seen.errors.push(event.message || 'a resource'); }, true);\
    window.addEventListener('unhandledrejection', function (event) { window.seen.errors.push(String(event.reason)); });\
    window.addEventListener('securitypolicyviolation', function (event) { window.seen.refused.push(event.blockedURI); });\
    </script><meta charset=";

/// Inspects a page from its parent, for [`faults`].
const LOOKING: &str = r"
function channels(colour) { return (colour.match(/[\d.]+/g) || []).map(Number); }
function pixels(canvas, wanted) {
    var data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data, count = 0;
    for (var at = 0; at < data.length; at += 4) {
        if (data[at + 3] > 200 && wanted(data[at], data[at + 1], data[at + 2])) count += 1;
    }
    return count;
}
function ofColour(colour) {
    var c = channels(colour);
    return function (r, g, b) { return Math.abs(r - c[0]) < 12 && Math.abs(g - c[1]) < 12 && Math.abs(b - c[2]) < 12; };
}
function colourful(r, g, b) { return Math.max(r, g, b) - Math.min(r, g, b) > 40; }
function anything() { return true; }
function shown(w, figure) {
    var canvas = figure.querySelector('canvas'), plot = figure.querySelector('.plot');
    var series = Array.from(figure.querySelectorAll('button.key')).map(function (key) {
        var swatch = key.querySelector('.swatch'), style = w.getComputedStyle(swatch);
        var colour = swatch.classList.contains('points') ? style.backgroundColor : style.borderTopColor;
        return { name: key.textContent, pixels: canvas ? pixels(canvas, ofColour(colour)) : 0 };
    });
    return {
        id: figure.id, kind: figure.dataset.kind, state: figure.dataset.state || null, words: plot.textContent,
        width: canvas ? canvas.getBoundingClientRect().width : 0,
        pixels: canvas ? pixels(canvas, anything) : 0,
        colourful: canvas ? pixels(canvas, colourful) : 0,
        series: series
    };
}
function pointed(w, figure) {
    var over = figure.querySelector('.u-over');
    if (!over) return null;
    var box = over.getBoundingClientRect();
    ['mouseenter', 'mousemove'].forEach(function (kind) {
        var at = { clientX: box.left + box.width * 0.6, clientY: box.top + box.height * 0.5, bubbles: true, view: w };
        over.dispatchEvent(new w.MouseEvent(kind, at));
    });
    return {
        at: figure.querySelector('.legend .at').textContent,
        values: Array.from(figure.querySelectorAll('.legend .value')).map(function (value) { return value.textContent; })
    };
}
function smallest(w, d) {
    var least = { size: 1000 };
    d.querySelectorAll('body *').forEach(function (element) {
        var own = Array.from(element.childNodes).some(function (node) { return node.nodeType === 3 && node.data.trim(); });
        if (!own || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(element.tagName)) return;
        var size = parseFloat(w.getComputedStyle(element).fontSize);
        if (size < least.size) least = { size: size, text: element.textContent.slice(0, 40) };
    });
    return least;
}
function look(frame) {
    var w = frame.contentWindow, d = frame.contentDocument, html = d.documentElement;
    var all = Array.from(d.querySelectorAll('figure.chart'));
    var result = {
        width: w.innerWidth, wider: html.scrollWidth - html.clientWidth, drawn: html.dataset.drawn || null,
        background: channels(w.getComputedStyle(d.body).backgroundColor), smallest: smallest(w, d),
        figures: all.map(function (figure) { return shown(w, figure); }),
        fetched: w.performance.getEntriesByType('resource').map(function (entry) { return entry.name; }),
        refused: w.seen.refused, errors: w.seen.errors,
        embedded: Array.from(d.querySelectorAll('details[open] iframe')).map(function (inner) {
            return inner.contentDocument ? inner.contentDocument.querySelectorAll('svg rect').length : -1;
        })
    };
    return result;
}
function settled() { return new Promise(function (done) { setTimeout(done, 30); }); }
async function use(frame, result) {
    var w = frame.contentWindow, d = frame.contentDocument;
    var all = Array.from(d.querySelectorAll('figure.chart'));
    for (var index = 0; index < all.length; index += 1) {
        var figure = all[index], seen = result.figures[index];
        var click = async function (button) {
            figure.querySelector(button).click();
            await settled();
            return shown(w, figure);
        };
        seen.pointed = pointed(w, figure);
        // The values at the cursor need space too.
        result.wider = Math.max(result.wider, d.documentElement.scrollWidth - d.documentElement.clientWidth);
        if (figure.querySelector('.switch button')) {
            seen.switched = await click('.switch button[aria-pressed=false]');
            seen.again = await click('.switch button[aria-pressed=false]');
        }
        if (figure.querySelector('button.key') && figure.querySelector('canvas')) {
            seen.hidden = await click('button.key');
            seen.again = await click('button.key');
        }
    }
    result.drawn_after = html_state(d);
    result.wider = Math.max(result.wider, d.documentElement.scrollWidth - d.documentElement.clientWidth);
    result.errors = w.seen.errors;
}
// A frame has the colour scheme of the element that contains it. Browsers report a change when they paint, at an
// uncertain time, so the script notifies the listeners itself.
async function turn(frame, dark, result) {
    var w = frame.contentWindow, d = frame.contentDocument;
    var ink = function () {
        var swatch = d.querySelector('button.key .swatch');
        return swatch && w.getComputedStyle(swatch).borderTopColor;
    };
    var before = ink();
    frame.style.colorScheme = dark ? 'light' : 'dark';
    for (var tries = 0; tries < 20 && w.seen.isDark() === dark; tries += 1) await settled();
    w.seen.media.forEach(function (media) { media.dispatchEvent(new w.Event('change')); });
    await settled();
    result.turned = Array.from(d.querySelectorAll('figure.chart')).map(function (figure) { return shown(w, figure); });
    result.ink = [before, ink()];
}
function html_state(d) {
    return Array.from(d.querySelectorAll('figure.chart')).map(function (figure) { return figure.dataset.state || null; });
}
var frames = Array.from(document.querySelectorAll('iframe')), waiting = frames.length;
frames.forEach(function (frame) {
    frame.onload = function () {
        waiting -= 1;
        if (waiting > 0) return;
        setTimeout(async function () {
            var results = frames.map(look);
            for (var index = 0; index < frames.length; index += 1) {
                await use(frames[index], results[index]);
                await turn(frames[index], dark, results[index]);
            }
            document.getElementById('result').textContent = JSON.stringify(results);
        }, 500);
    };
    frame.srcdoc = page;
});
";

/// Returns what a browser shows of `page` in each of [`WIDTHS`].
pub(crate) fn look(page: &str, dark: bool) -> Vec<Value> {
    assert!(page.contains("<meta charset="), "a page says how its text is encoded");
    let page = page.replacen("<meta charset=", LISTENING, 1);
    let quoted = serde_json::to_string(&page).unwrap().replace('<', "\\u003c");
    // The frames overlap: a browser does not paint what is outside the window.
    let frame =
        |width: &u64| format!("<iframe style=\"position:absolute;left:0;top:0\" width={width} height=900></iframe>");
    let frames: String = WIDTHS.iter().map(frame).collect();
    let outer = format!(
        "<!DOCTYPE html><meta charset=utf-8><meta name=color-scheme content=\"light dark\"><body>{frames}<pre id=result></pre>\
         <script>var page = {quoted}, dark = {dark};{LOOKING}</script>"
    );
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("frames.html");
    std::fs::write(&path, outer).unwrap();
    let dumped = browse(&format!("file://{}", path.display()), dark);
    let result = dumped.split("<pre id=\"result\">").nth(1).unwrap().split("</pre>").next().unwrap();
    let text = result.replace("&nbsp;", "\u{a0}").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the faults of a page; `figures` are the ids of its figures, in their order.
pub(crate) fn faults(seen: &[Value], dark: bool, figures: &[&str]) -> Vec<String> {
    assert_eq!(seen.len(), WIDTHS.len());
    let mut faults = Vec::new();
    for (seen, width) in seen.iter().zip(WIDTHS) {
        let mut fault = |what: String| faults.push(format!("{width}: {what}"));
        if seen["width"] != width {
            fault(format!("the page has width {}", seen["width"]));
        }
        if seen["wider"] != 0 {
            fault(format!("it is {} wider than its window", seen["wider"]));
        }
        for kind in ["errors", "refused", "fetched"] {
            if seen[kind] != json!([]) {
                fault(format!("{kind}: {}", seen[kind]));
            }
        }
        if seen["smallest"]["size"].as_f64().unwrap() < FONT_MIN {
            fault(format!("small text: {}", seen["smallest"]));
        }
        let bright =
            seen["background"].as_array().unwrap().iter().take(3).all(|channel| channel.as_f64() > Some(127.0));
        if bright == dark {
            fault(format!("the background is {}", seen["background"]));
        }
        let ids: Vec<_> =
            seen["figures"].as_array().unwrap().iter().map(|figure| figure["id"].as_str().unwrap()).collect();
        if ids != figures {
            fault(format!("the figures are {ids:?}"));
        }
        if seen["drawn"].as_str() != Some(&figures.len().to_string()) {
            fault(format!("{} figures are drawn", seen["drawn"]));
        }
        for figure in seen["figures"].as_array().unwrap() {
            for what in figure_faults(figure) {
                fault(format!("{}: {what}", figure["id"]));
            }
        }
        if seen["ink"][0] == seen["ink"][1] {
            fault("the colours do not change with the colour scheme".to_owned());
        }
        for figure in seen["turned"].as_array().unwrap() {
            if figure["state"] == "drawn" && figure["colourful"].as_u64().unwrap() < PIXELS_MIN {
                fault(format!("{}: nothing is visible after a change of the colour scheme", figure["id"]));
            }
        }
        if seen["drawn_after"].as_array().unwrap().iter().any(|state| state != "drawn") {
            fault(format!("after use: {}", seen["drawn_after"]));
        }
    }
    faults
}

fn most(figure: &Value) -> u64 {
    figure["series"].as_array().unwrap().iter().map(|series| series["pixels"].as_u64().unwrap()).max().unwrap_or(0)
}

fn figure_faults(figure: &Value) -> Vec<String> {
    if figure["state"] != "drawn" {
        return vec![format!("{}: {}", figure["state"], figure["words"])];
    }
    let mut faults = Vec::new();
    if figure["kind"] == "heat" {
        if figure["colourful"].as_u64().unwrap() < PIXELS_MIN {
            faults.push("no cell is visible".to_owned());
        }
    } else if most(figure) < PIXELS_MIN {
        faults.push(format!("no series is seen: {}", figure["series"]));
    }
    for after in ["switched", "again"] {
        let Some(seen) = figure.get(after) else { continue };
        if seen["state"] != "drawn" || most(seen) < PIXELS_MIN {
            faults.push(format!("no series is visible when it was {after}: {}", seen["series"]));
        }
    }
    let first = |seen: &Value| seen["series"][0]["pixels"].as_u64().unwrap();
    // If another series has the same colour, the pixels remain when one is hidden.
    let alone =
        figure["series"].as_array().is_some_and(|all| all.iter().skip(1).all(|one| one["pixels"] != all[0]["pixels"]));
    if let Some(hidden) = figure.get("hidden")
        && (hidden["pixels"] == 0 || (alone && first(hidden) > first(figure) / 2))
    {
        faults.push(format!("a hidden series is still visible, or all are hidden: {}", hidden["series"]));
    }
    let figures = |text: &Value| text.as_str().is_some_and(|text| text.contains(|one: char| one.is_ascii_digit()));
    let pointed = &figure["pointed"];
    let values = pointed["values"].as_array().map_or(&[][..], Vec::as_slice);
    if !figures(&pointed["at"]) || (figure["kind"] != "heat" && !values.iter().any(figures)) {
        faults.push(format!("the cursor says {pointed}"));
    }
    faults
}
