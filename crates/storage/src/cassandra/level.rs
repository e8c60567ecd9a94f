//! Converts the consistency that a request asks for to a CQL consistency level and the number of copies that must
//! answer.

use scylla::statement::Consistency as Cql;

use crate::operation::Consistency;

/// The number of copies of each key, and the consistency that klad's options set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Levels {
    /// The number of copies in all data centres.
    pub(super) copies: u8,
    /// The number of copies in the data centre of this klad.
    pub(super) local_copies: u8,
    /// The level of requests that ask for none.
    pub(super) default: Consistency,
    /// Whether conditional writes need agreement only within the data centre of this klad.
    pub(super) local_serial: bool,
}

/// A CQL consistency level, and the number of copies that must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) cql: Cql,
    pub(super) acks: u8,
}

impl Levels {
    /// The level of a read.
    pub(super) fn of_read(self, asked: Consistency) -> Level {
        match self.or_default(asked) {
            Consistency::Serial => self.serial(),
            asked => self.of(asked),
        }
    }

    /// The level of a write, or of a step of a scan. CQL has no serial level for writes and scans. A majority is enough
    /// for `serial`, because a serial read sees what a majority has acknowledged. At `serial`, klad also makes each
    /// write conditional.
    pub(super) fn of_write(self, asked: Consistency) -> Level {
        match self.or_default(asked) {
            Consistency::Serial if self.local_serial => self.of(Consistency::LocalQuorum),
            Consistency::Serial => self.of(Consistency::Quorum),
            asked => self.of(asked),
        }
    }

    /// The level of the reads and of the commit of a conditional write. It is the level that the request asks for, but
    /// at least a majority of the copies that agree on the write. With fewer copies, the next write would not see this
    /// one.
    pub(super) fn of_conditional_write(self, asked: Consistency) -> Level {
        let majority = self.of_write(Consistency::Serial);
        let asked = self.of_write(asked);
        if asked.acks > majority.acks { asked } else { majority }
    }

    /// The level of a serial read, which ends the conditional writes in progress.
    pub(super) fn serial(self) -> Level {
        let (cql, copies) =
            if self.local_serial { (Cql::LocalSerial, self.local_copies) } else { (Cql::Serial, self.copies) };
        Level { cql, acks: majority(copies) }
    }

    /// Whether a request asks to be in one order with all conditional writes.
    pub(super) fn is_serial(self, asked: Consistency) -> bool {
        self.or_default(asked) == Consistency::Serial
    }

    fn or_default(self, asked: Consistency) -> Consistency {
        if asked == Consistency::Default { self.default } else { asked }
    }

    fn of(self, asked: Consistency) -> Level {
        let (cql, acks) = match asked {
            Consistency::One => (Cql::One, 1),
            Consistency::LocalQuorum => (Cql::LocalQuorum, majority(self.local_copies)),
            Consistency::All => (Cql::All, self.copies),
            Consistency::Acks(acks) => return self.of_acks(acks),
            // If the default is itself `Default`, it means a quorum.
            Consistency::Quorum | Consistency::Serial | Consistency::Default => (Cql::Quorum, majority(self.copies)),
        };
        Level { cql, acks }
    }

    /// The weakest level that waits for at least `acks` copies. CQL does not have a level for every number.
    fn of_acks(self, acks: u8) -> Level {
        let level = |cql, acks| Level { cql, acks };
        match acks {
            0 | 1 => level(Cql::One, 1),
            2 => level(Cql::Two, 2),
            3 => level(Cql::Three, 3),
            acks if acks <= majority(self.copies) => level(Cql::Quorum, majority(self.copies)),
            _ => level(Cql::All, self.copies),
        }
    }
}

fn majority(copies: u8) -> u8 {
    copies / 2 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(copies: u8) -> Levels {
        Levels { copies, local_copies: copies, default: Consistency::Quorum, local_serial: false }
    }

    #[test]
    fn no_level_asks_fewer_copies_than_the_request() {
        for copies in 1..=7 {
            for acks in 1..=copies {
                let level = levels(copies).of_write(Consistency::Acks(acks));
                assert!((acks..=copies).contains(&level.acks), "{acks} of {copies}: {level:?}");
            }
            let level = levels(copies).of_write(Consistency::Default);
            assert_eq!(level, Level { cql: Cql::Quorum, acks: copies / 2 + 1 });
        }
    }

    #[test]
    fn a_conditional_write_needs_a_majority_whatever_is_asked() {
        for (asked, acks) in [(Consistency::One, 2), (Consistency::Default, 2), (Consistency::All, 3)] {
            assert_eq!(levels(3).of_conditional_write(asked).acks, acks, "{asked:?}");
        }
        let local = Levels { copies: 6, local_copies: 3, default: Consistency::One, local_serial: true };
        assert_eq!(local.of_conditional_write(Consistency::Default).cql, Cql::LocalQuorum);
        assert_eq!(local.serial().cql, Cql::LocalSerial);
    }

    #[test]
    fn only_reads_are_serial() {
        assert_eq!(levels(3).of_read(Consistency::Serial).cql, Cql::Serial);
        assert_eq!(levels(3).of_write(Consistency::Serial).cql, Cql::Quorum);
    }
}
