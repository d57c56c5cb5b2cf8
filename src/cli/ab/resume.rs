//! Taking an experiment up again: the same specification, and the blocks that are done. What a sweep shares with it.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::exit::{Exit, ExitWith as _};
use crate::compare::BlockResult;
use crate::experiment::{self, Block, Ended, Past};
use crate::profile::{ExperimentSpec, check_stored};
use crate::report::{RunReport, public_experiment};
use crate::store::{self, BlockState, Experiment};

/// Differences that are named before the rest is only counted.
const NAMED: usize = 4;

/// The specification that a directory holds, for a command line that says nothing else.
///
/// # Errors
/// When it is none, or held secrets, which no file keeps.
pub(crate) fn stored_spec(experiment: &Experiment) -> anyhow::Result<ExperimentSpec> {
    let spec = from_file(&experiment.spec)?;
    check_stored(&spec).exit_with(Exit::Usage)?;
    Ok(spec)
}

/// A specification as it stands in a file.
///
/// # Errors
/// When it is none, or held secrets, which no file keeps.
pub(crate) fn from_file<T: DeserializeOwned>(spec: &Value) -> anyhow::Result<T> {
    if spec.to_string().contains(crate::report::HIDDEN) {
        let why =
            "--resume: files keep no headers, bodies or addresses with secrets: give the whole command line again";
        return Err(anyhow::Error::msg(why)).exit_with(Exit::Usage);
    }
    serde_json::from_value(spec.clone()).exit_with(Exit::Usage)
}

/// The seed of the first round or step, for a specification that draws it.
pub(crate) fn stored_seed(spec: &Value) -> Option<u64> {
    spec.pointer("/run/workload/seed")?.as_u64()
}

/// Refuses to go on with another specification than the experiment began with.
///
/// # Errors
/// One that names what differs.
pub(crate) fn check(dir: &Path, experiment: &Experiment, spec: &ExperimentSpec) -> anyhow::Result<()> {
    check_same(dir, &experiment.spec, &public_experiment(spec.clone()))
}

/// Refuses to go on in `dir` with another specification than `was`, the one on file.
///
/// # Errors
/// One that names what differs.
pub(crate) fn check_same(dir: &Path, was: &Value, is: &impl Serialize) -> anyhow::Result<()> {
    // As it would stand in the file: a number may lose its last bit on the way.
    let is: Value = serde_json::from_slice(&serde_json::to_vec(is)?)?;
    let mut found = Vec::new();
    differences("", was, &is, &mut found);
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

/// How a block stands. A kill that fell between its report and the list has left it in the list as running.
pub(crate) fn settled(home: &Path, listed: BlockState) -> BlockState {
    match listed {
        BlockState::Running => {
            store::read_run(home).map_or(listed, |report| crate::cli::site::sites::state_of(&report))
        }
        _ => listed,
    }
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

/// The report of a block or step that ran to its end.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn finished(dir: &Path, what: &str, home: &str) -> anyhow::Result<RunReport> {
    let lost = || format!("{what} `{home}`, which ran to its end: put it back, or begin anew with --out");
    store::read_run(&dir.join(home)).with_context(lost).exit_with(Exit::Usage)
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
