//! `gspbench ab`: arms in interleaved rounds, then compared.

mod resume;
mod trial;

use std::path::PathBuf;
use std::sync::Arc;

use super::{descriptors, interrupt, say};
use crate::cli::args::gates::GateArgs;
use crate::cli::args::output::OutputArgs;
use crate::cli::args::spec::SpecArgs;
use crate::cli::exit::{Exit, ExitWith as _};
use crate::cli::resume::stored_seed;
use crate::cli::site::start;
use crate::compare::{Comparison, Planned, Settings, compare, planned_doubt, planned_obstacle};
use crate::profile::{Context, ExperimentSpec, Override, experiment_spec, raw};
use crate::report::metric;
use crate::store::{self, Experiment, ExperimentDir};
use crate::{render, workload};
use resume::Before;
use trial::{Done, Trial, worse};

/// Run arms in interleaved rounds and compare them; without arguments, two simulated servers
#[derive(Debug, clap::Args)]
pub(crate) struct AbArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// An arm, NAME=TARGET; the first is the baseline. TARGET as in `gspbench run`, followed by any of ;keys=none
    /// ;keys=per_turn ;prompts=zero_reuse ;metrics=URL ;control. Replaces the profile's arms
    #[arg(long, value_name = "NAME=TARGET", help_heading = "Experiment")]
    arm: Vec<String>,
    /// How often every arm runs; every second round is reversed, so that an even number balances what drifts
    #[arg(long, value_name = "N", help_heading = "Experiment")]
    rounds: Option<u32>,
    /// Judge the arms even if they did not run the same work; the differences are shown
    #[arg(long, alias = "allow_mismatch", help_heading = "Experiment")]
    allow_mismatch: bool,
    /// Compare the baseline with itself: what lies between the two is noise. Takes one --arm at most
    #[arg(long, help_heading = "Experiment")]
    aa: bool,
    /// Go on with the experiment in this directory: blocks that have ended are kept. Give the same command line again, or
    /// nothing else
    #[arg(long, value_name = "DIR", help_heading = "Experiment", conflicts_with = "out")]
    resume: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    gates: GateArgs,
}

/// The profile that runs when none is named.
const DEFAULT_PROFILE: &str = "quick";
/// The name of a baseline's second self begins with its first and ends so.
const AGAIN: &str = ".again";

/// What is to be run, and with which words of the command line.
struct Asked {
    spec: ExperimentSpec,
    sim: raw::Sim,
    notes: Vec<String>,
}

/// Runs an experiment.
///
/// # Errors
/// See [`super::Exit`].
pub(crate) fn run(args: &AbArgs) -> anyhow::Result<Exit> {
    let resumed = args.resume.as_deref().map(store::read_experiment).transpose().exit_with(Exit::Usage)?;
    let Asked { spec, sim, mut notes } = asked(args, resumed.as_ref())?;
    if let Some((dir, resumed)) = args.resume.as_ref().zip(resumed.as_ref()) {
        resume::check(dir, resumed, &spec)?;
    }
    if metric(&spec.primary).is_none() {
        return Err(anyhow::Error::msg(crate::cli::facts::unknown_metric(&spec.primary))).exit_with(Exit::Usage);
    }
    let targets: Vec<_> = spec.arms.iter().map(|arm| &arm.target).collect();
    notes.extend(start::check_targets(&targets, &spec.run, &sim)?);
    let vocabulary = Arc::new(crate::cli::facts::vocabulary(&spec.run).exit_with(Exit::Usage)?);
    let plan = workload::plan(&spec.run, &vocabulary).exit_with(Exit::Usage)?;
    descriptors::reserve(&spec.run, &plan)?;
    let lines = args.output.lines()?;
    let (dir, before) = opened(args, &spec)?;
    say::notes(&notes);
    say::note(&crate::cli::facts::headline(&spec.run, &plan));
    if let Some(doubt) = planned_doubt(&spec.arms[0].name, &spec.arms[1].name, spec.rounds.get()) {
        say::note(&format!("warning: {doubt}"));
    }
    let totals = plan.totals();
    let planned = Planned { rounds: spec.rounds.get(), turns: totals.turns, output_tokens: totals.output_tokens };
    let obstacles = spec.fail_if.iter().filter_map(|gate| planned_obstacle(gate, planned, &spec.primary));
    obstacles.for_each(|why| say::note(&format!("warning: {why}")));
    let done = interrupt::block_on(args.output.grace, |stop| async {
        // Moved in, while all else is lent.
        let stop = stop;
        let trial = Trial {
            spec: &spec,
            vocabulary: &vocabulary,
            dir: &dir,
            ready_timeout: args.output.ready_timeout(),
            detail: args.output.detail(),
            form: args.output.progress(),
            lines: &lines,
            stop: &stop,
        };
        trial.run(before).await
    });
    // Targets that were never reached leave nothing behind.
    let done = done.inspect_err(|_| dir.remove_if_empty())?;
    let mut exit = done.exit;
    if let Some(comparison) = conclude(&done, &spec, args.allow_mismatch, &dir)? {
        say::result(&render::terminal(&render::comparison(&comparison)))?;
        exit = worse(exit, crate::cli::compare::exit_of(&comparison));
    }
    say::notes(&done.notes);
    say::note(&format!("results: {}", dir.path().display()));
    done.failure.map_or(Ok(exit), Err)
}

