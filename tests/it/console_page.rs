//! The console's page in a browser, against a klad under load: every view, the promises about data and tokens, and what
//! it says about a slow disk and about a klad that has gone.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};

use super::support::loaded::{PAUSE, loaded};
use super::support::server::keep;
use super::support::shim::Shim;
use super::support::token_file::{READER, WRITER, both};
use super::support::webdriver::Browser;
use super::support::{PATIENCE, Server, ServerBuilder, wait_until};

/// Widths in which the page must be usable, CSS pixels.
const WIDTHS: [u64; 2] = [390, 1280];

/// The views, and what is true in the page once a view shows data.
const VIEWS: [(&str, &str); 4] = [
    (
        "now",
        "document.querySelectorAll('.chart canvas').length > 14 && document.querySelector('.verdict') \
         && Array.from(document.querySelectorAll('.tiles dd')).some((one) => /^[1-9]/.test(one.textContent))",
    ),
    ("why", "document.querySelectorAll('.slow .bar .phase').length > 3"),
    ("data", "document.querySelectorAll('.keys tbody tr').length > 3"),
    (
        "care",
        "document.querySelectorAll('.options tbody tr').length > 30 && document.querySelectorAll('.checks li').length > 2",
    ),
];

/// Returns what a view looks like: for [`faults`].
const LOOKING: &str = r"
const busy = ['requests', 'outcomes', 'latency-heat', 'latency', 'phases', 'syncs', 'commits', 'cpu', 'memory'];
const small = [], html = document.documentElement;
document.querySelectorAll('body *').forEach((element) => {
    const own = Array.from(element.childNodes).some((node) => node.nodeType === 3 && node.data.trim());
    const size = parseFloat(getComputedStyle(element).fontSize);
    if (own && size < 11) small.push(element.textContent.slice(0, 40));
});
const colourful = (canvas) => {
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
    let count = 0;
    for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] > 100 && Math.max(data[at], data[at + 1], data[at + 2]) - Math.min(data[at], data[at + 1], data[at + 2]) > 40) count += 1;
    }
    return count;
};
const named = (element) => element.textContent.trim() || element.getAttribute('aria-label') || element.labels?.[0]?.textContent.trim();
return {
    width: innerWidth, wider: html.scrollWidth - html.clientWidth, small,
    background: getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number),
    // Under this load these have data. The first samples are too few pixels to be seen.
    blank: Array.from(document.querySelectorAll('.chart')).filter((chart) => busy.includes(chart.id.slice(6)))
        .filter((chart) => !chart.querySelector('canvas') || colourful(chart.querySelector('canvas')) < 8).map((chart) => chart.id),
    unnamed: Array.from(document.querySelectorAll('button, input, select, textarea, a')).filter((one) => !named(one)).map((one) => one.outerHTML.slice(0, 80)),
    headings: document.querySelectorAll('h1').length, landmarks: ['header', 'nav', 'main'].filter((name) => document.querySelector(name)).length,
};";

pub(super) fn console(server: &Server) -> String {
    format!("http://{}/console", server.admin)
}

pub(super) fn open(browser: &Browser, server: &Server, view: &str) {
    // A change of the part behind `#` alone would not load the page again.
    browser.go("about:blank");
    browser.go(&format!("{}#/{view}", console(server)));
}

/// Returns what is wrong with the view that the page shows.
fn faults(browser: &Browser, width: u64, dark: bool) -> Vec<String> {
    let seen = browser.run(LOOKING);
    let mut faults = Vec::new();
    if seen["width"] != width || seen["wider"].as_i64() > Some(0) {
        faults.push(format!("the page is {} wider than its window of {}", seen["wider"], seen["width"]));
    }
    let bright = seen["background"].as_array().unwrap().iter().take(3).all(|channel| channel.as_u64() > Some(127));
    if bright == dark {
        faults.push(format!("the background is {}", seen["background"]));
    }
    for kind in ["small", "blank", "unnamed"] {
        if seen[kind] != json!([]) {
            faults.push(format!("{kind}: {}", seen[kind]));
        }
    }
    if seen["headings"] != 1 || seen["landmarks"] != 3 {
        faults.push(format!("{} headings, {} landmarks", seen["headings"], seen["landmarks"]));
    }
    faults
}

