//! `report.json`: the conclusion, for programs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conclusion::Conclusion;
use crate::result::LabResult;
use klad_bench::result::Started;

/// The name and version of the form of `report.json`.
const SCHEMA: &str = "klad.lab.report/1";

/// The conclusion of an experiment. Its figures are in `lab.json`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Report {
    /// `klad.lab.report/1`.
    schema: String,
    /// The title of the experiment.
    title: String,
    /// When it started.
    started: Started,
    /// The factor by which the scenario's lengths and numbers of keys were multiplied, above 0 and at most 1.
    scale: f64,
    /// The conclusion.
    conclusion: Conclusion,
}

/// Either of the two files; the field `schema` says which.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "used for its schema only")]
enum Document {
    /// `lab.json`: the figures.
    Figures(Box<LabResult>),
    /// `report.json`: the conclusion.
    Report(Report),
}

/// Returns `report.json`, with a line feed at its end.
#[must_use]
pub fn json(result: &LabResult, conclusion: &Conclusion) -> String {
    let report = Report {
        schema: SCHEMA.to_owned(),
        title: result.scenario.title.clone(),
        started: result.started.clone(),
        scale: result.scale,
        conclusion: conclusion.clone(),
    };
    pretty(&report)
}

/// Returns the JSON Schema of `lab.json` and `report.json`.
#[must_use]
pub fn json_schema() -> String {
    pretty(&schemars::schema_for!(Document))
}

fn pretty(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("the keys of its maps are text");
    text.push('\n');
    text
}
