//! The report of an experiment: one self-contained HTML file, Markdown with the same figures, and JSON with the
//! conclusion.
//!
//! ```text
//!     LabResult, Conclusion ─▶ json
//!                       ├────▶ tables (grids) ──┬─▶ markdown
//!                       └────▶ bars, charts ────┼─▶ page: one file
//!     profiles, from files ──▶ profiles ────────┘
//! ```
//!
//! The report judges nothing; `conclusion` does. It begins with the question and the answer; what was left out of the
//! comparison stands below the answer. Called by `klad lab run` and `klad lab report`.

mod page;

mod json;
mod markdown;
mod wrap;

mod bars;
mod charts;
mod tables;

mod facts;
mod grid;

mod profiles;
mod prune;

#[cfg(test)]
mod tests;

pub use json::{json, json_schema};
pub use markdown::markdown;
pub use page::html;
