//! The formats of profiles.
//!
//! `pprof` calls this.

use bytes::Bytes;

use klad_profile::{Name, Profile, collapsed, picture, pprof};

/// The formats of a profile, which a client chooses with `format=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The format of `go tool pprof`, which other tools read too.
    Pprof,
    /// A flame graph as an HTML page, for people.
    FlameGraph,
    /// Collapsed stacks, one per line of text, for scripts.
    Collapsed,
}

impl Form {
    /// Returns the format whose parameter value is `name`.
    pub(super) fn named(name: &str) -> Option<Form> {
        match name {
            "pprof" => Some(Form::Pprof),
            "flamegraph" => Some(Form::FlameGraph),
            "collapsed" => Some(Form::Collapsed),
            _ => None,
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Form::Pprof => "application/octet-stream",
            Form::FlameGraph => "text/html; charset=utf-8",
            Form::Collapsed => "text/plain; charset=utf-8",
        }
    }

    /// Returns the profile in this format.
    pub(super) fn write(self, profile: &Profile<Name>) -> Bytes {
        match self {
            Form::Pprof => pprof::encode(profile).into(),
            Form::FlameGraph => picture::flame_graph(profile).into(),
            Form::Collapsed => collapsed::write(profile).into(),
        }
    }
}
