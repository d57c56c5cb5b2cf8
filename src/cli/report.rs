//! `gspbench report`: renders a saved run or experiment again, finished or not.

use std::path::{Path, PathBuf};

use super::block::request_log::{self, RequestLogArgs};
use super::exit::{Ended, Exit, ExitWith as _};
use super::export::ExportArgs;
use super::say;
use crate::report::{Accumulator, Closing, Context, RunReport, State, Survivors, Verdict};
use crate::store::{self, RunDir, StoreError, SweepState};
use crate::units::plural;

/// Render a saved run or experiment
#[derive(Debug, clap::Args)]
pub(super) struct ReportArgs {
    /// The directory that the run or the experiment printed at its end
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    #[command(flatten)]
    export: ExportArgs,
    #[command(flatten)]
    request_log: RequestLogArgs,
}

/// Renders what is there; a void run, or arms that cannot be compared, end with their own exit code.
///
/// # Errors
/// When the directory holds nothing that this program can read.
pub(super) fn run(args: &ReportArgs) -> anyhow::Result<Exit> {
    if let Err(StoreError::IsExperiment(dir)) = store::read_run(&args.dir) {
        if args.request_log.is_given() {
            let why = "--export-file: a log is joined with one run; give the directory of a block";
            return Err(Ended::new(Exit::Usage, why).into());
        }
        return super::compare::experiment_as(&dir, &args.export);
    }
    if let Err(StoreError::IsSweep(dir)) = store::read_run(&args.dir) {
        return sweep(&dir, args);
    }
    let mut report = load(&args.dir)?;
    if args.request_log.is_given() {
        if report.state == State::Running {
            let why = "--export-file: this run has not ended, or was killed; a log is joined with a finished run";
            return Err(Ended::new(Exit::Usage, why).into());
        }
        let joined = request_log::join(&RunDir::of_finished(&args.dir), &args.request_log, report)?;
        say::note(&joined.note);
        report = joined.report;
    }
    args.export.run(&args.dir, &report)?;
    Ok(match report.validity.verdict {
        Verdict::Valid => Exit::Ok,
        Verdict::Void => Exit::Void,
    })
}

/// A sweep as far as it came.
fn sweep(dir: &Path, args: &ReportArgs) -> anyhow::Result<Exit> {
    if args.request_log.is_given() {
        let why = "--export-file: a log is joined with one run; give the directory of a step";
        return Err(Ended::new(Exit::Usage, why).into());
    }
    let sweep = store::read_sweep(dir).exit_with(Exit::Usage)?;
    if sweep.state == SweepState::Running {
        say::note(&format!("note: `{}` did not end, or still runs: these are the steps that have", dir.display()));
    }
    if sweep.state != SweepState::Complete {
        say::note(&format!("it goes on with `gspbench sweep --resume {}`", dir.display()));
    }
    args.export.sweep(dir, &sweep)?;
    Ok(Exit::Ok)
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
    let records = || store::read_records(dir).exit_with(Exit::Usage);
    let mut survivors = Survivors::new(&saved.manifest.spec);
    for turn in records()? {
        survivors.add(&turn.exit_with(Exit::Usage)?);
    }
    let mut accumulator = Accumulator::new(Context::of(saved));
    accumulator.mark(survivors.marks(saved.workload.sessions));
    let mut turns = 0_u64;
    for turn in records()? {
        accumulator.add(&turn.exit_with(Exit::Usage)?);
        turns += 1;
    }
    say::note(&format!(
        "note: `{}` did not end, or still runs: these numbers are made from {} in requests.jsonl; server counters are \
         missing, and so are ITL and ICL unless it ran with --output-details",
        path.display(),
        plural(turns, "turn")
    ));
    Ok(accumulator.finish(Closing::plain(State::Running)))
}
