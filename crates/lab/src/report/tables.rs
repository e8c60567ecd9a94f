//! The tables of the report. Called by `page` and `markdown`.

use crate::conclusion::Outcome as Verdict;
use crate::conclusion::answer;
use crate::conclusion::words::{percent, times, value};
use crate::conclusion::{CONTESTED, CPU};
use crate::conclusion::{
    Comparison, Difference, Frontier, Judgement, Ratio, StageConclusion, Standing, Unit, Validity,
};
use crate::report::grid::{Entry, Grid};
use crate::result::{LabResult, LabRun, Part, Slowest, StageResult, TakenProfile, VariantResult};
use crate::scenario::PublishedResult;
use crate::variant_runs::VariantRuns;
use klad_bench::compare::figures::Figure;
use klad_bench::page::charts::words;
use klad_bench::recorder::Outcome;
use klad_page::numbers::{bytes, count, micros, per_second, seconds};
use klad_page::parts::{Column, Tone};

const NONE: &str = "–";

fn or_none(value: Option<f64>, write: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), write)
}

/// The figures of each variant, and below them the published figures of the same variant.
pub(super) fn variants(stage: &StageResult, conclusion: &StageConclusion, published: &[PublishedResult]) -> Grid {
    let mut grid = Grid::new(
        "Variants",
        &[
            Column::Words("Variant"),
            Column::Figures("Offered"),
            Column::Figures("Goodput"),
            Column::Figures("Mean"),
            Column::Figures("p50"),
            Column::Figures("p99"),
            Column::Figures("p99.9"),
            Column::Figures("p99.99"),
            Column::Figures("Max"),
            Column::Figures("Refused"),
            Column::Figures("Failed"),
            Column::Figures("CPU/served"),
            Column::Figures("Memory"),
            Column::Figures("Sent late"),
            Column::Words("Valid"),
        ],
    );
    for standing in &conclusion.standings {
        grid.rows.push(measured(standing));
        let own = published.iter().filter(|one| one.stage == stage.name && one.variant == standing.variant);
        grid.rows.extend(own.map(as_published));
    }
    if conclusion.standings.iter().any(|standing| !standing.weak.is_empty()) {
        grid.notes.push("* fewer than 10 samples are above this value: it is that of single requests.".to_owned());
    }
    grid.notes.push(
        "Sent late: p99.9 of how late the load tester sent requests, in the worst run. Response times include it."
            .to_owned(),
    );
    grid
}

fn measured(standing: &Standing) -> Vec<Entry> {
    let time = |name: &str, value: Option<f64>| {
        let weak = if standing.weak.iter().any(|weak| weak == name) { " *" } else { "" };
        Entry::from(or_none(value, |value| format!("{}{weak}", micros(value))))
    };
    let share = |number: u64| {
        let text = or_none(standing.share(number), percent);
        if number > 0 { Entry::toned(Tone::Warning, text) } else { text.into() }
    };
    vec![
        standing.variant.as_str().into(),
        or_none(standing.offered_per_s, per_second).into(),
        or_none(standing.goodput_per_s, per_second).into(),
        or_none(standing.mean_us, micros).into(),
        time("p50", standing.p50_us),
        time("p99", standing.p99_us),
        time("p99.9", standing.p999_us),
        time("p99.99", standing.p9999_us),
        or_none(standing.max_us, micros).into(),
        share(standing.refused),
        share(standing.failed + standing.unanswered),
        or_none(standing.cpu_us_per_served, micros).into(),
        standing.memory_max_bytes.map_or_else(|| NONE.to_owned(), bytes).into(),
        or_none(standing.send_lag_p999_us, micros).into(),
        valid(standing),
    ]
}

fn valid(standing: &Standing) -> Entry {
    let runs = format!("{} of {}", standing.used, standing.runs);
    match standing.validity {
        Validity::Valid => Entry::from(runs),
        Validity::Overloaded => Entry::toned(Tone::Warning, format!("{runs}, overloaded")),
        Validity::NotValid => Entry::toned(Tone::Bad, "NOT VALID"),
        Validity::NotMeasured => Entry::toned(Tone::Bad, "no run"),
    }
}

