//! Drives Chromium through chromedriver, with the JSON over HTTP of the standard `WebDriver`. chromedriver has commands
//! of its own for what only Chromium can do: widths, colour schemes, and its log.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use serde_json::{Value, json};

use super::tools::chromium;
use super::{Client, PATIENCE};

/// One browser at a time: CI has two cores.
static ONE: Mutex<()> = Mutex::new(());

/// A browser with one window. Dropping it ends the browser.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    /// The path of the session: `/session/ID`.
    session: String,
    _one: MutexGuard<'static, ()>,
}

/// Starts chromedriver on a free port. Returns `None` if it ends at once: it needs the port that it has chosen on both
/// loopback addresses, and on one of them another program may have it.
fn start_driver() -> Option<(Child, u16)> {
    let mut driver = Command::new("chromedriver")
        .arg("--port=0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("chromedriver cannot be run ({error}): tools/setup.sh test installs it"));
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    let port = lines
        .by_ref()
        .map_while(Result::ok)
        .find_map(|line| line.split("successfully on port ").nth(1)?.trim_end_matches('.').parse::<u16>().ok());
    let Some(port) = port else {
        driver.wait().expect("chromedriver has closed its output, so it ends");
        return None;
    };
    // This thread reads chromedriver's later lines, because unread lines would fill the pipe.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    Some((driver, port))
}

impl Browser {
    pub(crate) fn start() -> Browser {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (driver, port) = (0..5).find_map(|_| start_driver()).expect("chromedriver says its port");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut browser = Browser { driver, address, session: "/session".to_owned(), _one: one };
        let arguments =
            ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"];
        let made = browser.ask(
            "POST",
            "",
            &json!({ "capabilities": { "alwaysMatch": {
                "goog:chromeOptions": { "binary": chromium(), "args": arguments },
                "goog:loggingPrefs": { "browser": "ALL" },
            } } }),
        );
        browser.session = format!("/session/{}", made["sessionId"].as_str().expect("a session"));
        browser
    }

    /// Sends a command and returns its value.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let target = format!("{}{path}", self.session);
        let headers = [("Content-Type", "application/json")];
        let body = (method != "GET").then(|| body.to_string());
        let answer =
            Client::connect(self.address).request(method, &target, &headers, body.as_ref().map(String::as_bytes));
        let mut read: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(answer.status, 200, "{method} {path}: {read}");
        read["value"].take()
    }

    pub(crate) fn go(&self, address: &str) {
        self.ask("POST", "/url", &json!({ "url": address }));
    }

    /// Runs the body of a function in the page, and waits for a promise that it returns. Returns its value.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.ask("POST", "/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression is true in the page.
    pub(crate) fn wait(&self, condition: &str) {
        let deadline = Instant::now() + PATIENCE;
        let mut last = Value::Null;
        while Instant::now() < deadline {
            // Before the page is drawn, an element may be missing.
            last = self.run(&format!("try {{ return ({condition}); }} catch (error) {{ return null; }}"));
            if !matches!(last, Value::Null | Value::Bool(false)) && last != 0 && last != "" {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let text = self.run("return document.body.innerText");
        panic!("timeout while waiting for {condition}: {last}; the page says: {text}");
    }

    /// Clicks the first element that matches and contains the text.
    pub(crate) fn click(&self, selector: &str, text: &str) {
        let found = format!(
            "Array.from(document.querySelectorAll({selector:?})).find((one) => one.textContent.includes({text:?}) && !one.disabled)"
        );
        self.wait(&format!("Boolean({found})"));
        self.run(&format!("{found}.click()"));
    }

    /// Replaces the text of a field or chooses an option, as a user would.
    pub(crate) fn fill(&self, selector: &str, text: &str) {
        self.wait(&format!("Boolean(document.querySelector({selector:?}))"));
        self.run(&format!(
            "const field = document.querySelector({selector:?}); field.value = {}; \
             field.dispatchEvent(new Event(field.tagName === 'SELECT' ? 'change' : 'input', {{ bubbles: true }}))",
            Value::from(text)
        ));
    }

    /// Presses keys, one after the other, in the focused element.
    pub(crate) fn press(&self, keys: &[char]) {
        let both = keys
            .iter()
            .flat_map(|key| [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]);
        let actions: Vec<Value> = both.collect();
        self.ask("POST", "/actions", &json!({ "actions": [{ "type": "key", "id": "keys", "actions": actions }] }));
    }

    /// Sets the width of the page and the colour scheme of the system.
    pub(crate) fn look(&self, width: u64, height: u64, dark: bool) {
        let scheme = if dark { "dark" } else { "light" };
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.chromium("Emulation.setDeviceMetricsOverride", &size);
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.chromium("Emulation.setEmulatedMedia", &features);
    }

    /// Runs a script in each page from now on, before the page's own.
    pub(crate) fn before_each_page(&self, script: &str) {
        self.chromium("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": script }));
    }

    /// Saves downloads in a directory, without a question.
    pub(crate) fn downloads_to(&self, directory: &Path) {
        let allowed = json!({ "behavior": "allow", "downloadPath": directory });
        self.chromium("Browser.setDownloadBehavior", &allowed);
    }

    fn chromium(&self, command: &str, parameters: &Value) -> Value {
        self.ask("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// Returns what the browser has logged as an error since the last call: exceptions, files that could not be loaded,
    /// and what the Content-Security-Policy has forbidden.
    pub(crate) fn errors(&self) -> Vec<String> {
        let all = self.ask("POST", "/se/log", &json!({ "type": "browser" }));
        let severe = all.as_array().expect("a list").iter().filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Waits until the browser logs an error with these words.
    pub(crate) fn wait_for_error(&self, words: &str) {
        super::wait_until("the browser logs an error", || self.errors().iter().any(|error| error.contains(words)));
    }

    /// Returns a picture of the visible part, as PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let encoded = self.ask("GET", "/screenshot", &Value::Null);
        base64::engine::general_purpose::STANDARD.decode(encoded.as_str().expect("base64")).expect("base64")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Without this the browser would survive the driver.
        let _ = Client::try_connect(self.address).map(|mut client| {
            let _ = client.try_request("DELETE", &self.session, &[], None);
        });
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