/// Waits until the view has no faults. Also asserts that the browser has logged no error.
pub(super) fn assert_well_drawn(browser: &Browser, view: &str, width: u64, dark: bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut found = faults(browser, width, dark);
    while !found.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(200));
        found = faults(browser, width, dark);
    }
    found.extend(browser.errors());
    assert_eq!(found, Vec::<String>::new(), "{view} at {width}, dark: {dark}");
}

#[test]
fn every_view_is_drawn_on_a_phone_and_on_a_wide_screen_in_light_and_dark() {
    let server = ServerBuilder::new("rocksdb").start();
    let browser = Browser::start();
    loaded(&server, PAUSE, || {
        for (width, dark) in WIDTHS.into_iter().flat_map(|width| [(width, false), (width, true)]) {
            browser.look(width, 900, dark);
            for (view, has_data) in VIEWS {
                open(&browser, &server, view);
                browser.wait(has_data);
                assert_well_drawn(&browser, view, width, dark);
            }
        }
        // The switch wins over the system.
        browser.click(".states button", "Light");
        assert_well_drawn(&browser, "care", 1280, false);
    });
}

#[test]
fn twin_a_view_that_is_too_wide_small_blank_or_fails_is_noticed() {
    let server = ServerBuilder::new("rocksdb").start();
    let browser = Browser::start();
    loaded(&server, PAUSE, || {
        browser.look(390, 900, false);
        open(&browser, &server, "now");
        browser.wait(VIEWS[0].1);
        assert_well_drawn(&browser, "now", 390, false);
        browser.run(
            "const wide = document.createElement('p'); wide.textContent = 'wide'; wide.style.width = '900px'; \
             wide.style.fontSize = '9px'; document.body.append(wide, document.createElement('button')); \
             document.body.style.background = '#000'; document.body.append(document.createElement('h1')); \
             const image = document.createElement('img'); image.src = 'http://127.0.0.1:1/'; document.body.append(image); \
             setTimeout(() => { throw new Error('planted'); });",
        );
        browser.wait_for_error("planted");
        let planted =
            ["wider than", "background", "small: [\"wide\"]", "unnamed", "2 headings", "blank: [\"chart-cpu\"]"];
        wait_until("the faults are noticed", || {
            // The chart is drawn again each second.
            browser.run("document.querySelector('#chart-cpu canvas').getContext('2d').reset()");
            let found = faults(&browser, 390, false);
            planted.iter().all(|what| found.iter().any(|fault| fault.contains(what)))
        });
    });
}

#[test]
fn a_slow_disk_is_named_in_the_first_sentence_of_the_page() {
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new("rocksdb")).start();
    let browser = Browser::start();
    browser.look(1280, 900, false);
    loaded(&server, PAUSE, || {
        open(&browser, &server, "now");
        browser.wait(VIEWS[0].1);
        let says = "document.querySelector('.verdict').textContent.includes('Writes wait for the disk: a sync takes')";
        shim.slow_writes();
        browser.wait(says);
        // The link leads to the chart that shows it.
        browser.click(".verdict a", "show the chart");
        browser.wait("document.activeElement.id === 'chart-syncs'");
    });
}

/// Opens the value of a key in the page.
pub(super) fn open_key(browser: &Browser, server: &Server, key: &[u8]) {
    open(browser, server, &format!("data/-/{}", key64(key)));
    browser.wait("document.querySelector('.entry .facts')");
}

fn key64(key: &[u8]) -> String {
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(key)
}

pub(super) fn put(server: &Server, key: &[u8], headers: &[(&str, &str)], value: &[u8]) {
    let answer = server.client().request("PUT", &format!("/v1/kv?key64={}", key64(key)), headers, Some(value));
    assert!([201, 204].contains(&answer.status), "{}", answer.text());
}

/// Edits a value while another client changes it; `planted` is a script that changes the page before. Returns what is
/// wrong.
fn edits_beside_another_client(browser: &Browser, server: &Server, planted: &str) -> Vec<String> {
    put(server, b"shared", &[], b"first");
    open_key(browser, server, b"shared");
    browser.run(planted);
    browser.click(".entry button", "Edit");
    browser.fill("textarea", "mine");
    put(server, b"shared", &[], b"theirs");
    browser.click(".editor button", "Save");
    browser.wait("document.querySelector('.conflict') || !document.querySelector('.editor')");
    let mut faults = Vec::new();
    if server.client().get("/v1/kv/shared").body != b"theirs" {
        faults.push("the other client's value is overwritten".to_owned());
    }
    let shown = browser.run("return document.querySelector('.conflict')?.innerText || ''");
    for words in ["theirs", "mine", "Another client has changed this key"] {
        if !shown.as_str().unwrap().contains(words) {
            faults.push(format!("the conflict does not show {words}"));
        }
    }
    faults
}