/// The directory of the experiment, and what an earlier start has left in it.
fn opened(args: &AbArgs, spec: &ExperimentSpec) -> anyhow::Result<(ExperimentDir, Before)> {
    let Some(path) = &args.resume else {
        let label = args.output.label(&spec.run.name);
        let dir = ExperimentDir::create(args.output.out.as_deref(), label).exit_with(Exit::Usage)?;
        return Ok((dir, Before::default()));
    };
    let dir = ExperimentDir::open(path).exit_with(Exit::Usage)?;
    // Read anew under the lock: another program may have gone on with it since.
    let resumed = store::read_experiment(path).exit_with(Exit::Usage)?;
    Ok((dir, resume::before(path, resumed, spec)?))
}

/// The specification of the command line; of a resumed experiment, where the command line says nothing.
fn asked(args: &AbArgs, resumed: Option<&Experiment>) -> anyhow::Result<Asked> {
    let is_bare =
        args.spec.is_bare() && args.gates.is_empty() && args.arm.is_empty() && args.rounds.is_none() && !args.aa;
    if let Some(resumed) = resumed.filter(|_| is_bare) {
        let spec = resume::stored_spec(resumed)?;
        let fail_if = args.gates.beside(spec.fail_if)?;
        return Ok(Asked { spec: ExperimentSpec { fail_if, ..spec }, sim: raw::Sim::default(), notes: vec![] });
    }
    let mut spec_args = args.spec.clone();
    spec_args.also(args.arm.iter().cloned().map(Override::Arm));
    spec_args.also(args.rounds.map(|rounds| Override::Set {
        flag: "--rounds".to_owned(),
        key: "experiment.rounds".to_owned(),
        value: i64::from(rounds).into(),
    }));
    let mut loaded = spec_args.load(Some(DEFAULT_PROFILE))?;
    let mut notes = spec_args.notes;
    if args.aa {
        if args.arm.len() > 1 {
            let why = "--aa runs one arm against itself: give one --arm";
            return Err(anyhow::Error::msg(why)).exit_with(Exit::Usage);
        }
        notes.extend(against_itself(&mut loaded.profile.arm));
    }
    let context = loaded.context(true);
    let drawn_seed = resumed.and_then(|resumed| stored_seed(&resumed.spec)).unwrap_or(context.drawn_seed);
    let spec =
        experiment_spec(&loaded.profile, &Context { drawn_seed, ..context }).map_err(|why| loaded.by_flag(why))?;
    let fail_if = args.gates.beside(spec.fail_if)?;
    Ok(Asked { spec: ExperimentSpec { aa: args.aa, fail_if, ..spec }, sim: loaded.profile.sim, notes })
}

/// Leaves the baseline, twice. Says which arms of the profile do not run.
fn against_itself(arms: &mut Vec<raw::Arm>) -> Option<String> {
    let left_out: Vec<_> = arms.drain(arms.len().min(1)..).filter_map(|arm| arm.name).collect();
    let again = arms
        .first()
        .map(|arm| raw::Arm { name: arm.name.as_ref().map(|name| format!("{name}{AGAIN}")), ..arm.clone() });
    arms.extend(again);
    (!left_out.is_empty()).then(|| format!("--aa runs the baseline against itself, and not {}", left_out.join(", ")))
}

/// Compares what has run and writes it; nothing when an interrupt or a failure left no round with two arms.
fn conclude(
    done: &Done,
    spec: &ExperimentSpec,
    allow_mismatch: bool,
    dir: &ExperimentDir,
) -> anyhow::Result<Option<Comparison>> {
    let experiment = store::read_experiment(dir.path())?;
    let interrupted = crate::cli::compare::interrupted(dir.path(), &experiment);
    let settings = Settings { allow_mismatch, interrupted, ..crate::cli::compare::settings(spec) };
    let comparison = match compare(&done.results, &settings, &crate::cli::compare::turns) {
        Err(_) if done.exit == Exit::Interrupted || done.failure.is_some() => return Ok(None),
        compared => compared.exit_with(Exit::Void)?,
    };
    dir.write_comparison(&comparison)?;
    dir.write_markdown(&render::markdown(&render::comparison(&comparison)))?;
    dir.write_html(&render::html_comparison(&comparison, &done.results))?;
    Ok(Some(comparison))
}
