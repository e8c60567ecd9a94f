//! The report of an experiment: one HTML file that needs nothing but itself, Markdown with the same figures, and JSON with what
//! follows from them.
//!
//! ```text
//!     LabResult, Conclusion ─▶ json
//!                       ├────▶ tables (grids) ──┬─▶ markdown
//!                       └────▶ charts ──────────┼─▶ page: one file
//!     profiles, from files ──▶ profiles ────────┘
//! ```
//!
//! It must judge nothing: that is for `conclusion`. What makes figures unfit to be believed stands before them. Called by
//! whoever runs an experiment, or reads a result again.

mod page;

mod json;
mod markdown;

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
