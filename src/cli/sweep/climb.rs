//! The steps of a sweep, one after the other: servers opened, each arm run at each load, progress on file.

use std::sync::Arc;
use std::time::Duration;

use super::loaded;
use super::resume::Before;
use crate::cli::args::output::Lines;
use crate::cli::block::progress::Progress;
use crate::cli::block::{Block, Measured};
use crate::cli::exit::Exit;
use crate::cli::form::Form;
use crate::cli::resume::{AGAIN_SINCE_FAILED, again_since_void};
use crate::cli::say;
use crate::cli::site::Site;
use crate::cli::site::sites::{self, Arms, Sites, state_of};
use crate::drive::Stop;
use crate::experiment::{Ladder, Rung, Seen, Step, StepResult, seen};
use crate::profile::{ArmSpec, RunSpec};
use crate::report::{State, public_sweep};
use crate::store::{BlockState, Detail, RunDir, Sweep, SweepDir, SweepState, SweepStep};
use crate::text::Vocabulary;

/// A sweep about to run.
pub(crate) struct Climb<'a> {
    /// Without a load of its own.
    pub spec: &'a RunSpec,
    pub arms: &'a [ArmSpec],
    pub ladder: &'a Ladder,
    pub vocabulary: &'a Arc<Vocabulary>,
    pub dir: &'a SweepDir,
    pub lines: &'a Lines<'a>,
    pub ready_timeout: Duration,
    pub detail: Detail,
    pub form: Form,
    pub stop: &'a Stop,
}

/// The steps that have run.
pub(crate) struct Done {
    pub sweep: Sweep,
    pub notes: Vec<String>,
    pub exit: Exit,
    /// Why an arm that shows nothing could not be run.
    pub failure: Option<anyhow::Error>,
}

/// What is known while steps run.
struct Course {
    sweep: Sweep,
    past: Vec<Rung>,
    notes: Vec<String>,
    /// (arm, why), of steps that could not be run.
    failures: Vec<(usize, anyhow::Error)>,
}

