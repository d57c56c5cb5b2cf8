//! The blocks of an experiment, one after the other: servers opened, histories recorded, results gathered, progress on file.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::resume::Before;
use crate::cli::args::output::Lines;
use crate::cli::block::progress::Progress;
use crate::cli::block::{Block, Measured};
use crate::cli::exit::Exit;
use crate::cli::form::Form;
use crate::cli::interrupt::unless_stopped;
use crate::cli::resume::{AGAIN_SINCE_FAILED, again_since_void};
use crate::cli::run::exit_of;
use crate::cli::say;
use crate::cli::site::Site;
use crate::cli::site::sites::{self, Arms, Sites, of_round, state_of};
use crate::compare::BlockResult;
use crate::drive::Stop;
use crate::experiment::{self, Design, Ended, Past};
use crate::profile::{ExperimentSpec, History, RunSpec};
use crate::report::{State, public_experiment};
use crate::store::{self, BlockState, Detail, Experiment, ExperimentDir, RunDir};
use crate::text::Vocabulary;
use crate::units::plural;
use crate::workload::{Plan, Replies};

/// An experiment about to run.
pub(crate) struct Trial<'a> {
    pub spec: &'a ExperimentSpec,
    pub vocabulary: &'a Arc<Vocabulary>,
    pub dir: &'a ExperimentDir,
    /// Of servers that someone else runs.
    pub ready_timeout: Duration,
    pub detail: Detail,
    pub form: Form,
    pub lines: &'a Lines<'a>,
    pub stop: &'a Stop,
}

/// The blocks that have run.
pub(crate) struct Done {
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
    pub(crate) async fn run(&self, before: Before) -> anyhow::Result<Done> {
        let Before { blocks, past, results } = before;
        let design = Design { rounds: self.spec.rounds.get(), arms: self.spec.arms.len() };
        let (notes, ends, replies) = (vec![], BTreeMap::new(), Arc::default());
        let mut course = Course { design, past, listed: blocks, results, notes, ends, replies };
        say::note(&self.ahead(&course));
        let mut sites = BTreeMap::new();
        let done = match self.arms().open(&mut sites).await {
            Ok(()) => self.rounds(&mut course, &sites).await,
            Err(why) => Err(why),
        };
        sites::close(sites).await;
        let exit = done?;
        Ok(course.done(exit))
    }

    /// What is about to run, in a line.
    fn ahead(&self, course: &Course) -> String {
        let arms: Vec<&str> = self.spec.arms.iter().map(|arm| arm.name.as_str()).collect();
        let blocks = plural(course.design.rest(&course.past).len() as u64, "block");
        let rounds = plural(self.spec.rounds.get().into(), "round");
        format!("to run: {blocks}, of {rounds} of {}", arms.join(", "))
    }

    async fn rounds(&self, course: &mut Course, sites: &Sites) -> anyhow::Result<Exit> {
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
                let state = state_of(&report);
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
                say::note(&format!("block failed: {}", say::words(&why)));
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
        sites: &Sites,
        course: &Course,
        dir: &RunDir,
    ) -> anyhow::Result<Measured> {
        let arm = &self.spec.arms[block.arm];
        let (spec, plan) = self.arms().plan(block.round, arm)?;
        let name = format!("round {}/{} {}", block.round, self.spec.rounds, arm.name);
        again(course, block, &arm.name).iter().for_each(|why| say::note(&format!("{name}: {why}")));
        let progress = Progress::begin(self.form, name, plan.totals().turns);
        progress.stage("server");
        let work = async |site: &Site, stop: &Stop| {
            let run = self.run_of(&spec, &plan, site, stop);
            let replies = Arc::clone(&course.replies);
            let run = Block { replies, arm: Some(&arm.name), round: Some(block.round), ..run };
            Box::pin(run.run(dir, progress)).await
        };
        self.arms().at(block.arm, sites, dir.path(), &plan, work).await
    }

    /// A block of `plan` at `site` that has no round.
    fn run_of<'s>(&'s self, spec: &'s RunSpec, plan: &Arc<Plan>, site: &'s Site, stop: &'s Stop) -> Block<'s> {
        Block {
            spec,
            plan: Arc::clone(plan),
            replies: Arc::default(),
            vocabulary: self.vocabulary,
            site,
            arm: None,
            round: None,
            detail: self.detail,
            lines: self.lines,
            stop,
        }
    }

    /// The recorded history: that of the directory, or one recorded now; empty where none is wanted.
    async fn replies(&self, sites: &Sites) -> anyhow::Result<Arc<Replies>> {
        let workload = &self.spec.run.workload;
        if workload.history != History::Recorded || workload.turns.get() == 1 {
            return Ok(Arc::default());
        }
        let stored = self.dir.read_replies()?;
        let replies = match stored {
            Some(replies) => replies,
            None => {
                say::note("recording replies for the history of all arms: a block of the baseline, not measured");
                let (spec, plan) = self.arms().plan(1, &self.spec.arms[0])?;
                let work =
                    async |site: &Site, stop: &Stop| Box::pin(self.run_of(&spec, &plan, site, stop).record()).await;
                let recorded = self.arms().at(0, sites, self.dir.path(), &plan, work).await;
                // A history with holes that a signal made is no fault of the server.
                let replies = unless_stopped(self.stop, std::future::ready(recorded)).await?;
                self.dir.write_replies(&replies)?;
                replies
            }
        };
        Ok(Arc::new(Replies::new(&replies)))
    }

    fn arms(&self) -> Arms<'_> {
        let Self { spec, vocabulary, ready_timeout, form, stop, .. } = self;
        Arms { arms: &spec.arms, spec: &spec.run, vocabulary, ready_timeout: *ready_timeout, form: *form, stop }
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

/// Why a block that has run is run again.
fn again(course: &Course, block: experiment::Block, arm: &str) -> Option<String> {
    let (_, ended) = course.past.iter().rfind(|(past, _)| *past == block)?;
    let result = course.results.iter().rfind(|result| (result.round, result.arm.as_str()) == (block.round, arm));
    match (ended, result) {
        (Ended::Complete, _) => None,
        (Ended::Void, Some(result)) => {
            Some(again_since_void(result.report.validity.voids.iter().map(|void| void.kind)))
        }
        (Ended::Void | Ended::Failed, _) => Some(AGAIN_SINCE_FAILED.to_owned()),
    }
}

/// How a block counts; one that was cut short does not, and runs again.
pub(crate) fn ended(state: BlockState) -> Option<Ended> {
    match state {
        BlockState::Complete => Some(Ended::Complete),
        BlockState::Void => Some(Ended::Void),
        BlockState::Failed => Some(Ended::Failed),
        BlockState::Planned | BlockState::Running | BlockState::Interrupted => None,
    }
}

/// An interrupt outweighs a void block, which outweighs a good one.
pub(crate) fn worse(a: Exit, b: Exit) -> Exit {
    let weight = |exit: Exit| match exit {
        Exit::Interrupted => 2,
        Exit::Ok => 0,
        _ => 1,
    };
    if weight(b) > weight(a) { b } else { a }
}
