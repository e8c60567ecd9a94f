//! Flame graphs in the page, of each variant and of differences between variants. Called by `page`.
//!
//! All flame graphs together have at most [`BYTES_MAX`]. If they would have more, narrow frames are merged into their
//! parents. If that is not enough, the flame graphs that do not fit are left out. The page says so.

use std::path::Path;

use maud::{Markup, html};

use crate::result::{LabResult, StageResult};
use crate::scenario::ProfileKind;
use klad_page::numbers;
use klad_profile::{Name, Profile, picture, pprof};

/// The largest size of all flame graphs in a page, escaped, bytes. Browsers open larger pages; mail and code hosts do
/// not.
const BYTES_MAX: usize = 14 << 20;

/// Shares of the total below which frames are merged, tried in this order until all flame graphs fit.
const CUTS: [f64; 4] = [0.0, 0.005, 0.02, 0.05];

/// All flame graphs of a report.
pub(super) struct FlameGraphs {
    all: Vec<FlameGraph>,
    /// The profiles that are not shown, and why.
    pub(super) warnings: Vec<String>,
    /// What was merged or left out to keep the page small.
    pub(super) note: Option<String>,
}

/// A flame graph, drawn.
struct FlameGraph {
    stage: usize,
    title: String,
    page: String,
}

/// A flame graph that is to be drawn.
struct Request<'r> {
    stage: usize,
    title: String,
    profile: &'r Profile<Name>,
    /// For a difference: the profile of the first variant, and the names of both variants.
    against: Option<(&'r Profile<Name>, [&'r str; 2])>,
}

/// A profile that was read from its file.
struct LoadedProfile<'r> {
    variant: &'r str,
    kind: ProfileKind,
    profile: Profile<Name>,
}

impl FlameGraphs {
    /// Reads the profiles from `directory`, and draws them.
    pub(super) fn of(result: &LabResult, directory: &Path) -> FlameGraphs {
        let mut warnings = Vec::new();
        let read: Vec<_> = result.stages.iter().map(|stage| read(stage, directory, &mut warnings)).collect();
        let mut requests = Vec::new();
        for (stage, read) in read.iter().enumerate() {
            requests.extend(read.iter().map(|one| Request {
                stage,
                title: format!("{}: {}", one.variant, one.kind.title()),
                profile: &one.profile,
                against: None,
            }));
        }
        for (stage, read) in read.iter().enumerate() {
            requests.extend(differences(stage, &result.stages[stage], read));
        }
        let (all, note) = fitting(&requests, BYTES_MAX, &mut warnings);
        FlameGraphs { all, warnings, note }
    }

    /// Returns the flame graphs of a stage.
    pub(super) fn of_stage(&self, stage: usize) -> Markup {
        html! {
            @for drawn in self.all.iter().filter(|drawn| drawn.stage == stage) {
                details.embedded {
                    summary { (drawn.title) }
                    iframe title=(drawn.title) srcdoc=(drawn.page) loading="lazy" style="width: 100%; height: 75vh; border: 0" {}
                }
            }
        }
    }

    pub(super) fn has(&self, stage: usize) -> bool {
        self.all.iter().any(|drawn| drawn.stage == stage)
    }
}

/// Reads the profiles of a stage. Those that cannot be read become warnings.
fn read<'r>(stage: &'r StageResult, directory: &Path, warnings: &mut Vec<String>) -> Vec<LoadedProfile<'r>> {
    let mut all = Vec::new();
    for variant in &stage.variants {
        for taken in &variant.profiles {
            let bytes = std::fs::read(directory.join(&taken.file)).map_err(|error| error.to_string());
            match bytes.and_then(|bytes| pprof::decode(&bytes).map_err(|error| error.to_string())) {
                Ok(profile) => all.push(LoadedProfile { variant: &variant.name, kind: taken.kind, profile }),
                Err(why) => {
                    let (kind, name, file) = (taken.kind.title(), &variant.name, &taken.file);
                    warnings.push(format!("{kind} of {name} in {} is not shown: {file}: {why}", stage.name));
                }
            }
        }
    }
    all
}

/// Returns the differences of each variant from the first, for each kind of profile that both have.
fn differences<'r>(index: usize, stage: &'r StageResult, read: &'r [LoadedProfile<'r>]) -> Vec<Request<'r>> {
    let Some(first) = stage.variants.first().map(|variant| variant.name.as_str()) else { return Vec::new() };
    let against = |one: &'r LoadedProfile<'r>| {
        let before = read.iter().find(|other| other.variant == first && other.kind == one.kind)?;
        (one.variant != first).then(|| Request {
            stage: index,
            title: format!(
                "{}: difference of {} from {first}; red is more in {}",
                one.kind.title(),
                one.variant,
                one.variant
            ),
            profile: &one.profile,
            against: Some((&before.profile, [first, one.variant])),
        })
    };
    read.iter().filter_map(against).collect()
}

