//! The built-in scenarios. Called by `runner`, and by `klad lab list` and `show`.

use crate::scenario::Scenario;

/// The name and the text of each built-in scenario, in the order of `klad lab list`.
pub const SHIPPED: [(&str, &str); 11] = [
    ("quick", include_str!("scenarios/quick.toml")),
    ("seed-000", include_str!("scenarios/seed-000.toml")),
    ("seed-001", include_str!("scenarios/seed-001.toml")),
    ("seed-002", include_str!("scenarios/seed-002.toml")),
    ("seed-003", include_str!("scenarios/seed-003.toml")),
    ("seed-004", include_str!("scenarios/seed-004.toml")),
    ("overload", include_str!("scenarios/overload.toml")),
    ("durability", include_str!("scenarios/durability.toml")),
    ("cold", include_str!("scenarios/cold.toml")),
    ("tail", include_str!("scenarios/tail.toml")),
    ("yardstick", include_str!("scenarios/yardstick.toml")),
];

/// Returns the text of a built-in scenario.
#[must_use]
pub fn text(name: &str) -> Option<&'static str> {
    SHIPPED.iter().find(|(own, _)| *own == name).map(|(_, text)| *text)
}

/// Returns the names and titles, a line for each.
#[must_use]
pub fn list() -> String {
    let line = |(name, text): &(&str, &str)| {
        let scenario = Scenario::parse(name, text).expect("a test reads all built-in scenarios");
        format!("{name:<12} {}\n", scenario.title)
    };
    SHIPPED.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::scenario::{Data, Stage, Start};

    #[test]
    fn every_scenario_is_listed() {
        assert_eq!(list().lines().count(), SHIPPED.len());
    }

    /// The variants of the published reports, and klad's default beside them.
    #[test]
    fn the_seeds_have_the_variants_of_the_published_reports() {
        let names = |name: &str| -> BTreeSet<String> {
            let scenario = Scenario::parse(name, text(name).expect("built in")).expect("valid");
            scenario.variants.into_iter().map(|variant| variant.name).collect()
        };
        for (name, variants) in [
            ("seed-000", "get iterator adaptive"),
            (
                "seed-001",
                "inline pool-32 pool-64 pool-128 pool-1024 pool-32-spin pool-64-spin pool-128-spin pool-1024-spin \
                 adaptive",
            ),
            ("seed-002", "fjall rocksdb adaptive"),
            ("seed-003", "threads-1 threads-2 threads-4 adaptive"),
            ("seed-004", "inline stealing adaptive"),
        ] {
            assert_eq!(names(name), variants.split(' ').map(str::to_owned).collect(), "{name}");
        }
    }

    /// Stage, connections, requests per second and seconds, as in the published reports.
    #[test]
    fn the_seeds_have_the_loads_of_the_published_reports() {
        for (name, keys, formats, stages) in [
            ("seed-000", 1_000_000, ["key{}", "value{}"], "put 16 15000 60, get 16 15000 60"),
            ("seed-001", 100_000_000, ["{}", "value#{}"], "put 128 100000 60, get 128 100000 60"),
            (
                "seed-002",
                100_000_000,
                ["{}", "{}"],
                "put-1-choked 1 20000 60, put-1 1 15000 60, put-3 3 20000 60, put-8 8 20000 60, put-16 16 20000 60, \
                 put-batched 1 200 60, get-1 1 150 60, get-4 4 150 60, get-8 8 150 60, get-16 16 150 60, get-8-again 8 150 60",
            ),
            ("seed-003", 1_000_000, ["key{}", "{}"], "put 16 10000 40, get 16 10000 40"),
            ("seed-004", 100_000_000, ["{}", "{}"], "put 64 55000 60, get 64 62500 60"),
        ] {
            let scenario = Scenario::parse(name, text(name).expect("built in")).expect("valid");
            let load = |stage: &Stage| {
                let (rate, duration) = (stage.rate.expect("an open load"), stage.duration.0.as_secs());
                format!("{} {} {rate} {duration}", stage.name, stage.connections)
            };
            assert_eq!(scenario.stages.iter().map(load).collect::<Vec<_>>().join(", "), stages, "{name}");
            let Data { key_format, value_format, .. } = &scenario.data;
            assert_eq!(
                (scenario.data.keys, [key_format.as_str(), value_format.as_deref().unwrap_or("")]),
                (keys, formats)
            );
            for stage in &scenario.stages {
                let (is_get, is_random) = (stage.name.starts_with("get"), name == "seed-004");
                assert_eq!(stage.data == Start::Filled, is_get, "{name}, {}", stage.name);
                assert_eq!(stage.options.contains(&"uniform".to_owned()), is_random, "{name}, {}", stage.name);
            }
            let durability = scenario.server.options.windows(2).any(|pair| pair == ["--durability", "async"]);
            assert!(durability, "{name}: the published reports did not sync");
        }
    }

    /// With fewer runs, variants are not compared in pairs, and the comparison misses small differences.
    #[test]
    fn every_scenario_has_enough_runs_to_be_compared_in_pairs() {
        for (name, text) in SHIPPED {
            let scenario = Scenario::parse(name, text).expect("valid");
            assert!(scenario.repeats >= klad_bench::compare::repeats::PAIRS_MIN, "{name}");
        }
    }
}
