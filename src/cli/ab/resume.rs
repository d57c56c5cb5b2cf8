//! Taking an experiment up again: the same specification, and the blocks that are done.

use std::path::Path;

use crate::cli::exit::{Exit, ExitWith as _};
use crate::cli::resume::{Listed, arm_of, check_same, finished, from_file, listed, seeded, settled};
use crate::compare::BlockResult;
use crate::experiment::{self, Block, Ended, Past};
use crate::profile::{ExperimentSpec, check_stored};
use crate::report::public_experiment;
use crate::store::{self, EXPERIMENT, Experiment};

/// The specification that a directory holds, for a command line that says nothing else.
///
/// # Errors
/// When it is none, or held secrets, which no file keeps.
pub(crate) fn stored_spec(experiment: &Experiment) -> anyhow::Result<ExperimentSpec> {
    let spec = from_file(&experiment.spec)?;
    check_stored(&spec).exit_with(Exit::Usage)?;
    Ok(spec)
}

/// Refuses to go on with another specification than the experiment began with.
///
/// # Errors
/// One that names what differs.
pub(crate) fn check(dir: &Path, experiment: &Experiment, spec: &ExperimentSpec) -> anyhow::Result<()> {
    check_same(dir, &experiment.spec, &public_experiment(spec.clone()))
}

/// The index of the arm of a block.
///
/// # Errors
/// Why there can be no such block.
fn place(block: &store::Block, spec: &ExperimentSpec) -> Result<usize, String> {
    let arm = arm_of(&spec.arms, &block.arm)?;
    let rounds = spec.rounds.get();
    if !(1..=rounds).contains(&block.round) {
        return Err(format!("there are rounds 1 to {rounds}"));
    }
    seeded(&spec.run, block.round, (block.seed, block.salt))?;
    Ok(arm)
}

/// What has been done so far.
#[derive(Debug, Default)]
pub(crate) struct Before {
    pub blocks: Vec<store::Block>,
    pub past: Vec<Past>,
    pub results: Vec<BlockResult>,
}

/// The blocks that ended and count; what was interrupted, or of an arm that was given up, runs again.
///
/// # Errors
/// When a block's report cannot be read, or a block is listed that the specification cannot have.
pub(crate) fn before(dir: &Path, experiment: Experiment, spec: &ExperimentSpec) -> anyhow::Result<Before> {
    let mut ended: Vec<(store::Block, Past)> = vec![];
    for block in experiment.blocks {
        let entry = format!("round {} of arm `{}`", block.round, block.arm);
        let arm = listed(&dir.join(EXPERIMENT), &entry, &block.dir, place(&block, spec))?;
        let state = settled(&dir.join(&block.dir), block.state);
        if let Some(end) = super::trial::ended(state) {
            let past = (Block { round: block.round, arm }, end);
            ended.push((store::Block { state, ..block }, past));
        }
    }
    let counted = experiment::resumed(&ended.iter().map(|(_, past)| *past).collect::<Vec<_>>());
    let mut before = Before::default();
    for (block, past) in ended {
        before.blocks.push(block.clone());
        if !counted.contains(&past) {
            continue;
        }
        before.past.push(past);
        if past.1 != Ended::Failed {
            let is = Listed { what: "block", home: &block.dir, arm: &block.arm, seed: block.seed, salt: block.salt };
            let report = finished(dir, &is)?;
            before.results.push(BlockResult {
                round: block.round,
                arm: block.arm,
                report,
                dir: Some(dir.join(&block.dir)),
            });
        }
    }
    Ok(before)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::profile::{Context, experiment_spec, raw};
    use crate::store::BlockState;

    fn specification() -> ExperimentSpec {
        let profile = raw::Profile { arm: vec![raw_arm("a"), raw_arm("b")], ..raw::Profile::default() };
        let context = Context { name: "x".into(), drawn_seed: 1, compares_arms: true };
        experiment_spec(&profile, &context).unwrap()
    }

    #[test]
    fn a_block_that_the_experiment_cannot_have_is_refused_by_file_and_round() {
        let spec = specification();
        let listed = |round, arm: &str, dir: &str| {
            let (arm, dir, state) = (arm.to_owned(), dir.to_owned(), BlockState::Failed);
            let run = crate::cli::site::sites::of_round(&spec.run, round);
            let (seed, salt) = (run.workload.seed, run.key.salt + u64::from(dir.ends_with("salted")));
            let block = store::Block { round, arm, seed, salt, state, dir, reason: None };
            let experiment = Experiment::new(serde_json::to_value(&spec).unwrap(), vec![block]);
            before(Path::new("x"), experiment, &spec).map(|_| ()).map_err(|why| why.to_string())
        };
        let rounds = spec.rounds.get();
        assert_eq!((listed(rounds, "b", "round-09/b"), listed(1, "a", "")), (Ok(()), Ok(())));
        for (round, arm, dir, fault) in [
            (99, "a", "round-99/a", format!("there are rounds 1 to {rounds}")),
            (rounds + 1, "a", "round-10/a", format!("there are rounds 1 to {rounds}")),
            (0, "a", "round-00/a", format!("there are rounds 1 to {rounds}")),
            (1, "c", "round-01/c", "there is no such arm".to_owned()),
            (2, "a", "salted", format!("where the specification has seed {} and salt 1", spec.run.workload.seed + 1)),
            (1, "a", "../a", "`../a` is not below".to_owned()),
        ] {
            let said = listed(round, arm, dir).unwrap_err();
            let entry = format!("`x/ab.json` lists round {round} of arm `{arm}`, but ");
            assert!(said.contains(&entry) && said.contains(&fault) && said.contains("--out"), "{said}");
        }
    }

    #[test]
    fn a_specification_that_someone_changed_is_checked_like_any_other() {
        let spec = serde_json::to_value(specification()).unwrap();
        let read = |spec: &Value| stored_spec(&Experiment::new(spec.clone(), vec![]));
        assert!(read(&spec).is_ok());
        let changes = [
            ("/arms", json!([])),
            ("/arms", json!([spec["arms"][0]])),
            ("/arms/1/name", json!("A")),
            ("/arms/0/name", json!("../x")),
            ("/arms/0/control", json!(true)),
            ("/threshold", json!(-1.0)),
            ("/rounds", json!(4_000_000_000_u32)),
            ("/rounds", json!(0)),
        ];
        for (at, value) in changes {
            let mut changed = spec.clone();
            *changed.pointer_mut(at).unwrap() = value;
            assert!(read(&changed).is_err(), "{at}");
        }
    }

    fn raw_arm(name: &str) -> raw::Arm {
        raw::Arm { name: Some(name.into()), target: Some("sim:round_robin".into()), ..raw::Arm::default() }
    }
}
