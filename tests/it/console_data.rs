//! The view Data, where it could lose or hide something: values that the browser decodes or cannot decode, changes that
//! are not saved, pages of keys, invisible characters, and downloads.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use super::console_page::{open, open_key, put};
use super::support::token_file::{WRITER, both};
use super::support::webdriver::Browser;
use super::support::{Server, ServerBuilder, wait_until};

const SAYS: &str = "return document.querySelector('.entry').innerText.replaceAll('\\u00a0', ' ')";

#[test]
fn what_the_browser_decodes_is_read_in_part_and_what_it_cannot_decode_can_still_be_used() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    let directory = tempfile::tempdir().unwrap();
    browser.downloads_to(directory.path());
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(&vec![b'<'; 64 << 20]).unwrap();
    let mut bomb = bomb.finish().unwrap();
    put(&server, b"bomb", &[("Content-Encoding", "gzip")], &bomb);
    open_key(&browser, &server, b"bomb");
    assert_eq!(browser.run("return document.querySelector('.entry pre').textContent.length"), 4096);
    let says = browser.run(SAYS);
    for words in ["stored with Content-Encoding: gzip", "cannot be edited", "the first 4 KiB of the decoded value"] {
        assert!(says.as_str().unwrap().contains(words), "{words}: {says}");
    }

    // The beginning can be decoded, and the end cannot: the download has the stored bytes.
    let end = bomb.len() - 9000;
    bomb[end..].fill(0xff);
    put(&server, b"torn", &[("Content-Encoding", "gzip")], &bomb);
    open_key(&browser, &server, b"torn");
    assert_eq!(browser.run("return document.querySelector('.entry pre').textContent.length"), 4096);
    browser.click(".entry button", "Download");
    let file = directory.path().join("torn");
    wait_until("the stored bytes are saved", || std::fs::read(&file).is_ok_and(|saved| saved == bomb));

    put(&server, b"false", &[("Content-Encoding", "gzip"), ("Klad-TTL", "1h")], b"\xffnot gzip");
    // The download of `false` must not contain this key, which begins with the same characters.
    put(&server, b"false friend", &[], b"another");
    open_key(&browser, &server, b"false");
    browser.wait("document.querySelector('.entry').innerText.includes('could not be read or decoded')");
    browser.click(".entry button", "Download");
    let file = directory.path().join("false");
    wait_until("the stored bytes are saved", || std::fs::read(&file).is_ok_and(|saved| saved == b"\xffnot gzip"));
    browser.click(".entry button", "Expiry");
    browser.click(".panel button", "Never expires");
    wait_until("it does not expire", || server.client().get("/v1/kv/false").header("klad-ttl").is_none());
    browser.click(".entry button", "Delete");
    browser.click(".panel button", "Delete");
    browser.wait("document.querySelector('.entry').textContent.includes('This key has no value')");
    // A value without an encoding, too large to be shown.
    let large = vec![b'x'; 300 << 10];
    put(&server, b"large", &[], &large);
    open_key(&browser, &server, b"large");
    assert!(browser.run(SAYS).as_str().unwrap().contains("These are the first 4 KiB of 300 KiB"));
    browser.click(".entry button", "Download");
    let file = directory.path().join("large");
    wait_until("all of it is saved", || std::fs::read(&file).is_ok_and(|saved| saved == large));
}

