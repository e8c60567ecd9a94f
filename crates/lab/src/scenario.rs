//! A scenario: what is compared, on which data, under which loads. It is a TOML file, built in or the user's own.
//!
//! ```toml
//! title = "Two ways to read a key"
//! [server]
//! options = ["--durability", "async"]
//! [[variant]]
//! name = "get"
//! options = ["--point-reads", "get"]
//! [[variant]]
//! name = "iterator"
//! options = ["--point-reads", "iterator"]
//! [data]
//! keys = 1_000_000
//! [[stage]]
//! name = "get"
//! data = "filled"
//! options = ["--workload", "get"]
//! rate = 15_000
//! connections = 16
//! duration = "60s"
//! ```
//!
//! Errors are reported before anything is started, with the line where there is one. Called by `runner`; `shipped`
//! holds the built-in scenarios.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use klad_bench::units;

/// Default number of runs of each variant in each stage. From five on, runs are compared in pairs that were made one
/// after the other, which removes drift over time.
const REPEATS: usize = 5;

/// The end of the names of stages that the lab adds where a rate is beyond the capacity.
pub(super) const BELOW_SUFFIX: &str = "-at-70";

/// A whole scenario.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scenario {
    /// The name of the scenario [default: the name of its file, without `.toml`].
    #[serde(default)]
    pub name: String,
    /// The title of the report.
    pub title: String,
    /// The question that the experiment answers, and the published report that it repeats, if any.
    #[serde(default)]
    pub about: String,
    /// The figure that the answer is about [default: goodput for closed loads and where a variant falls behind,
    /// otherwise the highest percentile that could be judged].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figure: Option<MainFigure>,
    /// The number of runs of each variant in each stage, 1 to 100. Variants take turns: A B A B.
    #[serde(default = "repeats")]
    pub repeats: usize,
    /// Whether the server and the load have separate cores, if there are at least two cores.
    #[serde(default)]
    pub pin: Pin,
    /// The settings of all variants that are klad.
    #[serde(default)]
    pub server: Server,
    /// The servers that are compared: each of the others with the first.
    #[serde(rename = "variant")]
    pub variants: Vec<Variant>,
    /// The keys and values of filled databases.
    #[serde(default)]
    pub data: Data,
    /// The loads, one after the other.
    #[serde(rename = "stage")]
    pub stages: Vec<Stage>,
    /// Published results of the same experiment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Published>,
}

fn repeats() -> usize {
    REPEATS
}

/// The figure that an experiment is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MainFigure {
    /// The median response time.
    P50,
    /// The 99th percentile.
    P99,
    /// The 99.9th percentile.
    #[serde(rename = "p99.9")]
    P999,
    /// Good answers per second.
    Goodput,
    /// CPU time of the server per served request.
    Cpu,
}

/// The cores of servers and loads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pin {
    /// The server has one half of the cores, the load the other.
    #[default]
    Split,
    /// The kernel chooses: for variants that differ in their number of threads.
    None,
}

/// The settings of all variants that are klad.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Server {
    /// Options of `klad serve`.
    #[serde(default)]
    pub options: Vec<String>,
}

/// A server that is compared with others.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Variant {
    /// Its name: letters, digits and hyphens.
    pub name: String,
    /// What is special about it.
    #[serde(default)]
    pub about: String,
    /// Options of `klad serve`. They replace options of `[server]` with the same names.
    #[serde(default)]
    pub options: Vec<String>,
    /// Another build of klad to run instead of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
    /// A server that is not klad, loaded with the same requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Peer>,
    /// The number of requests that may wait in its queue, if the variants of the scenario differ in that. The report
    /// compares the sizes. The server gets its size from `options`, not from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
}

/// A server that is not klad, started by the lab for each run.
///
/// `command`, `ready` and the texts of `files` may hold `{address}` and `{port}` (where the server has to listen),
/// `{data}` (an empty directory of its own) and `{klad}` (this program).
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Peer {
    /// The program and its arguments. The program must stay in the foreground. Where it is not installed, the variant
    /// is left out.
    pub command: Vec<String>,
    /// The path that the server answers with 200 as soon as it is ready.
    #[serde(default = "root_path")]
    pub ready: String,
    /// Files that the lab writes into `{data}` before the start: name and text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// The path of a key, with `{key}` in it, as in the URL of `klad bench` [default: klad's own,
    /// `/v0/entity?id={key}`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whether the lab PUTs the keys of `[data]` before each run that wants filled data; `false` for a server that
    /// stores nothing.
    #[serde(default = "yes")]
    pub fill: bool,
}

fn root_path() -> String {
    "/".to_owned()
}

