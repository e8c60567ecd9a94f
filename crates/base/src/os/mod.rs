//! What concerns the operating system and is shared by all programs of klad: open files, time slices, the standard output.

pub mod descriptors;
pub mod output;
pub mod scheduler;