#[test]
fn a_value_that_another_client_has_changed_is_shown_and_not_overwritten() {
    let server = ServerBuilder::new("rocksdb").start();
    let browser = Browser::start();
    assert_eq!(edits_beside_another_client(&browser, &server, ""), Vec::<String>::new());
    // Only when the user says so.
    browser.click(".conflict button", "Overwrite it with mine");
    browser.wait("!document.querySelector('.editor')");
    let stored = server.client().get("/v1/kv/shared");
    assert_eq!(stored.body, b"mine");

    // A value keeps its type, its metadata and its expiry when it is edited.
    let headers = [("Content-Type", "text/x-own"), ("Klad-Meta-Author", "Ada"), ("Klad-TTL", "1h")];
    put(&server, b"kept", &headers, b"a\nb");
    open_key(&browser, &server, b"kept");
    browser.click(".entry button", "Edit");
    browser.fill("textarea", "a\nc");
    browser.click(".editor button", "Save");
    browser.wait("!document.querySelector('.editor')");
    let kept = server.client().get("/v1/kv/kept");
    assert_eq!((kept.body.as_slice(), kept.header("content-type")), (b"a\nc".as_slice(), Some("text/x-own")));
    assert_eq!(kept.header("klad-meta-author"), Some("Ada"));
    assert!(kept.header("klad-ttl").is_some(), "it still expires");

    // A deletion is confirmed first.
    browser.click(".entry button", "Delete");
    browser.click(".panel button", "Cancel");
    assert_eq!(server.client().get("/v1/kv/kept").status, 200);
    browser.click(".entry button", "Delete");
    browser.click(".panel button", "Delete");
    browser.wait("document.querySelector('.entry').textContent.includes('This key has no value')");
    assert_eq!(server.client().get("/v1/kv/kept").status, 404);
}

/// A PNG of one pixel, in base64.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg==";

#[test]
fn keys_are_browsed_page_by_page_made_shown_in_their_form_and_expire() {
    let server = ServerBuilder::new("rocksdb").start();
    let browser = Browser::start();
    for number in 0..130 {
        put(&server, format!("many/{number:03}").as_bytes(), &[], b"x");
    }
    let png = base64::engine::general_purpose::STANDARD.decode(PNG).unwrap();
    put(&server, b"picture", &[("Content-Type", "image/png")], &png);
    put(&server, b"raw", &[], b"\xff\xfe\x00");
    let rows = "Array.from(document.querySelectorAll('.keys tbody tr')).map((row) => row.cells[0].innerText.trim())";
    open(&browser, &server, "data");
    browser.wait(&format!("{rows}.join() === 'many/…,picture,raw'"));
    browser.click(".keys a", "many/");
    browser.wait(&format!("{rows}.length === 100 && {rows}[0] === 'many/000'"));
    browser.click("button", "Next");
    browser.wait(&format!("{rows}.length === 30 && {rows}[29] === 'many/129'"));
    browser.click("button", "Previous");
    browser.wait(&format!("{rows}[0] === 'many/000'"));

    open_key(&browser, &server, b"picture");
    browser.wait("document.querySelector('.entry img').naturalWidth === 1");
    open_key(&browser, &server, b"raw");
    browser.wait("document.querySelector('.entry pre').textContent.includes('ff fe 00')");
    browser.click(".entry button", "Expiry");
    browser.fill(".panel input", "2h");
    browser.click(".panel button", "Set");
    browser.wait("document.querySelector('.entry .facts').innerText.includes('in 1\u{a0}h')");
    assert!(server.client().get("/v1/kv/raw").header("klad-ttl").is_some());
    browser.click(".entry button", "Expiry");
    browser.click(".panel button", "Never expires");
    browser.wait("document.querySelector('.entry .facts').innerText.includes('never')");

    // A new key, and one that exists already.
    browser.click("button", "New key");
    browser.fill(".editor .grows input", "new\\xff");
    browser.fill("textarea", "made here");
    browser.click(".editor button", "Save");
    browser.wait(
        "document.querySelector('.key-name').textContent === 'new\\\\xff' && document.querySelector('.entry .facts')",
    );
    assert_eq!(server.client().get("/v1/kv/new%ff").body, b"made here");
    browser.click("button", "New key");
    browser.fill(".editor .grows input", "raw");
    browser.click(".editor button", "Save");
    browser.wait("document.querySelector('.conflict').innerText.includes('This key has a value already')");
    browser.click(".conflict button", "Keep the value in klad");
    assert_eq!(server.client().get("/v1/kv/raw").body, b"\xff\xfe\x00");
    // The browser logs the 412.
    assert!(browser.errors().iter().all(|error| error.contains("412")));
}