/// The keys and values of filled databases. The loads of all stages use the same formats, and those that begin with
/// filled data use the same number of keys, unless the options of a stage say otherwise.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Data {
    /// The number of keys, before `--scale`.
    #[serde(default)]
    pub keys: u64,
    /// Whether `--scale` applies to the number of keys.
    #[serde(default = "yes")]
    pub scaled: bool,
    /// As `klad bench --key-format`.
    #[serde(default = "key_format")]
    pub key_format: String,
    /// As `klad bench --value-format`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_format: Option<String>,
    /// As `klad bench --value-size`, if there is no `value-format`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_size: Option<String>,
}

fn key_format() -> String {
    "key{}".to_owned()
}

impl Default for Data {
    fn default() -> Data {
        Data { keys: 0, scaled: true, key_format: key_format(), value_format: None, value_size: None }
    }
}

/// A load.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Stage {
    /// Its name: letters, digits and hyphens.
    pub name: String,
    /// What it measures.
    #[serde(default)]
    pub about: String,
    /// The database that each run starts with.
    #[serde(default)]
    pub data: Start,
    /// Requests per second. Without it and `of-capacity` the load is closed: each connection sends its next request
    /// when it has the answer to the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// The rate as a multiple of the capacity. The capacity is the number of good answers per second that the stage's
    /// first variant gives in a closed load or, if it cannot be loaded, the next one. 0.7 is 70 % of the capacity, 5.0
    /// is five times the capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_capacity: Option<f64>,
    /// The number of connections.
    #[serde(default = "connections")]
    pub connections: usize,
    /// The largest number of connections of an open load. A request that finds all connections busy opens one more, up
    /// to this number [default: no more than `connections`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections_max: Option<usize>,
    /// The length of the measured part, before `--scale`.
    pub duration: Time,
    /// The length of the warm-up, before `--scale`. It has the same rate.
    #[serde(default = "warm_up")]
    pub warm_up: Time,
    /// Further options of `klad bench`, such as the workload.
    #[serde(default)]
    pub options: Vec<String>,
    /// The kinds of profiles that are taken of each variant under this load, each in a run of its own.
    #[serde(default)]
    pub profiles: Vec<ProfileKind>,
    /// The variants of which profiles are taken [default: all].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiled: Option<Vec<String>>,
    /// The variants of this stage [default: all].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variants: Option<Vec<String>>,
    /// Whether the lab adds a stage at 70 % of the capacity of the first variant, where `rate` is beyond that capacity.
    #[serde(default = "yes")]
    pub also_below_capacity: bool,
}

fn connections() -> usize {
    64
}

fn warm_up() -> Time {
    Time(Duration::from_secs(5))
}

fn yes() -> bool {
    true
}

/// The database that a run starts with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// An empty one.
    #[default]
    Empty,
    /// One with all keys. It is filled once for each engine, compression and program, and all runs read the same one.
    /// The engine `memory` and peers are filled before each run.
    Filled,
    /// A copy of the filled one for each run: for loads that write.
    Copied,
}

/// A kind of profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProfileKind {
    /// CPU time.
    Cpu,
    /// Allocations while the profile was taken.
    Alloc,
    /// Waits for locks.
    Lock,
}

impl ProfileKind {
    /// The name in scenarios and in file names.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ProfileKind::Cpu => "cpu",
            ProfileKind::Alloc => "alloc",
            ProfileKind::Lock => "lock",
        }
    }

    /// The name in reports.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            ProfileKind::Cpu => "CPU time",
            ProfileKind::Alloc => "Allocations",
            ProfileKind::Lock => "Waits for locks",
        }
    }
}

/// A length of time, written as in options: `60s`, `2m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub struct Time(pub Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = String::deserialize(deserializer)?;
        units::duration_or_zero(&text).map(Time).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Time {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(self.0))
    }
}

/// Published results of the same experiment.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Published {
    /// Who measured, and how.
    pub about: String,
    /// The published conclusions.
    #[serde(default)]
    pub conclusions: Vec<String>,
    /// The figures.
    #[serde(default, rename = "result")]
    pub results: Vec<PublishedResult>,
}

