//! Completions of shells, and manual pages: both are made from the definitions of the command line, so that they cannot say
//! anything else. Called by `main`.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::cli::{Cli, ManualCommand};

/// Prints or writes what was asked for.
///
/// # Errors
/// When it cannot be written, or when there is no command of that name.
pub fn write(command: &ManualCommand) -> anyhow::Result<()> {
    let bytes = match command {
        ManualCommand::Completions { shell } => {
            let mut bytes = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "klad", &mut bytes);
            bytes
        }
        ManualCommand::Man { dir: Some(directory), .. } => return write_pages(directory),
        ManualCommand::Man { name, .. } => page(name.as_deref())?,
    };
    std::io::stdout().write_all(&bytes).context("cannot write the output")
}

fn write_pages(directory: &Path) -> anyhow::Result<()> {
    let names: Vec<_> = Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let pages = std::iter::once(None).chain(names.iter().map(|name| Some(name.as_str())));
    for name in pages {
        let file = directory.join(name.map_or_else(|| "klad.1".to_owned(), |name| format!("klad-{name}.1")));
        std::fs::write(&file, page(name)?).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// The page of the program, or of one of its commands.
fn page(name: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let mut program = Cli::command();
    // Gives commands their full names, as in "klad put", and the options that all have.
    program.build();
    let command = match name {
        None => program,
        Some(name) => {
            let found = program.get_subcommands().find(|command| command.get_name() == name);
            let command = found.with_context(|| format!("there is no command {name:?}"))?;
            command.clone()
        }
    };
    let mut bytes = Vec::new();
    clap_mangen::Man::new(command).manual("klad").render(&mut bytes).expect("memory takes what it is given");
    // The page has no date: a release's is not known when it is built. What is written for none takes up no place in the line,
    // and all that follows would stand where its neighbour belongs.
    let title = bytes.iter().position(|byte| *byte == b'"').expect("the title line names klad and its version");
    bytes.splice(title..title, *b"\"\" ");
    if name.is_none() {
        bytes.extend_from_slice(ENVIRONMENT.as_bytes());
    }
    Ok(bytes)
}

/// What is about several commands, in roff. Those that speak to a server read these variables; docs/command-line.md has them too.
const ENVIRONMENT: &str = r".SH ENVIRONMENT
.TP
\fBKLAD_URL\fR
The server of put, get, del and scan, where \fB\-\-url\fR does not name one
.TP
\fBKLAD_ADMIN_URL\fR
The admin address that health asks, where \fB\-\-url\fR does not name one
.TP
\fBKLAD_TOKEN_FILE\fR
The file with the token to send, where \fB\-\-token\-file\fR does not name one
.TP
\fBSSL_CERT_FILE\fR
The certificates that https:// trusts instead of the system's, where \fB\-\-ca\fR names no file
";
