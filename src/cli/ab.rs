//! `gspbench ab`: arms in interleaved rounds, then compared.

use std::sync::Arc;

use anyhow::Context as _;

use super::block::{Block, Measured};
use super::exit::{Exit, ExitWith as _};
use super::gates::GateArgs;
use super::output_args::{Lines, OutputArgs};
use super::run::exit_of;
use super::site::{Opening, Site};
use super::spec_args::SpecArgs;
use super::{descriptors, interrupt, say};
use crate::compare::{BlockResult, Comparison, Settings, compare, planned_doubt};
use crate::drive::Stop;
use crate::experiment::{self, offset};
use crate::profile::{ExperimentSpec, Override, RunSpec, experiment_spec};
use crate::report::{State, Verdict, metric, public_experiment};
use crate::store::{self, BlockState, Experiment, ExperimentDir};
use crate::text::Vocabulary;
use crate::{render, workload};

/// Run arms in interleaved rounds and compare them; without arguments, two simulated servers
#[derive(Debug, clap::Args)]
pub(super) struct AbArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// An arm, as `NAME=TARGET`, or `NAME=TARGET;control`; the first is the baseline. Replaces the profile's arms
    #[arg(long, value_name = "NAME=TARGET", help_heading = "Experiment")]
    arm: Vec<String>,
    /// How often every arm runs; every second round is reversed
    #[arg(long, value_name = "N", help_heading = "Experiment")]
    rounds: Option<u32>,
    /// Judge the arms even if they did not run the same work; the differences are shown
    #[arg(long, alias = "allow_mismatch", help_heading = "Experiment")]
    allow_mismatch: bool,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    gates: GateArgs,
}

/// The profile that runs when none is named.
const DEFAULT_PROFILE: &str = "quick";

/// Runs an experiment.
///
/// # Errors
/// See [`super::Exit`].
pub(super) fn run(args: &AbArgs) -> anyhow::Result<Exit> {
    let mut spec_args = args.spec.clone();
    spec_args.also(args.arm.iter().cloned().map(Override::Arm));
    spec_args.also(args.rounds.map(|rounds| Override::Set {
        flag: "--rounds".to_owned(),
        key: "experiment.rounds".to_owned(),
        value: i64::from(rounds).into(),
    }));
    let loaded = spec_args.load(Some(DEFAULT_PROFILE))?;
    let mut spec = experiment_spec(&loaded.profile, &loaded.context(true))?;
    spec.fail_if = args.gates.beside(spec.fail_if)?;
    let spec = spec;
    if metric(&spec.primary).is_none() {
        return Err(anyhow::Error::msg(super::facts::unknown_metric(&spec.primary))).exit_with(Exit::Usage);
    }
    let targets: Vec<_> = spec.arms.iter().map(|arm| &arm.target).collect();
    let moot = super::site::check_targets(&targets, &spec.run, &loaded.profile.sim)?;
    let vocabulary = Arc::new(super::facts::vocabulary(&spec.run).exit_with(Exit::Usage)?);
    let plan = workload::plan(&spec.run, &vocabulary).exit_with(Exit::Usage)?;
    descriptors::reserve(&spec.run, &plan)?;
    let lines = args.output.lines()?;
    let dir =
        ExperimentDir::create(args.output.out.as_deref(), args.output.label(&spec.run.name)).exit_with(Exit::Usage)?;
    say::notes(&spec_args.notes);
    say::notes(&moot);
    say::note(&super::facts::headline(&spec.run, &plan));
    if let Some(doubt) = planned_doubt(&spec.arms[0].name, &spec.arms[1].name, spec.rounds.get()) {
        say::note(&format!("warning: {doubt}"));
    }
    let trial = Trial { args, spec: &spec, vocabulary: &vocabulary, dir: &dir, lines: &lines };
    let done = interrupt::block_on(args.output.grace, |stop| async move { trial.run(&plan, &stop).await });
    // Targets that were never reached leave nothing behind.
    let done = done.inspect_err(|_| dir.remove_if_empty())?;
    let mut exit = done.exit;
    if let Some(comparison) = conclude(&done, &spec, args.allow_mismatch, &dir)? {
        say::result(&render::terminal(&render::comparison(&comparison)))?;
        exit = worse(exit, super::compare::exit_of(&comparison));
    }
    say::notes(&done.notes);
    say::note(&format!("results: {}", dir.path().display()));
    done.failure.map_or(Ok(exit), Err)
}

/// An experiment about to run.
struct Trial<'a> {
    args: &'a AbArgs,
    spec: &'a ExperimentSpec,
    vocabulary: &'a Arc<Vocabulary>,
    dir: &'a ExperimentDir,
    lines: &'a Lines<'a>,
}

/// The blocks that have run.
struct Done {
    results: Vec<BlockResult>,
    notes: Vec<String>,
    exit: Exit,
    /// Why a block could not be run; none came after it.
    failure: Option<anyhow::Error>,
}

