//! What `bench-truth` prints. Called by it alone.

use serde_json::{Value, json};

use crate::Verdict;
use crate::text::grouped;

use super::judgement::{Count, Point, Table};
use super::truth::Outcome;
use super::{Args, Run};

impl Run {
    pub(super) fn print(&self, args: &Args) {
        let rate = grouped(args.rate);
        println!("{}: {rate} requests/s for {} after a warm-up of {}", self.case.name(), args.duration, args.warm_up);
        let (wall, wall_max) = (self.wall.as_secs_f64(), self.wall_max.as_secs_f64());
        let in_time = word(self.wall <= self.wall_max);
        if self.tries > 1 {
            println!("  try {} of {}", self.tries, args.tries);
        }
        println!("  the run took {wall:.3} s, {in_time} the bound of {wall_max:.3} s");
        for doubt in &self.doubts {
            println!("  klad bench does not believe itself: {}: {}", doubt.name, doubt.detail);
        }
        self.print_counts();
        for table in &self.comparison.tables {
            print_table(table);
        }
        if let Some(twin) = self.twin() {
            print_table(twin);
            let words = match twin.verdict() {
                Verdict::Exceeded => "would not pass for the response time, as it must not",
                Verdict::Within => "passes for the response time: the comparison finds nothing. EXCEEDED",
            };
            println!("  the time from the actual send (coordinated omission) {words}");
        }
        println!("  {}\n", self.verdict().word());
    }

    fn print_counts(&self) {
        let counts = &self.comparison.counts;
        let is_outcome =
            |count: &&Count| count.seen > 0 && Outcome::ALL.iter().any(|outcome| outcome.name() == count.name);
        let outcomes = counts.iter().filter(is_outcome).map(|count| format!("{} {}", count.name, grouped(count.seen)));
        let outcomes = outcomes.collect::<Vec<_>>().join(", ");
        let agree = counts.iter().filter(|count| count.reported == count.seen).count();
        println!("  true: {outcomes}; of {} counts, warm-up included, klad bench has {agree}", counts.len());
        for Count { name, reported, seen } in counts.iter().filter(|count| count.reported != count.seen) {
            println!("  {name}: reported {}, true {}, EXCEEDED", grouped(*reported), grouped(*seen));
        }
    }

    fn json(&self) -> Value {
        let counts = self
            .comparison
            .counts
            .iter()
            .map(|Count { name, reported, seen }| json!({ "name": name, "reported": reported, "true": seen }));
        json!({
            "scenario": self.case.scenario.name(),
            "connections": self.case.connections.words(),
            "tries": self.tries,
            "wall_seconds": self.wall.as_secs_f64(),
            "wall_seconds_max": self.wall_max.as_secs_f64(),
            "doubts": self.doubts.iter().map(|doubt| format!("{}: {}", doubt.name, doubt.detail)).collect::<Vec<_>>(),
            "counts": counts.collect::<Vec<_>>(),
            "distributions": self.comparison.tables.iter().map(table_json).collect::<Vec<_>>(),
            "twin": self.twin().map(table_json),
            "within": self.verdict() == Verdict::Within,
        })
    }
}

/// The whole report.
pub(super) fn json(args: &Args, runs: &[Run], verdict: Verdict) -> Value {
    json!({
        "chore": "bench-truth",
        "rate_per_s": args.rate,
        "duration_seconds": args.duration.as_secs_f64(),
        "warm_up_seconds": args.warm_up.as_secs_f64(),
        "allowance_us": args.allowance.as_secs_f64() * 1e6,
        "allowance_tail_us": args.allowance_tail.as_secs_f64() * 1e6,
        "runs": runs.iter().map(Run::json).collect::<Vec<_>>(),
        "within": verdict == Verdict::Within,
    })
}

fn print_table(table: &Table) {
    println!("  {:<12}{:>16}{:>16}{:>16}{:>11}", table.name, "reported µs", "true µs", "difference µs", "percent");
    for point in &table.points {
        let Point { percentile, reported_us, true_us, .. } = point;
        let (difference, percent) = (point.difference_us(), point.difference_percent());
        let mark = if point.verdict() == Verdict::Within { "" } else { "  EXCEEDED" };
        let percentile = format!("p{}", percentile.percent());
        println!("  {percentile:<12}{reported_us:>16.1}{true_us:>16.1}{difference:>+16.1}{percent:>+11.2}{mark}");
    }
}

fn table_json(table: &Table) -> Value {
    let points = table.points.iter().map(|point| {
        json!({
            "percentile": point.percentile.percent(),
            "reported_us": point.reported_us,
            "true_us": point.true_us,
            "difference_us": point.difference_us(),
            "difference_percent": point.difference_percent(),
            "allowed_us": point.allowed_us,
            "within": point.verdict() == Verdict::Within,
        })
    });
    json!({ "name": table.name, "points": points.collect::<Vec<_>>(), "within": table.verdict() == Verdict::Within })
}

fn word(within: bool) -> &'static str {
    Verdict::of(within).word()
}
