//! The blocks of an experiment, one after the other: servers opened, histories recorded, results gathered, progress on file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::FutureExt as _;

use super::block::{Block, Measured};
use super::exit::{Exit, ExitWith as _};
use super::interrupt::unless_stopped;
use super::output_args::Lines;
use super::resume::Before;
use super::run::exit_of;
use super::site::{Opening, Site};
use super::start::Launch;
use crate::compare::BlockResult;
use crate::drive::Stop;
use crate::experiment::{self, Design, Ended, Past, offset};
use crate::profile::{ArmSpec, ExperimentSpec, History, RunSpec};
use crate::report::{State, Verdict, public_experiment};
use crate::store::{self, BlockState, Detail, Experiment, ExperimentDir, RunDir};
use crate::text::Vocabulary;
use crate::workload::{self, Plan, Replies, sent_keys};

/// The output of a launched server, in its block's directory.
const SERVER_LOG: &str = "server.log";

/// An experiment about to run.
pub(super) struct Trial<'a> {
    pub spec: &'a ExperimentSpec,
    pub vocabulary: &'a Arc<Vocabulary>,
    pub dir: &'a ExperimentDir,
    /// Of servers that someone else runs.
    pub ready_timeout: Duration,
    pub detail: Detail,
    pub shows_progress: bool,
    pub lines: &'a Lines<'a>,
    pub stop: &'a Stop,
}

/// The blocks that have run.
pub(super) struct Done {
    pub results: Vec<BlockResult>,
    pub notes: Vec<String>,
    pub exit: Exit,
    /// Why a block could not be run, nor its repetition.
    pub failure: Option<anyhow::Error>,
}

/// What is known while blocks run.
struct Course {
    design: Design,
    past: Vec<Past>,
    /// As they are on file, in running order.
    listed: Vec<store::Block>,
    results: Vec<BlockResult>,
    notes: Vec<String>,
    /// How the last run of each block ended.
    ends: BTreeMap<experiment::Block, Result<Exit, anyhow::Error>>,
    replies: Arc<Replies>,
}

