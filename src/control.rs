//! The configuration of a serving process: prints it, and changes what can change without a restart.
//!
//! ```text
//!   SIGHUP, POST /reload ─▶ read tokens and certificates again
//!                        ─▶ read all sources again, forget changes by PATCH ─┐
//!   PATCH /config        ─▶ running values with the changed options ─────────┴─▶ validate all ─▶ apply all, or nothing
//! ```
//!
//! A change is validated like the configuration at start, and applies as a whole or not at all. In a reload, options
//! that only a restart can change keep their values, and the answer names them. Called by `klad_server`'s admin
//! listener, and by `main` for the signal.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use crate::config::{Budget, Config, FixedSizes};
use crate::settings::{self, CommandLine, Difference, Resolved};
use klad_base::clock;
use klad_base::metrics::Source;
use klad_base::metrics::text::Page;
use klad_base::sync::Mutex;
use klad_server::admin::control::{Control, Refused};
use klad_server::execution::admission::BodyBudget;
use klad_server::logs;
use klad_server::{LiveLimits, Safety};
use klad_storage::Engine;

/// Holds and changes the configuration of this process.
pub struct Controller {
    command_line: CommandLine,
    limits: LiveLimits,
    engine: Arc<dyn Engine>,
    safety: Safety,
    state: Mutex<State>,
    last_reload: LastReload,
}

/// The last reload, for the metrics.
#[derive(Debug)]
struct LastReload {
    succeeded: AtomicBool,
    unix_ms: AtomicU64,
}

struct State {
    /// The values in use.
    running: Resolved,
    /// The values that the sources had when klad last read them. They differ from `running` in options that need a
    /// restart, and in options that PATCH has changed since.
    configured: Resolved,
    /// The configuration made from `running`.
    config: Config,
}

impl Controller {
    /// Creates the controller of a process that was started with `running` and `config`.
    #[must_use]
    pub fn new(
        command_line: CommandLine,
        running: Resolved,
        config: Config,
        limits: LiveLimits,
        engine: Arc<dyn Engine>,
    ) -> Arc<Controller> {
        let safety = config.server.safety.clone();
        let state = Mutex::new(State { configured: running.clone(), running, config });
        // The start has read all sources.
        let last_reload = LastReload { succeeded: AtomicBool::new(true), unix_ms: AtomicU64::new(clock::unix_ms()) };
        Arc::new(Controller { command_line, limits, engine, safety, state, last_reload })
    }

    /// Validates `wanted` and applies it as a whole, or changes nothing. Returns a description of each changed option.
    /// The caller makes sure that `wanted` differs from the running values only in live options.
    fn apply(&self, state: &mut State, wanted: Resolved) -> Result<Vec<Value>, Refused> {
        // The memory budget stays as computed at start, even if the machine has more or less memory now.
        let Budget { total, bodies, files, .. } = state.config.budget;
        let fixed = FixedSizes { memory_bytes: total, body_bytes: bodies, files };
        let live = settings::check_live(&wanted, Some(&fixed)).map_err(|error| Refused::Wrong(error.to_string()))?;
        if BodyBudget::bytes_for(live.limits.service.value_bytes_max) > bodies {
            return Err(Refused::NeedsRestart(vec!["value-max".to_owned()]));
        }
        let changed = describe(&state.running.differences(&wanted));
        logs::change(&live.logs);
        if let Some(disk) = self.engine.local_disk() {
            disk.set_disk_reserve(live.disk_reserve_bytes);
        }
        self.engine.set_cache_bytes(live.budget.cache);
        self.limits.set(live.limits);
        state.config.budget = live.budget;
        state.running = wanted;
        Ok(changed)
    }

    /// Reads the sources of the configuration again and applies the live options. Returns the answer to the client: the
    /// changed options, and those that need a restart.
    fn reload_configuration(&self) -> Result<Value, Refused> {
        // The state is locked before the sources are read, so that the later of two reloads also reads the sources
        // later.
        let mut state = self.state.lock();
        require_regular_file(&state.configured)?;
        let configured = settings::load(&self.command_line).map_err(|error| Refused::Wrong(error.to_string()))?;
        let after = state.running.with_live_of(&configured).map_err(|error| Refused::Wrong(error.to_string()))?;
        let changed = self.apply(&mut state, after)?;
        let needs_restart = describe(&state.running.differences(&configured));
        state.configured = configured;
        drop(state);
        tracing::info!(
            changed = %words(&changed),
            needs_restart = %words(&needs_restart),
            "the configuration was reloaded"
        );
        Ok(json!({ "changed": changed, "needs_restart": needs_restart }))
    }
}

