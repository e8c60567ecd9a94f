//! The conclusion as JSON, for programs: `report.json`. Called by whoever writes the report.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::conclusion::Conclusion;
use crate::result::LabResult;
use klad_bench::result::Started;

/// Name and version of `report.json`.
const SCHEMA: &str = "klad.lab.report/1";

/// What an experiment has shown. Its figures are in `lab.json`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Report {
    /// `klad.lab.report/1`.
    schema: String,
    /// What was compared.
    title: String,
    /// When it began.
    started: Started,
    /// Lengths and numbers of keys are those of the scenario times this, 0 to 1.
    scale: f64,
    /// What follows from the figures.
    conclusion: Conclusion,
}

/// Either of the files; `schema` says which.
#[derive(JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "for its schema alone")]
enum Document {
    /// `lab.json`: what was measured.
    Figures(Box<LabResult>),
    /// `report.json`: what follows.
    Report(Report),
}

/// The conclusion, with a line feed at its end.
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

/// The JSON Schema of `lab.json` and of `report.json`.
#[must_use]
pub fn json_schema() -> String {
    pretty(&schemars::schema_for!(Document))
}

fn pretty(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("maps have keys that are text");
    text.push('\n');
    text
}
