//! What the program asks of the operating system: signals, the supervisor that started it, how much memory there is.

pub(crate) mod memory_limit;
pub mod signals;
pub mod supervisor;
