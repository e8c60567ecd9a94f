//! Profiles as text, and checks that compare them with known values. Each check returns the faults.

use std::collections::BTreeMap;

/// Maximum error, as a part of the true value.
const TOLERANCE: f64 = 0.10;

/// `# name: value` lines, then lines `thread;root;…;leaf N`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profile {
    pub(crate) facts: BTreeMap<String, String>,
    /// Values of a difference may be negative.
    pub(crate) stacks: Vec<(Vec<String>, i64)>,
}

impl Profile {
    /// Parses a profile; the error has the wrong line.
    pub(crate) fn parse(text: &str) -> Result<Profile, String> {
        let mut profile = Profile::default();
        for line in text.lines() {
            if let Some((name, value)) = line.strip_prefix("# ").and_then(|fact| fact.split_once(": ")) {
                profile.facts.insert(name.to_owned(), value.to_owned());
                continue;
            }
            let stack = line.rsplit_once(' ').and_then(|(stack, count)| Some((stack, count.parse().ok()?)));
            let (stack, count) = stack.ok_or_else(|| format!("neither a fact nor a stack: {line}"))?;
            profile.stacks.push((stack.split(';').map(str::to_owned).collect(), count));
        }
        Ok(profile)
    }

    pub(crate) fn total(&self) -> i64 {
        self.stacks.iter().map(|(_, count)| count).sum()
    }

    /// Returns the sum of all stacks that contain `function`.
    pub(crate) fn amount(&self, function: &str) -> i64 {
        let holds = |stack: &[String]| stack.iter().any(|frame| frame.contains(function));
        self.stacks.iter().filter(|(stack, _)| holds(stack)).map(|(_, count)| count).sum()
    }
}

/// Returns a fault if `found` differs too much from `truth`.
fn far(what: &str, found: f64, truth: f64) -> Option<String> {
    let wrong = (found - truth).abs() > truth * TOLERANCE;
    wrong.then(|| format!("{what} is {found:.4} instead of {truth:.4}"))
}

/// Checks the total of a profile.
pub(crate) fn total_faults(profile: &Profile, truth: f64) -> Vec<String> {
    far("the total", as_f64(profile.total()), truth).into_iter().collect()
}

/// Checks the share of each function, with its callees, in the total.
pub(crate) fn share_faults(profile: &Profile, truth: &[(&str, f64)]) -> Vec<String> {
    let total = profile.total();
    if total == 0 {
        return vec!["the profile is empty".to_owned()];
    }
    let share = |function| as_f64(profile.amount(function)) / as_f64(total);
    truth.iter().filter_map(|(function, truth)| far(&format!("{function}'s share"), share(function), *truth)).collect()
}

/// Checks the ratio of two functions.
pub(crate) fn ratio_faults(profile: &Profile, more: &str, less: &str, truth: f64) -> Vec<String> {
    let found = as_f64(profile.amount(more)) / as_f64(profile.amount(less));
    let missing = || Some(format!("neither {more} nor {less} is there"));
    if found.is_nan() { missing() } else { far("the ratio", found, truth) }.into_iter().collect()
}

/// Checks the amount of each function, with its callees.
pub(crate) fn amount_faults(profile: &Profile, truth: &[(&str, i64)]) -> Vec<String> {
    let fault = |(function, truth): &(&str, i64)| far(function, as_f64(profile.amount(function)), as_f64(*truth));
    truth.iter().filter_map(fault).collect()
}

/// Parses the output of `go tool pprof -top -cum` into the share of each function in the total.
pub(crate) fn top_shares(text: &str) -> BTreeMap<String, f64> {
    let mut shares = BTreeMap::new();
    for line in text.lines().skip_while(|line| !line.trim_start().starts_with("flat ")).skip(1) {
        let mut words = line.split_whitespace();
        let share = words.nth(4).and_then(|word| word.strip_suffix('%')).and_then(|word| word.parse::<f64>().ok());
        if let Some(share) = share {
            *shares.entry(words.collect::<Vec<_>>().join(" ")).or_default() += share / 100.0;
        }
    }
    shares
}

/// Checks the shares in the output of another program.
pub(crate) fn top_faults(shares: &BTreeMap<String, f64>, truth: &[(&str, f64)]) -> Vec<String> {
    let share = |function: &str| -> f64 {
        shares.iter().filter(|(name, _)| name.contains(function)).map(|(_, share)| share).sum()
    };
    truth.iter().filter_map(|(function, truth)| far(&format!("{function}'s share"), share(function), *truth)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds and bytes of a test are far below 2^52")]
pub(crate) fn as_f64(count: i64) -> f64 {
    count as f64
}
