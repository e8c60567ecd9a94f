//! The sizes of the queue, and which one to choose. Called by `stage`.
//!
//! A small queue refuses requests that a larger one would serve; in a large queue requests wait that should have been
//! refused. The smallest queue that refuses almost nothing is enough, unless a larger one is faster beyond the noise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conclusion::comparison::{Judgement, Pairs};
use crate::conclusion::standing::Standing;
use crate::conclusion::words;
use crate::variant_runs::Validity;

/// A queue that refuses a larger share of the requests is too small for the load. A variant with a larger share of
/// failed and unanswered requests does not keep up.
const REFUSED_MAX: f64 = 0.001;

/// The sizes of the queue.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Frontier {
    /// The variants with a known size, smallest first.
    pub points: Vec<QueuePoint>,
    /// The variant with the recommended size; `null` where none qualifies, or they were not judged.
    pub recommended: Option<String>,
    /// The recommendation and its reason.
    pub sentence: String,
}

/// A size of the queue.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct QueuePoint {
    /// The variant.
    pub variant: String,
    /// The number of requests that may wait.
    pub queue: u64,
    /// The share of refused requests, 0 to 1.
    pub refused_share: f64,
    /// The 99.9th percentile of the response times of requests that were neither refused nor failed, microseconds.
    pub p999_us: f64,
    /// Whether the figures can be trusted, at least 98 % of the offered requests are answered, and at most 0.1 % fail
    /// or have no answer in time.
    pub keeps_up: bool,
    /// Whether it keeps up, and refuses at most 0.1 % of the requests.
    pub refuses_little: bool,
    /// p99.9 compared with the shortest p99.9 of the sizes that refuse little; `null` for the other sizes.
    pub tail: Option<Judgement>,
    /// Whether no other size is at least as good in both refused share and p99.9, and better in one of them.
    pub on_frontier: bool,
}

/// Compares the sizes; `None` where fewer than two were measured.
pub(super) fn frontier(sizes: &[Option<u64>], standings: &[Standing], pairs: &Pairs) -> Option<Frontier> {
    let mut known: Vec<(usize, QueuePoint)> = Vec::new();
    for (index, (size, standing)) in sizes.iter().zip(standings).enumerate() {
        let (Some(queue), Some(refused_share), Some(p999_us)) = (*size, standing.refused_share(), standing.p999_us)
        else {
            continue;
        };
        let trusted = matches!(standing.validity, Validity::Valid | Validity::Overloaded);
        let lost = standing.share(standing.failed + standing.unanswered).unwrap_or(0.0);
        let keeps_up = trusted && !standing.falls_behind() && lost <= REFUSED_MAX;
        let point = QueuePoint {
            variant: standing.variant.clone(),
            queue,
            refused_share,
            p999_us,
            keeps_up,
            refuses_little: keeps_up && refused_share <= REFUSED_MAX,
            tail: None,
            on_frontier: true,
        };
        known.push((index, point));
    }
    if known.len() < 2 {
        return None;
    }
    known.sort_by_key(|(_, point)| point.queue);
    let best = known.iter().filter(|(_, point)| point.refuses_little);
    let best = best.min_by(|(_, one), (_, other)| one.p999_us.total_cmp(&other.p999_us)).map(|(index, _)| *index);
    for (index, point) in &mut known {
        point.tail = best.filter(|_| point.refuses_little).map(|best| {
            let against = pairs.get(best, *index).map(|comparison| comparison.judgement("p99.9"));
            against.unwrap_or(Judgement::NoDifference)
        });
    }
    let all: Vec<QueuePoint> = known.iter().map(|(_, point)| point.clone()).collect();
    for (_, point) in &mut known {
        let beats = |other: &QueuePoint| {
            let no_worse = other.refused_share <= point.refused_share && other.p999_us <= point.p999_us;
            no_worse && (other.refused_share < point.refused_share || other.p999_us < point.p999_us)
        };
        point.on_frontier = !all.iter().any(beats);
    }
    let points: Vec<QueuePoint> = known.into_iter().map(|(_, point)| point).collect();
    let (recommended, sentence) = recommend(&points);
    Some(Frontier { points, recommended, sentence })
}

/// Returns the recommended variant, if any, and the sentence that recommends it or says why none is recommended.
fn recommend(points: &[QueuePoint]) -> (Option<String>, String) {
    let bound = words::percent(REFUSED_MAX);
    let little: Vec<&QueuePoint> = points.iter().filter(|point| point.refuses_little).collect();
    if points.iter().all(|point| !point.keeps_up) {
        let sentence = "Queue: no size is recommended, because no variant is known to keep up with this load.";
        return (None, sentence.to_owned());
    }
    let Some(smallest) = little.first() else {
        let keeping_up = points.iter().filter(|point| point.keeps_up);
        let least = keeping_up.min_by(|one, other| one.refused_share.total_cmp(&other.refused_share));
        let least = least.map_or_else(String::new, |point| {
            format!("; {} refuses least, {}", point.variant, words::percent(point.refused_share))
        });
        let among = if points.iter().all(|point| point.keeps_up) { "" } else { " that keeps up with the load" };
        return (None, format!("Queue: no size{among} refuses {bound} of the requests or less{least}."));
    };
    if little.len() > 1 && little.iter().any(|point| point.tail == Some(Judgement::NotJudged)) {
        let sentence = format!(
            "Queue: {} is the smallest size that refuses {bound} or less; whether a larger one is faster was not \
             judged.",
            smallest.queue
        );
        return (None, sentence);
    }
    let quick = |point: &&&QueuePoint| matches!(point.tail, Some(Judgement::NoDifference | Judgement::Better));
    let Some(chosen) = little.iter().find(quick) else {
        return (None, format!("Queue: p99.9 could not be judged for any size that refuses {bound} or less."));
    };
    let best = little.iter().min_by(|one, other| one.p999_us.total_cmp(&other.p999_us)).unwrap_or(chosen);
    let tail = if best.variant == chosen.variant {
        "the shortest of these sizes".to_owned()
    } else {
        format!("no different beyond the noise from {} of {}", words::time(best.p999_us), best.variant)
    };
    let sentence = format!(
        "Queue: {} is enough: {} refuses {} (the limit is {bound}), and its p99.9 is {}, {tail}.",
        chosen.queue,
        chosen.variant,
        words::percent(chosen.refused_share),
        words::time(chosen.p999_us),
    );
    (Some(chosen.variant.clone()), sentence)
}