fn as_published(published: &PublishedResult) -> Vec<Entry> {
    let time = |value: Option<f64>| Entry::from(or_none(value, |value| micros(value * 1e3)));
    let none = || Entry::from(NONE);
    vec![
        format!("{}, published", published.variant).into(),
        none(),
        or_none(published.per_s, per_second).into(),
        time(published.mean_ms),
        time(published.p50_ms),
        time(published.p99_ms),
        time(published.p999_ms),
        time(published.p9999_ms),
        time(published.max_ms),
        or_none(published.refused, percent).into(),
        none(),
        none(),
        none(),
        none(),
        published.note.as_str().into(),
    ]
}

/// The variants of a stage in the order of the figure that the scenario is about.
pub(super) fn ranking(stage: &StageConclusion) -> Grid {
    let columns = [
        Column::Words("Variant"),
        Column::Words("Figure"),
        Column::Figures("Value"),
        Column::Figures("Ratio to the best"),
    ];
    let mut grid = Grid::new("Ranking", &columns);
    if let Some(answer) = &stage.answer {
        for one in &answer.ranking {
            let best = or_none(one.value, |best| value(answer.unit, best));
            let ratio = one.ratio.map_or_else(|| NONE.to_owned(), Ratio::words);
            grid.rows.push([one.variant.clone(), answer.figure.clone(), best, ratio].map(Entry::from).into());
        }
    }
    grid
}

/// Who is best at each figure of a stage.
pub(super) fn winners(stage: &StageConclusion) -> Grid {
    let columns = [
        Column::Words("Figure"),
        Column::Words("Winner"),
        Column::Figures("Value"),
        Column::Figures("Ratio to the next"),
        Column::Words("Next, or no difference from"),
    ];
    let mut grid = Grid::new("Winners", &columns);
    for winner in &stage.winners {
        let unit =
            stage.comparisons.iter().find_map(|one| one.difference(&winner.figure)).map_or(Unit::Time, |one| one.unit);
        let best = or_none(winner.value, |best| value(unit, best));
        let ratio = winner.ahead.as_ref().and_then(Ratio::of).map_or_else(|| NONE.to_owned(), Ratio::words);
        let label = answer::label(winner, &stage.standings);
        let cells = match winner.outcome {
            Verdict::Won => [label, best, ratio, winner.next.clone().unwrap_or_default()],
            Verdict::Level => {
                let level = std::iter::once(label).chain(winner.level_with.iter().cloned()).collect::<Vec<_>>();
                ["no difference told".to_owned(), best, NONE.to_owned(), level.join(", ")]
            }
            Verdict::NotJudged => {
                let why = winner.why_not.clone().unwrap_or_default();
                ["not judged".to_owned(), NONE.to_owned(), NONE.to_owned(), why]
            }
        };
        grid.rows.push(std::iter::once(winner.figure.clone()).chain(cells).map(Entry::from).collect());
    }
    grid
}

/// Who is best at each figure of all stages.
pub(super) fn winners_of_stages(stages: &[StageConclusion]) -> Grid {
    let figures = CONTESTED.iter().map(|contested| Column::Words(contested.name));
    let columns: Vec<_> = std::iter::once(Column::Words("Stage")).chain(figures).collect();
    let mut grid = Grid::new("Winners", &columns);
    for stage in stages.iter().filter(|stage| !stage.winners.is_empty()) {
        let cell = |figure: &str| {
            let Some(winner) = stage.winners.iter().find(|winner| winner.figure == figure) else {
                return NONE.to_owned();
            };
            let ratio = winner.ahead.as_ref().and_then(Ratio::of);
            match winner.outcome {
                Verdict::Won => {
                    let ratio = ratio.map_or_else(String::new, |ratio| format!(" × {}", times(ratio.ratio)));
                    format!("{}{ratio}", winner.best.as_deref().unwrap_or(NONE))
                }
                Verdict::Level => "no difference told".to_owned(),
                Verdict::NotJudged => "not judged".to_owned(),
            }
        };
        let cells = CONTESTED.iter().map(|contested| cell(contested.name));
        grid.rows.push(std::iter::once(stage.stage.clone()).chain(cells).map(Entry::from).collect());
    }
    grid.notes.push("The figure after a winner is its ratio to the next best.".to_owned());
    grid
}

