//! Chooses the repeats of each side, which show the noise. They are whole runs if both sides have several runs,
//! otherwise pieces of runs. Called by `judge`.
//!
//! Several runs show how two starts of a server differ, and how the machine drifts between them. Pieces of one run do
//! not show this. Repeats are compared in pairs if this removes a common influence: if the runs were made in turn, or
//! if the load changes from piece to piece.

use anyhow::Context as _;

use crate::compare::alike::stages;
use crate::compare::figures::Observed;
use crate::compare::sides::{Run, Side};

/// The smallest number of pairs. Fewer runs are not compared in pairs, because pairs have half the degrees of freedom.
/// With fewer than five pairs, this widens the confidence interval more than drift of the machine usually does.
pub const PAIRS_MIN: usize = 5;

/// The kind of repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole runs.
    Runs,
    /// Pieces of runs.
    Pieces,
}

/// The repeats of both sides.
#[derive(Debug)]
pub struct Repeats {
    /// Whether the repeats are runs or pieces.
    pub kind: Kind,
    /// `true` if the repeats of A and B with the same index form pairs. Both sides then have the same number of
    /// repeats.
    pub paired: bool,
    /// The repeats of A.
    pub a: Vec<Observed>,
    /// The repeats of B.
    pub b: Vec<Observed>,
    /// Why a side has fewer than two repeats; `None` if both sides have enough.
    pub missing: Option<String>,
}

impl Repeats {
    /// Chooses the repeats: whole runs if both sides have several runs, otherwise pieces of runs. If a side has too few
    /// pieces, `a` and `b` are empty, and `missing` says why.
    ///
    /// # Errors
    /// If a histogram cannot be read.
    pub fn of(a: &Side, b: &Side) -> anyhow::Result<Repeats> {
        if a.runs.len() > 1 && b.runs.len() > 1 { Repeats::of_runs(a, b) } else { Repeats::of_pieces(a, b) }
    }

    fn of_runs(a: &Side, b: &Side) -> anyhow::Result<Repeats> {
        let runs = |side: &Side, order: Option<Vec<usize>>| {
            let order = order.unwrap_or_else(|| (0..side.runs.len()).collect());
            order.into_iter().map(|index| whole(&side.runs[index])).collect::<anyhow::Result<Vec<_>>>()
        };
        let (in_turn, (of_a, of_b)) = match in_turn(a, b).filter(|(order, _)| order.len() >= PAIRS_MIN) {
            Some((of_a, of_b)) => (true, (Some(of_a), Some(of_b))),
            None => (false, (None, None)),
        };
        Ok(Repeats { kind: Kind::Runs, paired: in_turn, a: runs(a, of_a)?, b: runs(b, of_b)?, missing: None })
    }

    fn of_pieces(a: &Side, b: &Side) -> anyhow::Result<Repeats> {
        let pieces = |side: &Side| {
            let named = side.runs.iter().flat_map(|run| run.result.pieces.iter().map(move |piece| (run, piece)));
            let all =
                named.map(|(run, piece)| Observed::of_piece(piece).with_context(|| run.path.display().to_string()));
            all.collect::<anyhow::Result<Vec<_>>>()
        };
        let missing = missing(a).or_else(|| missing(b));
        if missing.is_some() {
            return Ok(Repeats { kind: Kind::Pieces, paired: false, a: Vec::new(), b: Vec::new(), missing });
        }
        let (of_a, of_b) = (pieces(a)?, pieces(b)?);
        // If the load changes, only pieces at the same position have the same load.
        let single = a.runs.len() == 1 && b.runs.len() == 1 && of_a.len() == of_b.len();
        let paired = single && changes(&a.runs[0]) && words(&a.runs[0]) == words(&b.runs[0]);
        Ok(Repeats { kind: Kind::Pieces, paired, a: of_a, b: of_b, missing })
    }
}

/// Returns the sums over the requests of a run's measured part.
///
/// # Errors
/// If the histogram of the measured part cannot be read; the error contains the file.
pub fn whole(run: &Run) -> anyhow::Result<Observed> {
    Observed::of_section(&run.result.measured).with_context(|| run.path.display().to_string())
}

/// Returns why a side cannot be compared by pieces; `None` if it can.
fn missing(side: &Side) -> Option<String> {
    let advice = "give several runs of each side, separated by commas";
    let without = side.runs.iter().find(|run| run.result.pieces.is_empty());
    if let Some(run) = without {
        let path = run.path.display();
        return Some(format!(
            "{path} has no pieces to measure the noise by: an older klad made it, or its measured part is too short; {advice}"
        ));
    }
    let pieces: usize = side.runs.iter().map(|run| run.result.pieces.len()).sum();
    let path = side.runs[0].path.display();
    (pieces < 2)
        .then(|| format!("{path} has only one piece, but the noise needs at least two: make a longer run, or {advice}"))
}

