//! How many copies of a key must answer an operation. `http` reads this consistency from requests; engines with several
//! copies obey it. An engine with one copy may ignore it, because all levels mean the same there.

/// How many copies must answer an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// The level that the engine's options set.
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
    /// With this level, a read also sees conditional writes that are still in progress.
    Serial,
    /// This number of copies, from 1 to the number that the engine keeps.
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

    /// The word used in headers and options; `None` for a level that has no word.
    #[must_use]
    pub fn word(self) -> Option<&'static str> {
        Consistency::WORDS.into_iter().find(|(_, level)| *level == self).map(|(word, _)| word)
    }
}