/// The figures of all stages and variants.
pub(super) fn stages(conclusions: &[StageConclusion]) -> Grid {
    let columns = [
        Column::Words("Stage"),
        Column::Words("Variant"),
        Column::Figures("Offered"),
        Column::Figures("Goodput"),
        Column::Figures("p50"),
        Column::Figures("p99"),
        Column::Figures("p99.9"),
        Column::Figures("Refused"),
        Column::Figures("CPU/served"),
        Column::Words("Valid"),
    ];
    let mut grid = Grid::new("All stages", &columns);
    for stage in conclusions {
        for standing in &stage.standings {
            let cells = [
                stage.stage.clone(),
                standing.variant.clone(),
                or_none(standing.offered_per_s, per_second),
                or_none(standing.goodput_per_s, per_second),
                or_none(standing.p50_us, micros),
                or_none(standing.p99_us, micros),
                or_none(standing.p999_us, micros),
                or_none(standing.refused_share(), percent),
                or_none(standing.cpu_us_per_served, micros),
            ];
            grid.rows.push(cells.into_iter().map(Entry::from).chain([valid(standing)]).collect());
        }
    }
    grid
}

/// The outcomes of each variant's requests.
pub(super) fn outcomes(variants: &[VariantRuns]) -> Grid {
    let columns = [
        Column::Words("Variant"),
        Column::Words("Outcome"),
        Column::Figures("Requests"),
        Column::Figures("Share"),
        Column::Words("Statuses and failures"),
    ];
    let mut grid = Grid::new("Outcomes", &columns);
    for one in variants {
        let (mut first, all) = (true, one.pooled.ended());
        for outcome in Outcome::ALL {
            let number = one.count(&[outcome]);
            if number == 0 {
                continue;
            }
            let share = klad_page::numbers::share(number, all);
            let details = if first { answers(one) } else { String::new() };
            let cells = [one.name().to_owned(), words(outcome), count(number), share, details];
            grid.rows.push(cells.into_iter().map(Entry::from).collect());
            first = false;
        }
    }
    grid
}

/// The response times of each operation, for each variant with several operations.
pub(super) fn operations(variants: &[VariantRuns]) -> Grid {
    let columns = [
        Column::Words("Variant"),
        Column::Words("Operation"),
        Column::Figures("Requests"),
        Column::Figures("p50"),
        Column::Figures("p99"),
        Column::Figures("p99.9"),
        Column::Figures("Max"),
    ];
    let mut grid = Grid::new("Operations", &columns);
    for one in variants {
        let all = one.operations();
        for (operation, response) in all.iter().filter(|_| all.len() > 1) {
            let at = |percentile| or_none(response.at(percentile).map(|point| point.value_us), micros);
            let figures = [count(response.count), at(50.0), at(99.0), at(99.9), at(100.0)];
            let cells = [one.name().to_owned(), operation.name().to_owned()].into_iter().chain(figures);
            grid.rows.push(cells.map(Entry::from).collect());
        }
    }
    grid
}

