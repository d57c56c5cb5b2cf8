//! Taking a sweep up again: the same specification and ladder, and the steps that are done.

use std::path::Path;

use crate::cli::args::ladder::check_stored;
use crate::cli::exit::{Exit, ExitWith as _};
use crate::cli::resume::{Listed, arm_of, check_same, finished, from_file, listed, seeded, settled};
use crate::experiment::{Curves, Ladder, Rung, Seen, StepResult, seen};
use crate::profile::{ArmSpec, RunSpec, check_sweep_arms};
use crate::report::{PublicSweep, public_sweep};
use crate::store::{BlockState, SWEEP, Sweep, SweepStep};

/// What a sweep is to run.
pub(crate) struct Ascent {
    pub spec: RunSpec,
    pub arms: Vec<ArmSpec>,
    pub ladder: Ladder,
}

impl Ascent {
    /// The index of the arm of a step.
    ///
    /// # Errors
    /// Why there can be no such step.
    fn place(&self, step: &SweepStep) -> Result<usize, String> {
        let arm = arm_of(&self.arms, &step.arm)?;
        let (axis, levels) = (self.ladder.axis, &self.ladder.levels);
        let level = levels.level(step.step).ok_or_else(|| format!("the ladder has steps 1 to {}", levels.count()))?;
        // A number may lose its last bit on the way through a file.
        let is_same = (step.level - level).abs() <= level * 1e-9;
        if !is_same {
            return Err(format!("that step has {}, and not {}", axis.load(level), axis.load(step.level)));
        }
        seeded(&self.spec, step.step, (step.seed, step.salt))?;
        Ok(arm)
    }
}

/// What the directory holds, for a command line that says nothing else.
///
/// # Errors
/// When it is none, or held secrets, which no file keeps.
pub(crate) fn stored(sweep: &Sweep) -> anyhow::Result<Ascent> {
    let PublicSweep { run: spec, arms } = from_file(&sweep.spec)?;
    check_sweep_arms(&arms).exit_with(Exit::Usage)?;
    let ladder = check_stored(sweep.ladder.clone(), &spec, arms.len()).exit_with(Exit::Usage)?;
    Ok(Ascent { spec, arms, ladder })
}

/// Refuses to go on with another specification or ladder than the sweep began with.
///
/// # Errors
/// One that names what differs.
pub(crate) fn check(dir: &Path, sweep: &Sweep, Ascent { spec, arms, ladder }: &Ascent) -> anyhow::Result<()> {
    check_same(dir, &serde_json::to_value(&sweep.ladder)?, ladder)?;
    check_same(dir, &sweep.spec, &public_sweep(spec.clone(), arms.clone()))
}

/// What has been done so far.
#[derive(Debug)]
pub(crate) struct Before {
    pub steps: Vec<SweepStep>,
    pub past: Vec<Rung>,
    pub curves: Curves,
}

impl Before {
    /// Nothing.
    #[must_use]
    pub(crate) fn nothing(Ascent { spec, arms, ladder }: &Ascent) -> Self {
        let curves = Curves::new(ladder, spec.slo, arms.iter().map(|arm| arm.name.clone()));
        Self { steps: vec![], past: vec![], curves }
    }