/// Published figures of one variant in one stage.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PublishedResult {
    /// The stage of this scenario.
    pub stage: String,
    /// The variant of this scenario.
    pub variant: String,
    /// Answers per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_s: Option<f64>,
    /// Mean response time, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    /// Median response time, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    /// 99th percentile, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
    /// 99.9th percentile, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p999_ms: Option<f64>,
    /// 99.99th percentile, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p9999_ms: Option<f64>,
    /// The longest response time, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ms: Option<f64>,
    /// Refused requests as a share of all, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<f64>,
    /// Remarks.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Scenario {
    /// Reads a scenario and checks it. It gets the name `name` if the text gives none.
    ///
    /// # Errors
    /// When the text is no TOML of this form, or contradicts itself; with the line where there is one.
    pub fn parse(name: &str, text: &str) -> anyhow::Result<Scenario> {
        let mut scenario: Scenario = toml::from_str(text).with_context(|| format!("{name} is not a scenario"))?;
        if scenario.name.is_empty() {
            name.clone_into(&mut scenario.name);
        }
        scenario.check().with_context(|| format!("{name} is not a valid scenario"))?;
        Ok(scenario)
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=100).contains(&self.repeats), "repeats = {}: it must be 1 to 100", self.repeats);
        ensure!(!self.variants.is_empty(), "there is no [[variant]]");
        ensure!(!self.stages.is_empty(), "there is no [[stage]]");
        distinct("variant", self.variants.iter().map(|variant| variant.name.as_str()))?;
        distinct("stage", self.stages.iter().map(|stage| stage.name.as_str()))?;
        self.variants.iter().try_for_each(Variant::check)?;
        let is_variant = |name: &str| self.variants.iter().any(|variant| variant.name == name);
        for stage in &self.stages {
            let name = &stage.name;
            ensure!(!stage.duration.0.is_zero(), "stage {name}: duration is zero");
            ensure!(
                !name.ends_with(BELOW_SUFFIX),
                "stage {name}: names that end in {BELOW_SUFFIX} are reserved for klad lab"
            );
            ensure!(stage.connections > 0, "stage {name}: connections is zero");
            ensure!(stage.rate.is_none() || stage.of_capacity.is_none(), "stage {name}: both rate and of-capacity");
            let per_s = stage.rate.or(stage.of_capacity);
            ensure!(per_s.is_none_or(|rate| rate.is_finite() && rate > 0.0), "stage {name}: the rate must be above 0");
            ensure!(
                stage.data == Start::Empty || self.data.keys > 0,
                "stage {name} needs filled data, but [data] has no keys"
            );
            for variant in stage.variants.iter().chain(&stage.profiled).flatten() {
                ensure!(is_variant(variant), "stage {name}: there is no variant {variant}");
            }
            ensure!(stage.variants.as_ref().is_none_or(|some| !some.is_empty()), "stage {name} has no variants");
        }
        for result in self.published.iter().flat_map(|published| &published.results) {
            let PublishedResult { stage, variant, .. } = result;
            ensure!(self.stages.iter().any(|one| one.name == *stage), "published: there is no stage {stage}");
            ensure!(is_variant(variant), "published: there is no variant {variant}");
        }
        let (format, size) = (&self.data.value_format, &self.data.value_size);
        ensure!(format.is_none() || size.is_none(), "[data] has both value-format and value-size");
        Ok(())
    }

    /// Returns the options of `klad serve` for a variant: those of `[server]` that it does not replace, then its own.
    /// Empty for a peer.
    #[must_use]
    pub fn options_of<'s>(&'s self, variant: &'s Variant) -> Vec<&'s str> {
        if variant.peer.is_some() {
            return Vec::new();
        }
        let name = |option: &'s str| option.split('=').next().filter(|name| name.starts_with("--"));
        let own: BTreeSet<&str> = variant.options.iter().filter_map(|option| name(option)).collect();
        let mut is_own = false;
        let common = self.server.options.iter().map(String::as_str).filter(|option| {
            // A value follows its option.
            is_own = name(option).map_or(is_own, |name| own.contains(name));
            !is_own
        });
        common.chain(variant.options.iter().map(String::as_str)).collect()
    }

    /// Returns the variants of a stage of which profiles are taken. Peers are left out, because only klad gives
    /// profiles.
    pub fn profiled<'s>(&'s self, stage: &'s Stage) -> impl Iterator<Item = &'s Variant> {
        let is_listed = |name| stage.profiled.as_ref().is_none_or(|some| some.contains(name));
        self.variants_of(stage).filter(move |variant| variant.peer.is_none() && is_listed(&variant.name))
    }

    /// Keeps the variants whose names `is_kept` accepts. Removes the stages that list only other variants.
    pub fn retain_variants(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.variants.retain(|variant| is_kept(&variant.name));
        for stage in &mut self.stages {
            if let Some(names) = &mut stage.variants {
                names.retain(|name| is_kept(name));
            }
        }
        self.stages.retain(|stage| stage.variants.as_ref().is_none_or(|names| !names.is_empty()));
    }

    /// Returns the variants of a stage, in the scenario's order.
    pub fn variants_of<'s>(&'s self, stage: &'s Stage) -> impl Iterator<Item = &'s Variant> {
        let is_for = |variant: &&Variant| stage.variants.as_ref().is_none_or(|some| some.contains(&variant.name));
        self.variants.iter().filter(is_for)
    }
}

