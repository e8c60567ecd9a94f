//! What the user of `klad bench compare` typed. Called by `bench::args`.

use std::path::PathBuf;

use clap::Args;

/// Options of `klad bench compare`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Exit codes: 0 B is faster, or there is no difference beyond the noise; 1 they cannot be compared; 2 wrong usage;\n\
3 B is slower at some figure; 4 a run is not valid.\n\
docs/bench.md explains what is compared, and how.")]
pub struct CompareArgs {
    /// Result that is compared with; several runs of it with commas between them, or a directory of them.
    #[arg(value_name = "A.json")]
    pub before: String,
    /// Result that is judged; several runs of it with commas between them, or a directory of them.
    #[arg(value_name = "B.json")]
    pub after: String,

    /// Differences of times and of goodput up to this do not matter.
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = percent)]
    pub tolerance: f64,
    /// Judge runs too that are not valid, instead of exit code 4.
    #[arg(long)]
    pub allow_invalid: bool,
    /// The comparison as JSON; - is the standard output, instead of the text.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// The comparison as a page: charts and a table in one file, for a browser.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// A part of one, from 0 to 1, that was typed as percent: `2%`, `0.5%`.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    let hint = || format!("{text:?} is no percentage from 0% to 100%; use for example 2%");
    // Only digits and a point: "inf", "nan" and "-1" are numbers to the parser below.
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(hint());
    }
    let percent = number.parse::<f64>().map_err(|_| hint())?;
    if percent <= 100.0 { Ok(percent / 100.0) } else { Err(hint()) }
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
