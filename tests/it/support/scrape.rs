//! A parsed page of `/metrics`: names, kinds, labels and values, by the rules of the format.

use std::collections::{BTreeMap, BTreeSet};

use super::Server;

/// A page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scrape {
    /// The families by name.
    pub(crate) families: BTreeMap<String, Family>,
    samples: Vec<Sample>,
    pub(crate) text: String,
}

/// A family of metrics on a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) help: String,
    /// Names of the labels, except `le`.
    pub(crate) labels: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Scrape {
    pub(crate) fn of(server: &Server) -> Scrape {
        let answer = server.admin("/metrics");
        assert_eq!(answer.status, 200, "{}", answer.text());
        Scrape::read(&answer.text())
    }

    /// # Panics
    /// The text violates the format.
    pub(crate) fn read(text: &str) -> Scrape {
        let mut page = Scrape { text: text.to_owned(), ..Scrape::default() };
        let mut current = String::new();
        for line in text.lines() {
            if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                let family = Family { help: help.to_owned(), ..Family::default() };
                assert!(page.families.insert(name.to_owned(), family).is_none(), "{name} occurs twice");
                name.clone_into(&mut current);
            } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                assert_eq!(name, current, "the kind follows the help");
                kind.clone_into(&mut page.families.get_mut(name).unwrap().kind);
            } else {
                let sample = sample(line);
                assert_eq!(page.family_of(&sample.name), Some(current.as_str()), "{line} belongs to another family");
                let labels = sample.labels.keys().filter(|label| *label != "le").cloned();
                page.families.get_mut(&current).unwrap().labels.extend(labels);
                page.samples.push(sample);
            }
        }
        page
    }

    /// Returns the family of a sample, or of the name in a query.
    pub(crate) fn family_of<'n>(&self, name: &'n str) -> Option<&'n str> {
        if self.families.contains_key(name) {
            return Some(name);
        }
        let suffixes = ["_bucket", "_sum", "_count"].iter();
        suffixes
            .filter_map(|suffix| name.strip_suffix(suffix))
            .find(|family| self.families.get(*family).is_some_and(|family| family.kind == "histogram"))
    }

    /// Returns the sum of all samples of `name` with these labels.
    ///
    /// # Panics
    /// There is no such sample.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &&Sample| {
            labels.iter().all(|(label, value)| sample.labels.get(*label).is_some_and(|own| own == value))
        };
        let found: Vec<_> = self.samples.iter().filter(|sample| sample.name == name).filter(has).collect();
        assert!(!found.is_empty(), "no {name} with {labels:?} in:\n{}", self.text);
        found.iter().map(|sample| sample.value).sum()
    }

    /// Returns the value of the only sample of `name`.
    pub(crate) fn value(&self, name: &str) -> f64 {
        self.sum(name, &[])
    }

    /// Adds names, kinds and labels of `other`.
    pub(crate) fn merge(&mut self, other: Scrape) {
        for (name, family) in other.families {
            let own = self.families.entry(name).or_insert_with(|| family.clone());
            assert_eq!((&own.kind, &own.help), (&family.kind, &family.help));
            own.labels.extend(family.labels);
        }
    }
}

fn sample(line: &str) -> Sample {
    let (head, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value in {line}"));
    let value = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
    let (name, labels) = head.split_once('{').unwrap_or((head, "}"));
    let labels = labels.strip_suffix('}').unwrap_or_else(|| panic!("no end in {line}"));
    // klad's labels contain no comma and no quotation mark.
    let pair = |pair: &str| {
        let (label, value) = pair.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
        (label.to_owned(), value.strip_suffix('"').unwrap_or_else(|| panic!("{line}")).to_owned())
    };
    let labels = labels.split(',').filter(|labels| !labels.is_empty()).map(pair).collect();
    Sample { name: name.to_owned(), labels, value }
}
