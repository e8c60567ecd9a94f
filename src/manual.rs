//! Completions of shells, and manual pages: both are made from the definitions of the command line, so that they cannot say
//! anything else. Called by `main`.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::cli::{Cli, ManualCommand};
use klad_base::os::output;

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
        ManualCommand::Man { name, .. } => page(name)?,
    };
    output::stdout().and_then(|mut stdout| stdout.write_all(&bytes)).context("cannot write the output")
}

fn write_pages(directory: &Path) -> anyhow::Result<()> {
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let command = find(&path)?;
        let visible = command.get_subcommands().filter(|below| !below.is_hide_set());
        open.extend(visible.map(|below| [path.clone(), vec![below.get_name().to_owned()]].concat()));
        let file = directory.join(format!("{}.1", [vec!["klad".to_owned()], path.clone()].concat().join("-")));
        std::fs::write(&file, page(&path)?).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// The program, or the command that these words name.
fn find(path: &[String]) -> anyhow::Result<clap::Command> {
    let mut command = Cli::command();
    // Gives commands their full names, as in "klad put", and the options that all have.
    command.build();
    for name in path {
        let below = command.get_subcommands().find(|below| below.get_name() == name).cloned();
        command = below.with_context(|| format!("there is no command {:?}", path.join(" ")))?;
    }
    Ok(command)
}

/// The page of the program, or of one of its commands.
fn page(path: &[String]) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    clap_mangen::Man::new(find(path)?).manual("klad").render(&mut bytes).expect("memory takes what it is given");
    // The page has no date: a release's is not known when it is built. What is written for none takes up no place in the line,
    // and all that follows would stand where its neighbour belongs.
    let title = bytes.iter().position(|byte| *byte == b'"').expect("the title line names klad and its version");
    bytes.splice(title..title, *b"\"\" ");
    if path.is_empty() {
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
