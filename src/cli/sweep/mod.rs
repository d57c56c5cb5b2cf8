//! `gspbench sweep`: the load raised step by step, on every arm.

mod climb;
mod resume;

use std::path::PathBuf;
use std::sync::Arc;

use super::{descriptors, interrupt, say};
use crate::cli::args::ladder::LadderArgs;
use crate::cli::args::output::OutputArgs;
use crate::cli::args::spec::SpecArgs;
use crate::cli::exit::{Exit, ExitWith as _};
use crate::cli::resume::stored_seed;
use crate::experiment::{Axis, Ladder};
use crate::profile::{
    self, Context, Gaps, History, Override, Pacing, ProfileError, RunSpec, raw, run_spec, sweep_arms,
};
use crate::store::{self, Sweep, SweepDir};
use crate::{render, workload};
use climb::{Climb, Done};
use resume::{Ascent, Before};

/// Raise the load step by step on every arm: throughput, TTFT and TPOT by load, goodput under --goodput, and the highest
/// load that holds it. Without a list: 1, 2, 4, … sessions in flight until an arm is saturated or misses its objectives
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// An arm, as `NAME=TARGET`; one is enough. Replaces the profile's arms
    #[arg(long, value_name = "NAME=TARGET", help_heading = "Sweep")]
    arm: Vec<String>,
    #[command(flatten)]
    ladder: LadderArgs,
    /// Go on with the sweep in this directory: steps that have ended are kept. Give the same command line again, or nothing
    /// else
    #[arg(long, value_name = "DIR", help_heading = "Sweep", conflicts_with = "out")]
    resume: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The profile that runs when none is named.
const DEFAULT_PROFILE: &str = "quick";

/// What is to be run, and with which words of the command line.
struct Asked {
    ascent: Ascent,
    sim: raw::Sim,
    notes: Vec<String>,
}

/// Runs a sweep.
///
/// # Errors
/// See [`super::Exit`].
pub(crate) fn run(args: &SweepArgs) -> anyhow::Result<Exit> {
    let resumed = args.resume.as_deref().map(store::read_sweep).transpose().exit_with(Exit::Usage)?;
    let Asked { ascent, sim, mut notes } = asked(args, resumed.as_ref())?;
    if let Some((dir, resumed)) = args.resume.as_ref().zip(resumed.as_ref()) {
        resume::check(dir, resumed, &ascent)?;
    }
    let Ascent { spec, arms, ladder } = &ascent;
    let targets: Vec<_> = arms.iter().map(|arm| &arm.target).collect();
    notes.extend(crate::cli::site::start::check_targets(&targets, spec, &sim)?);
    notes.extend(lifted(spec, ladder)?);
    let vocabulary = Arc::new(crate::cli::facts::vocabulary(spec).exit_with(Exit::Usage)?);
    let highest = ladder.levels.level(ladder.levels.count()).unwrap_or(1.0);
    let highest = loaded(spec, ladder.axis, highest);
    let plan = workload::plan(&highest, &vocabulary).exit_with(Exit::Usage)?;
    descriptors::reserve(&highest, &plan)?;
    let lines = args.output.lines()?;
    let (dir, before) = opened(args, &ascent)?;
    say::notes(&notes);
    say::note(&crate::cli::facts::headline(&highest, &plan));
    if spec.slo.is_none() {
        say::note("note: without --goodput there is no highest load that holds, and no goodput");
    }
    let done = interrupt::block_on(args.output.grace, |stop| async {
        let stop = stop;
        let climb = Climb {
            spec,
            arms,
            ladder,
            vocabulary: &vocabulary,
            dir: &dir,
            lines: &lines,
            ready_timeout: args.output.ready_timeout(),
            detail: args.output.detail(),
            form: args.output.progress(),
            stop: &stop,
        };
        climb.run(before).await
    });
    // Targets that were never reached leave nothing behind.
    let Done { sweep, notes, exit, failure } = done.inspect_err(|_| dir.remove_if_empty())?;
    write(&dir, &sweep)?;
    say::result(&render::terminal(&render::sweep(&sweep.curves)))?;
    say::notes(&notes);
    if exit == Exit::Interrupted {
        say::note(&format!("interrupted: go on with `gspbench sweep --resume {}`", dir.path().display()));
    }
    say::note(&format!("results: {}", dir.path().display()));
    failure.map_or(Ok(exit), Err)
}

