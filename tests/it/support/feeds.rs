//! Change feeds as a client reads them.

use std::net::SocketAddr;

use serde_json::Value as Json;

use super::Client;

/// The header that asks for JSON lines.
pub(crate) const LINES: (&str, &str) = ("Accept", "application/x-ndjson");

/// A feed of JSON lines or of server-sent events.
pub(crate) struct Feed {
    pub(crate) client: Client,
    pub(crate) text: String,
    pub(crate) ended: bool,
}

/// A change as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) op: String,
    pub(crate) key: String,
    pub(crate) value: Option<String>,
}

impl Feed {
    pub(crate) fn open(address: SocketAddr, query: &str, headers: &[(&str, &str)]) -> Feed {
        let mut client = Client::connect(address);
        client.send("GET", &format!("/v1/changes{query}"), headers, None).unwrap();
        let (status, headers) = client.head().unwrap();
        assert_eq!(status, 200, "{headers:?}");
        Feed { client, text: String::new(), ended: false }
    }

    pub(crate) fn lines(address: SocketAddr, query: &str) -> Feed {
        Feed::open(address, query, &[LINES])
    }

    /// Reads up to the next `end`; `None` at the end of the feed.
    pub(crate) fn until(&mut self, end: &str) -> Option<String> {
        let mut searched = 0;
        loop {
            if let Some(found) = self.text[searched..].find(end) {
                let position = searched + found;
                let rest = self.text.split_off(position + end.len());
                let mut part = std::mem::replace(&mut self.text, rest);
                part.truncate(position);
                return Some(part);
            }
            // The next chunk may complete an `end`.
            searched = self.text.floor_char_boundary(self.text.len().saturating_sub(end.len()));
            if self.ended {
                assert_eq!(self.text, "", "a feed does not end within an event");
                return None;
            }
            match self.client.chunk() {
                Ok(Some(chunk)) => self.text.push_str(std::str::from_utf8(&chunk).expect("no event is split")),
                Ok(None) => self.ended = true,
                Err(error) => panic!("the feed broke: {error}"),
            }
        }
    }

    pub(crate) fn json(&mut self) -> Option<Json> {
        self.until("\n").map(|line| serde_json::from_str(&line).expect("a line is JSON"))
    }

    /// Reads the next change and skips heartbeats; `Err` is the event that ends the feed.
    pub(crate) fn change(&mut self) -> Result<Change, Json> {
        loop {
            let event = self.json().expect("a feed says why it ends");
            if event.get("heartbeat").is_some() {
                continue;
            }
            if let Some(error) = event.get("error") {
                assert_eq!(self.json(), None, "nothing follows");
                return Err(error.clone());
            }
            return Ok(change(&event));
        }
    }

    /// Reads all changes up to the one of the key `end`.
    pub(crate) fn up_to(&mut self, end: &str) -> Vec<Change> {
        let mut changes = Vec::new();
        loop {
            let next = self.change().expect("a change");
            if next.key == end {
                return changes;
            }
            changes.push(next);
        }
    }
}

fn change(event: &Json) -> Change {
    let text = |name: &str| event[name].as_str().map(str::to_owned);
    let version = event["version"].as_u64().expect("a version");
    assert_eq!(text("etag"), Some(format!("\"{version}\"")));
    Change { version, op: text("op").expect("an op"), key: text("key").expect("a key"), value: text("value") }
}
