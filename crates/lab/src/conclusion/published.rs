//! Ours beside what somebody else has published: ratios, and whether the variants come in the same order. It agrees with
//! nothing for the sake of agreement: an order that was not judged here is not confirmed. Called by `stage`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conclusion::standing::Standing;
use crate::conclusion::versus::{Comparison, Difference, Judgement, Pairs, TOLERANCE, Unit};
use crate::scenario::PublishedResult;

/// A figure: its name here, what it is, whether its order can be judged, the published value in our units, and ours.
struct Figure {
    name: &'static str,
    unit: Unit,
    ordered: bool,
    published: fn(&PublishedResult) -> Option<f64>,
    ours: fn(&Standing) -> Option<f64>,
}

/// All that reports have. A maximum is one request, whose order says nothing.
const FIGURES: [Figure; 8] = [
    Figure { name: "goodput", unit: Unit::Rate, ordered: true, published: |of| of.per_s, ours: |of| of.goodput_per_s },
    Figure { name: "mean", unit: Unit::Time, ordered: true, published: |of| us(of.mean_ms), ours: |of| of.mean_us },
    Figure { name: "p50", unit: Unit::Time, ordered: true, published: |of| us(of.p50_ms), ours: |of| of.p50_us },
    Figure { name: "p99", unit: Unit::Time, ordered: true, published: |of| us(of.p99_ms), ours: |of| of.p99_us },
    Figure { name: "p99.9", unit: Unit::Time, ordered: true, published: |of| us(of.p999_ms), ours: |of| of.p999_us },
    Figure { name: "p99.99", unit: Unit::Time, ordered: true, published: |of| us(of.p9999_ms), ours: |of| of.p9999_us },
    Figure { name: "max", unit: Unit::Time, ordered: false, published: |of| us(of.max_ms), ours: |of| of.max_us },
    Figure {
        name: "refused",
        unit: Unit::Share,
        ordered: true,
        published: |of| of.refused,
        ours: Standing::refused_share,
    },
];

fn us(milliseconds: Option<f64>) -> Option<f64> {
    milliseconds.map(|value| value * 1e3)
}

/// A published figure and ours.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Beside {
    /// The variant.
    pub variant: String,
    /// The figure.
    pub figure: String,
    /// What its values are.
    pub unit: Unit,
    /// What was published.
    pub published: f64,
    /// What was measured here.
    pub here: Option<f64>,
    /// Ours by the published one; `null` where one of them is not there, or the published one is 0.
    pub ratio: Option<f64>,
}

/// How an order that was published is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    /// The same, beyond the noise.
    Same,
    /// The other way round, beyond the noise.
    Reversed,
    /// There is no difference beyond the noise.
    NoDifference,
    /// It was not judged.
    NotJudged,
}

/// Two variants in the order that was published.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Order {
    /// The figure.
    pub figure: String,
    /// What its values are.
    pub unit: Unit,
    /// The variant with the smaller published value.
    pub less: String,
    /// The one with the larger.
    pub more: String,
    /// Both published values.
    pub published: [f64; 2],
    /// Both here.
    pub here: [Option<f64>; 2],
    /// How it is here.
    pub agreement: Agreement,
}

/// All published figures of a stage with ours.
pub(super) fn beside(published: &[&PublishedResult], standings: &[Standing]) -> Vec<Beside> {
    let mut all = Vec::new();
    for result in published {
        let standing = standings.iter().find(|standing| standing.variant == result.variant);
        for figure in &FIGURES {
            let Some(value) = (figure.published)(result) else { continue };
            let here = standing.and_then(figure.ours);
            let ratio = here.filter(|_| value > 0.0).map(|here| here / value);
            let (variant, name) = (result.variant.clone(), figure.name.to_owned());
            all.push(Beside { variant, figure: name, unit: figure.unit, published: value, here, ratio });
        }
    }
    all
}

/// Each two published variants, by each figure that both have.
pub(super) fn orders(published: &[&PublishedResult], standings: &[Standing], pairs: &Pairs) -> Vec<Order> {
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

fn order(figure: &Figure, both: [&PublishedResult; 2], standings: &[Standing], pairs: &Pairs) -> Option<Order> {
    let mut valued = [(both[0], (figure.published)(both[0])?), (both[1], (figure.published)(both[1])?)];
    valued.sort_by(|one, other| one.1.total_cmp(&other.1));
    let [(less, small), (more, large)] = valued;
    // What is published as next to equal has no order.
    if less.variant == more.variant || large <= small * (1.0 + TOLERANCE) {
        return None;
    }
    let at = |result: &PublishedResult| standings.iter().position(|standing| standing.variant == result.variant);
    let (first, other) = (at(less)?, at(more)?);
    Some(Order {
        figure: figure.name.to_owned(),
        unit: figure.unit,
        less: less.variant.clone(),
        more: more.variant.clone(),
        published: [small, large],
        here: [(figure.ours)(&standings[first]), (figure.ours)(&standings[other])],
        agreement: agreement(pairs.get(first, other), figure.name),
    })
}

/// `comparison`: of the one that is published as more with the one that is published as less.
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
