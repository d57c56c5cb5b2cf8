//! `gspbench report`: renders a saved run again, finished or not.

use std::path::{Path, PathBuf};

use super::exit::{Ended, Exit, ExitWith as _};
use super::export::{self, ExportArgs};
use super::say;
use crate::report::{Accumulator, Closing, Context, RunReport, State, Verdict};
use crate::store::RunDir;
use crate::{render, store};

/// Render a saved run
#[derive(Debug, clap::Args)]
pub(super) struct ReportArgs {
    /// The directory that the run printed at its end
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    export: ExportArgs,
    /// How it is shown
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The form of a document on standard output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// For a terminal
    #[default]
    Table,
    /// For a pull request on GitHub
    Markdown,
    /// The file itself
    Json,
}

/// Renders the run; a void one ends with its own exit code.
///
/// # Errors
/// When the directory holds no run that this program can read.
pub(super) fn run(args: &ReportArgs) -> anyhow::Result<Exit> {
    let mut report = load(&args.dir)?;
    if args.export.is_given() {
        if report.state == State::Running {
            let why = "--export-file: this run has not ended, or was killed; a log is joined with a finished run";
            return Err(Ended::new(Exit::Usage, why).into());
        }
        let joined = export::join(&RunDir::of_finished(&args.dir), &args.export, report)?;
        say::note(&joined.note);
        report = joined.report;
    }
    match args.format {
        Format::Table => say::result(&render::terminal(&render::run(&report)))?,
        Format::Markdown => say::result(&render::markdown(&render::run(&report)))?,
        Format::Json => say::json(&serde_json::to_string_pretty(&report)?)?,
    }
    Ok(match report.validity.verdict {
        Verdict::Valid => Exit::Ok,
        Verdict::Void => Exit::Void,
    })
}

/// A saved report. Of a run that was killed, or still runs, it is made again from the turns on file, and that is said.
///
/// # Errors
/// When the directory holds no run that this program can read.
pub(super) fn load(path: &Path) -> anyhow::Result<RunReport> {
    let report = store::read_run(path).exit_with(Exit::Usage)?;
    match report.state {
        State::Complete | State::Interrupted => Ok(report),
        State::Running => rebuild(path, &report),
    }
}

fn rebuild(path: &Path, saved: &RunReport) -> anyhow::Result<RunReport> {
    let dir = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let mut accumulator = Accumulator::new(Context::of(saved));
    let mut turns = 0_u64;
    for turn in store::read_records(dir).exit_with(Exit::Usage)? {
        accumulator.add(&turn.exit_with(Exit::Usage)?);
        turns += 1;
    }
    say::note(&format!(
        "note: `{}` did not end, or still runs: these numbers are made from the {turns} turns in requests.jsonl; server \
         counters are missing, and so are ITL and ICL unless it ran with --output-details",
        path.display()
    ));
    Ok(accumulator.finish(Closing::plain(State::Running)))
}
