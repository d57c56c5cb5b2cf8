//! Taking an experiment up again: the same specification, and the blocks that are done.

use std::path::Path;

use crate::cli::exit::{Exit, ExitWith as _};
use crate::cli::resume::{check_same, finished, from_file, settled};
use crate::compare::BlockResult;
use crate::experiment::{self, Block, Ended, Past};
use crate::profile::{ExperimentSpec, check_stored};
use crate::report::public_experiment;
use crate::store::{self, Experiment};

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
/// When a block's report cannot be read.
pub(crate) fn before(dir: &Path, experiment: Experiment, spec: &ExperimentSpec) -> anyhow::Result<Before> {
    let ended: Vec<(store::Block, Past)> = experiment
        .blocks
        .into_iter()
        .filter_map(|block| {
            let arm = spec.arms.iter().position(|arm| arm.name == block.arm)?;
            let state = settled(&dir.join(&block.dir), block.state);
            let past = (Block { round: block.round, arm }, super::trial::ended(state)?);
            Some((store::Block { state, ..block }, past))
        })
        .collect();
    let counted = experiment::resumed(&ended.iter().map(|(_, past)| *past).collect::<Vec<_>>());
    let mut before = Before::default();
    for (block, past) in ended {
        before.blocks.push(block.clone());
        if !counted.contains(&past) {
            continue;
        }
        before.past.push(past);
        if past.1 != Ended::Failed {
            let report = finished(dir, "block", &block.dir)?;
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

    #[test]
    fn a_specification_that_someone_changed_is_checked_like_any_other() {
        let arms = || vec![raw_arm("a"), raw_arm("b")];
        let profile = raw::Profile { arm: arms(), ..raw::Profile::default() };
        let context = Context { name: "x".into(), drawn_seed: 1, compares_arms: true };
        let spec = serde_json::to_value(experiment_spec(&profile, &context).unwrap()).unwrap();
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
