//! The facts of an experiment: machine, settings, variants, commands. Called by `page` and `markdown`.

use crate::result::{CoresUsed, LabResult, StageResult};
use klad_bench::result::Machine;
use klad_page::numbers::{bytes, count, per_second, seconds};

/// Returns the facts of an experiment as names and values.
pub(super) fn experiment(result: &LabResult) -> Vec<(&'static str, String)> {
    let Machine { host, kernel, cpu, cores, memory_bytes, .. } = &result.machine;
    let scenario = &result.scenario;
    let data = &scenario.data;
    let (value, size) = (data.value_format.as_deref(), data.value_size.as_deref());
    let values = value.or(size).map_or_else(String::new, |value| format!(", values {value}"));
    let filled = match result.keys {
        0 => "none".to_owned(),
        keys => format!("{} keys {}{values}", count(keys), data.key_format),
    };
    vec![
        ("Scenario", scenario.name.clone()),
        ("Started", result.started.utc.clone()),
        ("Took", seconds(result.took_s.round())),
        ("Scale", scale(result)),
        ("Repeats", result.repeats.to_string()),
        ("Host", host.clone()),
        ("CPU", format!("{cpu}, {cores} core{}", if *cores == 1 { "" } else { "s" })),
        ("Memory", bytes(*memory_bytes)),
        ("Kernel", kernel.clone()),
        ("Cores", cores_used(result.cores.as_ref())),
        ("File system", result.file_system.clone().unwrap_or_else(|| "unknown".to_owned())),
        ("klad", result.klad_version.clone()),
        ("Server options", words(&scenario.server.options)),
        ("Filled data", filled),
    ]
}

/// Returns the scale in words: `1, full`, or `scaled to 0.1`.
pub(super) fn scale(result: &LabResult) -> String {
    if result.scale < 1.0 { format!("scaled to {}", result.scale) } else { format!("{}, full", result.scale) }
}

fn cores_used(cores: Option<&CoresUsed>) -> String {
    let list = |cores: &[usize]| cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    cores.map_or_else(
        || "chosen by the kernel".to_owned(),
        |cores| format!("server on {}, load on {}", list(&cores.server), list(&cores.load)),
    )
}

fn words(options: &[String]) -> String {
    if options.is_empty() { "none".to_owned() } else { options.join(" ") }
}

/// Returns each variant with its options or its command.
pub(super) fn variants(result: &LabResult) -> Vec<(String, String)> {
    let variant = |variant: &crate::scenario::Variant| {
        let about = if variant.about.is_empty() { String::new() } else { format!(" ({})", variant.about) };
        let started = match (&variant.peer, &variant.program) {
            (Some(peer), _) => format!("not klad: {}", peer.command.join(" ")),
            (None, Some(program)) => format!("{}: {}", program.display(), words(&variant.options)),
            (None, None) => words(&variant.options),
        };
        (variant.name.clone(), format!("{started}{about}"))
    };
    result.scenario.variants.iter().map(variant).collect()
}

/// Returns the load of a stage in a line.
pub(super) fn stage(stage: &StageResult) -> String {
    let rate = stage.rate_per_s.map_or_else(|| "closed load".to_owned(), per_second);
    let share =
        stage.share_of_capacity.map_or_else(String::new, |share| format!(" ({:.0} % of the capacity)", share * 100.0));
    format!("{rate}{share}, {} connections, {}", count(stage.connections as u64), seconds(stage.duration_s))
}

/// Returns the command of the experiment, and one `klad bench` command of each stage and variant, without the paths
/// of results.
pub(super) fn commands(result: &LabResult) -> String {
    let mut lines = vec![shell_command(&result.command)];
    for stage in &result.stages {
        for variant in &stage.variants {
            let first = variant.benches().next().filter(|bench| !bench.command.is_empty());
            lines.extend(first.map(|bench| format!("# {}, {}\n{}", stage.name, variant.name, load(&bench.command))));
        }
    }
    lines.join("\n")
}

fn load(command: &[String]) -> String {
    let end = command.iter().position(|word| word == "--progress").unwrap_or(command.len());
    shell_command(&command[..end])
}

/// Quotes a command for a shell. Leaves out the directory of the program.
fn shell_command(command: &[String]) -> String {
    let (program, words) = command.split_first().map_or(("", command), |(program, words)| (program.as_str(), words));
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,@%+".contains(letter);
    let quoted = |word: &String| {
        let is_plain = !word.is_empty() && word.chars().all(plain);
        if is_plain { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    std::iter::once(&program).chain(words).map(quoted).collect::<Vec<_>>().join(" ")
}
