//! `gspbench guard`: not for people. The process between `ab` and a server that it launches; see [`target::guard`].

use std::path::PathBuf;
use std::time::Duration;

use super::Exit;
use crate::target;

/// Holds the process group of one command, and ends it when standard input closes.
#[derive(Debug, clap::Args)]
pub(super) struct GuardArgs {
    /// From SIGTERM to SIGKILL, in milliseconds
    #[arg(long, value_name = "MS")]
    stop_timeout_ms: u64,
    /// Gets the command's output
    #[arg(long, value_name = "FILE")]
    log: PathBuf,
    /// For `sh -c`
    #[arg(value_name = "COMMAND")]
    command: String,
}

/// Guards until the command's whole group has ended.
///
/// # Errors
/// When it cannot be started, or outlives SIGKILL.
pub(super) fn run(args: &GuardArgs) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stop_timeout = Duration::from_millis(args.stop_timeout_ms);
    let guarded = runtime.block_on(target::guard(&args.command, &args.log, stop_timeout));
    // Its thread may still wait for standard input.
    runtime.shutdown_background();
    guarded?;
    Ok(Exit::Ok)
}