impl Variant {
    fn check(&self) -> anyhow::Result<()> {
        let (name, Some(peer)) = (&self.name, &self.peer) else { return Ok(()) };
        ensure!(
            self.options.is_empty() && self.program.is_none(),
            "variant {name}: a peer takes neither options nor program: write its arguments into command"
        );
        ensure!(
            peer.command.first().is_some_and(|program| !program.is_empty()),
            "variant {name}: the command is empty"
        );
        let has_slash = [Some(&peer.ready), peer.path.as_ref()].into_iter().flatten().all(|path| path.starts_with('/'));
        ensure!(has_slash, "variant {name}: ready and path begin with /");
        let outside = peer.files.keys().find(|file| file.is_empty() || file.contains('/') || *file == "..");
        ensure!(outside.is_none(), "variant {name}: {outside:?} is no name of a file in {{data}}");
        Ok(())
    }
}

/// Checks that all names differ, and that each can be the name of a file.
fn distinct<'n>(what: &str, names: impl Iterator<Item = &'n str>) -> anyhow::Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        let plain = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-');
        ensure!(plain, "{what} {name:?}: a name has letters, digits and hyphens only");
        if !seen.insert(name) {
            bail!("there are two {what}s {name}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "title = 't'\n[[variant]]\nname = 'a'\n[[stage]]\nname = 's'\nduration = '1s'\n";

    #[test]
    fn omitted_fields_have_defaults() {
        let scenario = Scenario::parse("x", LEAST).expect("valid");
        assert_eq!((scenario.name.as_str(), scenario.repeats, scenario.pin), ("x", REPEATS, Pin::Split));
        let stage = &scenario.stages[0];
        assert_eq!((stage.connections, stage.data, stage.rate), (64, Start::Empty, None));
        assert_eq!(scenario.variants_of(stage).count(), 1);
        let again = toml::to_string(&scenario).expect("TOML");
        Scenario::parse("x", &again).expect("a written scenario can be read");
    }

    #[test]
    fn options_of_a_variant_replace_those_of_the_server_section() {
        let text = LEAST.replace("name = 'a'\n", "name = 'a'\noptions = ['--a', '3', '--c=4', '--d']\n");
        let text = format!("{text}[server]\noptions = ['--a', '1', '--b', '2', '--c', '5', '--e']\n");
        let scenario = Scenario::parse("x", &text).expect("valid");
        assert_eq!(scenario.options_of(&scenario.variants[0]), ["--b", "2", "--e", "--a", "3", "--c=4", "--d"]);
    }

    #[test]
    fn contradictions_are_reported() {
        for (more, why) in [
            ("[[variant]]\nname = 'a'\n", "there are two variants a"),
            ("[[variant]]\nname = 'a/b'\n", "has letters, digits and hyphens only"),
            ("[[stage]]\nname = 't'\nduration = '1s'\ndata = 'filled'\n", "[data] has no keys"),
            ("[[stage]]\nname = 't'\nduration = '1s'\nvariants = ['c']\n", "there is no variant c"),
            ("[[stage]]\nname = 't'\nduration = '1s'\nrate = 0.0\n", "must be above 0"),
            ("[[stage]]\nname = 't'\nduration = '1s'\nrate = 1.0\nof-capacity = 1.0\n", "both rate and of-capacity"),
            ("[[stage]]\nname = 't'\nduration = '0s'\n", "duration is zero"),
            (
                "[[variant]]\nname = 'b'\noptions = ['--a']\n[variant.peer]\ncommand = ['b']\n",
                "neither options nor program",
            ),
            ("[[variant]]\nname = 'b'\n[variant.peer]\ncommand = ['b']\nready = 'up'\n", "begin with /"),
            ("[[variant]]\nname = 'b'\n[variant.peer]\ncommand = []\n", "the command is empty"),
            ("[[variant]]\nname = 'b'\n[variant.peer]\ncommand = ['b']\nfiles.'../a' = ''\n", "no name of a file"),
            ("[[stage]]\nname = 't-at-70'\nduration = '1s'\n", "are reserved for klad lab"),
            ("[[stage]]\nname = 't'\nduration = '1 week ago'\n", "line"),
            ("[[stage]]\nname = 't'\nduration = '1s'\nrates = 1\n", "unknown field `rates`"),
            ("[published]\nabout = ''\n[[published.result]]\nstage = 'x'\nvariant = 'a'\n", "there is no stage x"),
        ] {
            let error = Scenario::parse("x", &format!("{LEAST}{more}")).expect_err(more);
            assert!(format!("{error:#}").contains(why), "{more}: {error:#}");
        }
    }
}
