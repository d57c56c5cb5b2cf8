//! What taking an experiment and a sweep up again have in common: what stands on file, and whether it is what is asked for.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::exit::{Exit, ExitWith as _};
use super::site::sites::state_of;
use crate::report::RunReport;
use crate::store::{self, BlockState};

/// Differences that are named before the rest is only counted.
const NAMED: usize = 4;

/// A specification as it stands in a file.
///
/// # Errors
/// When it is none, or held secrets, which no file keeps.
pub(super) fn from_file<T: DeserializeOwned>(spec: &Value) -> anyhow::Result<T> {
    if spec.to_string().contains(crate::report::HIDDEN) {
        let why =
            "--resume: files keep no headers, bodies or addresses with secrets: give the whole command line again";
        return Err(anyhow::Error::msg(why)).exit_with(Exit::Usage);
    }
    serde_json::from_value(spec.clone()).exit_with(Exit::Usage)
}

/// The seed of the first round or step, for a specification that draws it.
pub(super) fn stored_seed(spec: &Value) -> Option<u64> {
    spec.pointer("/run/workload/seed")?.as_u64()
}

/// Refuses to go on in `dir` with another specification than `was`, the one on file.
///
/// # Errors
/// One that names what differs.
pub(super) fn check_same(dir: &Path, was: &Value, is: &impl Serialize) -> anyhow::Result<()> {
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
            let keys: BTreeSet<_> = before.keys().chain(now.keys()).collect();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let of = |fields: &'_ Map<String, Value>| fields.get(key).cloned().unwrap_or(Value::Null);
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

/// Refuses a block or step that a file lists and its specification cannot have: anyone may have changed the file since it
/// was written. `fault` is what the caller finds wrong with it.
///
/// # Errors
/// One that names the file, the entry and what is wrong.
pub(super) fn check_listed(file: &Path, entry: &str, home: &str, fault: Option<String>) -> anyhow::Result<()> {
    let is_below = Path::new(home).components().all(|part| matches!(part, Component::Normal(_)));
    let elsewhere = (!is_below).then(|| format!("its directory `{home}` is not below that of the file"));
    let Some(fault) = fault.or(elsewhere) else { return Ok(()) };
    let file = file.display();
    let why = format!(
        "--resume: `{file}` lists {entry}, but {fault}: put the file back as it was written, or begin anew with --out"
    );
    Err(anyhow::Error::msg(why)).exit_with(Exit::Usage)
}

/// How a block or step stands. A kill that fell between its report and the list has left it in the list as running.
pub(super) fn settled(home: &Path, listed: BlockState) -> BlockState {
    match listed {
        BlockState::Running => store::read_run(home).map_or(listed, |report| state_of(&report)),
        _ => listed,
    }
}

/// The report of a block or step of `arm` that ran to its end.
///
/// # Errors
/// When it cannot be read, or is another arm's.
pub(super) fn finished(dir: &Path, what: &str, home: &str, arm: &str) -> anyhow::Result<RunReport> {
    let lost = || format!("{what} `{home}`, which ran to its end: put it back, or begin anew with --out");
    let report = store::read_run(&dir.join(home)).with_context(lost).exit_with(Exit::Usage)?;
    match report.manifest.arm.as_deref() {
        Some(other) if other != arm => {
            let why = format!("its report is of arm `{other}`, and it is listed as one of `{arm}`");
            Err(anyhow::Error::msg(why).context(lost())).exit_with(Exit::Usage)
        }
        _ => Ok(report),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
