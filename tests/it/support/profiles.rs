//! Profiles as text, and the judges that hold them against a known truth. Each judge answers what is wrong.

use std::collections::BTreeMap;

/// Figures may be wrong by so much of the truth.
const TOLERANCE: f64 = 0.10;

/// `# name: value` lines, then `thread;root;…;leaf N`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profile {
    pub(crate) facts: BTreeMap<String, String>,
    /// Figures of what has changed may be below zero.
    pub(crate) stacks: Vec<(Vec<String>, i64)>,
}

impl Profile {
    /// Reads it, or says which line is none.
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

    /// Of all stacks that `function` is in.
    pub(crate) fn amount(&self, function: &str) -> i64 {
        let holds = |stack: &[String]| stack.iter().any(|frame| frame.contains(function));
        self.stacks.iter().filter(|(stack, _)| holds(stack)).map(|(_, count)| count).sum()
    }
}

/// Whether `found` is far from `truth`, in words.
fn far(what: &str, found: f64, truth: f64) -> Option<String> {
    let wrong = (found - truth).abs() > truth * TOLERANCE;
    wrong.then(|| format!("{what} is {found:.4} instead of {truth:.4}"))
}

/// Holds all that the profile has against the truth.
pub(crate) fn total_faults(profile: &Profile, truth: f64) -> Vec<String> {
    far("the whole", as_f64(profile.total()), truth).into_iter().collect()
}

/// Holds the share of each function, with its callees, in the whole against the truth.
pub(crate) fn share_faults(profile: &Profile, truth: &[(&str, f64)]) -> Vec<String> {
    let total = profile.total();
    if total == 0 {
        return vec!["the profile is empty".to_owned()];
    }
    let share = |function| as_f64(profile.amount(function)) / as_f64(total);
    truth.iter().filter_map(|(function, truth)| far(&format!("{function}'s share"), share(function), *truth)).collect()
}

/// Holds how many times as much one function has as another against the truth.
pub(crate) fn ratio_faults(profile: &Profile, more: &str, less: &str, truth: f64) -> Vec<String> {
    let found = as_f64(profile.amount(more)) / as_f64(profile.amount(less));
    let missing = || Some(format!("neither {more} nor {less} is there"));
    if found.is_nan() { missing() } else { far("the ratio", found, truth) }.into_iter().collect()
}

/// Holds what each function has, with its callees, against the truth.
pub(crate) fn amount_faults(profile: &Profile, truth: &[(&str, i64)]) -> Vec<String> {
    let fault = |(function, truth): &(&str, i64)| far(function, as_f64(profile.amount(function)), as_f64(*truth));
    truth.iter().filter_map(fault).collect()
}

/// What `go tool pprof -top -cum` prints, as shares of the whole, in which every function is a line.
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

/// The same judgement on what another program has read.
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
