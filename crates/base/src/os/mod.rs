//! Operating-system functions that all programs of klad share: open files, time slices, the standard output.

pub mod descriptors;
pub mod output;
pub mod scheduler;
