//! Published figures beside those of this experiment: ratios, and whether the variants come in the same order. An
//! order that was not judged here is not confirmed. Called by `stage`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conclusion::comparison::{Comparison, Difference, Judgement, Pairs, TOLERANCE, Unit};
use crate::conclusion::standing::Standing;
use crate::scenario::PublishedResult;

/// A figure that published reports contain, such as the p99: its name, its unit, whether the order of the variants by
/// this figure is judged, and how to get the published value and the measured one in the same unit.
struct Figure {
    name: &'static str,
    unit: Unit,
    ordered: bool,
    published: fn(&PublishedResult) -> Option<f64>,
    measured: fn(&Standing) -> Option<f64>,
}

/// All figures. The order of maxima is not judged, because a maximum is a single request.
const FIGURES: [Figure; 8] = [
    Figure {
        name: "goodput",
        unit: Unit::Rate,
        ordered: true,
        published: |of| of.per_s,
        measured: |of| of.goodput_per_s,
    },
    Figure { name: "mean", unit: Unit::Time, ordered: true, published: |of| us(of.mean_ms), measured: |of| of.mean_us },
    Figure { name: "p50", unit: Unit::Time, ordered: true, published: |of| us(of.p50_ms), measured: |of| of.p50_us },
    Figure { name: "p99", unit: Unit::Time, ordered: true, published: |of| us(of.p99_ms), measured: |of| of.p99_us },
    Figure {
        name: "p99.9",
        unit: Unit::Time,
        ordered: true,
        published: |of| us(of.p999_ms),
        measured: |of| of.p999_us,
    },
    Figure {
        name: "p99.99",
        unit: Unit::Time,
        ordered: true,
        published: |of| us(of.p9999_ms),
        measured: |of| of.p9999_us,
    },
    Figure { name: "max", unit: Unit::Time, ordered: false, published: |of| us(of.max_ms), measured: |of| of.max_us },
    Figure {
        name: "refused",
        unit: Unit::Share,
        ordered: true,
        published: |of| of.refused,
        measured: Standing::refused_share,
    },
];

fn us(milliseconds: Option<f64>) -> Option<f64> {
    milliseconds.map(|value| value * 1e3)
}

/// A published figure and the measured one.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PublishedFigure {
    /// The variant.
    pub variant: String,
    /// The figure.
    pub figure: String,
    /// The unit of its values.
    pub unit: Unit,
    /// The published value.
    pub published: f64,
    /// The measured value.
    pub here: Option<f64>,
    /// The measured value divided by the published one; `null` where one is missing or the published one is 0.
    pub ratio: Option<f64>,
}

/// Whether a published order is confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    /// The order is the same, beyond the noise.
    Same,
    /// The order is reversed, beyond the noise.
    Reversed,
    /// There is no difference beyond the noise.
    NoDifference,
    /// The order was not judged.
    NotJudged,
}

/// Two variants in their published order.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PublishedOrder {
    /// The figure.
    pub figure: String,
    /// The unit of its values.
    pub unit: Unit,
    /// The variant with the smaller published value.
    pub less: String,
    /// The variant with the larger published value.
    pub more: String,
    /// The published values of `less` and of `more`.
    pub published: [f64; 2],
    /// The measured values of `less` and of `more`.
    pub here: [Option<f64>; 2],
    /// Whether the order is confirmed.
    pub agreement: Agreement,
}

/// Returns all published figures of a stage, with the measured ones.
pub(super) fn figures(published: &[&PublishedResult], standings: &[Standing]) -> Vec<PublishedFigure> {
    let mut all = Vec::new();
    for result in published {
        let standing = standings.iter().find(|standing| standing.variant == result.variant);
        for figure in &FIGURES {
            let Some(value) = (figure.published)(result) else { continue };
            let here = standing.and_then(figure.measured);
            let ratio = here.filter(|_| value > 0.0).map(|here| here / value);
            let (variant, name) = (result.variant.clone(), figure.name.to_owned());
            all.push(PublishedFigure { variant, figure: name, unit: figure.unit, published: value, here, ratio });
        }
    }
    all
}

/// Returns the order of each two published variants, for each figure that both have. Values that differ by at most
/// [`TOLERANCE`] have no order.
pub(super) fn orders(published: &[&PublishedResult], standings: &[Standing], pairs: &Pairs) -> Vec<PublishedOrder> {
    let mut orders = Vec::new();
    for figure in FIGURES.iter().filter(|figure| figure.ordered) {
        for (index, one) in published.iter().enumerate() {
            for other in &published[index + 1..] {
                orders.extend(order(figure, [one, other], standings, pairs));
            }
        }
    }
    orders
}

fn order(
    figure: &Figure,
    both: [&PublishedResult; 2],
    standings: &[Standing],
    pairs: &Pairs,
) -> Option<PublishedOrder> {
    let mut valued = [(both[0], (figure.published)(both[0])?), (both[1], (figure.published)(both[1])?)];
    valued.sort_by(|one, other| one.1.total_cmp(&other.1));
    let [(less, small), (more, large)] = valued;
    // Nearly equal values have no order.
    if less.variant == more.variant || large <= small * (1.0 + TOLERANCE) {
        return None;
    }
    let at = |result: &PublishedResult| standings.iter().position(|standing| standing.variant == result.variant);
    let (first, other) = (at(less)?, at(more)?);
    Some(PublishedOrder {
        figure: figure.name.to_owned(),
        unit: figure.unit,
        less: less.variant.clone(),
        more: more.variant.clone(),
        published: [small, large],
        here: [(figure.measured)(&standings[first]), (figure.measured)(&standings[other])],
        agreement: agreement(pairs.get(first, other), figure.name),
    })
}

/// Returns whether `comparison` confirms the published order. Its `other` is the variant with the larger published
/// value, its `first` the one with the smaller.
fn agreement(comparison: Option<&Comparison>, figure: &str) -> Agreement {
    let Some(comparison) = comparison else { return Agreement::NotJudged };
    let is_more = |difference: &Difference| difference.percent.is_none_or(|percent| percent > 0.0);
    match (comparison.judgement(figure), comparison.difference(figure)) {
        (Judgement::NotJudged, _) => Agreement::NotJudged,
        (Judgement::NoDifference, _) | (_, None) => Agreement::NoDifference,
        (_, Some(difference)) if is_more(difference) => Agreement::Same,
        _ => Agreement::Reversed,
    }
}
