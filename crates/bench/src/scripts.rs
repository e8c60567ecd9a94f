//! The script of a run, if it has one and if this crate was built with Lua. Called by `runner`.

use std::net::SocketAddr;

use hdrhistogram::Histogram;

use crate::plan::Plan;
use crate::result::RunResult;

/// The script of a run; empty if there is none.
pub(super) struct RunScript {
    #[cfg(feature = "scripts")]
    script: Option<crate::script::Script>,
}

/// Loads the plan's script, if it has one, and makes it the author of the requests. `quiet`: the script's output must
/// not go to the standard output.
///
/// # Errors
/// If the script fails.
#[cfg(feature = "scripts")]
pub(super) fn load(plan: &mut Plan, address: SocketAddr, quiet: bool) -> anyhow::Result<RunScript> {
    use crate::author::Authors;
    use crate::script::{Script, Setting};
    let Some((path, options)) = plan.script.clone() else { return Ok(RunScript { script: None }) };
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
    Ok(RunScript { script: Some(script) })
}

/// Returns no script: without Lua, `Plan::new` has already rejected a plan with a script.
///
/// # Errors
/// Never.
#[cfg(not(feature = "scripts"))]
pub(super) fn load(_: &mut Plan, _: SocketAddr, _: bool) -> anyhow::Result<RunScript> {
    Ok(RunScript {})
}

impl RunScript {
    /// Gives the script the report of the run.
    ///
    /// # Errors
    /// If the script fails.
    pub(super) fn done(&self, result: &RunResult, response: &Histogram<u64>) -> anyhow::Result<()> {
        #[cfg(feature = "scripts")]
        if let Some(script) = &self.script {
            return script.done(&crate::script_report::Report::of(result, response));
        }
        let _ = (result, response);
        Ok(())
    }
}
