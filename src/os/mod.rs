//! The interface to the operating system: signals, the supervisor that started klad, and the available memory.

pub(crate) mod memory_limit;
pub mod signals;
pub mod supervisor;
