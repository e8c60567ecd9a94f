//! Chooses the keys of requests, and makes their bytes.
//!
//! Each key has a number. A format or a file turns the number into bytes. For orders that count up, all threads share
//! one counter, so that two threads do not send the same key. Called by `workload` on the generator threads.

use std::collections::VecDeque;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use rand::RngExt as _;
use rand_distr::{Distribution as _, Zipf};
use rand_xoshiro::Xoshiro256PlusPlus;

use klad_base::sync::Mutex;

/// The order in which keys are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Keys one after the other. If the number of keys is limited, the first key follows the last.
    Sequential,
    /// Keys at random, each with the same probability.
    Uniform,
    /// A few keys often, and most keys seldom. The frequent keys are scattered over all keys.
    Zipfian,
    /// PUT adds new keys one after the other. GET prefers the newest keys (zipfian by age).
    Latest,
}

/// A format that makes bytes from a number. It has one `{}` for the number, or `{:07}` for at least seven digits with
/// leading zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFormat {
    before: Box<[u8]>,
    /// The minimum number of digits.
    width: usize,
    after: Box<[u8]>,
}

/// The largest number of digits: a number of 64 bits has up to 20.
const DIGITS_MAX: usize = 20;

impl FromStr for KeyFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<KeyFormat, String> {
        let hint = || format!("{text:?} needs exactly one place for the number: {{}} or {{:07}}");
        let (before, rest) = text.split_once('{').ok_or_else(hint)?;
        let (place, after) = rest.split_once('}').ok_or_else(hint)?;
        if before.contains('}') || after.contains(['{', '}']) {
            return Err(hint());
        }
        let width = match place.strip_prefix(":0") {
            _ if place.is_empty() => 0,
            Some(width) => width.parse().map_err(|_| hint())?,
            None => return Err(hint()),
        };
        if width > DIGITS_MAX {
            return Err(format!("a number has at most {DIGITS_MAX} digits"));
        }
        Ok(KeyFormat { before: before.as_bytes().into(), width, after: after.as_bytes().into() })
    }
}

impl KeyFormat {
    /// Whether all numbers below `count` have the same number of digits, leading zeros included.
    pub(super) fn is_fixed_width(&self, count: u64) -> bool {
        u32::try_from(self.width).ok().and_then(|width| 10_u64.checked_pow(width)).is_none_or(|end| count <= end)
    }

    /// Appends the bytes for `number`.
    pub fn write(&self, number: u64, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.before);
        write_number(number, self.width, into);
        into.extend_from_slice(&self.after);
    }
}

/// Returns the numbers below `count`, sorted as text: 0, 1, 10, 100, 11, 2 and so on. Keys with leading zeros, or with
/// text after the number, may have another order.
pub(super) fn by_digits(count: u64) -> impl Iterator<Item = u64> {
    let next = move |number: &u64| {
        if *number == 0 {
            return (count > 1).then_some(1);
        }
        let mut next = number.saturating_mul(10);
        if next >= count {
            // No further number begins with these digits. The next number has as many digits, or fewer.
            next = if number + 1 < count { number + 1 } else { number / 10 + 1 };
            while next.is_multiple_of(10) {
                next /= 10;
            }
        }
        // After the last number that begins with 9, `next` is 1.
        (next > 1).then_some(next)
    };
    std::iter::successors((count > 0).then_some(0), next)
}

/// Appends `number` in decimal. If it has fewer than `width` digits (at most [`DIGITS_MAX`]), zeros come before it.
pub(super) fn write_number(mut number: u64, width: usize, into: &mut Vec<u8>) {
    let mut digits = [b'0'; DIGITS_MAX];
    let mut at = DIGITS_MAX;
    while number > 0 || at == DIGITS_MAX {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).expect("a digit");
        number /= 10;
    }
    into.extend_from_slice(&digits[at.min(DIGITS_MAX - width)..]);
}

/// The source of the bytes of a key with a given number.
#[derive(Debug)]
pub enum KeyNames {
    /// A format.
    Format(KeyFormat),
    /// The lines of a file.
    Lines(Lines),
}

/// The lines of a file, in memory.
#[derive(Debug)]
pub struct Lines {
    text: Vec<u8>,
    /// The end of each line. A line starts where the previous one ends.
    ends: Vec<usize>,
}

impl Lines {
    /// Reads `path`. Lines end with LF or CR LF; empty lines are skipped.
    ///
    /// # Errors
    /// If the file cannot be read, or has no key.
    pub fn read(path: &Path) -> std::io::Result<Lines> {
        let mut lines = Lines { text: Vec::new(), ends: Vec::new() };
        for line in std::fs::read(path)?.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if !line.is_empty() {
                lines.text.extend_from_slice(line);
                lines.ends.push(lines.text.len());
            }
        }
        if lines.ends.is_empty() { Err(std::io::Error::other("the file has no key")) } else { Ok(lines) }
    }

    /// The number of lines, at least 1.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    fn get(&self, number: u64) -> &[u8] {
        let index = usize::try_from(number % self.count()).expect("less than a length");
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start..self.ends[index]]
    }
}

