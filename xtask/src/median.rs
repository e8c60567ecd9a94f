//! Medians of what was measured again and again, and how far they can be trusted. Called by the chores that compare.

/// A median, and the interval in which that of endless repetitions lies with 95 % probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Median {
    /// Of the interval.
    pub(crate) least: f64,
    /// The median itself.
    pub(crate) middle: f64,
    /// Of the interval.
    pub(crate) most: f64,
}

impl Median {
    /// Of one figure and more. The interval is that of the binomial distribution of ranks, by its normal approximation (Conover,
    /// Practical Nonparametric Statistics, 3rd ed., 3.2); of fewer than six figures, all of them.
    #[expect(clippy::cast_precision_loss, reason = "rounds are far below 2^52")]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the number of rounds")]
    pub(crate) fn of(mut figures: Vec<f64>) -> Median {
        figures.sort_unstable_by(f64::total_cmp);
        let last = figures.len() - 1;
        let count = figures.len() as f64;
        let rank = ((count - 1.0 - 1.96 * count.sqrt()) / 2.0).max(0.0).floor() as usize;
        Median {
            least: figures[rank],
            middle: f64::midpoint(figures[last / 2], figures[figures.len() / 2]),
            most: figures[last - rank],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_median_is_that_of_the_tables() {
        // By the binomial distribution: 95.9 % for 20, 96.7 % for 50.
        for (count, least, most) in [(1, 1.0, 1.0), (5, 1.0, 5.0), (20, 6.0, 15.0), (50, 18.0, 33.0)] {
            let median = Median::of((1..=count).map(f64::from).collect());
            assert_eq!((median.least, median.most), (least, most), "{count}");
        }
    }
}
