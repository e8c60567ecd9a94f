//! The confidence interval of a difference between repeats: Student's t, with unequal variances (Welch) or in pairs.
//!
//! Repeats are assumed to be independent and normally distributed. For times, the logarithms are assumed to be normal.
//! If the repeats are not quite normal, the mean of several repeats is nearly normal. An outlier moves the interval,
//! and also widens it. Called by `judge` and `klad_lab`.

use statrs::distribution::{ContinuousCDF as _, StudentsT};

/// A difference with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean of B minus the mean of A, in the scale of the repeats: logarithms or shares.
    pub difference: f64,
    /// Half the width of the confidence interval. It is finite and more than 0.
    pub half_width: f64,
}

impl Estimate {
    /// Returns `true` if 0 lies outside the confidence interval.
    #[must_use]
    pub fn excludes_zero(&self) -> bool {
        self.difference.abs() > self.half_width
    }
}

/// Returns the confidence interval of B minus A for independent repeats, at least two on each side. It uses Welch's t,
/// with the degrees of freedom of Welch and Satterthwaite. The interval misses the true difference with probability
/// `error`. The values are taken to be rounded to `resolution`. The variance of that rounding is added, so that equal
/// values do not make an interval of width 0.
#[must_use]
pub fn apart(a: &[f64], b: &[f64], resolution: f64, error: f64) -> Estimate {
    let ((mean_a, variance_a), (mean_b, variance_b)) = (moments(a), moments(b));
    let rounding = rounding(resolution);
    let [of_a, of_b] = [(variance_a, a), (variance_b, b)].map(|(variance, all)| (variance + rounding) / count(all));
    let squared = of_a + of_b;
    let freedom = squared.powi(2) / (of_a.powi(2) / (count(a) - 1.0) + of_b.powi(2) / (count(b) - 1.0));
    Estimate { difference: mean_b - mean_a, half_width: quantile(freedom, error) * squared.sqrt() }
}

/// Returns the confidence interval of B minus A for at least two pairs of repeats. Each value of `a` forms a pair with
/// the value of `b` at the same index. `resolution` and `error` mean the same as in [`apart`].
#[must_use]
pub fn in_pairs(a: &[f64], b: &[f64], resolution: f64, error: f64) -> Estimate {
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
    let (mean, variance) = moments(&differences);
    let squared = (variance + 2.0 * rounding(resolution)) / count(&differences);
    Estimate { difference: mean, half_width: quantile(count(&differences) - 1.0, error) * squared.sqrt() }
}

/// Returns the variance of a rounding error that is uniformly distributed over a width of `resolution`.
fn rounding(resolution: f64) -> f64 {
    resolution.powi(2) / 12.0
}

/// Returns half the width of the confidence interval, in standard errors. `freedom` is the number of degrees of
/// freedom.
fn quantile(freedom: f64, error: f64) -> f64 {
    let student = StudentsT::new(0.0, 1.0, freedom).expect("more than 0 degrees of freedom");
    student.inverse_cdf(1.0 - error / 2.0)
}

/// Returns the mean and the sample variance.
fn moments(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / count(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, squares / (count(values) - 1.0))
}

#[expect(clippy::cast_precision_loss, reason = "a handful of repeats")]
fn count(values: &[f64]) -> f64 {
    values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() <= expected.abs() * 1e-4, "{found} instead of {expected}");
    }

    #[test]
    fn quantiles_equal_those_of_published_tables() {
        for (freedom, error, expected) in [
            (1.0, 0.05, 12.7062),
            (2.0, 0.0002, 70.7001),
            (4.0, 0.001, 8.6103),
            (9.0, 0.01, 3.2498),
            (18.0, 0.001, 3.9216),
            (120.0, 0.05, 1.9799),
        ] {
            near(quantile(freedom, error), expected);
        }
    }

    #[test]
    fn intervals_equal_the_calculated_ones() {
        // Means 2 and 5, variances 1 and 4: Welch's degrees of freedom are 25/9 / (1/9/2 + 16/9/2) = 2.94118.
        let found = apart(&[1.0, 2.0, 3.0], &[3.0, 5.0, 7.0], 0.0, 0.05);
        near(found.difference, 3.0);
        near(found.half_width / (5.0_f64 / 3.0).sqrt(), quantile(50.0 / 17.0, 0.05));
        assert!(!found.excludes_zero(), "{found:?}");
        // In pairs the differences are 2, 3 and 4: the mean is 3, its standard error 1/√3.
        let found = in_pairs(&[1.0, 2.0, 3.0], &[3.0, 5.0, 7.0], 0.0, 0.05);
        near(found.half_width, 4.3027 / 3.0_f64.sqrt());
        assert!(found.excludes_zero());
    }

    #[test]
    fn equal_values_have_an_interval_of_their_resolution() {
        for method in [apart, in_pairs] {
            let found = method(&[1.0, 1.0], &[1.001, 1.001], 0.001, 0.001);
            assert!(!found.excludes_zero() && found.half_width.is_finite(), "{found:?}");
        }
    }

    #[test]
    fn common_drift_cancels_in_pairs_only() {
        let drift = [0.0, 0.1, 0.2, 0.3, 0.4];
        let slower: Vec<f64> =
            drift.iter().zip([0.031, 0.03, 0.029, 0.03, 0.03]).map(|(drift, by)| drift + by).collect();
        assert!(in_pairs(&drift, &slower, 0.001, 0.001).excludes_zero());
        assert!(!apart(&drift, &slower, 0.001, 0.001).excludes_zero());
    }
}
