//! Ends the slowest of those that hold body room, when a request was refused for lack of it.
//!
//! ```text
//!   no room: 503 ──▶ Room's lack ──next sweep──▶ one worker wins what it can ──rest──▶ the other workers' sweeps
//! ```
//!
//! A worker knows only its own connections, so that at first only the very slow are ended, by whichever worker has them, and
//! others when that has not helped. Whoever is fast, and whoever has just begun, is left alone: then only the refusal helps. Called by `worker`.

use std::cmp::Reverse;
use std::rc::Rc;

use slab::Slab;

use crate::connection::Connection;
use crate::execution::admission::BodyBudget;
use klad_base::limits::{EVICTION_RATE_BYTES_MAX, EVICTION_RATE_FIRST_BYTES_MAX};

/// Ends slow holders among `connections` until what was lacking is won: readers that take nothing first, then uploads from
/// the slowest on.
pub(crate) fn make_room(connections: &Slab<Rc<Connection>>, budget: &BodyBudget) {
    let Some(lack) = budget.take_lack() else { return };
    let rate_max = if lack.stands() { EVICTION_RATE_BYTES_MAX } else { EVICTION_RATE_FIRST_BYTES_MAX };
    let mut holders: Vec<_> = connections
        .iter()
        .filter_map(|(_, connection)| Some((connection.exchange().evictable()?, connection)))
        .filter(|(holding, _)| holding.bytes_per_second <= rate_max)
        .collect();
    holders.sort_by_key(|(holding, _)| (holding.bytes_per_second, Reverse(holding.waited)));
    let mut won_bytes = 0;
    for (holding, connection) in holders {
        if won_bytes >= lack.bytes {
            break;
        }
        connection.evict();
        won_bytes += holding.permit_bytes;
    }
    budget.put_back(lack, won_bytes);
}
