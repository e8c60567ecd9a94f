//! The cost of each function, on its own and with the functions that it calls, and the difference of two profiles.
//! Called by `client::profile`, and for its checks by `picture`, `pprof` and `collapsed`.

use std::collections::{HashMap, HashSet};

use crate::{Error, Name, Profile, ValueType};

/// The cost of a function, in the profile's shown value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The function.
    pub name: Name,
    /// The cost while the function itself was running.
    pub own: i64,
    /// The cost while the function was anywhere on the stack. A stack that contains it twice counts once.
    pub total: i64,
}

/// The change of a function's cost. A positive value means more in the second profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The function.
    pub name: Name,
    /// The change of the function's own cost.
    pub own: i64,
    /// The change of the cost including called functions.
    pub total: i64,
}

impl Profile<Name> {
    /// Returns the sum of the shown value.
    #[must_use]
    pub fn sum(&self) -> i64 {
        self.samples.iter().map(|sample| value(&sample.values, self.shown)).fold(0, i64::saturating_add)
    }

    /// Returns each function once, sorted by its own cost and then by its total, largest first.
    #[must_use]
    pub fn top(&self) -> Vec<Cost> {
        let mut costs: HashMap<&Name, (i64, i64)> = HashMap::new();
        let mut seen = HashSet::new();
        for sample in &self.samples {
            let value = value(&sample.values, self.shown);
            seen.clear();
            for (depth, name) in sample.frames.iter().enumerate() {
                let (own, total) = costs.entry(name).or_default();
                if depth == 0 {
                    *own = own.saturating_add(value);
                }
                if seen.insert(name) {
                    *total = total.saturating_add(value);
                }
            }
        }
        let mut costs: Vec<Cost> =
            costs.into_iter().map(|(name, (own, total))| Cost { name: name.clone(), own, total }).collect();
        costs.sort_by(|one, other| (other.own, other.total, &one.name).cmp(&(one.own, one.total, &other.name)));
        costs
    }

    /// Checks that `after` can be compared with this profile. Both must show the same value type. With `normalize`, the
    /// sum of each must be above 0. `names` are the names of this profile and of `after` for the error.
    ///
    /// # Errors
    /// [`Error::Malformed`] with the reason.
    pub fn check_comparable(&self, after: &Profile<Name>, names: [&str; 2], normalize: bool) -> Result<(), Error> {
        let (one, other) = (self.shown_type(), after.shown_type());
        if one != other {
            let of = |value: &ValueType| format!("{}/{}", value.kind, value.unit);
            let what = format!("{} shows {} and {} shows {}", names[0], of(&one), names[1], of(&other));
            return Err(Error::Malformed(format!("profiles of different kinds cannot be compared: {what}")));
        }
        match [self, after].iter().position(|profile| profile.sum() <= 0) {
            Some(side) if normalize => {
                let text = format!(
                    "the total of {} is not above 0, so it cannot be scaled; compare without --normalize",
                    names[side]
                );
                Err(Error::Malformed(text))
            }
            _ => Ok(()),
        }
    }

    /// Returns the type of the shown value.
    #[must_use]
    pub fn shown_type(&self) -> ValueType {
        self.values.get(self.shown).cloned().unwrap_or_else(|| ValueType::new("samples", "count"))
    }

    /// Returns a divisor and a multiplier for this profile's values in a comparison with `after`: its own sum and the
    /// sum of `after`. Both are 1 without `normalize`, or if one of the sums is not above 0.
    #[must_use]
    pub fn scale(&self, after: &Profile<Name>, normalize: bool) -> (i64, i64) {
        let (from, to) = (self.sum(), after.sum());
        if normalize && from > 0 && to > 0 { (from, to) } else { (1, 1) }
    }

    /// Checks that all values can be summed, with any signs, without an overflow.
    pub(super) fn check_sums(&self) -> Result<(), Error> {
        for at in 0..self.values.len() {
            let mut sizes = self.samples.iter().map(|sample| value(&sample.values, at).checked_abs());
            sizes
                .try_fold(0_i64, |sum, size| sum.checked_add(size?))
                .ok_or_else(|| Error::Malformed("the sum of its values exceeds 63 bits".to_owned()))?;
        }
        Ok(())
    }

