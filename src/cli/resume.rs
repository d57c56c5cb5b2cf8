//! Taking an experiment up again: the same specification, and the blocks that are done.

use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use super::exit::{Exit, ExitWith as _};
use crate::compare::BlockResult;
use crate::experiment::{self, Block, Ended, Past};
use crate::profile::{ExperimentSpec, check_stored};
use crate::report::public_experiment;
use crate::store::{self, Experiment};

/// Differences that are named before the rest is only counted.
const NAMED: usize = 4;

/// The specification that a directory holds, for a command line that says nothing else.
///
/// # Errors
/// When it is none, or held secrets, which no file keeps.
pub(super) fn stored_spec(experiment: &Experiment) -> anyhow::Result<ExperimentSpec> {
    if experiment.spec.to_string().contains(crate::report::HIDDEN) {
        let why =
            "--resume: files keep no headers, bodies or addresses with secrets: give the whole command line again";
        return Err(anyhow::Error::msg(why)).exit_with(Exit::Usage);
    }
    let spec = serde_json::from_value(experiment.spec.clone()).exit_with(Exit::Usage)?;
    check_stored(&spec).exit_with(Exit::Usage)?;
    Ok(spec)
}

/// The seed of the first round, for a specification that draws it.
pub(super) fn stored_seed(experiment: &Experiment) -> Option<u64> {
    experiment.spec.pointer("/run/workload/seed")?.as_u64()
}

/// Refuses to go on with another specification than the experiment began with.
///
/// # Errors
/// One that names what differs.
pub(super) fn check(dir: &Path, experiment: &Experiment, spec: &ExperimentSpec) -> anyhow::Result<()> {
    let now = serde_json::to_value(public_experiment(spec.clone()))?;
    let mut found = Vec::new();
    differences("", &experiment.spec, &now, &mut found);
    if found.is_empty() {
        return Ok(());
    }
    let more = found.len().saturating_sub(NAMED);
    found.truncate(NAMED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let why = format!(
        "--resume: `{}` was begun with another specification: {}{more}; give its own command line, or begin anew with --out",
        dir.display(),
        found.join(", "),
    );
    Err(anyhow::Error::msg(why)).exit_with(Exit::Usage)
}

/// Every leaf that differs, by its path. What is null here and absent there was not known when the file was written.
fn differences(path: &str, was: &Value, is: &Value, found: &mut Vec<String>) {
    match (was, is) {
        (Value::Object(before), Value::Object(now)) => {
            let keys: std::collections::BTreeSet<_> = before.keys().chain(now.keys()).collect();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let of = |fields: &'_ serde_json::Map<String, Value>| fields.get(key).cloned().unwrap_or(Value::Null);
                differences(&path, &of(before), &of(now), found);
            }
        }
        (Value::Array(before), Value::Array(now)) if before.len() == now.len() => {
            for (at, (before, now)) in before.iter().zip(now).enumerate() {
                differences(&format!("{path}[{at}]"), before, now, found);
            }
        }
        _ if was == is => {}
        _ => found.push(format!("`{path}` was {was} and is {is}")),
    }
}

/// What has been done so far.
#[derive(Debug, Default)]
pub(super) struct Before {
    pub blocks: Vec<store::Block>,
    pub past: Vec<Past>,
    pub results: Vec<BlockResult>,
}

/// The blocks that ended and count; what was interrupted, or of an arm that was given up, runs again.
///
/// # Errors
/// When a block's report cannot be read.
pub(super) fn before(dir: &Path, experiment: Experiment, spec: &ExperimentSpec) -> anyhow::Result<Before> {
    let ended: Vec<(store::Block, Past)> = experiment
        .blocks
        .into_iter()
        .filter_map(|block| {
            let arm = spec.arms.iter().position(|arm| arm.name == block.arm)?;
            let ended = super::trial::ended(block.state)?;
            let past = (Block { round: block.round, arm }, ended);
            Some((block, past))
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
            let lost = || format!("block `{}`, which ran to its end: put it back, or begin anew with --out", block.dir);
            let report = store::read_run(&dir.join(&block.dir)).with_context(lost).exit_with(Exit::Usage)?;
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
    use serde_json::json;

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

    #[test]
    fn what_differs_is_named_by_its_path_with_both_values() {
        let mut found = vec![];
        let was = json!({"run": {"seed": 1, "same": [1]}, "arms": [{"name": "a"}], "gone": true});
        let is = json!({"run": {"seed": 2, "same": [1], "new": null}, "arms": [{"name": "b"}]});
        differences("", &was, &is, &mut found);
        let named =
            ["`arms[0].name` was \"a\" and is \"b\"", "`gone` was true and is null", "`run.seed` was 1 and is 2"];
        assert_eq!(found, named);
    }
}