/// Returns the order in which the runs of each side were made, if they were made in turn: A B A B, or A B B A.
fn in_turn(a: &Side, b: &Side) -> Option<(Vec<usize>, Vec<usize>)> {
    if a.runs.len() != b.runs.len() {
        return None;
    }
    let starts = |side: &Side, is_b: bool| {
        let start = |(index, run): (usize, &Run)| (run.result.started.utc.clone(), is_b, index);
        side.runs.iter().enumerate().map(start).collect::<Vec<_>>()
    };
    let mut all = [starts(a, false), starts(b, true)].concat();
    all.sort();
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    for pair in all.chunks(2) {
        match pair {
            [(_, false, one), (_, true, other)] | [(_, true, other), (_, false, one)] => {
                of_a.push(*one);
                of_b.push(*other);
            }
            _ => return None,
        }
    }
    Some((of_a, of_b))
}

/// Returns `true` if the load of a run changes over time.
fn changes(run: &Run) -> bool {
    let rates = run.result.load.stages.iter().flat_map(|stage| [stage.from_per_s, stage.to_per_s]);
    let rates: Vec<f64> = rates.flatten().collect();
    rates.windows(2).any(|pair| (pair[0] - pair[1]).abs() > f64::EPSILON)
}

fn words(run: &Run) -> String {
    stages(&run.result.load.stages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::trials::{piece_of, run_of, side_of};
    use crate::recorder::histogram;

    /// A side with one run for each of these start times in seconds.
    fn started(seconds: &[u64]) -> Side {
        side_of(seconds.iter().map(|second| run_of(*second, vec![])).collect())
    }

    fn paired(a: &[u64], b: &[u64]) -> bool {
        let repeats = Repeats::of(&started(a), &started(b)).expect("readable");
        assert_eq!((repeats.kind, repeats.missing), (Kind::Runs, None));
        assert_eq!((repeats.a.len(), repeats.b.len()), (a.len(), b.len()));
        repeats.paired
    }

    #[test]
    fn runs_that_were_made_in_turn_are_compared_in_pairs() {
        assert!(paired(&[1, 3, 5, 7, 9], &[2, 4, 6, 8, 10]), "A B A B");
        assert!(paired(&[8, 9, 4, 5, 1], &[2, 3, 6, 7, 10]), "A B B A, in any order of the files");
        assert!(!paired(&[1, 2, 3, 4, 5], &[6, 7, 8, 9, 10]), "one side after the other");
        assert!(!paired(&[1, 3, 5, 7, 9], &[2, 4, 6, 8, 10, 11]), "one more of B");
        assert!(!paired(&[1, 3, 5, 7], &[2, 4, 6, 8]), "too few pairs");
        let (one, other) = in_turn(&started(&[5, 1]), &started(&[6, 2])).expect("in turn");
        assert_eq!((one, other), (vec![1, 0], vec![1, 0]), "the first of A beside the first of B");
    }

    fn of_pieces(count: u64, to_per_s: f64) -> Side {
        let pieces = (0..count).map(|number| piece_of(number, &histogram())).collect();
        let mut run = run_of(1, pieces);
        run.load.stages[0].to_per_s = Some(to_per_s);
        side_of(vec![run])
    }

    #[test]
    fn one_run_is_compared_by_pieces_and_in_pairs_if_its_load_changes() {
        let kind = |a: &Side, b: &Side| {
            let repeats = Repeats::of(a, b).expect("readable");
            (repeats.kind, repeats.paired, repeats.missing.is_some())
        };
        let (steady, ramp) = (of_pieces(10, 1e3), of_pieces(10, 2e3));
        assert_eq!(kind(&steady, &steady), (Kind::Pieces, false, false));
        assert_eq!(kind(&ramp, &ramp), (Kind::Pieces, true, false));
        assert_eq!(kind(&ramp, &of_pieces(10, 3e3)), (Kind::Pieces, false, false), "another ramp");
        assert_eq!(kind(&steady, &of_pieces(0, 1e3)), (Kind::Pieces, false, true), "an older result");
        assert_eq!(kind(&of_pieces(1, 1e3), &steady), (Kind::Pieces, false, true), "one piece");
        assert_eq!(kind(&steady, &started(&[1, 2])), (Kind::Pieces, false, true));
    }
}
