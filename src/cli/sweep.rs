//! `gspbench sweep`: the load raised step by step, on every arm.

use std::sync::Arc;

use super::climb::{Climb, Done};
use super::exit::{Exit, ExitWith as _};
use super::output_args::OutputArgs;
use super::spec_args::SpecArgs;
use super::{descriptors, interrupt, say};
use crate::experiment::{Axis, Ladder, Levels};
use crate::profile::{Gaps, History, Override, Pacing, ProfileError, RunSpec, run_spec, sweep_arms};
use crate::store::{Sweep, SweepDir};
use crate::{render, workload};

/// Raise the load step by step on every arm: throughput, TTFT and TPOT by load, goodput under --goodput, and the highest
/// load that holds it. Without a list: 1, 2, 4, … sessions in flight until an arm is saturated or misses its objectives
#[derive(Debug, clap::Args)]
pub(super) struct SweepArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// An arm, as `NAME=TARGET`; one is enough. Replaces the profile's arms
    #[arg(long, value_name = "NAME=TARGET", help_heading = "Sweep")]
    arm: Vec<String>,
    /// Sessions in flight of each step, ascending; every one is run. `double` is the default
    #[arg(long, value_name = "N,N,…|double", help_heading = "Sweep", conflicts_with = "rates")]
    concurrencies: Option<String>,
    /// Sessions a second of each step, ascending; every one is run. `double`: 1, 2, 4, … until saturated. No cap holds
    /// sessions back
    #[arg(long, value_name = "R,R,…|double", help_heading = "Sweep")]
    rates: Option<String>,
    /// Share of good turns at which a step holds the limits of --goodput [default: 0.9]
    #[arg(long, value_name = "SHARE", help_heading = "Sweep")]
    attainment: Option<f64>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The profile that runs when none is named.
const DEFAULT_PROFILE: &str = "quick";
/// Nine of ten turns are served in time.
const ATTAINMENT: f64 = 0.9;
/// The word for a ladder without a list.
const DOUBLE: &str = "double";

/// Runs a sweep.
///
/// # Errors
/// See [`super::Exit`].
pub(super) fn run(args: &SweepArgs) -> anyhow::Result<Exit> {
    let mut spec_args = args.spec.clone();
    spec_args.also(args.arm.iter().cloned().map(Override::Arm));
    let given = spec_args.load(Some(DEFAULT_PROFILE))?;
    let spec = run_spec(&given.profile, &given.context(true))?;
    let arms = sweep_arms(&given.profile)?;
    let ladder = args.ladder(&spec, arms.len())?;
    let (spec, lifted) = unloaded(spec, &ladder)?;
    let targets: Vec<_> = arms.iter().map(|arm| &arm.target).collect();
    let moot = super::start::check_targets(&targets, &spec, &given.profile.sim)?;
    let vocabulary = Arc::new(super::facts::vocabulary(&spec).exit_with(Exit::Usage)?);
    let highest = ladder.levels.level(ladder.levels.count()).unwrap_or(1.0);
    let highest = loaded(&spec, ladder.axis, highest);
    let plan = workload::plan(&highest, &vocabulary).exit_with(Exit::Usage)?;
    descriptors::reserve(&highest, &plan)?;
    let lines = args.output.lines()?;
    let dir = SweepDir::create(args.output.out.as_deref(), args.output.label(&spec.name)).exit_with(Exit::Usage)?;
    say::notes(&spec_args.notes);
    say::notes(&moot);
    say::notes(&lifted);
    say::note(&super::facts::headline(&highest, &plan));
    if spec.slo.is_none() {
        say::note("note: without --goodput there is no highest load that holds, and no goodput");
    }
    let (spec, arms, ladder) = (&spec, &arms, &ladder);
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
            shows_progress: !args.output.disable_tqdm,
            stop: &stop,
        };
        climb.run().await
    });
    // Targets that were never reached leave nothing behind.
    let Done { sweep, notes, exit, failure } = done.inspect_err(|_| dir.remove_if_empty())?;
    write(&dir, &sweep)?;
    say::result(&render::terminal(&render::sweep(&sweep.curves)))?;
    say::notes(&notes);
    say::note(&format!("results: {}", dir.path().display()));
    failure.map_or(Ok(exit), Err)
}

fn write(dir: &SweepDir, sweep: &Sweep) -> anyhow::Result<()> {
    dir.write_markdown(&render::markdown(&render::sweep(&sweep.curves)))?;
    Ok(dir.write_html(&render::html_sweep(&sweep.curves))?)
}

impl SweepArgs {
    fn ladder(&self, spec: &RunSpec, arms: usize) -> anyhow::Result<Ladder> {
        let (axis, flag, given) = match (&self.concurrencies, &self.rates) {
            (_, Some(rates)) => (Axis::Rate, "--rates", rates.as_str()),
            (given, None) => (Axis::Concurrency, "--concurrencies", given.as_deref().unwrap_or(DOUBLE)),
        };
        let sessions = f64::from(spec.workload.groups.get()) * f64::from(spec.workload.sessions_per_group.get());
        let levels = match given {
            DOUBLE => Levels::Doubling { most: if axis == Axis::Concurrency { sessions } else { f64::MAX } },
            list => listed(axis, list).map_err(|why| ProfileError::value(flag, why))?,
        };
        if let (Axis::Concurrency, Levels::Given(levels)) = (axis, &levels)
            && let Some(level) = levels.last().filter(|level| **level > sessions)
        {
            let why = format!(
                "{level} sessions can never be in flight at once, since the plan has {sessions}: give less, or more \
                 sessions with --gsp-prompts-per-group"
            );
            return Err(ProfileError::value(flag, why).into());
        }
        Ok(Ladder { axis, levels, attainment: self.attainment(spec)?, arms })
    }

    fn attainment(&self, spec: &RunSpec) -> Result<Option<f64>, ProfileError> {
        let wrong = |why: String| Err(ProfileError::value("--attainment", why));
        match self.attainment {
            Some(_) if spec.slo.is_none() => {
                wrong("it is a share of good turns, and nothing says which are good: give --goodput ttft:MS".to_owned())
            }
            Some(share) if !(share > 0.0 && share <= 1.0) => {
                wrong(format!("{share}: give a share of turns, above 0 and at most 1, such as 0.9"))
            }
            given => Ok(spec.slo.map(|_| given.unwrap_or(ATTAINMENT))),
        }
    }
}

fn listed(axis: Axis, list: &str) -> Result<Levels, String> {
    let number = |text: &str| {
        text.trim().parse::<f64>().map_err(|_| format!("`{text}` is no number: give a list as 1,2,4, or `{DOUBLE}`"))
    };
    let levels = list.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
    Levels::given(axis, &levels)
}

/// The specification without a load of its own, and what was lifted for that.
fn unloaded(spec: RunSpec, ladder: &Ladder) -> Result<(RunSpec, Vec<String>), ProfileError> {
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
    Ok((spec, lifted.map(str::to_owned).into_iter().collect()))
}

/// The run at one load.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the ladder has checked the level")]
pub(super) fn loaded(run: &RunSpec, axis: Axis, level: f64) -> RunSpec {
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
