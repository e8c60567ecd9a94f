//! Ends slow requests that hold body budget (memory for bodies and large answers), after klad has rejected another
//! request for lack of budget.
//!
//! ```text
//!   budget too small: 503 ─▶ shortage noted ─ next sweep ─▶ one worker frees some ─▶ other workers free the rest
//! ```
//!
//! A worker knows only its own connections. So at first every worker ends only very slow requests. If that does not
//! free enough, workers end other slow requests too. klad never ends fast requests or new requests. If only these hold
//! budget, klad continues to reject requests. `worker` calls this.

use std::cmp::Reverse;
use std::rc::Rc;

use slab::Slab;

use crate::connection::Connection;
use crate::execution::admission::BodyBudget;
use crate::limits::{EVICTION_RATE_BYTES_MAX, EVICTION_RATE_FIRST_BYTES_MAX};

/// Ends slow requests among `connections`, until the lacking bytes of `budget` are free. The slowest request ends
/// first. Among requests with the same rate, klad first ends the one whose client it has waited for the longest. While
/// a client takes nothing of its answer, its rate is 0.
pub(crate) fn end_slow_requests(connections: &Slab<Rc<Connection>>, budget: &BodyBudget) {
    let Some(shortage) = budget.take_shortage() else { return };
    let rate_max = if shortage.has_lasted() { EVICTION_RATE_BYTES_MAX } else { EVICTION_RATE_FIRST_BYTES_MAX };
    let mut holders: Vec<_> = connections
        .iter()
        .filter_map(|(_, connection)| Some((connection.exchange().eviction_candidate()?, connection)))
        .filter(|(holding, _)| holding.bytes_per_second <= rate_max)
        .collect();
    holders.sort_by_key(|(holding, _)| (holding.bytes_per_second, Reverse(holding.waited)));
    let mut freed_bytes = 0;
    for (holding, connection) in holders {
        if freed_bytes >= shortage.bytes {
            break;
        }
        connection.evict();
        freed_bytes += holding.permit_bytes;
    }
    budget.put_back(shortage, freed_bytes);
}