impl Climb<'_> {
    /// Climbs on from `before`, as far as the ladder goes.
    ///
    /// # Errors
    /// When a server cannot be used at the start, or a file not be written.
    pub(crate) async fn run(&self, before: Before) -> anyhow::Result<Done> {
        let mut course = self.course(before)?;
        if self.ladder.next(&course.past).is_none() {
            self.dir.write_sweep(&course.sweep)?;
            return Ok(self.done(course));
        }
        say::note(&self.ahead());
        let mut sites = Sites::new();
        let done = match self.arms(self.spec).open(&mut sites).await {
            Ok(()) => self.steps(&mut course, &sites).await,
            Err(why) => Err(why),
        };
        sites::close(sites).await;
        done.map(|()| self.done(course))
    }

    /// What is about to run, in a line.
    fn ahead(&self) -> String {
        let arms: Vec<&str> = self.arms.iter().map(|arm| arm.name.as_str()).collect();
        format!("to run: {} at {}, step by step", arms.join(", "), self.ladder.levels.loads(self.ladder.axis))
    }

    fn course(&self, Before { steps, past, curves }: Before) -> anyhow::Result<Course> {
        let spec = serde_json::to_value(public_sweep(self.spec.clone(), self.arms.to_vec()))?;
        let mut sweep = Sweep::new(spec, self.ladder.clone(), curves);
        sweep.state = SweepState::Complete;
        sweep.steps = steps;
        Ok(Course { sweep, past, notes: vec![], failures: vec![] })
    }

    fn arms<'s>(&'s self, spec: &'s RunSpec) -> Arms<'s> {
        let Self { arms, vocabulary, ready_timeout, form, stop, .. } = self;
        Arms { arms, spec, vocabulary, ready_timeout: *ready_timeout, form: *form, stop }
    }

    async fn steps(&self, course: &mut Course, sites: &Sites) -> anyhow::Result<()> {
        while let Some(step) = self.ladder.next(&course.past) {
            // A signal that came after the last turn of a step has let that step end, but ends the sweep.
            if self.stop.sending.is_cancelled() {
                course.sweep.state = SweepState::Interrupted;
                break;
            }
            let spec = loaded(self.spec, self.ladder.axis, step.level);
            self.again(course, step).iter().for_each(|why| say::note(&format!("{}: {why}", self.name(step))));
            let dir = self.dir.step_dir(step.step, &self.arms[step.arm].name)?;
            course.sweep.steps.push(self.listed(step, &spec, self.dir.relative(&dir)));
            course.sweep.state = SweepState::Running;
            self.dir.write_sweep(&course.sweep)?;
            let measured = self.block(step, &spec, sites, &dir).await;
            course.sweep.state = self.enter(course, step, measured);
            if course.sweep.state == SweepState::Interrupted {
                break;
            }
            self.dir.write_sweep(&Sweep { state: SweepState::Running, ..course.sweep.clone() })?;
        }
        Ok(self.dir.write_sweep(&course.sweep)?)
    }

    /// Takes down what came of a step, the last one listed; says how the sweep would stand if it were the last.
    fn enter(&self, course: &mut Course, step: Step, measured: anyhow::Result<Measured>) -> SweepState {
        let arm = &self.arms[step.arm].name;
        let (state, seen, reason) = match measured {
            Ok(Measured { report, notes }) => {
                course.notes.extend(notes.into_iter().map(|note| format!("{arm}: {note}")));
                let state = state_of(&report);
                // Half a step has half a workload: it belongs to no curve.
                if report.state == State::Complete {
                    let Step { step, arm, level } = step;
                    let result = StepResult { step, level, arm, report: &report };
                    course.sweep.curves.add(self.ladder, result);
                }
                (state, seen(&report), None)
            }
            Err(_) if self.stop.sending.is_cancelled() => (BlockState::Interrupted, Seen::Void, None),
            // What the other steps have measured stands.
            Err(why) => {
                let why = why.context(format!("step {}", step.step));
                let reason = format!("{why:#}");
                say::note(&format!("step failed: {}", say::words(&why)));
                course.failures.push((step.arm, why));
                (BlockState::Failed, Seen::Failed, Some(reason))
            }
        };
        if let Some(last) = course.sweep.steps.last_mut() {
            last.state = state;
            last.reason = reason;
        }
        if state == BlockState::Interrupted {
            return SweepState::Interrupted;
        }
        course.past.push(Rung { step: step.step, arm: step.arm, seen });
        course.sweep.curves.stop(self.ladder, &course.past);
        SweepState::Complete
    }

    async fn block(&self, step: Step, spec: &RunSpec, sites: &Sites, dir: &RunDir) -> anyhow::Result<Measured> {
        let (arms, arm) = (self.arms(spec), &self.arms[step.arm]);
        let (spec, plan) = arms.plan(step.step, arm)?;
        let progress = Progress::begin(self.form, self.name(step), plan.totals().turns);
        progress.stage("server");
        let work = async |site: &Site, stop: &Stop| {
            let block = Block {
                spec: &spec,
                plan: Arc::clone(&plan),
                replies: Arc::default(),
                vocabulary: self.vocabulary,
                site,
                arm: Some(&arm.name),
                round: None,
                detail: self.detail,
                lines: self.lines,
                stop,
            };
            Box::pin(block.run(dir, progress)).await
        };
        arms.at(step.arm, sites, dir.path(), &plan, work).await
    }

    fn name(&self, step: Step) -> String {
        format!("{} · {}", self.ladder.axis.load(step.level), self.arms[step.arm].name)
    }

    /// Why a step that has run is run again.
    fn again(&self, course: &Course, step: Step) -> Option<String> {
        let is_step = |rung: &&Rung| (rung.step, rung.arm) == (step.step, step.arm);
        course.past.iter().rfind(is_step)?;
        let points = &course.sweep.curves.arms[step.arm].points;
        let void = points.last().filter(|point| point.step == step.step && !point.is_usable());
        Some(void.map_or_else(|| AGAIN_SINCE_FAILED.to_owned(), |point| again_since_void(point.voids.iter().copied())))
    }

    fn listed(&self, step: Step, spec: &RunSpec, dir: String) -> SweepStep {
        let of_step = sites::of_round(spec, step.step);
        SweepStep {
            step: step.step,
            arm: self.arms[step.arm].name.clone(),
            level: step.level,
            seed: of_step.workload.seed,
            salt: of_step.key.salt,
            state: BlockState::Running,
            dir,
            reason: None,
        }
    }

    /// Steps that are void are what a climb may end in. An arm that shows nothing else is not measured.
    fn done(&self, course: Course) -> Done {
        let Course { sweep, past: _, mut notes, failures } = course;
        notes.sort();
        notes.dedup();
        let shows_nothing = |arm: usize| !sweep.curves.arms[arm].points.iter().any(crate::experiment::Point::is_usable);
        let exit = match sweep.state {
            SweepState::Interrupted | SweepState::Running => Exit::Interrupted,
            SweepState::Complete if (0..self.arms.len()).any(shows_nothing) => Exit::Void,
            SweepState::Complete => Exit::Ok,
        };
        let is_whole = sweep.state == SweepState::Complete;
        let failure = failures.into_iter().find(|(arm, _)| is_whole && shows_nothing(*arm)).map(|(_, why)| why);
        Done { sweep, notes, exit, failure }
    }
}
