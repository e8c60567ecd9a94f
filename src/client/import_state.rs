//! How far an import has come, in the file of `--resume-file`. Called by `import`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::client::replace::write_whole;
use crate::client::{Error, key};

/// The part of the input that was stored.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ImportState {
    /// The number of entries from the beginning of the input.
    pub(super) entries: u64,
    /// The key of the last stored entry, in base64url. It shows whether another input is the same one.
    last_key64: String,
    /// What the entries were generated from. `None`: they were read.
    #[serde(default)]
    generated: Option<String>,
}

impl ImportState {
    /// Reads the file. If it does not exist, nothing was stored.
    ///
    /// # Errors
    /// The file cannot be read, or klad did not write it.
    pub(super) fn load(path: &Path) -> Result<ImportState, Error> {
        let text = match std::fs::read(path) {
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Ok(ImportState::default()),
            Err(why) => return Err(Error::File { what: format!("cannot read {}", path.display()), why }),
            Ok(text) => text,
        };
        serde_json::from_slice(&text)
            .map_err(|error| Error::Usage(format!("{} does not record an import: {error}", path.display())))
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn save(path: &Path, entries: u64, last_key: &[u8], generated: Option<&str>) -> Result<(), Error> {
        let generated = generated.map(str::to_owned);
        let state = ImportState { entries, last_key64: key::to_base64url(last_key), generated };
        let mut text = serde_json::to_vec(&state).expect("a number and a text always serialize");
        text.push(b'\n');
        write_whole(path, &text)
    }

    /// Returns whether the state can be that of this input, as far as this is known before the input is read.
    pub(super) fn is_of(&self, generated: Option<&str>) -> bool {
        self.entries == 0 || self.generated.as_deref() == generated
    }

    /// Returns whether the last entry has this key.
    pub(super) fn ends_with(&self, last_key: &[u8]) -> bool {
        self.last_key64 == key::to_base64url(last_key)
    }
}