/// The directory of the sweep, and what an earlier start has left in it.
fn opened(args: &SweepArgs, ascent: &Ascent) -> anyhow::Result<(SweepDir, Before)> {
    let Some(path) = &args.resume else {
        let label = args.output.label(&ascent.spec.name);
        let dir = SweepDir::create(args.output.out.as_deref(), label).exit_with(Exit::Usage)?;
        return Ok((dir, Before::nothing(ascent)));
    };
    let dir = SweepDir::open(path).exit_with(Exit::Usage)?;
    // Read anew under the lock: another program may have gone on with it since.
    let resumed = store::read_sweep(path).exit_with(Exit::Usage)?;
    Ok((dir, Before::read(path, resumed, ascent)?))
}

/// What the command line asks for; of a resumed sweep, where the command line says nothing, what it began with.
fn asked(args: &SweepArgs, resumed: Option<&Sweep>) -> anyhow::Result<Asked> {
    let is_bare = args.spec.is_bare() && args.arm.is_empty() && args.ladder.is_empty();
    if let Some(resumed) = resumed.filter(|_| is_bare) {
        return Ok(Asked { ascent: resume::stored(resumed)?, sim: raw::Sim::default(), notes: vec![] });
    }
    let mut spec_args = args.spec.clone();
    spec_args.also(args.arm.iter().cloned().map(Override::Arm));
    let given = spec_args.load(Some(DEFAULT_PROFILE))?;
    let context = given.context(true);
    let drawn_seed = resumed.and_then(|resumed| stored_seed(&resumed.spec)).unwrap_or(context.drawn_seed);
    let spec = run_spec(&given.profile, &Context { drawn_seed, ..context }).map_err(|why| given.by_flag(why))?;
    let arms = sweep_arms(&given.profile)?;
    let ladder = args.ladder.ladder(&spec, arms.len())?;
    let mut notes = spec_args.notes;
    if !profile::gates(&given.profile)?.is_empty() {
        let left = "`experiment.fail_if` of the profile is left to `run`, `ab` and `compare`: a sweep judges no gates";
        notes.push(left.to_owned());
    }
    Ok(Asked { ascent: Ascent { spec, arms, ladder }, sim: given.profile.sim, notes })
}

fn write(dir: &SweepDir, sweep: &Sweep) -> anyhow::Result<()> {
    dir.write_markdown(&render::markdown(&render::sweep(&sweep.curves)))?;
    Ok(dir.write_html(&render::html_sweep(&sweep.curves))?)
}

/// What the specification says of a load of its own, which gives way to the ladder.
///
/// # Errors
/// When it says what would hold a step back, or give steps unequal prompts.
fn lifted(spec: &RunSpec, ladder: &Ladder) -> Result<Option<String>, ProfileError> {
    if spec.load.max_turns_in_flight.is_some() {
        let why = "it would hold back the load that is to be raised: leave it out";
        return Err(ProfileError::value("load.max_turns_in_flight", why));
    }
    if spec.workload.history == History::Recorded {
        let why =
            "a sweep records none: give \"synthetic\", so that every step and arm has the same prompts, or \"real\"";
        return Err(ProfileError::value("workload.history", why));
    }
    let lifted = match (ladder.axis, spec.load.pacing) {
        (Axis::Concurrency, Pacing::Open { .. }) => Some("`load.rate` gives way to the ladder of sessions in flight"),
        (Axis::Rate, Pacing::Closed { .. } | Pacing::Open { sessions: Some(_), .. }) => Some(
            "sessions start on time, however many are in flight: `load.max_concurrency` would hide that a server falls behind",
        ),
        (Axis::Concurrency, Pacing::Closed { .. }) | (Axis::Rate, Pacing::Open { sessions: None, .. }) => None,
    };
    Ok(lifted.map(str::to_owned))
}

/// The run at one load.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the ladder has checked the level")]
pub(crate) fn loaded(run: &RunSpec, axis: Axis, level: f64) -> RunSpec {
    let mut spec = run.clone();
    spec.load.pacing = match (axis, run.load.pacing) {
        (Axis::Concurrency, _) => {
            let sessions = std::num::NonZeroU32::new(level as u32).unwrap_or(std::num::NonZeroU32::MIN);
            Pacing::Closed { sessions }
        }
        (Axis::Rate, Pacing::Open { gaps, .. }) => Pacing::Open { per_second: level, gaps, sessions: None },
        (Axis::Rate, Pacing::Closed { .. }) => {
            Pacing::Open { per_second: level, gaps: Gaps::Gamma(1.0), sessions: None }
        }
    };
    spec
}
