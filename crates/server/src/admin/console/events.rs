//! `/console/events`: the samples as a stream of server-sent events.
//!
//! ```text
//!   event: series    {"started_ms":1764000000000,"interval_ms":1000,"left_out":false,"series":["klad_ready", ...]}
//!   event: help      {"klad_ready":"Whether klad is ready.", ...}
//!                                             both at first, and again when there are more series, or `left_out`
//!                                             becomes true
//!   event: history   {"samples":[[unix_ms, uptime_ms, value, ...], ...]}
//!                                             what the client has missed, oldest first
//!   event: sample    [unix_ms, uptime_ms, value, ...]
//!                                             then each second
//! ```
//!
//! `uptime_ms` is monotonic. It identifies a sample within one process (one `started_ms`), even if the clock is set.
//! `left_out` is true when samples lack values because there are too many series. Once true, it stays true.
//!
//! A stream keeps only the number of its next sample. A slow client gets the samples that it has missed as history, at
//! most as many as the ring holds. So klad stores nothing extra for a slow client. `console` creates streams, `page`
//! polls them.

use std::fmt::Write as _;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use crate::admin::Admin;
use crate::admin::console::ring::Ring;
use crate::admin::deadline::Deadline;
use crate::limits::{CONSOLE_EVENT_SAMPLES_MAX, CONSOLE_SAMPLE_INTERVAL};

/// One stream of events. It has no end.
pub struct Events {
    admin: Rc<Admin>,
    deadline: Deadline,
    /// The number of the next sample to send.
    next: u64,
    /// What the client already knows about the series.
    known: Known,
    _place: OwnedSemaphorePermit,
}

impl Events {
    pub(super) fn new(admin: Rc<Admin>, deadline: Deadline, place: OwnedSemaphorePermit) -> Events {
        Events { admin, deadline, next: 0, known: (0, false), _place: place }
    }

    /// Returns the next event.
    pub(in crate::admin) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let mut ring = self.admin.console.ring.borrow_mut();
        let Some((event, next)) = event(&ring, self.known, self.next) else {
            ring.wait(context.waker());
            return Poll::Pending;
        };
        (self.known, self.next) = (known(&ring), next);
        // hyper polls again only after it has written the previous event to the client.
        self.deadline.progress();
        Poll::Ready(event.into())
    }
}

/// What a client knows: the number of series, and whether some series are left out.
type Known = (usize, bool);

fn known(ring: &Ring) -> Known {
    (ring.latest().series().len(), ring.latest().left_out())
}

/// Returns the next event for a client. `client` says which series the client knows, and `next` is the number of the
/// sample that it needs next. The second value is the number of the sample that it needs after this event. Returns
/// `None` if the client has everything.
fn event(ring: &Ring, client: Known, next: u64) -> Option<(String, u64)> {
    let next = next.max(ring.oldest());
    if known(ring) != client {
        let interval_ms = CONSOLE_SAMPLE_INTERVAL.as_millis();
        let names = json!({
            "started_ms": ring.started_ms(),
            "interval_ms": interval_ms,
            "left_out": ring.latest().left_out(),
            "series": ring.latest().series(),
        });
        let help = json!(ring.latest().help());
        return Some((format!("event: series\ndata: {names}\n\nevent: help\ndata: {help}\n\n"), next));
    }
    let end = ring.taken().min(next + CONSOLE_EVENT_SAMPLES_MAX as u64);
    let mut text = String::new();
    match end - next {
        0 => return None,
        1 => {
            text.push_str("event: sample\ndata: ");
            ring.write(&mut text, next);
        }
        _ => {
            text.push_str("event: history\ndata: {\"samples\":[");
            for number in next..end {
                ring.write(&mut text, number);
                let _ = write!(text, "{}", if number + 1 < end { "," } else { "]}" });
            }
        }
    }
    text.push_str("\n\n");
    Some((text, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use klad_base::metrics::text::{Kind, Page};
    use klad_base::metrics::{Choice, Samples};

    /// Takes a sample of `count` series.
    fn take(ring: &mut Ring, unix_ms: u64, count: u64) {
        ring.take(unix_ms, 2 * unix_ms, |samples| {
            let mut page = Page::sampling(samples);
            let mut family = page.family("klad_x", Kind::Gauge, "Help.");
            for value in 0..count {
                family.whole(&[("n", &value.to_string())], value);
            }
        });
    }

    /// Returns the names of the events from a position to the last sample, and the data of the last one.
    fn events(ring: &Ring, series: usize, mut next: u64) -> (Vec<String>, String) {
        let (mut names, mut data) = (Vec::new(), String::new());
        let mut client = (series, false);
        while let Some((text, after)) = event(ring, client, next) {
            (client, next) = (known(ring), after);
            for line in text.lines() {
                names.extend(line.strip_prefix("event: ").map(str::to_owned));
                data = line.strip_prefix("data: ").map_or(data, str::to_owned);
            }
        }
        (names, data)
    }

    #[test]
    fn a_client_gets_what_it_has_missed_and_then_each_sample() {
        let choices = vec![Choice { name: "klad_x".to_owned(), by: vec!["n".to_owned()] }];
        let mut ring = Ring::new(Samples::new(choices, 10), 0);
        assert_eq!(events(&ring, 0, 0), (vec![], String::new()), "nothing before the first sample");
        take(&mut ring, 1, 1);
        assert_eq!(events(&ring, 0, 0), (vec!["series".into(), "help".into(), "sample".into()], "[1,2,0]".into()));
        take(&mut ring, 2, 1);
        assert_eq!(events(&ring, 1, 1), (vec!["sample".into()], "[2,4,0]".into()));
        take(&mut ring, 3, 2);
        let (names, data) = events(&ring, 1, 1);
        assert_eq!(names, ["series", "help", "history"], "a new series");
        assert_eq!(data, r#"{"samples":[[2,4,0,null],[3,6,0,1]]}"#);
        for unix_ms in 4..=40 {
            take(&mut ring, unix_ms, 2);
        }
        let (names, data) = events(&ring, 2, 0);
        assert_eq!(names, ["history", "history"]);
        assert!(data.starts_with("{\"samples\":[[31,62,0,1],") && data.ends_with("[40,80,0,1]]}"), "{data}");
    }

    #[test]
    fn a_client_learns_that_series_are_left_out() {
        let mut ring =
            Ring::new(Samples::new(vec![Choice { name: "klad_x".to_owned(), by: vec!["n".to_owned()] }], 10), 0);
        let told = |ring: &Ring, client| event(ring, client, 0).map(|(text, _)| text.contains("\"left_out\":true"));
        take(&mut ring, 1, 10);
        assert_eq!(told(&ring, (0, false)), Some(false));
        // No series is new, as all places are taken.
        take(&mut ring, 2, 12);
        assert_eq!(told(&ring, (10, false)), Some(true));
        assert_eq!(told(&ring, (10, true)), Some(false), "once");
        take(&mut ring, 3, 10);
        assert_eq!(told(&ring, (0, false)), Some(true), "another client: the samples before lack series");
        assert_eq!(told(&ring, (10, true)), Some(false));
    }
}
