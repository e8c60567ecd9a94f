//! Smaller flame graphs: a frame that is too narrow is merged into its parent, so that no figure is lost. Called by
//! `profiles`.

use std::collections::HashMap;

use klad_profile::{Name, Profile};

/// A node in the call tree of several profiles.
#[derive(Default)]
struct Node {
    /// The nodes of called functions.
    inner: HashMap<Name, usize>,
    /// The value of each profile in this node and in the functions that it calls.
    totals: Vec<f64>,
}

/// Returns the profiles without frames that are below `share` of the total in all of them. A frame that is kept in
/// one profile is kept in all, so that a comparison shows no false difference.
pub(super) fn pruned(profiles: &[&Profile<Name>], share: f64) -> Vec<Profile<Name>> {
    let mut nodes = vec![node(profiles.len())];
    for (which, profile) in profiles.iter().enumerate() {
        for sample in &profile.samples {
            let value = shown(profile, &sample.values);
            nodes[0].totals[which] += value;
            let mut at = 0;
            for name in path(&sample.thread, &sample.frames) {
                let known = nodes[at].inner.get(&name).copied();
                at = known.unwrap_or_else(|| {
                    let inner = nodes.len();
                    nodes[at].inner.insert(name, inner);
                    nodes.push(node(profiles.len()));
                    inner
                });
                nodes[at].totals[which] += value;
            }
        }
    }
    let wide = |at: usize| {
        let all = nodes[at].totals.iter().zip(&nodes[0].totals);
        all.into_iter().any(|(own, total)| *own > 0.0 && *own >= share * total)
    };
    let cut = |profile: &&Profile<Name>| {
        let mut cut = (*profile).clone();
        for sample in &mut cut.samples {
            let mut at = 0;
            let mut depth = 0_usize;
            for name in path(&sample.thread, &sample.frames) {
                let inner = nodes[at].inner[&name];
                if !wide(inner) {
                    break;
                }
                (at, depth) = (inner, depth + 1);
            }
            // The thread is the root, and stays even where it is narrow.
            let frames = sample.frames.len();
            sample.frames.drain(..frames - depth.saturating_sub(1).min(frames));
        }
        cut
    };
    profiles.iter().map(cut).collect()
}

fn node(profiles: usize) -> Node {
    Node { inner: HashMap::new(), totals: vec![0.0; profiles] }
}

/// Returns the path from the root to the leaf.
fn path<'p>(thread: &str, frames: &'p [Name]) -> impl Iterator<Item = Name> + use<'p> {
    std::iter::once(Name::from(thread)).chain(frames.iter().rev().cloned())
}

#[expect(clippy::cast_precision_loss, reason = "widths of a picture")]
fn shown(profile: &Profile<Name>, values: &[i64]) -> f64 {
    values.get(profile.shown).map_or(0.0, |value| (*value).max(0) as f64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use klad_profile::{Sample, ValueType};

    fn profile(stacks: &[(&[&str], i64)]) -> Profile<Name> {
        let sample = |(frames, value): &(&[&str], i64)| Sample {
            thread: "worker".to_owned(),
            frames: frames.iter().map(|frame| Name::from(*frame)).collect(),
            values: vec![*value],
        };
        Profile {
            title: "CPU time".to_owned(),
            values: vec![ValueType::new("cpu", "nanoseconds")],
            shown: 0,
            samples: stacks.iter().map(sample).collect(),
            period: None,
            began_unix_ns: 0,
            duration: Duration::ZERO,
            facts: Vec::new(),
        }
    }

    fn stacks(profile: &Profile<Name>) -> Vec<(String, i64)> {
        let stack = |sample: &Sample<Name>| (sample.frames.join("<"), sample.values[0]);
        profile.samples.iter().map(stack).collect()
    }

    #[test]
    fn narrow_frames_are_merged_into_their_parents() {
        let wide = profile(&[(&["leaf", "f", "main"], 5), (&["g", "main"], 990), (&["h", "g", "main"], 5)]);
        let kept = stacks(&pruned(&[&wide], 0.01)[0]);
        assert_eq!(kept, [("main".to_owned(), 5), ("g<main".to_owned(), 990), ("g<main".to_owned(), 5)]);
        assert_eq!(stacks(&pruned(&[&wide], 0.0)[0]), stacks(&wide), "at a share of 0 every frame is kept");
    }

    #[test]
    fn a_frame_that_is_wide_in_one_profile_is_kept_in_both() {
        let (before, after) =
            (profile(&[(&["f", "main"], 1), (&["main"], 999)]), profile(&[(&["f", "main"], 500), (&["main"], 500)]));
        let kept = pruned(&[&before, &after], 0.01);
        assert_eq!(stacks(&kept[0]), stacks(&before));
        // The twin: alone, the frame is merged.
        assert_ne!(stacks(&pruned(&[&before], 0.01)[0]), stacks(&before));
    }
}