/// How much the response times of each variant change over time, by intervals of all its runs.
pub(super) fn intervals(variants: &[VariantRuns]) -> Grid {
    let columns = [
        Column::Words("Variant"),
        Column::Figures("Intervals"),
        Column::Figures("Median p99.9"),
        Column::Figures("90 % of p99.9"),
        Column::Figures("Largest p99.9"),
        Column::Figures("Longest gap"),
        Column::Figures("Compactions"),
    ];
    let mut grid = Grid::new("Intervals", &columns);
    for one in variants.iter().filter(|one| !one.used.is_empty()) {
        let mut p999 = one.interval_p999();
        p999.sort_by(f64::total_cmp);
        let at = |share: usize| p999.get((p999.len() * share).div_ceil(100).saturating_sub(1)).copied();
        let time = |value: Option<f64>| match value {
            Some(value) if value.is_infinite() => "no answer".to_owned(),
            value => or_none(value, micros),
        };
        let gap = one.used.iter().map(|(_, bench)| bench.longest_gap_s).fold(0.0, f64::max);
        let compactions: Option<u64> = one.used.iter().map(|(run, _)| run.compactions).sum();
        let cells = [
            one.name().to_owned(),
            count(p999.len() as u64),
            time(at(50)),
            time(at(90)),
            time(at(100)),
            micros(gap * 1e6),
            compactions.map_or_else(|| NONE.to_owned(), count),
        ];
        grid.rows.push(cells.into_iter().map(Entry::from).collect());
    }
    let length = variants.iter().flat_map(|one| &one.used).find_map(|(_, bench)| bench.intervals.first());
    let length = length.map_or(1.0, |interval| interval.length_s);
    grid.notes.push(format!(
        "p99.9 of each interval of {}, of all runs. Longest gap: the longest time without a good answer, in the \
         worst run. Compactions: those of RocksDB that ended, in all runs together.",
        seconds(length)
    ));
    grid
}

/// The statuses and failures of all used runs.
fn answers(variant: &VariantRuns) -> String {
    let mut all = std::collections::BTreeMap::new();
    for (_, bench) in &variant.used {
        let statuses = bench.measured.statuses.iter().map(|(status, number)| (status.to_string(), *number));
        for (name, number) in statuses.chain(bench.measured.errors.iter().map(|(name, number)| (name.clone(), *number)))
        {
            *all.entry(name).or_insert(0_u64) += number;
        }
    }
    all.iter().map(|(name, number)| format!("{name}: {}", count(*number))).collect::<Vec<_>>().join(", ")
}

/// How much the runs of each variant differ from each other.
pub(super) fn spread(variants: &[VariantRuns]) -> Grid {
    let columns = [
        Column::Words("Variant"),
        Column::Words("Figure"),
        Column::Figures("Least"),
        Column::Figures("Median"),
        Column::Figures("Most"),
        Column::Figures("Most/least"),
        Column::Words("Single runs"),
    ];
    let mut grid = Grid::new("Spread over the repeats", &columns);
    for one in variants.iter().filter(|one| !one.used.is_empty()) {
        let figures = [Figure::Percentile(50.0), Figure::Percentile(99.0), Figure::Percentile(99.9), Figure::Goodput];
        let unit = |figure| if figure == Figure::Goodput { Unit::Rate } else { Unit::Time };
        let mut all: Vec<_> = figures.map(|figure| (figure.name(), unit(figure), one.per_run(figure))).into();
        all.push((CPU.to_owned(), Unit::Cpu, one.cpu()));
        for (name, unit, values) in all.into_iter().filter(|(_, _, values)| !values.is_empty()) {
            let mut sorted = values.clone();
            sorted.sort_by(f64::total_cmp);
            let (least, most) = (sorted[0], sorted[sorted.len() - 1]);
            let ratio = if least > 0.0 { format!("{:.2}", most / least) } else { NONE.to_owned() };
            let each: Vec<_> = values.iter().map(|each| value(unit, *each)).collect();
            let median = value(unit, sorted[(sorted.len() - 1) / 2]);
            let ends = [value(unit, least), median, value(unit, most), ratio, each.join(", ")];
            let first = [one.name().to_owned(), name];
            grid.rows.push(first.into_iter().chain(ends).map(Entry::from).collect());
        }
    }
    grid.notes.push("The median of an even number of runs is the lower of the two middle values.".to_owned());
    grid
}