#[test]
fn twin_a_page_that_forgets_the_condition_is_noticed() {
    let server = ServerBuilder::new("rocksdb").start();
    let browser = Browser::start();
    let planted = "const fetched = window.fetch; window.fetch = (to, options = {}) => { \
                   if (options.headers) options.headers.delete('If-Match'); return fetched(to, options); };";
    let faults = edits_beside_another_client(&browser, &server, planted);
    assert!(faults.contains(&"the other client's value is overwritten".to_owned()), "{faults:?}");
}

/// Takes a profile, and again if klad hardly ran meanwhile on a busy machine.
fn take_a_profile(browser: &Browser) {
    wait_until("a profile has enough samples", || {
        browser.click("button", "Take a profile");
        browser.wait(
            "Array.from(document.querySelectorAll('button')).some((one) => one.textContent === 'Take a profile')",
        );
        browser.run("return document.querySelectorAll('.boxes .box').length > 20") == true
    });
}

#[test]
fn a_flame_graph_is_taken_searched_zoomed_and_compared() {
    let server = ServerBuilder::new("rocksdb").start();
    let browser = Browser::start();
    loaded(&server, PAUSE, || {
        open(&browser, &server, "why");
        browser.fill("#profiles ~ .toolbar select:nth-of-type(1)", "profile");
        browser.run(
            "const length = document.querySelectorAll('section[aria-labelledby=profiles] select')[1]; length.value = '1'; \
             length.dispatchEvent(new Event('change', { bubbles: true }))",
        );
        take_a_profile(&browser);
        browser.fill("input[type=search]", "klad");
        browser.wait("document.querySelectorAll('.boxes .found').length > 0");
        let share = browser.run("return document.querySelector('.flame [role=status]').textContent");
        assert!(share.as_str().unwrap().contains("% contain"), "{share}");
        // A function that is not in the profile has no share.
        browser.fill("input[type=search]", "no such function");
        browser.wait("document.querySelector('.flame [role=status]').textContent.startsWith('0')");

        // With keys: the first box below the root, then Enter, then back.
        browser.run("document.querySelector('.boxes .box').focus()");
        browser.press(&['\u{E015}', '\u{E007}']);
        browser.wait("document.querySelectorAll('.boxes .above').length === 1");
        browser.press(&['\u{E00C}']);
        browser.wait("document.querySelectorAll('.boxes .above').length === 0");

        browser.run(
            "window.lists = document.querySelectorAll('section[aria-labelledby=profiles] select'); \
             window.first = lists[2].options.length",
        );
        take_a_profile(&browser);
        browser.wait("lists[3].options.length > first");
        browser.run("lists[3].selectedIndex = first; lists[3].dispatchEvent(new Event('change', { bubbles: true }))");
        browser.wait("document.querySelectorAll('.boxes .same').length > 0 && !document.querySelector('.boxes .klad')");
        // A click as soon as another profile is shown counts.
        browser.run(
            "new MutationObserver((changes, observer) => { \
                 observer.disconnect(); \
                 document.querySelectorAll('.boxes .box')[1].click(); \
                 window.hasClicked = true; \
             }).observe(document.querySelector('.boxes'), { childList: true, attributes: true, subtree: true }); \
             lists[2].selectedIndex = first - 1; lists[2].dispatchEvent(new Event('change', { bubbles: true }))",
        );
        browser.wait("window.hasClicked");
        assert_eq!(browser.run("return document.querySelectorAll('.boxes .above').length"), 1);
        browser.click("button", "List the threads");
        browser.wait("document.querySelectorAll('.thread').length > 4");
    });
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn a_token_is_asked_for_and_kept_only_in_memory() {
    let tokens = both();
    let server = tokens.builder("rocksdb").start();
    let browser = Browser::start();
    open(&browser, &server, "now");
    let log_in = |token: &str| {
        browser.fill("#token", token);
        browser.click("button", "Log in");
    };
    log_in("wrong-0123456789abcdef");
    browser.wait("document.querySelector('.problem').textContent.includes('does not know this token')");
    log_in(READER);
    browser.wait("document.querySelectorAll('.chart canvas').length > 5");
    // The browser logs each 401; there must be nothing else.
    let others: Vec<_> = browser.errors().into_iter().filter(|error| !error.contains("401")).collect();
    assert_eq!(others, Vec::<String>::new());
    let kept =
        browser.run("return JSON.stringify([location.href, document.cookie, {...localStorage}, {...sessionStorage}])");
    assert!(!kept.as_str().unwrap().contains(READER), "{kept}");

    // A user who may only read sees no button in this view.
    browser.run("location.hash = '#/care'");
    browser.wait("document.querySelectorAll('.options tbody tr').length > 30");
    let buttons = "return Array.from(document.querySelectorAll('main button')).map((one) => one.textContent)";
    assert_eq!(browser.run(buttons), json!([]));
    // A new page has forgotten the token.
    open(&browser, &server, "care");
    browser.wait("document.querySelector('#token')");
    log_in(WRITER);
    browser
        .wait("Array.from(document.querySelectorAll('.options button')).some((one) => one.textContent === 'Change')");
}

/// Keys that a page could misunderstand, with values of the same bytes.
fn hostile() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [
        "<script>window.hacked = 1</script>",
        "<img src=x onerror='window.hacked = 1'>",
        "\" onmouseover=\"window.hacked = 1",
        "${window.hacked = 1}",
        "abc\u{202e}gpj.exe",
        "nul\0and\u{7f}and\u{85}",
        "\u{200b}\u{feff}",
        "line\nline\r\ttab",
        "\\x00 and \\",
        "javascript:window.hacked=1",
        "%2e%2e/..//",
        "__proto__",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    all.push(vec![0xff, 0xfe, b'/', 0xc3]);
    all.push(vec![0]);
    all
}

/// Returns what is wrong in how the page shows the keys of [`hostile`]. `planted`: a script that runs before the check.
fn hostile_faults(browser: &Browser, planted: &str) -> Vec<String> {
    browser.run(planted);
    let seen = browser.run(
        r"return {
            hacked: Boolean(window.hacked),
            elements: Array.from(document.querySelectorAll('main script, main img, main iframe, main [onerror], main [onmouseover]')).length,
            hidden: Array.from(document.querySelectorAll('.keys td a, .key-name, .entry pre'))
                .filter((one) => /[\p{Cc}\p{Cf}]/u.test(one.textContent.replaceAll(/[\n\t]/g, ''))).map((one) => one.textContent),
        };",
    );
    let mut faults = Vec::new();
    for (what, expected) in [("hacked", json!(false)), ("elements", json!(0)), ("hidden", json!([]))] {
        if seen[what] != expected {
            faults.push(format!("{what}: {}", seen[what]));
        }
    }
    faults
}

