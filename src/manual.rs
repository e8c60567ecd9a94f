//! Shell completions and manual pages, generated from the definition of the command line. Called by `main`.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::cli::{Cli, ManualCommand};
use klad_base::os::output;

/// Prints or writes completions or manual pages.
///
/// # Errors
/// The output cannot be written, or there is no command of the given name.
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
    let mut paths = vec![Vec::new()];
    while let Some(path) = paths.pop() {
        let command = find(&path)?;
        let visible = command.get_subcommands().filter(|below| !below.is_hide_set());
        paths.extend(visible.map(|below| [path.clone(), vec![below.get_name().to_owned()]].concat()));
        let file = directory.join(format!("{}.1", [vec!["klad".to_owned()], path.clone()].concat().join("-")));
        std::fs::write(&file, page(&path)?).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Returns the command that `path` names: the words after `klad`, such as `config` and `print`.
fn find(path: &[String]) -> anyhow::Result<clap::Command> {
    let mut command = Cli::command();
    // Sets full names such as "klad put", and the options that all commands have.
    command.build();
    for name in path {
        let below = command.get_subcommands().find(|below| below.get_name() == name).cloned();
        command = below.with_context(|| format!("there is no command {:?}", path.join(" ")))?;
    }
    Ok(command)
}

/// Returns the manual page of the command that `path` names.
fn page(path: &[String]) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    clap_mangen::Man::new(find(path)?).manual("klad").render(&mut bytes).expect("writing to memory does not fail");
    // The page has no date, because the date of a release is not known at build time. clap_mangen therefore leaves the
    // date out of the title line, so that the later fields would move to the left. An empty date prevents this.
    let title = bytes.iter().position(|byte| *byte == b'"').expect("the title line names klad and its version");
    bytes.splice(title..title, *b"\"\" ");
    if path.is_empty() {
        bytes.extend_from_slice(ENVIRONMENT.as_bytes());
    }
    Ok(bytes)
}

/// Environment variables of the client commands, in roff. docs/command-line.md lists them too.
const ENVIRONMENT: &str = r".SH ENVIRONMENT
.TP
\fBKLAD_URL\fR
The server of the commands that send requests to it, such as put and get, unless \fB\-\-url\fR is given
.TP
\fBKLAD_ADMIN_URL\fR
The admin address for health, profile and top, unless a URL is given
.TP
\fBKLAD_TOKEN_FILE\fR
The file with the token to send, unless \fB\-\-token\-file\fR is given
.TP
\fBSSL_CERT_FILE\fR
The certificates that https:// trusts instead of those of the system, unless \fB\-\-ca\fR is given
";