/// All keys of a run, shared by its threads.
#[derive(Debug)]
pub struct Keys {
    /// How numbers become bytes.
    names: KeyNames,
    order: Order,
    /// The number of the first key.
    first: u64,
    /// The number of keys. `None` means no limit, for sequential order only.
    count: Option<u64>,
    /// The counter of orders that count up: how many numbers were given out.
    counted: AtomicU64,
    settled: Mutex<SettledPuts>,
}

/// The new keys that the order `latest` may request: those whose PUT has ended, and the PUTs of all earlier new keys
/// too.
#[derive(Debug, Default)]
struct SettledPuts {
    /// The number, from 0, of the first new key whose PUT has not ended. The PUTs of all earlier ones have ended.
    limit: u64,
    /// For each new key from `limit` on, whether its PUT has ended. The first entry is the oldest PUT in flight. The
    /// last entry is the newest PUT that has ended.
    ended: VecDeque<bool>,
}

impl Keys {
    /// Creates the keys from the number `first` on. `count` is at least 1, or `None` (no limit) for sequential order.
    #[must_use]
    pub fn new(names: KeyNames, order: Order, first: u64, count: Option<u64>) -> Keys {
        assert!(order == Order::Sequential || count.is_some(), "{order:?} needs a number of keys");
        assert!(count != Some(0), "there is no key to choose");
        Keys { names, order, first, count, counted: AtomicU64::new(0), settled: Mutex::new(SettledPuts::default()) }
    }

    /// Appends the bytes of the key with this number.
    pub fn write(&self, number: u64, into: &mut Vec<u8>) {
        match &self.names {
            KeyNames::Format(format) => format.write(number, into),
            KeyNames::Lines(lines) => into.extend_from_slice(lines.get(number)),
        }
    }

    /// The order in which keys are used.
    #[must_use]
    pub fn order(&self) -> Order {
        self.order
    }

    /// Records that the PUT of the key with this number has ended, with any outcome.
    pub fn settle(&self, number: u64) {
        if self.order != Order::Latest {
            return;
        }
        let index = number.wrapping_sub(self.first).wrapping_sub(self.count.unwrap_or(0));
        let mut settled = self.settled.lock();
        let place = usize::try_from(index - settled.limit).expect("fits memory");
        if settled.ended.len() <= place {
            settled.ended.resize(place + 1, false);
        }
        settled.ended[place] = true;
        while settled.ended.front() == Some(&true) {
            settled.ended.pop_front();
            settled.limit += 1;
        }
    }

    fn next(&self) -> u64 {
        // Relaxed is enough, because each number is given out once, and nothing else depends on it.
        self.counted.fetch_add(1, Ordering::Relaxed)
    }
}

/// Chooses keys on one thread.
#[derive(Debug)]
pub struct Chooser {
    zipf: Option<Zipf<f64>>,
    /// A factor that scatters ranks over the keys: `rank * step mod count` is a different key for each rank.
    step: u64,
}

impl Chooser {
    /// Creates a chooser for `keys`. In the orders zipfian and latest, the frequency of rank k is in proportion to 1 /
    /// k^`exponent`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a number of keys")]
    pub fn new(keys: &Keys, exponent: f64) -> Chooser {
        let skewed = matches!(keys.order, Order::Zipfian | Order::Latest);
        let zipf = keys
            .count
            .filter(|_| skewed)
            .map(|count| Zipf::new(count as f64, exponent).expect("at least one key, and an exponent of at least 0"));
        Chooser { zipf, step: coprime_step(keys.count.unwrap_or(1)) }
    }

    /// Chooses the next key to read, replace or delete, and returns its number.
    pub fn existing(&self, keys: &Keys, random: &mut Xoshiro256PlusPlus) -> u64 {
        let Some(count) = keys.count else { return keys.first.wrapping_add(keys.next()) };
        let index = match keys.order {
            Order::Sequential => keys.next() % count,
            Order::Uniform => random.random_range(0..count),
            Order::Zipfian => {
                let spread = u128::from(self.rank(random)) * u128::from(self.step) % u128::from(count);
                u64::try_from(spread).expect("less than the count")
            }
            Order::Latest => {
                let newest = count.wrapping_add(keys.settled.lock().limit).wrapping_sub(1);
                newest.saturating_sub(self.rank(random))
            }
        };
        keys.first.wrapping_add(index)
    }

    /// Chooses the next key to put, and returns its number.
    pub fn put(&self, keys: &Keys, random: &mut Xoshiro256PlusPlus) -> u64 {
        match (keys.order, keys.count) {
            (Order::Latest, Some(count)) => keys.first.wrapping_add(count).wrapping_add(keys.next()),
            _ => self.existing(keys, random),
        }
    }

    /// Returns a random rank with the Zipf distribution. Rank 0 is the most frequent key.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number from 1 to the count")]
    fn rank(&self, random: &mut Xoshiro256PlusPlus) -> u64 {
        self.zipf.as_ref().map_or(0, |zipf| zipf.sample(random) as u64 - 1)
    }
}

