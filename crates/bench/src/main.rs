//! `klad-bench`: the load tester as a program of its own. It is the same code as `klad bench`.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    use clap::Parser as _;

    /// Load any HTTP server with open or closed load, and report what was measured.
    #[derive(clap::Parser)]
    #[command(name = "klad-bench", version, max_term_width = 100, disable_help_subcommand = true)]
    struct Program {
        #[command(flatten)]
        args: klad_bench::args::BenchArgs,
    }

    klad_bench::runner::run_to_exit_code(&Program::parse().args, "klad-bench")
}

#[cfg(not(target_os = "linux"))]
fn main() {}
