//! The report of an experiment: one self-contained HTML file, Markdown with the same figures, and JSON with the
//! conclusion.
//!
//! ```text
//!     LabResult, Conclusion ─▶ json
//!                       ├────▶ tables (grids) ──┬─▶ markdown
//!                       └────▶ charts ──────────┼─▶ page: one file
//!     profiles, from files ──▶ profiles ────────┘
//! ```
//!
//! The report judges nothing; `conclusion` does. Warnings about figures come before the figures. Called by
//! `klad lab run` and `klad lab report`.

mod page;

mod json;
mod markdown;
mod wrap;

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