impl Trial<'_> {
    async fn run(&self, plan: &workload::Plan, stop: &Stop) -> anyhow::Result<Done> {
        let mut sites = Vec::new();
        for arm in &self.spec.arms {
            let opening = Opening {
                spec: &self.spec.run,
                vocabulary: self.vocabulary,
                ready_timeout: self.args.output.ready_timeout(),
            };
            match interrupt::unless_stopped(stop, Site::open(&arm.target, opening, plan)).await {
                Ok(site) => sites.push(site),
                Err(why) => {
                    close(sites).await;
                    return Err(why.context(format!("arm `{}`", arm.name)));
                }
            }
        }
        let done = self.rounds(&sites, stop).await;
        close(sites).await;
        done
    }

    async fn rounds(&self, sites: &[Site], stop: &Stop) -> anyhow::Result<Done> {
        let mut done = Done { results: vec![], notes: vec![], exit: Exit::Ok, failure: None };
        let blocks: Vec<_> = experiment::blocks(self.spec.rounds.get(), sites.len()).collect();
        let mut file = self.file(&blocks)?;
        self.dir.write_experiment(&file)?;
        for (at, block) in blocks.iter().enumerate() {
            let dir = self.dir.block_dir(block.round, &self.spec.arms[block.arm].name)?;
            file.blocks[at].dir = self.dir.relative(&dir);
            file.blocks[at].state = BlockState::Running;
            self.dir.write_experiment(&file)?;
            let Measured { report, notes } = match self.block(*block, &sites[block.arm], stop, &dir).await {
                Ok(measured) => measured,
                // What the other blocks have measured stands.
                Err(why) => {
                    file.blocks[at].state = BlockState::Failed;
                    file.blocks[at].reason = Some(format!("{why:#}"));
                    self.dir.write_experiment(&file)?;
                    done.failure = Some(why.context(format!("round {}", block.round)));
                    break;
                }
            };
            file.blocks[at].state = state_of(report.state, report.validity.verdict);
            self.dir.write_experiment(&file)?;
            let arm = self.spec.arms[block.arm].name.clone();
            done.notes.extend(notes.into_iter().map(|note| format!("{arm}: {note}")));
            done.exit = worse(done.exit, exit_of(&report));
            // Half a block has half a workload: it compares with nothing.
            if report.state == State::Complete {
                done.results.push(BlockResult { round: block.round, arm, report, dir: Some(dir.path().to_owned()) });
            }
            // A signal that came after the last turn of a block has let that block end, but ends the experiment.
            if stop.sending.is_cancelled() && at + 1 < blocks.len() {
                done.exit = Exit::Interrupted;
                break;
            }
        }
        done.notes.sort();
        done.notes.dedup();
        Ok(done)
    }

    async fn block(
        &self,
        block: experiment::Block,
        site: &Site,
        stop: &Stop,
        dir: &store::RunDir,
    ) -> anyhow::Result<Measured> {
        let arm = &self.spec.arms[block.arm];
        let spec = of_round(&self.spec.run, block.round);
        let plan = Arc::new(workload::plan(&spec, self.vocabulary).exit_with(Exit::Usage)?);
        let block = Block {
            spec: &spec,
            plan,
            vocabulary: self.vocabulary,
            site,
            arm: Some(&arm.name),
            round: Some(block.round),
            name: format!("round {}/{} {}", block.round, self.spec.rounds, arm.name),
            shows_progress: !self.args.output.disable_tqdm,
            detail: self.args.output.detail(),
            lines: self.lines,
            stop,
        };
        Box::pin(block.run(dir)).await.with_context(|| format!("arm `{}`", arm.name))
    }

    fn file(&self, blocks: &[experiment::Block]) -> anyhow::Result<Experiment> {
        let listed = blocks.iter().map(|block| {
            let spec = of_round(&self.spec.run, block.round);
            store::Block {
                round: block.round,
                arm: self.spec.arms[block.arm].name.clone(),
                seed: spec.workload.seed,
                salt: spec.key.salt,
                state: BlockState::Planned,
                dir: String::new(),
                reason: None,
            }
        });
        Ok(Experiment::new(serde_json::to_value(public_experiment(self.spec.clone()))?, listed.collect()))
    }
}

/// The run of one round: other prompts and another placement of keys than in the round before, equal in every arm.
fn of_round(run: &RunSpec, round: u32) -> RunSpec {
    let mut spec = run.clone();
    spec.workload.seed = spec.workload.seed.wrapping_add(offset(round));
    spec.key.salt = spec.key.salt.wrapping_add(offset(round));
    spec
}

fn state_of(state: State, verdict: Verdict) -> BlockState {
    match (state, verdict) {
        (State::Interrupted, _) => BlockState::Interrupted,
        (State::Running, _) => BlockState::Running,
        (State::Complete, Verdict::Void) => BlockState::Void,
        (State::Complete, Verdict::Valid) => BlockState::Complete,
    }
}

/// An interrupt outweighs a void block, which outweighs a good one.
fn worse(a: Exit, b: Exit) -> Exit {
    let weight = |exit: Exit| match exit {
        Exit::Interrupted => 2,
        Exit::Ok => 0,
        _ => 1,
    };
    if weight(b) > weight(a) { b } else { a }
}

async fn close(sites: Vec<Site>) {
    for site in sites {
        site.close().await;
    }
}

/// Compares what has run and writes it; nothing when an interrupt or a failure left no round with two arms.
fn conclude(
    done: &Done,
    spec: &ExperimentSpec,
    allow_mismatch: bool,
    dir: &ExperimentDir,
) -> anyhow::Result<Option<Comparison>> {
    let settings = Settings { allow_mismatch, ..super::compare::settings(spec) };
    let comparison = match compare(&done.results, &settings, &super::compare::turns) {
        Err(_) if done.exit == Exit::Interrupted || done.failure.is_some() => return Ok(None),
        compared => compared.exit_with(Exit::Void)?,
    };
    dir.write_comparison(&comparison)?;
    dir.write_markdown(&render::markdown(&render::comparison(&comparison)))?;
    dir.write_html(&render::html_comparison(&comparison, &done.results))?;
    Ok(Some(comparison))
}