impl Trial<'_> {
    /// Runs what `before` leaves to be run.
    ///
    /// # Errors
    /// When a server that someone else runs cannot be used at the start, no history be recorded, or a file not be written.
    pub(super) async fn run(&self, before: Before) -> anyhow::Result<Done> {
        let Before { blocks, past, results } = before;
        let design = Design { rounds: self.spec.rounds.get(), arms: self.spec.arms.len() };
        let (notes, ends, replies) = (vec![], BTreeMap::new(), Arc::default());
        let mut course = Course { design, past, listed: blocks, results, notes, ends, replies };
        let mut sites = BTreeMap::new();
        let done = match self.open(&mut sites).await {
            Ok(()) => self.rounds(&mut course, &sites).await,
            Err(why) => Err(why),
        };
        for site in sites.into_values() {
            site.close().await;
        }
        let exit = done?;
        Ok(course.done(exit))
    }

    /// Opens the arms whose servers outlast a block.
    async fn open(&self, sites: &mut BTreeMap<usize, Site>) -> anyhow::Result<()> {
        let (_, plan) = self.plan(1, &self.spec.arms[0])?;
        for (at, arm) in self.spec.arms.iter().enumerate().filter(|(_, arm)| arm.launch.is_none()) {
            let opened = unless_stopped(self.stop, Site::open(&arm.target, self.opening(None), &plan)).await;
            sites.insert(at, opened.with_context(|| format!("arm `{}`", arm.name))?);
        }
        Ok(())
    }

    async fn rounds(&self, course: &mut Course, sites: &BTreeMap<usize, Site>) -> anyhow::Result<Exit> {
        self.dir.write_experiment(&self.file(course, None)?)?;
        course.replies = self.replies(sites).await?;
        while let Some(block) = course.design.next(&course.past) {
            // A signal that came after the last turn of a block has let that block end, but ends the experiment.
            if self.stop.sending.is_cancelled() {
                return Ok(Exit::Interrupted);
            }
            let dir = self.dir.block_dir(block.round, &self.spec.arms[block.arm].name)?;
            course.listed.push(self.listed(block, BlockState::Running, self.dir.relative(&dir)));
            self.dir.write_experiment(&self.file(course, Some(block))?)?;
            let measured = self.block(block, sites, course, &dir).await;
            let is_interrupted = self.enter(course, block, measured);
            self.dir.write_experiment(&self.file(course, None)?)?;
            if is_interrupted {
                return Ok(Exit::Interrupted);
            }
        }
        Ok(Exit::Ok)
    }

    /// Takes down what came of a block, the last one listed; says whether a signal cut it short.
    fn enter(&self, course: &mut Course, block: experiment::Block, measured: anyhow::Result<Measured>) -> bool {
        let arm = self.spec.arms[block.arm].name.clone();
        let (state, reason) = match measured {
            Ok(Measured { report, notes }) => {
                let state = state_of(report.state, report.validity.verdict);
                course.notes.extend(notes.into_iter().map(|note| format!("{arm}: {note}")));
                course.ends.insert(block, Ok(exit_of(&report)));
                // Half a block has half a workload: it compares with nothing.
                if report.state == State::Complete {
                    course.results.push(BlockResult {
                        round: block.round,
                        arm,
                        report,
                        dir: Some(self.dir.path().join(course.listed.last().map_or("", |listed| listed.dir.as_str()))),
                    });
                }
                (state, None)
            }
            Err(_) if self.stop.sending.is_cancelled() => (BlockState::Interrupted, None),
            // What the other blocks have measured stands.
            Err(why) => {
                let why = why.context(format!("round {}", block.round));
                let reason = format!("{why:#}");
                super::say::note(&format!("block failed: {}", super::say::words(&why)));
                course.ends.insert(block, Err(why));
                (BlockState::Failed, Some(reason))
            }
        };
        course.past.extend(ended(state).map(|ended| (block, ended)));
        if let Some(last) = course.listed.last_mut() {
            last.state = state;
            last.reason = reason;
        }
        state == BlockState::Interrupted
    }

    async fn block(
        &self,
        block: experiment::Block,
        sites: &BTreeMap<usize, Site>,
        course: &Course,
        dir: &RunDir,
    ) -> anyhow::Result<Measured> {
        let arm = &self.spec.arms[block.arm];
        let (spec, plan) = self.plan(block.round, arm)?;
        let name = format!("round {}/{} {}", block.round, self.spec.rounds, arm.name);
        let work = async |site: &Site, stop: &Stop| {
            let run = self.run_of(&spec, &plan, site, stop);
            let replies = Arc::clone(&course.replies);
            Box::pin(Block { replies, arm: Some(&arm.name), round: Some(block.round), name, ..run }.run(dir)).await
        };
        self.with_site(block.arm, sites, dir.path(), &plan, work).await
    }

    /// A block of `plan` at `site` that has no round and shows no progress of its own.
    fn run_of<'s>(&'s self, spec: &'s RunSpec, plan: &Arc<Plan>, site: &'s Site, stop: &'s Stop) -> Block<'s> {
        Block {
            spec,
            plan: Arc::clone(plan),
            replies: Arc::default(),
            vocabulary: self.vocabulary,
            site,
            arm: None,
            round: None,
            name: String::new(),
            shows_progress: self.shows_progress,
            detail: self.detail,
            lines: self.lines,
            stop,
        }
    }

    /// Does `work` at an arm's server: the one that is open, or one that is launched for it and stopped after it. A launched
    /// server that ends by itself ends the work.
    async fn with_site<T>(
        &self,
        at: usize,
        sites: &BTreeMap<usize, Site>,
        home: &Path,
        plan: &Plan,
        work: impl AsyncFnOnce(&Site, &Stop) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let arm = &self.spec.arms[at];
        let done = match (sites.get(&at), &arm.launch) {
            (Some(site), _) => work(site, self.stop).await,
            (None, Some(spec)) => {
                let launch = Launch { spec, log: home.join(SERVER_LOG) };
                let opening = self.opening(Some(launch));
                match Site::open(&arm.target, opening, plan).await {
                    Ok(site) => {
                        let stop = self.stop.child();
                        let done = watched(&site, &stop, work(&site, &stop)).await;
                        site.close().await;
                        done
                    }
                    Err(why) => Err(why),
                }
            }
            (None, None) => Err(anyhow::Error::msg("its server was never opened")),
        };
        done.with_context(|| format!("arm `{}`", arm.name))
    }

    /// The recorded history: that of the directory, or one recorded now; empty where none is wanted.
    async fn replies(&self, sites: &BTreeMap<usize, Site>) -> anyhow::Result<Arc<Replies>> {
        let workload = &self.spec.run.workload;
        if workload.history != History::Recorded || workload.turns.get() == 1 {
            return Ok(Arc::default());
        }
        let stored = self.dir.read_replies()?;
        let replies = match stored {
            Some(replies) => replies,
            None => {
                super::say::note(
                    "recording replies for the history of all arms: a block of the baseline, not measured",
                );
                let (spec, plan) = self.plan(1, &self.spec.arms[0])?;
                let work =
                    async |site: &Site, stop: &Stop| Box::pin(self.run_of(&spec, &plan, site, stop).record()).await;
                let recorded = self.with_site(0, sites, self.dir.path(), &plan, work).await;
                // A history with holes that a signal made is no fault of the server.
                let replies = unless_stopped(self.stop, std::future::ready(recorded)).await?;
                self.dir.write_replies(&replies)?;
                replies
            }
        };
        Ok(Arc::new(Replies::new(&replies)))
    }

    /// What an arm runs in a round. Prompts and keys differ from those of the round before, and are equal in every arm that
    /// does not say otherwise.
    fn plan(&self, round: u32, arm: &ArmSpec) -> anyhow::Result<(RunSpec, Arc<Plan>)> {
        let mut spec = of_round(&self.spec.run, round);
        let plan = workload::plan(&spec, self.vocabulary).exit_with(Exit::Usage)?.for_arm(arm.keys, arm.prompts);
        spec.key.by = sent_keys(spec.key.by, arm.keys);
        spec.server.metrics_urls.extend(arm.metrics_urls.iter().cloned());
        Ok((spec, Arc::new(plan)))
    }

    fn opening<'s>(&'s self, launch: Option<Launch<'s>>) -> Opening<'s> {
        let ready_timeout = launch.as_ref().map_or(self.ready_timeout, |launch| launch.spec.ready_timeout);
        Opening { spec: &self.spec.run, vocabulary: self.vocabulary, ready_timeout, launch, stop: self.stop }
    }

    /// What has run, and what is to come if all goes well; `running` is the last one listed.
    fn file(&self, course: &Course, running: Option<experiment::Block>) -> anyhow::Result<Experiment> {
        let mut past = course.past.clone();
        past.extend(running.map(|block| (block, Ended::Complete)));
        let rest = course.design.rest(&past).into_iter();
        let rest = rest.map(|block| self.listed(block, BlockState::Planned, String::new()));
        let spec = serde_json::to_value(public_experiment(self.spec.clone()))?;
        Ok(Experiment::new(spec, course.listed.iter().cloned().chain(rest).collect()))
    }

    fn listed(&self, block: experiment::Block, state: BlockState, dir: String) -> store::Block {
        let spec = of_round(&self.spec.run, block.round);
        let arm = self.spec.arms[block.arm].name.clone();
        store::Block {
            round: block.round,
            arm,
            seed: spec.workload.seed,
            salt: spec.key.salt,
            state,
            dir,
            reason: None,
        }
    }
}