impl Source for Controller {
    fn write(&self, page: &mut Page) {
        let LastReload { succeeded, unix_ms } = &self.last_reload;
        let help = "1 if the last reload succeeded, 0 if an error left something unchanged.";
        page.gauge("klad_config_last_reload_success", help, f64::from(u8::from(succeeded.load(Ordering::Relaxed))));
        let help = "Time of the last reload, or of the start.";
        #[expect(clippy::cast_precision_loss, reason = "milliseconds are more than enough")]
        let seconds = unix_ms.load(Ordering::Relaxed) as f64 / 1e3;
        page.gauge("klad_config_last_reload_timestamp_seconds", help, seconds);
    }
}

impl Control for Controller {
    fn config(&self) -> Value {
        let state = self.state.lock();
        let mut document = settings::json(&state.running, Some(&state.config));
        document["capabilities"] = json!(self.engine.capabilities());
        document["needs_restart"] = describe(&waiting(&state)).into();
        document
    }

    fn change(&self, wanted: &Map<String, Value>) -> Result<Value, Refused> {
        let wanted = wanted.iter().map(|(name, value)| Ok((name.clone(), option_value(name, value)?)));
        let wanted = wanted.collect::<Result<BTreeMap<String, Option<OsString>>, Refused>>()?;
        let mut state = self.state.lock();
        let after = state.running.with(&wanted).map_err(|error| Refused::Wrong(error.to_string()))?;
        let restart_only = restart_only(&state.running.differences(&after));
        if !restart_only.is_empty() {
            return Err(Refused::NeedsRestart(restart_only));
        }
        let changed = self.apply(&mut state, after)?;
        if !changed.is_empty() {
            tracing::info!(changed = %words(&changed), "the configuration was changed");
        }
        Ok(json!({ "changed": changed }))
    }

    fn reload(&self) -> Result<Value, Refused> {
        // The two reloads are independent, because an error in the configuration must not delay a change of the tokens,
        // which may be urgent after a theft.
        let safety_reloaded = self.safety.reload();
        let report = self.reload_configuration();
        self.last_reload.succeeded.store(safety_reloaded && report.is_ok(), Ordering::Relaxed);
        self.last_reload.unix_ms.store(clock::unix_ms(), Ordering::Relaxed);
        match report {
            Err(refused) => {
                tracing::error!(%refused, "the reload failed: the configuration is unchanged");
                Err(refused)
            }
            Ok(_) if !safety_reloaded => {
                Err(Refused::Wrong("tokens or certificates are unchanged; the log has the reason".to_owned()))
            }
            Ok(report) => Ok(report),
        }
    }
}

/// Rejects a configuration that was read from a pipe: a pipe is empty after the start, and opening it may block.
fn require_regular_file(configured: &Resolved) -> Result<(), Refused> {
    let file = configured.settings().iter().find(|setting| setting.name == "config");
    match file.and_then(|setting| setting.value.as_deref()) {
        Some(path) if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) => {
            Err(Refused::Wrong(format!("{path} is not a regular file, so klad cannot read it again")))
        }
        _ => Ok(()),
    }
}

/// Returns the options that get their configured values only after a restart. Leaves out live options: after a PATCH
/// their values differ on purpose.
fn waiting(state: &State) -> Vec<Difference<'_>> {
    state.running.differences(&state.configured).into_iter().filter(|one| !one.after.live).collect()
}

/// Returns the names of the options in `differences` that only a restart can change.
fn restart_only(differences: &[Difference<'_>]) -> Vec<String> {
    differences.iter().filter(|one| !one.after.live).map(|one| one.after.name.clone()).collect()
}

fn describe(differences: &[Difference<'_>]) -> Vec<Value> {
    let describe = |one: &Difference<'_>| {
        let Difference { before, after } = one;
        json!({ "name": after.name, "from": before.value, "to": after.value, "source": after.source.to_string() })
    };
    differences.iter().map(describe).collect()
}

/// Returns text for the log, for example `queue-limit 32 to 64, value-max 16MiB to 1KiB`.
fn words(described: &[Value]) -> String {
    let plain = |value: &Value| value.as_str().map_or_else(|| "nothing".to_owned(), str::to_owned);
    let one = |one: &Value| format!("{} {} to {}", plain(&one["name"]), plain(&one["from"]), plain(&one["to"]));
    described.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns a JSON value as text of the command line; `None` for null, which stands for the default.
fn option_value(name: &str, value: &Value) -> Result<Option<OsString>, Refused> {
    match value {
        Value::String(text) => Ok(Some(text.into())),
        Value::Number(number) => Ok(Some(number.to_string().into())),
        Value::Bool(yes) => Ok(Some(yes.to_string().into())),
        Value::Null => Ok(None),
        Value::Array(_) | Value::Object(_) => {
            Err(Refused::Wrong(format!("{name}: a value is a string, a number, a boolean, or null for the default")))
        }
    }
}