/// Returns a number near 0.618 × `count` (golden ratio) that has no common divisor with `count` except 1.
fn coprime_step(count: u64) -> u64 {
    let golden = u64::try_from(u128::from(count) * 618_033_988_749 / 1_000_000_000_000).expect("less than the count");
    (golden.max(1)..=count.saturating_add(1)).find(|step| gcd(*step, count) == 1).expect("count + 1 has none")
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::SeedableRng as _;

    use super::*;

    fn named(format: &str, number: u64) -> String {
        let mut bytes = Vec::new();
        format.parse::<KeyFormat>().expect("valid").write(number, &mut bytes);
        String::from_utf8(bytes).expect("text")
    }

    fn keys(order: Order, count: Option<u64>) -> Keys {
        Keys::new(KeyNames::Format("key{}".parse().expect("valid")), order, 100, count)
    }

    fn chosen(keys: &Keys, count: usize) -> Vec<u64> {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let chooser = Chooser::new(keys, 0.99);
        (0..count).map(|_| chooser.existing(keys, &mut random)).collect()
    }

    #[test]
    fn formats_place_the_number() {
        assert_eq!(named("key{:07}", 42), "key0000042");
        assert_eq!(named("key{:02}x", 12345), "key12345x");
        assert_eq!(named("{}", 0), "0");
        assert_eq!(named("{}", u64::MAX), "18446744073709551615");
        for wrong in ["key", "{", "}", "{}{}", "{:7}", "{x}", "{:021}", "}{}"] {
            assert!(wrong.parse::<KeyFormat>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_come_in_the_order_of_their_digits() {
        for count in (0..1_200).chain([9_999, 10_000, 10_001, 12_345]) {
            let mut sorted: Vec<_> = (0..count).collect();
            sorted.sort_by_key(u64::to_string);
            assert!(by_digits(count).eq(sorted), "{count}");
        }
    }

    #[test]
    fn one_counter_serves_all_threads_and_no_key_comes_twice() {
        let keys = std::sync::Arc::new(keys(Order::Sequential, None));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let keys = keys.clone();
                klad_base::sync::spawn_thread("test-keys", move || chosen(&keys, 1000))
            })
            .collect();
        let mut all: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
        all.sort_unstable();
        assert_eq!(all, (100..4100).collect::<Vec<_>>());
    }

    #[test]
    fn a_bounded_sequence_starts_again() {
        assert_eq!(chosen(&keys(Order::Sequential, Some(3)), 5), [100, 101, 102, 100, 101]);
    }

    #[test]
    fn uniform_meets_every_key() {
        let mut seen = chosen(&keys(Order::Uniform, Some(10)), 1000);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, (100..110).collect::<Vec<_>>());
    }

    #[test]
    fn zipfian_has_the_frequencies_of_zipf_on_scattered_keys() {
        let count = 1000_u32;
        let mut seen = BTreeMap::new();
        for key in chosen(&keys(Order::Zipfian, Some(u64::from(count))), 100_000) {
            *seen.entry(key).or_insert(0_u32) += 1;
        }
        let mut by_frequency: Vec<_> = seen.iter().map(|(key, times)| (*times, *key)).collect();
        by_frequency.sort_unstable_by(|a, b| b.cmp(a));
        let harmonic: f64 = (1..=count).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for (rank, (times, _)) in (1_u32..=3).zip(&by_frequency) {
            let expected = 100_000.0 * f64::from(rank).powf(-0.99) / harmonic;
            assert!((f64::from(*times) - expected).abs() < 6.0 * expected.sqrt(), "{rank}: {times}, not {expected}");
        }
        assert!(by_frequency[0].1.abs_diff(by_frequency[1].1) > 10, "the frequent keys are scattered");
    }

    #[test]
    fn every_key_has_a_rank() {
        for count in [1, 2, 3, 10, 999, 1000] {
            let step = coprime_step(count);
            let met: std::collections::BTreeSet<_> = (0..count).map(|rank| rank * step % count).collect();
            assert_eq!(met.len() as u64, count);
        }
    }

    #[test]
    fn latest_asks_for_no_key_that_may_not_be_there_yet() {
        let keys = keys(Order::Latest, Some(10));
        let chooser = Chooser::new(&keys, 0.99);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let added: Vec<_> = (0..3).map(|_| chooser.put(&keys, &mut random)).collect();
        assert_eq!(added, [110, 111, 112]);
        keys.settle(111);
        assert!(chosen(&keys, 1000).iter().all(|key| (100..110).contains(key)), "110 is still in flight");
        keys.settle(110);
        let seen = chosen(&keys, 1000);
        assert!(seen.contains(&111) && seen.iter().all(|key| (100..112).contains(key)));
    }

    #[test]
    fn a_file_has_a_key_on_each_line() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "one\r\ntwo words\n\nthree").expect("written");
        let lines = Lines::read(file.path()).expect("three keys");
        assert_eq!(lines.count(), 3);
        assert_eq!(lines.get(0), b"one");
        assert_eq!(lines.get(1), b"two words");
        assert_eq!(lines.get(5), b"three");
        std::fs::write(file.path(), "\n\n").expect("written");
        assert!(Lines::read(file.path()).is_err());
    }
}