    /// The steps that ended and count. What was interrupted runs again; so does what could not be run, since whoever resumes
    /// has mended it, unless another run of the same step has shown something.
    ///
    /// # Errors
    /// When a step's report cannot be read, or a step is listed that the ladder cannot have.
    pub(crate) fn read(dir: &Path, sweep: Sweep, ascent: &Ascent) -> anyhow::Result<Self> {
        let mut before = Self::nothing(ascent);
        let mut steps: Vec<(usize, SweepStep)> = vec![];
        for step in sweep.steps {
            let entry = format!("step {} of arm `{}`", step.step, step.arm);
            let arm = listed(&dir.join(SWEEP), &entry, &step.dir, ascent.place(&step))?;
            steps.push((arm, SweepStep { state: settled(&dir.join(&step.dir), step.state), ..step }));
        }
        let ran = |step: &SweepStep| matches!(step.state, BlockState::Complete | BlockState::Void);
        for (arm, step) in &steps {
            let (number, level, arm) = (step.step, step.level, *arm);
            let seen = if ran(step) {
                let is = Listed { what: "step", home: &step.dir, arm: &step.arm, seed: step.seed, salt: step.salt };
                let report = finished(dir, &is)?;
                before.curves.add(&ascent.ladder, StepResult { step: number, level, arm, report: &report });
                seen(&report)
            } else if step.state == BlockState::Failed {
                Seen::Failed
            } else {
                continue;
            };
            before.steps.push(step.clone());
            let is_shown = steps.iter().any(|(of, other)| (other.step, *of) == (number, arm) && ran(other));
            before.past.extend(is_shown.then_some(Rung { step: number, arm, seen }));
        }
        before.curves.stop(&ascent.ladder, &before.past);
        Ok(before)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::experiment::{Axis, Levels};
    use crate::profile::{Context, raw, run_spec, sweep_arms};

    fn ascent(levels: Levels, axis: Axis) -> Ascent {
        let arm = raw::Arm { name: Some("a".into()), target: Some("sim:round_robin".into()), ..raw::Arm::default() };
        let profile = raw::Profile { arm: vec![arm], ..raw::Profile::default() };
        let context = Context { name: "x".into(), drawn_seed: 1, compares_arms: true };
        let spec = run_spec(&profile, &context).unwrap();
        Ascent { spec, arms: sweep_arms(&profile).unwrap(), ladder: Ladder { axis, levels, attainment: None, arms: 1 } }
    }

    fn on_file(ascent: &Ascent) -> Value {
        let spec = serde_json::to_value(public_sweep(ascent.spec.clone(), ascent.arms.clone())).unwrap();
        json!(Sweep::new(spec, ascent.ladder.clone(), Before::nothing(ascent).curves))
    }

    fn seeds(ascent: &Ascent, step: u32) -> (u64, u64) {
        let of_step = crate::cli::site::sites::of_round(&ascent.spec, step);
        (of_step.workload.seed, of_step.key.salt)
    }

    /// As it comes out of the file.
    fn read(file: &Value) -> Sweep {
        serde_json::from_str(&file.to_string()).unwrap()
    }

    #[test]
    fn what_was_written_is_taken_up_as_it_was() {
        for levels in [Levels::Doubling { most: f64::MAX }, Levels::Given(vec![0.1, 0.7, 1.0 / 3.0 + 1.0])] {
            let ascent = ascent(levels, Axis::Rate);
            let sweep = read(&on_file(&ascent));
            check(Path::new("x"), &sweep, &ascent).unwrap();
            check(Path::new("x"), &sweep, &stored(&sweep).unwrap()).unwrap();
        }
    }

    #[test]
    fn a_step_that_ended_is_kept_though_a_kill_left_it_listed_as_running_and_what_never_ran_has_another_chance() {
        use crate::report::tests::context;
        use crate::report::{Accumulator, Closing, State};
        use crate::store::SweepDir;
        let ascent = ascent(Levels::Given(vec![1.0, 2.0, 4.0]), Axis::Rate);
        let home = tempfile::tempdir().unwrap();
        let dir = SweepDir::create(Some(&home.path().join("sweep")), "x").unwrap();
        let mut sweep = read(&on_file(&ascent));
        for (step, state, listed) in [
            (1, Some(State::Complete), BlockState::Running),
            (2, None, BlockState::Failed),
            (2, None, BlockState::Failed),
            (3, Some(State::Running), BlockState::Running),
        ] {
            let run = dir.step_dir(step, "a").unwrap();
            let (mut context, (seed, salt)) = (context(1, 1), seeds(&ascent, step));
            (context.manifest.spec.workload.seed, context.manifest.spec.key.salt) = (seed, salt);
            if let Some(state) = state {
                run.write_report(&Accumulator::new(context).finish(Closing::plain(state))).unwrap();
            }
            let (reason, level) = (None, [1.0, 2.0, 4.0][step as usize - 1]);
            let at = dir.relative(&run);
            sweep.steps.push(SweepStep { step, arm: "a".into(), level, seed, salt, state: listed, dir: at, reason });
        }
        let before = Before::read(dir.path(), sweep, &ascent).unwrap();
        let kept: Vec<_> = before.steps.iter().map(|step| (step.dir.as_str(), step.state)).collect();
        assert_eq!(kept[0].0, "step-01/a");
        assert!(matches!(kept[0].1, BlockState::Complete | BlockState::Void));
        assert_eq!(kept[1..], [("step-02/a", BlockState::Failed), ("step-02/a.2", BlockState::Failed)]);
        assert_eq!(before.past.iter().map(|rung| rung.step).collect::<Vec<_>>(), [1]);
        assert_eq!(before.curves.arms[0].points.len(), 1);
    }

    #[test]
    fn a_step_that_the_ladder_cannot_have_is_refused_by_file_and_number() {
        let ascent = ascent(Levels::Given(vec![0.5, 2.0]), Axis::Rate);
        let listed = |step, arm: &str, level, dir: &str| {
            let mut sweep = read(&on_file(&ascent));
            let (arm, state, (mut seed, salt)) = (arm.to_owned(), BlockState::Failed, seeds(&ascent, step));
            seed += u64::from(dir.ends_with(".reseeded"));
            sweep.steps.push(SweepStep { step, arm, level, seed, salt, state, dir: dir.to_owned(), reason: None });
            Before::read(Path::new("x"), sweep, &ascent).map(|_| ()).map_err(|why| why.to_string())
        };
        assert_eq!(listed(2, "a", 2.0 + 1e-15, "step-02/a"), Ok(()));
        for (step, arm, level, dir, fault) in [
            (99, "a", 2.0, "step-99/a", "the ladder has steps 1 to 2"),
            (3, "a", 4.0, "step-03/a", "the ladder has steps 1 to 2"),
            (0, "a", 0.5, "step-00/a", "the ladder has steps 1 to 2"),
            (1, "a", 2.0, "step-01/a", "that step has 0.5 sessions/s, and not 2 sessions/s"),
            (1, "a", f64::NAN, "step-01/a", "that step has 0.5 sessions/s"),
            (1, "b", 0.5, "step-01/b", "there is no such arm"),
            (
                2,
                "a",
                2.0,
                "step-02/a.reseeded",
                "with seed 3 and salt 1, where the specification has seed 2 and salt 1",
            ),
            (1, "a", 0.5, "../step-01/a", "`../step-01/a` is not below"),
            (1, "a", 0.5, "/step-01/a", "`/step-01/a` is not below"),
        ] {
            let said = listed(step, arm, level, dir).unwrap_err();
            let entry = format!("`x/sweep.json` lists step {step} of arm `{arm}`, but ");
            assert!(said.contains(&entry) && said.contains(fault) && said.contains("--out"), "{said}");
        }
    }

    #[test]
    fn a_file_that_someone_changed_is_checked_like_a_command_line() {
        let file = on_file(&ascent(Levels::Given(vec![1.0, 2.0]), Axis::Concurrency));
        assert!(stored(&read(&file)).is_ok());
        let changes = [
            ("/spec/arms", json!([])),
            ("/spec/arms/0/name", json!("../x")),
            ("/ladder/levels/given", json!([2.0, 1.0])),
            ("/ladder/levels/given", json!([1.0, 1e6])),
            ("/ladder/attainment", json!(0.9)),
        ];
        for (at, value) in changes {
            let mut changed = file.clone();
            *changed.pointer_mut(at).unwrap() = value;
            assert!(stored(&read(&changed)).is_err(), "{at}");
        }
    }
}