#[test]
fn changes_that_are_not_saved_outlive_a_login_and_are_not_left_without_a_question() {
    let tokens = both();
    let server = tokens.builder("memory").start();
    let browser = Browser::start();
    browser.before_each_page(
        "const real = window.fetch; window.questions = []; \
         window.confirm = (question) => { questions.push(question); return window.mayLeave; }; \
         window.fetch = (to, options) => window.isRevoked \
             ? Promise.resolve(new Response('{}', { status: 401 })) : real(to, options);",
    );
    let log_in = || {
        browser.fill("#token", WRITER);
        browser.click("button", "Log in");
    };
    open(&browser, &server, "data");
    log_in();
    let asks = "const event = new Event('beforeunload', { cancelable: true }); dispatchEvent(event); \
                return event.defaultPrevented";
    browser.click("button", "New key");
    browser.wait("document.querySelector('textarea')");
    assert_eq!(browser.run(asks), false, "nothing is changed");
    browser.fill(".editor .grows input", "key");
    browser.fill("textarea", "typed");
    browser.wait("document.querySelector('textarea').value === 'typed'");
    wait_until("closing the page asks", || browser.run(asks) == true);

    let here = browser.run("return location.href");
    browser.run("location.hash = '#/now'");
    browser.wait("questions.length === 1");
    assert_eq!(browser.run("return location.href"), here);
    browser.click("button", "New key");
    assert_eq!(browser.run("return [questions.length, document.querySelector('textarea').value]"), json!([2, "typed"]));
    // When the user accepts, the editor becomes empty.
    browser.run("window.mayLeave = true");
    browser.click("button", "New key");
    browser.wait("questions.length === 3 && document.querySelector('textarea').value === ''");
    wait_until("closing the page does not ask", || browser.run(asks) == false);
    browser.run("window.mayLeave = false");
    browser.fill(".editor .grows input", "key");
    browser.fill("textarea", "typed");
    wait_until("closing the page asks", || browser.run(asks) == true);

    // klad does not know the token any more.
    browser.run("window.isRevoked = true");
    browser.click(".editor button", "Save");
    browser.wait("document.querySelector('#token') && !document.querySelector('textarea').checkVisibility()");
    // After the login the page also reads the list of keys again.
    browser.run("window.isRevoked = false");
    put_as_writer(&server, b"another");
    log_in();
    browser.wait("document.querySelector('textarea').checkVisibility() && !document.querySelector('#token')");
    browser.wait("document.querySelector('.keys tbody')?.innerText.includes('another')");
    browser.click(".editor button", "Save");
    browser.wait("!document.querySelector('.editor') && document.querySelector('.entry .facts')");
    assert_eq!(browser.run("return questions.length"), 3, "what is saved is left without a question");
    let stored = server.client().request("GET", "/v1/kv/key", &[("Authorization", &format!("Bearer {WRITER}"))], None);
    assert_eq!(stored.body, b"typed");

    // When the user accepts, the page leaves the editor.
    browser.click(".entry button", "Edit");
    browser.fill("textarea", "typed again");
    wait_until("closing the page asks", || browser.run(asks) == true);
    browser.run("window.mayLeave = true; location.hash = '#/care'");
    browser.wait("document.querySelector('.checks li') && questions.length === 4");
    assert_eq!(browser.run(asks), false);

    // Nothing is unsaved: the login has nothing of the old user below it, and each view is loaded again.
    browser.run("window.isRevoked = true; location.hash = '#/data'");
    browser.wait("document.querySelector('#token') && !document.querySelector('.keys')");
    browser.run("window.isRevoked = false");
    log_in();
    browser.wait("document.querySelector('.keys tbody').innerText.includes('another')");
    assert_eq!(browser.run("return document.querySelector('.keys .problem').innerText"), "");
}

fn put_as_writer(server: &Server, key: &[u8]) {
    let headers = [("Authorization", &*format!("Bearer {WRITER}"))];
    let answer = server.client().request("PUT", &format!("/v1/kv/{}", key.escape_ascii()), &headers, Some(b"x"));
    assert_eq!(answer.status, 201, "{}", answer.text());
}

/// A script that clicks a button as soon as the page has it, which is before the browser paints it.
fn click_at_once(text: &str) -> String {
    format!(
        "new MutationObserver((changes, observer) => {{ \
             const buttons = Array.from(document.querySelectorAll('button')); \
             const button = buttons.find((one) => one.textContent === {text:?}); \
             if (!button) return; \
             observer.disconnect(); \
             window.clicked = (window.clicked || []).concat({text:?}); \
             button.click(); \
         }}).observe(document, {{ childList: true, subtree: true }});"
    )
}

/// Clicks "New key" at once. Returns whether the editor is still open after the list of keys has been read.
fn stays_open_after_an_early_click(browser: &Browser, server: &Server, planted: &str) -> bool {
    browser.before_each_page(&(click_at_once("New key") + planted));
    open(browser, server, "data");
    browser.wait("document.querySelector('.keys').innerText.includes('No keys')");
    browser.run("return document.querySelector('textarea') !== null") == true
}

#[test]
fn a_click_before_the_page_is_painted_counts_and_so_does_the_first_letter() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    assert!(stays_open_after_an_early_click(&browser, &server, ""));
    let asks = "const field = document.querySelector('textarea'); \
                field.value = 'a'; \
                field.dispatchEvent(new Event('input', { bubbles: true })); \
                return Promise.resolve().then(() => { \
                    const event = new Event('beforeunload', { cancelable: true }); \
                    dispatchEvent(event); \
                    return event.defaultPrevented; \
                })";
    assert_eq!(browser.run(asks), true, "leaving the page would lose the letter without a question");
}

#[test]
fn twin_a_page_that_undoes_an_early_click_is_noticed() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    assert!(!stays_open_after_an_early_click(&browser, &server, &click_at_once("Cancel")));
    assert_eq!(browser.run("return clicked"), json!(["New key", "Cancel"]));
}