    /// Returns the changes from this profile to `after`. They are sorted by the size of the change of a function's own
    /// cost, the largest first. Functions without a change are left out. With `normalize`, this profile's values are
    /// scaled to the sum of `after`, so that a longer run does not look slower.
    #[must_use]
    pub fn changes(&self, after: &Profile<Name>, normalize: bool) -> Vec<Change> {
        let (from, to) = self.scale(after, normalize);
        let scaled = |value: i64| {
            let scaled = i128::from(value) * i128::from(to) / i128::from(from);
            i64::try_from(scaled).unwrap_or(if scaled < 0 { i64::MIN } else { i64::MAX })
        };
        let mut changes: HashMap<Name, (i64, i64)> =
            after.top().into_iter().map(|cost| (cost.name, (cost.own, cost.total))).collect();
        for cost in self.top() {
            let (own, total) = changes.entry(cost.name).or_default();
            *own = own.saturating_sub(scaled(cost.own));
            *total = total.saturating_sub(scaled(cost.total));
        }
        let changes = changes.into_iter().map(|(name, (own, total))| Change { name, own, total });
        let mut changes: Vec<Change> = changes.filter(|change| change.own != 0 || change.total != 0).collect();
        let size = |change: &Change| (change.own.unsigned_abs(), change.total.unsigned_abs());
        changes.sort_by(|one, other| size(other).cmp(&size(one)).then_with(|| one.name.cmp(&other.name)));
        changes
    }
}

/// Returns the shown value. A profile that was read from a file may have a sample with too few values.
fn value(values: &[i64], shown: usize) -> i64 {
    values.get(shown).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Sample;

    /// Returns a profile of stacks, leaf first, with a count that is not shown and a value that is.
    fn profile(stacks: &[(&str, i64)]) -> Profile<Name> {
        let sample = |(stack, value): &(&str, i64)| Sample {
            thread: "worker".to_owned(),
            frames: stack.split_whitespace().map(Name::from).collect(),
            values: vec![1, *value],
        };
        Profile {
            title: "CPU time".to_owned(),
            values: vec![ValueType::new("samples", "count"), ValueType::new("cpu", "nanoseconds")],
            shown: 1,
            samples: stacks.iter().map(sample).collect(),
            period: None,
            began_unix_ns: 0,
            duration: Duration::ZERO,
            facts: Vec::new(),
        }
    }

    fn rows(costs: &[Cost]) -> Vec<(&str, i64, i64)> {
        costs.iter().map(|cost| (cost.name.as_ref(), cost.own, cost.total)).collect()
    }

    fn differences(changes: &[Change]) -> Vec<(&str, i64, i64)> {
        changes.iter().map(|change| (change.name.as_ref(), change.own, change.total)).collect()
    }

    #[test]
    fn the_leaf_has_the_cost_and_its_callers_the_total() {
        let profile = profile(&[("read get main", 30), ("get main", 5), ("write put main", 10)]);
        let expected = [("read", 30, 30), ("write", 10, 10), ("get", 5, 35), ("main", 0, 45), ("put", 0, 10)];
        assert_eq!(rows(&profile.top()), expected);
        assert_eq!(profile.sum(), 45);
    }

    #[test]
    fn recursion_counts_once() {
        assert_eq!(rows(&profile(&[("f f f main", 7)]).top()), [("f", 7, 7), ("main", 0, 7)]);
    }

    #[test]
    fn missing_and_overflowing_values_are_handled() {
        let mut odd = profile(&[("f", i64::MAX), ("f", i64::MAX), ("g", 1)]);
        odd.samples[2].values.clear();
        odd.samples.push(Sample { thread: String::new(), frames: Vec::new(), values: vec![1, 2] });
        assert_eq!(rows(&odd.top()), [("f", i64::MAX, i64::MAX), ("g", 0, 0)]);
    }

    #[test]
    fn a_positive_change_means_more_in_the_second_profile() {
        let (before, after) = (profile(&[("a main", 10), ("b main", 10)]), profile(&[("a main", 25), ("c main", 1)]));
        let expected = [("a", 15, 15), ("b", -10, -10), ("c", 1, 1), ("main", 0, 6)];
        assert_eq!(differences(&before.changes(&after, false)), expected);
    }

    #[test]
    fn twin_swapped_profiles_change_every_sign() {
        let (before, after) = (profile(&[("a main", 10)]), profile(&[("a main", 25)]));
        assert_eq!(differences(&after.changes(&before, false)), [("a", -15, -15), ("main", 0, -15)]);
    }

    #[test]
    fn a_longer_run_is_no_change_when_normalized() {
        let (before, after) = (profile(&[("a", 10), ("b", 30)]), profile(&[("a", 20), ("b", 60)]));
        assert_eq!(differences(&before.changes(&after, true)), []);
        assert_eq!(differences(&before.changes(&after, false)), [("b", 30, 30), ("a", 10, 10)]);
        assert_eq!(differences(&profile(&[]).changes(&after, true)), [("b", 60, 60), ("a", 20, 20)]);
    }
}
