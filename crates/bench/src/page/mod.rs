//! The result as an HTML page (`--html`): a verdict, key figures, charts and tables in one file.
//!
//! ```text
//!     each interval's tally ──▶ heat ──┐
//!     RunResult, Spectrum ─────────────┴─▶ charts, tables ──▶ klad_page ──▶ one HTML file
//! ```
//!
//! The page must name every problem that makes the figures unreliable before it shows a figure. It must show the
//! warm-up separately, and stay below a megabyte for any length of the run. Called by `runner`.

pub mod charts;
pub mod heat;
pub mod tables;

#[cfg(test)]
mod testing;

use maud::html;

use crate::collector::Spectrum;
use crate::result::{RunResult, micros};
use crate::schedule::Nanos;
use klad_page::{Page, parts};

pub use heat::HeatCounts;

/// Returns the page. `lag_max` is the largest allowed send lag, from `--lag-max`.
#[must_use]
pub fn html(result: &RunResult, spectrum: &Spectrum, heat: &HeatCounts, lag_max: Nanos) -> String {
    let timeline = charts::Timeline::new(result);
    let hint = "Shaded parts are not in the measured figures. Drag over a chart to zoom in; double-click to zoom out.";
    Page::new(format!("klad bench: {}", result.target.url))
        .with(html! {
            header {
                p.kind { "klad bench · " (result.started.utc) }
                h1 { (result.target.url) }
                p { (result.load.workload) "; " (tables::load_in_words(&result.load)) }
            }
            (tables::verdict(result))
            (parts::tiles(&tables::key_figures(result)))
            (tables::notes(result))
        })
        .section("Latency", &html! { (charts::percentiles(spectrum)) (tables::percentiles(&result.measured)) })
        .section(
            "Over time",
            &html! {
                p { (hint) }
                (timeline.rate())
                (timeline.latency())
                (timeline.heat(heat))
                (timeline.outcomes())
                (timeline.send_lag(micros(lag_max)))
            },
        )
        .section("Outcomes", &tables::outcomes(&result.measured))
        .with(html! {
            @if let Some(stages) = tables::stages(result) { section { h2 { "Warm-up and stages" } (stages) } }
        })
        .section("Validity", &tables::checks(result))
        .section("The run", &tables::run_facts(result))
        .into_html()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Operation, Outcome, Recorder, RequestEnd};
    use crate::result::{Check, Slo};

    /// The page of a run with this many intervals, each with response times over four powers of ten.
    fn page(intervals: u32, change: impl FnOnce(&mut RunResult)) -> String {
        let mut result = testing::result(intervals);
        let (mut heat, mut recorder) = (HeatCounts::new(), Recorder::new(1));
        for step in 0..80 {
            let response = 10_u64.pow(4 + step / 20) * u64::from(1 + step % 20);
            let kind = (Operation::Get, Outcome::Served);
            for _ in 0..=(step * 7 % 13) {
                recorder.record(
                    &RequestEnd { phase: 0, operation: kind.0, outcome: kind.1, response, service: Some(1) },
                    0,
                );
            }
        }
        for row in &mut result.intervals {
            heat.add(row, recorder.phase(0));
            row.response = Some(testing::summary(1.0 / 3.0 + row.start_s));
            row.send_lag = row.response.clone();
        }
        change(&mut result);
        let cell = recorder.phase(0).cell(Operation::Get, Outcome::Served);
        let spectrum = Spectrum { response: cell.response.clone(), service: cell.service.clone() };
        html(&result, &spectrum, &heat, 2_000_000)
    }

    #[test]
    fn the_page_of_the_longest_run_is_below_a_megabyte() {
        for intervals in [1, 60, 3_600] {
            let length = page(intervals, |_| ()).len();
            assert!(length < 1 << 20, "{length} bytes for {intervals} intervals");
        }
    }

    #[test]
    fn problems_come_before_the_figures() {
        let detail = "<late> by 5ms".to_owned();
        let page = page(2, |result| {
            result.valid = false;
            result.checks = vec![Check { name: "send_lag".into(), passed: false, detail }];
            result.slo = Some(Slo { text: "p99<1ms".into(), met: false, objectives: Vec::new() });
            result.measured.scheduled = 7;
            result.measured.statuses.insert(500, 7);
        });
        let places =
            ["NOT VALID", "send_lag: &lt;late&gt; by 5ms", "are not reliable", "WARNING", "no request was served"];
        let places = places.iter().chain(&["SLO missed", "class=\"tiles\"", "<figure"]);
        let found: Vec<_> = places.map(|words| page.find(words).unwrap_or_else(|| panic!("{words}"))).collect();
        assert!(found.is_sorted(), "{found:?}");
    }

    #[test]
    fn text_from_the_command_line_does_not_become_markup() {
        let evil = "http://h/</script><script>alert(1)</script><img src=x>";
        let (clean, page) = (
            page(2, |_| ()),
            page(2, |result| {
                result.target.url = evil.to_owned();
                result.command = vec![evil.to_owned()];
                result.load.workload = evil.to_owned();
                result.machine.host = evil.to_owned();
                result.measured.errors.insert(evil.to_owned(), 1);
            }),
        );
        assert_eq!(page.matches("<script").count(), clean.matches("<script").count());
        assert_eq!(page.matches("<img").count(), 0);
        assert!(page.matches("&lt;img").count() >= 5);
    }
}