#[test]
fn a_save_that_takes_long_loses_nothing_and_leads_nowhere() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    put(&server, b"first", &[], b"x");
    browser.before_each_page(
        "const real = window.fetch; window.held = []; window.answered = 0; window.questions = 0; \
         window.confirm = () => { questions += 1; return window.mayLeave; }; \
         window.fetch = async (to, options = {}) => { \
             const answer = await real(to, options); \
             if (options.method !== 'PUT') return answer; \
             await new Promise((done) => held.push(done)); \
             answered += 1; \
             return answer; \
         };",
    );
    // Nothing can be typed while the page saves.
    open_key(&browser, &server, b"first");
    browser.click(".entry button", "Edit");
    browser.fill("textarea", "yyy");
    browser.click(".editor button", "Save");
    browser.wait("held.length === 1 && document.querySelector('textarea').matches(':disabled')");

    // The end of the save does not touch the editor of another key.
    browser.run("window.mayLeave = true");
    browser.click("button", "New key");
    browser.fill(".editor .grows input", "second");
    browser.wait("questions === 1 && document.querySelector('.editor .grows input').value === 'second'");
    browser.run("window.mayLeave = false; held[0]()");
    browser.wait("answered === 1");
    assert_eq!(server.client().get("/v1/kv/first").body, b"yyy");
    browser.wait("document.querySelector('.keys td.figures').textContent === '3\\u00a0B'");
    browser.run("location.hash = '#/care'");
    browser.wait("questions === 2 && document.querySelector('.editor .grows input').value === 'second'");

    // The end of a save does not bring back a user who has left the view, even if it comes at once.
    browser.click(".editor button", "Save");
    browser.wait("held.length === 2");
    browser.run(
        "new MutationObserver((changes, observer) => { \
             if (document.querySelector('.editor')) return; \
             observer.disconnect(); \
             held[1](); \
         }).observe(document, { childList: true, subtree: true }); \
         window.mayLeave = true; location.hash = '#/care'",
    );
    browser.wait("document.querySelector('.checks li') && answered === 2");
    assert_eq!(server.client().get("/v1/kv/second").status, 200);
    assert_eq!(browser.run("return location.hash"), "#/care");
}

#[test]
fn a_page_of_keys_must_have_come_before_the_next_one_is_asked_for() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    for number in 0..250 {
        put(&server, format!("{number:03}").as_bytes(), &[], b"x");
    }
    browser.before_each_page(
        "const real = window.fetch; window.held = []; \
         window.fetch = async (to, options) => { \
             if (to.includes('cursor=')) await new Promise((done) => held.push(done)); \
             return real(to, options); \
         };",
    );
    open(&browser, &server, "data");
    browser.click("button", "Next");
    browser.wait("held.length === 1 && document.querySelector('.pages').innerText.includes('page 2')");
    browser.run("Array.from(document.querySelectorAll('.pages button')).at(-1).click()");
    browser.run("held.forEach((done) => done())");
    browser.wait("document.querySelector('.keys tbody td').innerText === '100'");
    assert_eq!(browser.run("return document.querySelector('.pages [role=status]').innerText"), "page 2");
    browser.click("button", "Next");
    browser.wait("held.length === 2");
    browser.run("held.forEach((done) => done())");
    browser.wait("document.querySelector('.keys tbody td').innerText === '200'");
}

#[test]
fn characters_that_cannot_be_seen_are_escaped_and_backslashes_are_doubled() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    put(&server, br"a\x41/1", &[], b"x");
    put(&server, "\u{3164}".as_bytes(), &[], b"x");
    open(&browser, &server, "data");
    browser.wait(
        "Array.from(document.querySelectorAll('.keys tbody td a')).map((one) => one.textContent).join() \
         === 'a\\\\\\\\x41/…,\\\\u{3164}'",
    );
    let invisible =
        "\u{3164}\u{115f}\u{1160}\u{ffa0}\u{2800}\u{fe0f}\u{34f}\u{ad}\u{180b}\u{e0100}\u{17b4}\u{a0}\u{3000}";
    let shown = browser.run(&format!(
        "return (async () => {{ \
         const bytes = await import('/console/bytes.js'); \
         const all = bytes.fromText({}); \
         return [bytes.escape(all), bytes.isPlainText(all), bytes.toText(bytes.unescape(bytes.escape(all)))]; }})()",
        json!(invisible)
    ));
    let escapes: String = invisible.chars().map(|letter| format!("\\u{{{:x}}}", u32::from(letter))).collect();
    assert_eq!(shown, json!([escapes, false, invisible]));
}

#[test]
fn a_conflict_with_a_large_value_says_that_it_shows_only_its_beginning() {
    let server = ServerBuilder::new("memory").start();
    let browser = Browser::start();
    put(&server, b"shared", &[], b"first");
    open_key(&browser, &server, b"shared");
    browser.click(".entry button", "Edit");
    browser.fill("textarea", "mine");
    put(&server, b"shared", &[("Klad-TTL", "2h")], &vec![b'y'; 300 << 10]);
    browser.click(".editor button", "Save");
    browser.wait("document.querySelector('.conflict')");
    let shown = browser.run("return document.querySelector('.conflict').innerText.replaceAll('\\u00a0', ' ')");
    let version = server.client().get("/v1/kv/shared").header("etag").unwrap().to_owned();
    for words in ["the first 4 KiB of 300 KiB", "expires in 1 h", &format!("version {version}")] {
        assert!(shown.as_str().unwrap().contains(words), "{words}: {shown}");
    }
}