/// All figures of a comparison.
pub(super) fn differences(comparison: &Comparison) -> Grid {
    let columns = [
        Column::Words("Figure"),
        Column::Figures("First"),
        Column::Figures("Other"),
        Column::Figures("Difference"),
        Column::Figures("Interval"),
        Column::Words("Verdict"),
    ];
    let mut grid = Grid::new("Differences", &columns);
    for difference in &comparison.differences {
        let written = |side: Option<f64>| or_none(side, |side| value(difference.unit, side));
        let (tone, word) = match difference.judgement {
            Judgement::Better => (Tone::Good, "better".to_owned()),
            Judgement::Worse => (Tone::Bad, "worse".to_owned()),
            Judgement::NoDifference => (Tone::Plain, "no difference".to_owned()),
            Judgement::NotJudged => {
                (Tone::Plain, format!("not judged: {}", difference.why_not.as_deref().unwrap_or("no reason")))
            }
        };
        grid.rows.push(vec![
            difference.figure.replace('_', " ").into(),
            written(difference.first).into(),
            written(difference.other).into(),
            or_none(difference.percent, |percent| signed(difference, percent)).into(),
            interval(difference).into(),
            Entry::toned(tone, word),
        ]);
    }
    let [first, other] = comparison.runs;
    grid.notes.push(format!(
        "First: {}, {first} runs; other: {}, {other} runs. Differences are means over the runs, as percent of the \
         first, or percentage points (pt) of shares. All intervals of a comparison hold together with 99 % \
         confidence; that of CPU time holds by itself.",
        comparison.first, comparison.other
    ));
    grid
}

fn signed(difference: &Difference, percent: f64) -> String {
    if difference.unit == Unit::Share { format!("{percent:+.2} pt") } else { format!("{percent:+.1} %") }
}

fn interval(difference: &Difference) -> String {
    match (difference.low_percent, difference.high_percent) {
        (Some(low), Some(high)) => format!("{} to {}", signed(difference, low), signed(difference, high)),
        (Some(low), None) => format!("from {} on", signed(difference, low)),
        _ => NONE.to_owned(),
    }
}

/// The sizes of the queue.
pub(super) fn queue(frontier: &Frontier) -> Grid {
    let columns = [
        Column::Words("Variant"),
        Column::Figures("Queue"),
        Column::Figures("Refused"),
        Column::Figures("p99.9"),
        Column::Words("Remark"),
    ];
    let mut grid = Grid::new("Queues", &columns);
    for point in &frontier.points {
        let remark = match point.tail {
            _ if frontier.recommended.as_ref() == Some(&point.variant) => Entry::toned(Tone::Good, "recommended"),
            _ if !point.keeps_up => "does not keep up with the load, or is not known to".into(),
            _ if !point.refuses_little => "refuses too much".into(),
            Some(Judgement::Worse) => "longer p99.9 than the best".into(),
            Some(Judgement::NotJudged) => "its p99.9 was not judged".into(),
            _ if !point.on_frontier => "another size refuses no more and is no slower".into(),
            _ => "larger than necessary".into(),
        };
        let queue = count(point.queue);
        let cells = [point.variant.clone(), queue, percent(point.refused_share), micros(point.p999_us)];
        grid.rows.push(cells.into_iter().map(Entry::from).chain([remark]).collect());
    }
    grid
}

/// What the slowest requests spent their time on, as the server saw them.
pub(super) fn slowest(variants: &[VariantRuns]) -> Grid {
    let columns = [
        Column::Words("Variant"),
        Column::Figures("Requests"),
        Column::Figures("Time"),
        Column::Words("Time spent on"),
        Column::Words("The slowest"),
    ];
    let mut grid = Grid::new("The slowest requests", &columns);
    for one in variants {
        let all: Vec<&Slowest> = one.used.iter().flat_map(|(run, _): &(&LabRun, _)| &run.slowest).collect();
        let Some(worst) = all.iter().max_by(|one, other| one.total_us.total_cmp(&other.total_us)) else { continue };
        let total: f64 = all.iter().map(|request| request.total_us).sum();
        let sums = summed(all.iter().flat_map(|request| &request.parts));
        let shares: Vec<_> =
            sums.iter().map(|(name, us)| format!("{name} {}", percent(us / total.max(1e-9)))).collect();
        let parts = summed(&worst.parts);
        let parts: Vec<_> = parts.iter().map(|(name, us)| format!("{name} {}", micros(*us))).collect();
        let single = format!("{} {} in {}: {}", worst.op, worst.status, micros(worst.total_us), parts.join(", "));
        let cells = [one.name().to_owned(), all.len().to_string(), micros(total), shares.join(", "), single];
        grid.rows.push(cells.into_iter().map(Entry::from).collect());
    }
    grid.notes.push(
        "The slowest requests of the last minute of each run, as the server saw them: from the first byte of a \
         request to the end of its answer. Waits before that, in the kernel or in the load tester, are not included."
            .to_owned(),
    );
    grid
}

