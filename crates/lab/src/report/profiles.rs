//! Profiles as pictures in the page, which open where they stand, and what differs between variants. Called by `page`.
//!
//! All pictures together stay below [`BYTES_MAX`]: where they would not, narrow frames become part of those below them, and if
//! that is not enough, the last pictures are left out. The page says which.

use std::path::Path;

use maud::{Markup, html};

use crate::result::{LabResult, StageResult};
use crate::scenario::ProfileKind;
use klad_page::numbers;
use klad_profile::{Name, Profile, picture, pprof};

/// All pictures of a page, as they stand in it: browsers open more, mail and code hosts do not.
const BYTES_MAX: usize = 14 << 20;

/// Frames below these shares are cut, until all pictures fit. Below 0.1 % no picture draws anything.
const CUTS: [f64; 4] = [0.0, 0.005, 0.02, 0.05];

/// All pictures of a report.
pub(super) struct Pictures {
    all: Vec<Drawn>,
    /// What could not be shown, and why.
    pub(super) warnings: Vec<String>,
    /// What was cut to keep the page small.
    pub(super) note: Option<String>,
}

/// A picture, or why there is none.
struct Drawn {
    stage: usize,
    title: String,
    page: String,
}

/// What a picture is of.
struct Wanted<'r> {
    stage: usize,
    title: String,
    profile: &'r Profile<Name>,
    /// Of the first variant, where it is a difference: its name, and the variant's.
    against: Option<(&'r Profile<Name>, [&'r str; 2])>,
}

/// A profile that was read.
struct Read<'r> {
    variant: &'r str,
    kind: ProfileKind,
    profile: Profile<Name>,
}

impl Pictures {
    /// Reads the files, which lie in `directory`, and draws.
    pub(super) fn of(result: &LabResult, directory: &Path) -> Pictures {
        let mut warnings = Vec::new();
        let read: Vec<_> = result.stages.iter().map(|stage| read(stage, directory, &mut warnings)).collect();
        let mut wanted = Vec::new();
        for (stage, read) in read.iter().enumerate() {
            wanted.extend(read.iter().map(|one| Wanted {
                stage,
                title: format!("{}: {}", one.variant, one.kind.title()),
                profile: &one.profile,
                against: None,
            }));
        }
        for (stage, read) in read.iter().enumerate() {
            wanted.extend(differences(stage, &result.stages[stage], read));
        }
        let (all, note) = fitting(&wanted, BYTES_MAX, &mut warnings);
        Pictures { all, warnings, note }
    }

    /// Those of a stage; empty where there are none.
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

/// The profiles of a stage; those that cannot be read become warnings.
fn read<'r>(stage: &'r StageResult, directory: &Path, warnings: &mut Vec<String>) -> Vec<Read<'r>> {
    let mut all = Vec::new();
    for variant in &stage.variants {
        for taken in &variant.profiles {
            let bytes = std::fs::read(directory.join(&taken.file)).map_err(|error| error.to_string());
            match bytes.and_then(|bytes| pprof::decode(&bytes).map_err(|error| error.to_string())) {
                Ok(profile) => all.push(Read { variant: &variant.name, kind: taken.kind, profile }),
                Err(why) => {
                    let (kind, name, file) = (taken.kind.title(), &variant.name, &taken.file);
                    warnings.push(format!("{kind} of {name} in {} is not shown: {file}: {why}", stage.name));
                }
            }
        }
    }
    all
}

/// Each variant against the first, by each kind that both have.
fn differences<'r>(index: usize, stage: &'r StageResult, read: &'r [Read<'r>]) -> Vec<Wanted<'r>> {
    let Some(first) = stage.variants.first().map(|variant| variant.name.as_str()) else { return Vec::new() };
    let against = |one: &'r Read<'r>| {
        let before = read.iter().find(|other| other.variant == first && other.kind == one.kind)?;
        (one.variant != first).then(|| Wanted {
            stage: index,
            title: format!(
                "{}: what differs in {} from {first}; red is more in {}",
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

/// As many as fit, and how they were made to.
fn fitting(wanted: &[Wanted], bytes_max: usize, warnings: &mut Vec<String>) -> (Vec<Drawn>, Option<String>) {
    for (index, cut) in CUTS.into_iter().enumerate() {
        let is_last = index + 1 == CUTS.len();
        let (mut drawn, mut bytes, mut failed, mut left_out) = (Vec::new(), 0, Vec::new(), Vec::new());
        for one in wanted {
            match draw(one, cut) {
                Ok(page) if bytes + embedded_bytes(&page) <= bytes_max => {
                    bytes += embedded_bytes(&page);
                    drawn.push(Drawn { stage: one.stage, title: one.title.clone(), page });
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
        "So that all pictures together are no larger than {all}, frames below {} % of the total are drawn as part of the one \
         below them. The files have all.{lost}",
        cut * 100.0
    ))
}

fn draw(wanted: &Wanted, cut: f64) -> Result<String, String> {
    match wanted.against {
        None if cut <= 0.0 => Ok(picture::flame_graph(wanted.profile)),
        None => Ok(picture::flame_graph(&crate::report::prune::pruned(&[wanted.profile], cut)[0])),
        Some((before, names)) => {
            let pruned = (cut > 0.0).then(|| crate::report::prune::pruned(&[before, wanted.profile], cut));
            let (before, after) = pruned.as_ref().map_or((before, wanted.profile), |both| (&both[0], &both[1]));
            picture::difference_page(before, after, names, true).map_err(|error| error.to_string())
        }
    }
}

/// What a page takes within an attribute.
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

    fn wanted(profile: &Profile<Name>, count: usize) -> Vec<Wanted<'_>> {
        let one = |number| Wanted { stage: 0, title: format!("picture {number}"), profile, against: None };
        (0..count).map(one).collect()
    }

    #[test]
    fn pictures_stay_within_their_bytes_and_what_was_cut_is_said() {
        let profile = testing::profile(400);
        let whole = embedded_bytes(&picture::flame_graph(&profile));
        let smallest = embedded_bytes(&draw(&wanted(&profile, 1)[0], CUTS[3]).expect("drawn"));
        assert!(smallest < whole, "{smallest} of {whole}");
        let mut warnings = Vec::new();
        let (drawn, note) = fitting(&wanted(&profile, 2), 2 * whole, &mut warnings);
        assert_eq!((drawn.len(), note), (2, None), "all fit");
        let (drawn, note) = fitting(&wanted(&profile, 2), 2 * whole - 1, &mut warnings);
        assert_eq!(drawn.len(), 2);
        assert!(note.is_some_and(|note| note.contains("frames below 0.5 %") && !note.contains("Left out")));
        let (drawn, note) = fitting(&wanted(&profile, 3), 2 * smallest, &mut warnings);
        assert_eq!(drawn.len(), 2);
        assert!(note.is_some_and(|note| note.ends_with("Left out for the same reason: picture 2.")));
        assert_eq!(warnings, Vec::<String>::new());
        for drawn in drawn {
            assert_eq!(
                embedded_bytes(&drawn.page),
                html! { i title=(drawn.page) {} }.into_string().len() - "<i title=\"\"></i>".len()
            );
        }
    }
}
