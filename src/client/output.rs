//! The standard output of the commands. Called by all commands.

use std::io::{self, ErrorKind, Write as _};

use crate::client::Error;
use crate::client::answer::AnswerError;
use klad_base::os::output;

/// Why a body was not copied to its end.
pub(super) enum CopyError {
    /// The connection or the server failed.
    Answer(AnswerError),
    /// The writer of the bytes failed.
    Sink(Error),
}

impl From<AnswerError> for CopyError {
    fn from(error: AnswerError) -> CopyError {
        CopyError::Answer(error)
    }
}

impl From<CopyError> for Error {
    fn from(error: CopyError) -> Error {
        match error {
            CopyError::Answer(error) => Error::Failed(format!("{error}; the value is incomplete")),
            CopyError::Sink(error) => error,
        }
    }
}

/// Writes `bytes` to the standard output.
///
/// # Errors
/// [`Error::OutputClosed`], [`Error::File`].
pub(super) fn write_out(bytes: &[u8]) -> Result<(), Error> {
    let mut out = lock()?;
    out.write_all(bytes).and_then(|()| out.flush()).map_err(not_written)
}

/// Prints a line, unless `quiet` is set.
///
/// # Errors
/// Like [`write_out`].
pub(super) fn print_line(quiet: bool, line: &str) -> Result<(), Error> {
    if quiet { Ok(()) } else { output::stdout().and_then(|mut out| writeln!(out, "{line}")).map_err(not_written) }
}

/// Checks the standard output before a write is sent, because an error of the output after the write would make the
/// write look failed.
///
/// # Errors
/// The standard output is closed.
pub(super) fn check(quiet: bool) -> Result<(), Error> {
    if quiet { Ok(()) } else { output::stdout().map(drop).map_err(not_written) }
}

/// Returns the standard output.
///
/// # Errors
/// The standard output is closed.
pub(super) fn lock() -> Result<io::StdoutLock<'static>, Error> {
    Ok(output::stdout().map_err(not_written)?.lock())
}

/// Returns the error of a write to the standard output.
pub(super) fn not_written(why: io::Error) -> Error {
    if why.kind() == ErrorKind::BrokenPipe {
        Error::OutputClosed
    } else {
        Error::File { what: "cannot write the output".to_owned(), why }
    }
}