/// Draws as many flame graphs as fit into `bytes_max`. Returns them, and a sentence on what was merged and left out.
fn fitting(requests: &[Request], bytes_max: usize, warnings: &mut Vec<String>) -> (Vec<FlameGraph>, Option<String>) {
    for (index, cut) in CUTS.into_iter().enumerate() {
        let is_last = index + 1 == CUTS.len();
        let (mut drawn, mut bytes, mut failed, mut left_out) = (Vec::new(), 0, Vec::new(), Vec::new());
        for one in requests {
            match draw(one, cut) {
                Ok(page) if bytes + embedded_bytes(&page) <= bytes_max => {
                    bytes += embedded_bytes(&page);
                    drawn.push(FlameGraph { stage: one.stage, title: one.title.clone(), page });
                }
                Ok(_) => left_out.push(one.title.clone()),
                Err(why) => failed.push(format!("{} is not shown: {why}", one.title)),
            }
            if !left_out.is_empty() && !is_last {
                break;
            }
        }
        if left_out.is_empty() || is_last {
            warnings.extend(failed);
            return (drawn, note(cut, bytes_max, &left_out));
        }
    }
    (Vec::new(), None)
}

fn note(cut: f64, bytes_max: usize, left_out: &[String]) -> Option<String> {
    if cut <= 0.0 {
        return None;
    }
    let all = numbers::bytes(bytes_max as u64);
    let lost = left_out.join("; ");
    let lost = if lost.is_empty() { lost } else { format!(" Left out for the same reason: {lost}.") };
    Some(format!(
        "To keep all flame graphs together below {all}, frames below {} % of the total are drawn as part of the \
         frame that called them. The profile files have all frames.{lost}",
        cut * 100.0
    ))
}

fn draw(requests: &Request, cut: f64) -> Result<String, String> {
    match requests.against {
        None if cut <= 0.0 => Ok(picture::flame_graph(requests.profile)),
        None => Ok(picture::flame_graph(&crate::report::prune::pruned(&[requests.profile], cut)[0])),
        Some((before, names)) => {
            let pruned = (cut > 0.0).then(|| crate::report::prune::pruned(&[before, requests.profile], cut));
            let (before, after) = pruned.as_ref().map_or((before, requests.profile), |both| (&both[0], &both[1]));
            picture::difference_page(before, after, names, true).map_err(|error| error.to_string())
        }
    }
}

/// Returns the size of a page in an HTML attribute, escaped, bytes.
fn embedded_bytes(page: &str) -> usize {
    let more = |byte: u8| match byte {
        b'"' => 5,
        b'&' => 4,
        b'<' | b'>' => 3,
        _ => 0,
    };
    page.len() + page.bytes().map(more).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn requests(profile: &Profile<Name>, count: usize) -> Vec<Request<'_>> {
        let one = |number| Request { stage: 0, title: format!("graph {number}"), profile, against: None };
        (0..count).map(one).collect()
    }

    #[test]
    fn flame_graphs_stay_within_their_bytes_and_the_page_says_what_was_merged() {
        let profile = testing::profile(400);
        let whole = embedded_bytes(&picture::flame_graph(&profile));
        let smallest = embedded_bytes(&draw(&requests(&profile, 1)[0], CUTS[3]).expect("drawn"));
        assert!(smallest < whole, "{smallest} of {whole}");
        let mut warnings = Vec::new();
        let (drawn, note) = fitting(&requests(&profile, 2), 2 * whole, &mut warnings);
        assert_eq!((drawn.len(), note), (2, None), "all fit");
        let (drawn, note) = fitting(&requests(&profile, 2), 2 * whole - 1, &mut warnings);
        assert_eq!(drawn.len(), 2);
        assert!(note.is_some_and(|note| note.contains("frames below 0.5 %") && !note.contains("Left out")));
        let (drawn, note) = fitting(&requests(&profile, 3), 2 * smallest, &mut warnings);
        assert_eq!(drawn.len(), 2);
        assert!(note.is_some_and(|note| note.ends_with("Left out for the same reason: graph 2.")));
        assert_eq!(warnings, Vec::<String>::new());
        for drawn in drawn {
            assert_eq!(
                embedded_bytes(&drawn.page),
                html! { i title=(drawn.page) {} }.into_string().len() - "<i title=\"\"></i>".len()
            );
        }
    }
}
