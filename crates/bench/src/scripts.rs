//! The script of a run, if it has one and this klad was built with Lua; else nothing. Called by `runner`.

use std::net::SocketAddr;

use hdrhistogram::Histogram;

use crate::plan::Plan;
use crate::result::RunResult;

/// The script of a run, or none.
pub(super) struct Loaded {
    #[cfg(feature = "scripts")]
    script: Option<crate::script::Script>,
}

/// Loads the plan's script, where it has one, and lets it write the requests. `quiet`: what it prints must not be on the standard
/// output.
///
/// # Errors
/// When the script fails.
#[cfg(feature = "scripts")]
pub(super) fn load(plan: &mut Plan, address: SocketAddr, quiet: bool) -> anyhow::Result<Loaded> {
    use crate::author::Authors;
    use crate::script::{Script, Setting};
    let Some((path, options)) = plan.script.clone() else { return Ok(Loaded { script: None }) };
    let setting = Setting {
        host: plan.url.host().to_owned(),
        port: plan.url.given_port(),
        path: plan.url.path().to_owned(),
        headers: options.headers,
        arguments: options.arguments,
        address,
        quiet,
    };
    let (script, authors) = Script::load(&path, &setting, plan.threads)?;
    plan.load.requests_per_start = script.pipeline;
    let shared = std::sync::Arc::get_mut(&mut plan.shared).expect("no thread of the run has been started");
    shared.authors = Authors::new(authors);
    Ok(Loaded { script: Some(script) })
}

/// There is none: a plan with a script is refused.
///
/// # Errors
/// Never.
#[cfg(not(feature = "scripts"))]
pub(super) fn load(_: &mut Plan, _: SocketAddr, _: bool) -> anyhow::Result<Loaded> {
    Ok(Loaded {})
}

impl Loaded {
    /// Tells the script what became of the run.
    ///
    /// # Errors
    /// When the script fails.
    pub(super) fn done(&self, result: &RunResult, response: &Histogram<u64>) -> anyhow::Result<()> {
        #[cfg(feature = "scripts")]
        if let Some(script) = &self.script {
            return script.done(&crate::script_report::Report::of(result, response));
        }
        let _ = (result, response);
        Ok(())
    }
}
