//! The configuration while klad serves: what it is, what of it changes at a signal or by the admin listener, and what waits for
//! a restart.
//!
//! ```text
//!   SIGHUP, POST /reload ─▶ tokens, certificates
//!                        ─▶ sources read again, changes of the admin listener forgotten ─┐
//!   PATCH /config        ─▶ what runs, with these options changed                        ├─▶ checked whole ─▶ applied, or nothing is
//! ```
//!
//! A change is checked as a start would check it, and is all or nothing, but at a reload: there options that only a restart
//! changes keep their value, and are named. Called by `http::admin`, and by `main` for the signal.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use crate::config::{Budget, Config, LaidOut};
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

/// The configuration of this process.
pub struct Controller {
    command_line: CommandLine,
    limits: LiveLimits,
    engine: Arc<dyn Engine>,
    safety: Safety,
    state: Mutex<State>,
    last_reload: LastReload,
}

/// For whoever watches.
#[derive(Debug)]
struct LastReload {
    well: AtomicBool,
    unix_ms: AtomicU64,
}

struct State {
    /// What holds.
    running: Resolved,
    /// What the sources said when they were last read; differs where only a restart helps.
    configured: Resolved,
    /// Of what holds.
    config: Config,
}

impl Controller {
    /// Of a klad that was started with `running` and `config`.
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
        // A start has read everything as well.
        let last_reload = LastReload { well: AtomicBool::new(true), unix_ms: AtomicU64::new(clock::unix_ms()) };
        Arc::new(Controller { command_line, limits, engine, safety, state, last_reload })
    }

    /// Makes `wanted` hold, of which everything is live, or nothing of it.
    fn apply(&self, state: &mut State, wanted: Resolved) -> Result<Vec<Value>, Refused> {
        // As at the start, whatever the machine has by now: nobody has asked for another memory.
        let Budget { total, room, files, .. } = state.config.budget;
        let laid_out = LaidOut { memory_bytes: total, room_bytes: room, files };
        let live = settings::check_live(&wanted, Some(&laid_out)).map_err(|error| Refused::Wrong(error.to_string()))?;
        if BodyBudget::bytes_for(live.limits.service.value_bytes_max) > room {
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

    /// The configuration's part of a reload.
    fn read_again(&self) -> Result<Value, Refused> {
        // From here on, so that of two reloads the later one reads later.
        let mut state = self.state.lock();
        refuse_what_is_read_once(&state.configured)?;
        let configured = settings::load(&self.command_line).map_err(|error| Refused::Wrong(error.to_string()))?;
        let after = state.running.with_live_of(&configured).map_err(|error| Refused::Wrong(error.to_string()))?;
        let changed = self.apply(&mut state, after)?;
        let needs_restart = describe(&state.running.differences(&configured));
        state.configured = configured;
        drop(state);
        tracing::info!(
            changed = %words(&changed),
            needs_restart = %words(&needs_restart),
            "the configuration was read again"
        );
        Ok(json!({ "changed": changed, "needs_restart": needs_restart }))
    }
}

impl Source for Controller {
    fn write(&self, page: &mut Page) {
        let LastReload { well, unix_ms } = &self.last_reload;
        let help = "1 unless the last reload has left something as it was, for an error in it.";
        page.gauge("klad_config_last_reload_success", help, f64::from(u8::from(well.load(Ordering::Relaxed))));
        let help = "When configuration, tokens and certificates were last read, or should have been.";
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
        document["needs_restart"] = describe(&state.running.differences(&state.configured)).into();
        document
    }

    fn change(&self, wanted: &Map<String, Value>) -> Result<Value, Refused> {
        let wanted = wanted.iter().map(|(name, value)| Ok((name.clone(), word(name, value)?)));
        let wanted = wanted.collect::<Result<BTreeMap<String, Option<OsString>>, Refused>>()?;
        let mut state = self.state.lock();
        let after = state.running.with(&wanted).map_err(|error| Refused::Wrong(error.to_string()))?;
        let fixed = fixed(&state.running.differences(&after));
        if !fixed.is_empty() {
            return Err(Refused::NeedsRestart(fixed));
        }
        let changed = self.apply(&mut state, after)?;
        if !changed.is_empty() {
            tracing::info!(changed = %words(&changed), "the configuration was changed");
        }
        Ok(json!({ "changed": changed }))
    }

    fn reload(&self) -> Result<Value, Refused> {
        // Each for itself: a mistake in one must not keep the other from what is urgent, such as a token that was stolen.
        let safe = self.safety.reload();
        let read = self.read_again();
        self.last_reload.well.store(safe && read.is_ok(), Ordering::Relaxed);
        self.last_reload.unix_ms.store(clock::unix_ms(), Ordering::Relaxed);
        match read {
            Err(refused) => {
                tracing::error!(%refused, "the configuration is as it was");
                Err(refused)
            }
            Ok(_) if !safe => {
                Err(Refused::Wrong("tokens or certificates are as they were; the log says why".to_owned()))
            }
            Ok(report) => Ok(report),
        }
    }
}

/// A pipe gave its content at start, and would be empty now, or keep whoever opens it waiting.
fn refuse_what_is_read_once(configured: &Resolved) -> Result<(), Refused> {
    let file = configured.settings().iter().find(|setting| setting.name == "config");
    match file.and_then(|setting| setting.value.as_deref()) {
        Some(path) if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) => {
            Err(Refused::Wrong(format!("{path} is no regular file: it cannot be read a second time")))
        }
        _ => Ok(()),
    }
}

/// Those of the options that differ that no running klad changes.
fn fixed(differences: &[Difference<'_>]) -> Vec<String> {
    differences.iter().filter(|one| !one.after.live).map(|one| one.after.name.clone()).collect()
}

fn describe(differences: &[Difference<'_>]) -> Vec<Value> {
    let describe = |one: &Difference<'_>| json!({ "name": one.after.name, "from": one.before.value, "to": one.after.value, "source": one.after.source.to_string() });
    differences.iter().map(describe).collect()
}

/// For the log: `queue-limit 32 to 64, value-max 16MiB to 1KiB`.
fn words(described: &[Value]) -> String {
    let plain = |value: &Value| value.as_str().map_or_else(|| "nothing".to_owned(), str::to_owned);
    let one = |one: &Value| format!("{} {} to {}", plain(&one["name"]), plain(&one["from"]), plain(&one["to"]));
    described.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// A value as the command line would have it; `None`: the default.
fn word(name: &str, value: &Value) -> Result<Option<OsString>, Refused> {
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