/// Returns the sums by name, largest first.
fn summed<'p>(parts: impl IntoIterator<Item = &'p Part>) -> Vec<(String, f64)> {
    let mut sums: Vec<(String, f64)> = Vec::new();
    for part in parts {
        match sums.iter_mut().find(|(name, _)| *name == part.name) {
            Some((_, sum)) => *sum += part.us,
            None => sums.push((part.name.clone(), part.us)),
        }
    }
    sums.sort_by(|one, other| other.1.total_cmp(&one.1));
    sums
}

/// The profiles, and what they cost.
pub(super) fn profiles(stage: &StageResult, standings: &[Standing]) -> Grid {
    let columns = [
        Column::Words("Variant"),
        Column::Words("Profile"),
        Column::Figures("Events"),
        Column::Figures("Goodput"),
        Column::Figures("without"),
        Column::Figures("p99"),
        Column::Figures("without"),
        Column::Figures("CPU/served"),
        Column::Figures("without"),
        Column::Words("File"),
    ];
    let mut grid = Grid::new("Profiles", &columns);
    for (variant, standing) in stage.variants.iter().zip(standings) {
        // Where a variant falls behind, response times depend on the length of the run, which differs for profiles.
        let p99 = |value: Option<f64>| or_none(value.filter(|_| !standing.falls_behind()), micros);
        let row = |taken: &TakenProfile| {
            let cells = [
                variant.name.clone(),
                taken.kind.title().to_owned(),
                count(taken.events),
                per_second(taken.goodput_per_s),
                or_none(standing.goodput_per_s, per_second),
                p99(taken.p99_us),
                p99(standing.p99_us),
                or_none(taken.server_cpu_us_per_served, micros),
                or_none(standing.cpu_us_per_served, micros),
                taken.file.clone(),
            ];
            cells.into_iter().map(Entry::from).collect()
        };
        grid.rows.extend(variant.profiles.iter().map(row));
    }
    grid.notes.push("Numbers of allocations are estimated from a sample.".to_owned());
    grid
}

/// Returns the sentence for an experiment without failed checks.
pub(super) fn all_well(result: &LabResult) -> &'static str {
    let mut runs = result.stages.iter().flat_map(|stage| &stage.variants).flat_map(VariantResult::benches);
    if runs.next().is_some() { "All runs passed all checks" } else { "There are no runs" }
}

/// The failed checks of all runs; `None` where there is none.
pub(super) fn checks(result: &LabResult) -> Option<Grid> {
    let columns = [
        Column::Words("Stage"),
        Column::Words("Variant"),
        Column::Figures("Run"),
        Column::Words("Check"),
        Column::Words("Figures"),
    ];
    let mut grid = Grid::new("Failed checks", &columns);
    for stage in &result.stages {
        for variant in &stage.variants {
            for run in &variant.runs {
                let failed = run.bench.iter().flat_map(|bench| &bench.checks).filter(|check| !check.passed);
                grid.rows.extend(failed.map(|check| {
                    let first = [stage.name.clone(), variant.name.clone(), run.repeat.to_string()];
                    let mut row: Vec<Entry> = first.into_iter().map(Entry::from).collect();
                    row.push(Entry::toned(Tone::Bad, check.name.as_str()));
                    row.push(check.detail.as_str().into());
                    row
                }));
            }
        }
    }
    (!grid.rows.is_empty()).then_some(grid)
}

/// The failures; `None` where there is none.
pub(super) fn failures(result: &LabResult) -> Option<Grid> {
    let columns = [Column::Words("Stage"), Column::Words("Variant"), Column::Words("Step"), Column::Words("Reason")];
    let mut grid = Grid::new("Failures", &columns);
    for failed in &result.failures {
        let cells = [&failed.stage, &failed.variant, &failed.what, &failed.why];
        grid.rows.push(cells.into_iter().map(|cell| Entry::from(cell.as_str())).collect());
    }
    (!grid.rows.is_empty()).then_some(grid)
}
