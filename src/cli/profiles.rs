//! `gspbench profiles`: the built-in profiles, listed or printed.

use super::exit::ExitWith as _;
use super::{Exit, say};
use crate::profile::{builtin, builtins};

/// Lists the built-in profiles, or prints one to begin a profile of your own with.
#[derive(Debug, clap::Args)]
pub(super) struct ProfilesArgs {
    /// The profile to print
    name: Option<String>,
}

/// Lists, or prints.
///
/// # Errors
/// When there is no profile of that name.
pub(super) fn run(args: &ProfilesArgs) -> anyhow::Result<Exit> {
    match args.name.as_deref() {
        None => say::result(&list())?,
        Some(name) => say::result(text(name).exit_with(Exit::Usage)?)?,
    }
    Ok(Exit::Ok)
}

fn list() -> String {
    let widest = builtins().map(|(name, _)| name.len()).max().unwrap_or_default();
    let lines = builtins().map(|(name, sentence)| format!("{name:widest$}  {sentence}\n"));
    lines.collect()
}

fn text(name: &str) -> anyhow::Result<&'static str> {
    builtin(name).ok_or_else(|| {
        let names: Vec<&str> = builtins().map(|(name, _)| name).collect();
        anyhow::anyhow!("there is no built-in profile `{name}`: take one of {}", names.join(", "))
    })
}
