//! The command line of `klad bench compare`. Called by `args`.

use std::path::PathBuf;

use clap::Args;

use crate::units::plain_number;

/// Options of `klad bench compare`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Exit codes: 0 B is faster, or there is no difference beyond the noise; 1 they cannot be compared; 2 wrong usage;\n\
3 B is slower at some figure; 4 a run is not valid.\n\
docs/bench.md explains the comparison.")]
pub struct CompareArgs {
    /// The first side: the file of a result, several runs separated by commas, or a directory of results.
    #[arg(value_name = "A.json")]
    pub before: String,
    /// The second side, which is compared with the first: the file of a result, several runs separated by commas, or a
    /// directory of results.
    #[arg(value_name = "B.json")]
    pub after: String,

    /// Ignore differences of times and goodput up to this percentage. Increase it to see only large differences.
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = percent)]
    pub tolerance: f64,
    /// Let the verdict decide the exit code even if a run is not valid. Without this option, the exit code is 4 if a
    /// run is not valid.
    #[arg(long)]
    pub allow_invalid: bool,
    /// Write the comparison as JSON to this file. With -, write JSON to the standard output instead of the text.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the comparison as an HTML page, with charts and a table in one file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Parses a percentage from 0 to 100, such as `2%` or `0.5%`. Returns it as a share from 0 to 1.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    match plain_number(number) {
        Some(percent) if percent <= 100.0 => Ok(percent / 100.0),
        _ => Err(format!("{text:?} is not a percentage from 0% to 100%, such as 2%")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tolerance_is_a_percentage() {
        assert_eq!((percent("2%"), percent("0.5 %"), percent("100")), (Ok(0.02), Ok(0.005), Ok(1.0)));
        for wrong in ["", "%", "-1%", "101%", "nan", "inf%", "1e1%", "2ms", "2%%"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }
}
