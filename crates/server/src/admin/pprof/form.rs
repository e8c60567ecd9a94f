//! The formats of profiles.
//!
//! `pprof` calls this.

use bytes::Bytes;

use klad_profile::{Name, Profile, collapsed, picture, pprof};

/// The values of `format=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// For `go tool pprof` and other tools.
    Pprof,
    /// For people.
    FlameGraph,
    /// For scripts.
    Collapsed,
}

impl Form {
    /// Returns the form with this parameter value.
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

    /// Writes a profile.
    pub(super) fn write(self, profile: &Profile<Name>) -> Bytes {
        match self {
            Form::Pprof => pprof::encode(profile).into(),
            Form::FlameGraph => picture::flame_graph(profile).into(),
            Form::Collapsed => collapsed::write(profile).into(),
        }
    }
}