#[test]
fn hostile_keys_and_values_are_shown_as_text_and_can_be_used() {
    let server = ServerBuilder::new("rocksdb").start();
    let browser = Browser::start();
    let keys = hostile();
    for key in &keys {
        put(&server, key, &[("Content-Type", "text/html")], key);
    }
    open(&browser, &server, "data");
    browser.click(".keys label", "Group");
    let all = format!("document.querySelectorAll('.keys tbody tr').length === {}", keys.len());
    browser.wait(&all);
    assert_eq!(hostile_faults(&browser, ""), Vec::<String>::new());
    // The twin: a page that reads keys as HTML.
    let planted = "document.querySelectorAll('.keys td a').forEach((one) => { one.innerHTML = one.textContent; })";
    assert_ne!(hostile_faults(&browser, planted), Vec::<String>::new());
    // The page has asked for the twin's picture, too, which klad does not have.
    browser.wait("document.querySelector('.keys img').complete");
    // The policy has stopped what the twin would have run.
    browser.wait_for_error("Content Security Policy");

    for key in &keys {
        open_key(&browser, &server, key);
        assert_eq!(hostile_faults(&browser, ""), Vec::<String>::new());
        // What the page shows can be typed, and is the same key.
        let shown = browser.run("return document.querySelector('.key-name').textContent");
        browser.run("location.hash = '#/data'");
        browser.wait("!document.querySelector('.entry')");
        browser.fill(".toolbar input", shown.as_str().unwrap());
        browser.click("button", "Open the key");
        browser
            .wait(&format!("location.hash === '#/data/-/{}' && document.querySelector('.entry .facts')", key64(key)));
        // The value survives being edited.
        browser.click(".entry button", "Edit");
        browser.click(".editor button", "Save");
        browser.wait("!document.querySelector('.editor')");
        assert_eq!(server.client().get(&format!("/v1/kv?key64={}", key64(key))).body, *key);
    }
    assert_eq!(browser.errors(), Vec::<String>::new());

    // A megabyte in one line is not shown, only its beginning.
    put(&server, b"large", &[], &vec![b'<'; 1 << 20]);
    open_key(&browser, &server, b"large");
    browser.wait("document.querySelector('.entry pre')");
    let length = browser.run("return document.querySelector('.entry pre').textContent.length");
    assert_eq!(length, 4096);
    assert!(browser.run("return document.body.innerText").as_str().unwrap().contains("too large to be shown"));
}

