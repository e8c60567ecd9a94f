//! Figures of several rounds: their median and range, their text in tables, and verdicts.

use std::fmt;

/// The figures of a measurement, one from each round, in ascending order. Not empty.
#[derive(Clone, Debug)]
pub(super) struct Spread(Vec<f64>);

impl Spread {
    /// Takes the figures of all rounds, at least one.
    pub(super) fn of(figures: impl Iterator<Item = f64>) -> Spread {
        let mut figures: Vec<f64> = figures.collect();
        assert!(!figures.is_empty(), "there is at least one round");
        figures.sort_unstable_by(f64::total_cmp);
        Spread(figures)
    }

    pub(super) fn median(&self) -> f64 {
        f64::midpoint(self.0[(self.0.len() - 1) / 2], self.0[self.0.len() / 2])
    }

    fn least(&self) -> f64 {
        self.0[0]
    }

    fn greatest(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    /// The word of the verdict on figures that should be at most `bound`. It is NOT SHOWN if only some rounds keep the
    /// bound.
    pub(super) fn judge(&self, bound: f64) -> &'static str {
        if self.greatest() <= bound {
            "within"
        } else if self.least() <= bound {
            "NOT SHOWN"
        } else {
            "EXCEEDED"
        }
    }
}

/// Writes "median (least to greatest)", with the precision of the format as the number of digits after the point.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(0);
        let [median, least, greatest] = [self.median(), self.least(), self.greatest()];
        if self.0.len() == 1 {
            return write!(f, "{median:.digits$}");
        }
        write!(f, "{median:.digits$} ({least:.digits$} to {greatest:.digits$})")
    }
}

/// Prints a markdown table with a title.
pub(super) fn print_table(title: &str, columns: &[&str], rows: &[Vec<String>]) {
    println!("\n## {title}\n");
    println!("| {} |", columns.join(" | "));
    println!("|{}", "---|".repeat(columns.len()));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
    println!();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(figures: &[f64]) -> Spread {
        Spread::of(figures.iter().copied())
    }

    #[test]
    fn a_bound_is_kept_only_if_every_round_keeps_it() {
        let words = [[1.0, 2.0], [1.0, 2.1], [2.1, 3.0]].map(|figures| spread(&figures).judge(2.0));
        assert_eq!(words, ["within", "NOT SHOWN", "EXCEEDED"]);
    }

    #[test]
    fn the_text_has_median_and_range() {
        assert_eq!(format!("{:.1}", spread(&[3.0, 1.0, 2.0])), "2.0 (1.0 to 3.0)");
        assert_eq!(format!("{:.0} {:.0}", spread(&[7.0]), spread(&[4.0, 2.0])), "7 3 (2 to 4)");
    }
}