impl Course {
    /// The last run of a block speaks for it.
    fn done(self, exit: Exit) -> Done {
        let Self { design: _, past: _, listed: _, results, mut notes, ends, replies: _ } = self;
        notes.sort();
        notes.dedup();
        let mut done = Done { results, notes, exit, failure: None };
        for (_, end) in ends {
            match end {
                Ok(exit) => done.exit = worse(done.exit, exit),
                Err(why) => done.failure = Some(why),
            }
        }
        done
    }
}

/// Does `work` unless the server ends before it; then what is under way is cut.
async fn watched<T>(site: &Site, stop: &Stop, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut work = std::pin::pin!(work);
    let how = tokio::select! {
        biased;
        how = site.end() => how,
        done = &mut work => match site.end().now_or_never() {
            Some(how) => how,
            None => return done,
        },
    };
    stop.now();
    let why = anyhow::anyhow!("its launched server ended during the block: {how}");
    Err(why).exit_with(Exit::Target)
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

/// How a block counts; one that was cut short does not, and runs again.
pub(super) fn ended(state: BlockState) -> Option<Ended> {
    match state {
        BlockState::Complete => Some(Ended::Complete),
        BlockState::Void => Some(Ended::Void),
        BlockState::Failed => Some(Ended::Failed),
        BlockState::Planned | BlockState::Running | BlockState::Interrupted => None,
    }
}

/// An interrupt outweighs a void block, which outweighs a good one.
pub(super) fn worse(a: Exit, b: Exit) -> Exit {
    let weight = |exit: Exit| match exit {
        Exit::Interrupted => 2,
        Exit::Ok => 0,
        _ => 1,
    };
    if weight(b) > weight(a) { b } else { a }
}
