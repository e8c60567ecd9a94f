//! How many copies of a key must answer an operation. `http` reads it from requests; engines with several copies obey
//! it. An engine with one copy may ignore it: all levels mean the same there.

/// The copies that must answer an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// What the engine is configured to ask.
    #[default]
    Default,
    /// One copy.
    One,
    /// A majority of all copies.
    Quorum,
    /// A majority of the copies in the data centre of this klad.
    LocalQuorum,
    /// All copies.
    All,
    /// A read also sees conditional writes that are about to end.
    Serial,
    /// So many copies, from 1 to those that the engine keeps.
    Acks(u8),
}

impl Consistency {
    const WORDS: [(&str, Consistency); 5] = [
        ("one", Consistency::One),
        ("quorum", Consistency::Quorum),
        ("local_quorum", Consistency::LocalQuorum),
        ("all", Consistency::All),
        ("serial", Consistency::Serial),
    ];

    /// Parses a level that a client or an operator may ask for.
    #[must_use]
    pub fn from_request(word: &str) -> Option<Consistency> {
        Consistency::WORDS.into_iter().find(|(own, _)| *own == word).map(|(_, level)| level)
    }

    /// The word used in headers and options; `None` for what has no word.
    #[must_use]
    pub fn word(self) -> Option<&'static str> {
        Consistency::WORDS.into_iter().find(|(_, level)| *level == self).map(|(word, _)| word)
    }
}