#[test]
fn the_page_says_that_klad_has_gone_and_recovers_when_it_is_back() {
    let data = tempfile::tempdir().unwrap();
    let first = ServerBuilder::new("rocksdb").data(data.path()).start();
    let admin: SocketAddr = first.admin;
    let browser = Browser::start();
    open(&browser, &first, "now");
    let live = "document.querySelector('.live').dataset.live === 'true'";
    browser.wait(live);
    browser.wait("document.querySelector('.brand').textContent.includes('rocksdb, adaptive')");
    first.kill();
    let _kept = keep(admin);
    browser
        .wait("/klad has not answered since \\d\\d:\\d\\d:\\d\\d/.test(document.querySelector('.gone').textContent)");
    let again =
        ServerBuilder::new("rocksdb/inline").data(data.path()).arg("--admin-listen", &admin.to_string()).start();
    browser.wait(live);
    browser.wait("document.querySelector('.brand').textContent.includes('rocksdb, inline')");
    browser.wait("document.querySelector('.gone').hidden && document.querySelector('.gone').textContent === ''");
    assert_eq!(again.admin, admin);
    let shown: Value = browser.run("return document.querySelectorAll('.chart').length");
    assert!(shown.as_u64() > Some(10), "{shown}");
}

/// With `KLAD_TEST_PICTURES=docs/console` this writes the pictures of the documents. Without, it shows that it can.
#[test]
fn the_pictures_of_the_documents_can_be_made() {
    let wanted = std::env::var_os("KLAD_TEST_PICTURES");
    // Time for enough samples.
    let wait = |seconds| std::thread::sleep(Duration::from_secs(if wanted.is_some() { seconds } else { 0 }));
    let shim = Shim::new();
    let server = shim.preload(ServerBuilder::new("rocksdb").arg("--memory", "256MiB")).start();
    let json = br#"{"name":"Ada","roles":["admin","author"],"visits":12345678901234567890}"#;
    put(&server, b"users/7/profile", &[("Content-Type", "application/json"), ("Klad-TTL", "30d")], json);
    put(&server, b"users/8/profile", &[("Content-Type", "application/json")], b"{}");
    put(&server, b"<script>alert(1)</script>", &[], b"text");
    put(&server, b"raw\xff\xfe", &[], b"\x00\x01");
    let browser = Browser::start();
    let save = |view: &str, height: u64, ready: &str| {
        browser.look(1280, height, false);
        browser.wait(ready);
        let picture = browser.picture();
        assert!(picture.starts_with(b"\x89PNG") && picture.len() > 10_000, "{view}: {} bytes", picture.len());
        if let Some(directory) = &wanted {
            let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
            std::fs::write(directory.join(format!("{view}.png")), picture).unwrap();
        }
    };
    loaded(&server, PAUSE, || {
        open(&browser, &server, "now");
        wait(50);
        shim.slow_writes();
        browser.wait("document.querySelector('.verdict').textContent.includes('Writes wait for the disk')");
        wait(20);
        browser.click(".switch button", "2 min");
        save("now", 1000, VIEWS[0].1);
        shim.pass();
        open(&browser, &server, "why");
        browser.wait(VIEWS[1].1);
        take_a_profile(&browser);
        browser.fill(".flame input[type=search]", "rocksdb");
        save("why", 1300, "document.querySelectorAll('.boxes .found').length > 0");
    });
    open(&browser, &server, &format!("data/{}/{}", key64(b"users/7/"), key64(b"users/7/profile")));
    save("data", 700, "document.querySelector('.entry pre') && document.querySelector('.keys tbody tr')");
    open(&browser, &server, "care");
    save("care", 900, VIEWS[3].1);
}
