//! Makes the keys and values that `--fill` puts, for programs that store them without requests to a server. Called by
//! `klad import --generate`.

use rand::SeedableRng as _;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::keys::{KeyFormat, by_digits};
use crate::units::SizeRange;
use crate::workload::{Values, value};

/// Makes entries, each a key with its value. The keys are the first ones of a format, almost always in ascending order.
pub struct Entries {
    keys: KeyFormat,
    values: Values,
    numbers: Box<dyn Iterator<Item = u64>>,
    random: Xoshiro256PlusPlus,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Entries {
    /// Creates a source of `count` entries. Without `value_format`, values are random bytes. The bytes are the same in
    /// each program run.
    #[must_use]
    pub fn new(keys: KeyFormat, value_format: Option<KeyFormat>, value_size: SizeRange, count: u64) -> Entries {
        const SEED: u64 = 1;
        let numbers: Box<dyn Iterator<Item = u64>> =
            if keys.is_fixed_width(count) { Box::new(0..count) } else { Box::new(by_digits(count)) };
        let values = value_format.map_or_else(|| Values::random(value_size, SEED), Values::Format);
        let random = Xoshiro256PlusPlus::seed_from_u64(SEED);
        Entries { keys, values, numbers, random, key: Vec::new(), value: Vec::new() }
    }

    /// Returns the next key and its value; `None` after the last.
    pub fn next_entry(&mut self) -> Option<(&[u8], &[u8])> {
        let number = self.numbers.next()?;
        self.key.clear();
        self.keys.write(number, &mut self.key);
        Some((&self.key, value(&self.values, number, &mut self.value, &mut self.random)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_comes_once_and_in_order_with_its_value() {
        let size = SizeRange { min: 3, max: 5 };
        for format in ["{}", "key{}", "key{:04}", "{:03}"] {
            let mut entries =
                Entries::new(format.parse().expect("valid"), Some("v{}".parse().expect("valid")), size, 1_000);
            let (mut keys, mut last) = (0, Vec::new());
            while let Some((key, value)) = entries.next_entry() {
                assert!(key > &*last, "{format}");
                let digits: String = key.iter().map(|byte| char::from(*byte)).filter(char::is_ascii_digit).collect();
                let number: u64 = digits.parse().expect("a number");
                assert_eq!(value, format!("v{number}").as_bytes());
                (keys, last) = (keys + 1, key.to_vec());
            }
            assert_eq!(keys, 1_000, "{format}");
        }
        let mut entries = Entries::new("{}".parse().expect("valid"), None, size, 10);
        assert!(
            std::iter::from_fn(|| entries.next_entry().map(|(_, value)| value.len())).all(|len| (3..=5).contains(&len))
        );
    }
}
