//! `/metrics`: all metrics on one page.
//!
//! Nothing here waits. The engine's figures come from the last housekeeping, the engine's periodic work. All other
//! figures are counters in memory or in the kernel. `admin` calls this.

use std::time::Duration;

use crate::admin::Admin;
use crate::admin::process;
use crate::logs;
use klad_base::clock;
use klad_base::metrics::text::{Kind, Page};

impl Admin {
    /// Returns the page of `/metrics`.
    pub(super) fn metrics(&self) -> String {
        let mut page = Page::new();
        self.write_metrics(&mut page);
        page.finish()
    }

    /// Writes all metrics to `page`.
    pub(super) fn write_metrics(&self, page: &mut Page<'_>) {
        let version = env!("CARGO_PKG_VERSION");
        let labels = [
            ("version", version),
            ("engine", self.executor.engine_name()),
            ("execution", self.executor.strategy_name()),
        ];
        page.family("klad_build_info", Kind::Gauge, "1; the labels are klad's version, engine and strategy.")
            .whole(&labels, 1);
        let uptime = clock::now().saturating_duration_since(self.started);
        page.gauge("klad_uptime_seconds", "Seconds since klad began to serve.", uptime.as_secs_f64());
        let checks = self.checks();
        let ready = checks.iter().all(|check| check.fault.is_none());
        page.gauge("klad_ready", "1 while /readyz answers 200.", f64::from(u8::from(ready)));
        let mut each = page.family("klad_ready_check", Kind::Gauge, "1 while a check of /readyz?verbose passes.");
        for check in &checks {
            each.whole(&[("check", check.name)], u64::from(check.fault.is_none()));
        }
        let help = "The parts of --memory; the cache's part includes the memtables.";
        let mut budget = page.family("klad_memory_budget_bytes", Kind::Gauge, help);
        for (part, bytes) in (self.shares)().parts() {
            budget.whole(&[("part", part)], bytes);
        }
        self.control.write(page);
        for source in &self.sources {
            source.write(page);
        }
        self.executor.write_metrics(page);
        if let Some(commits) = self.executor.commits() {
            commits.write(page);
        }
        logs::write(page);
        let observation = self.executor.observe();
        let age = observation.taken.map(|taken| clock::now().saturating_duration_since(taken));
        page.gauge(
            "klad_storage_observation_age_seconds",
            "Age of the engine's figures; grows while storage does not answer.",
            age.unwrap_or(Duration::ZERO).as_secs_f64(),
        );
        observation.write(page);
        process::write(page);
        self.allocator.latest().write(page);
    }
}
