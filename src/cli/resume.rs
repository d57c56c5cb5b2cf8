//! What taking an experiment and a sweep up again have in common: what stands on file, and whether it is what is asked for.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::exit::{Exit, ExitWith as _};
use super::site::sites::{of_round, state_of};
use crate::profile::{ArmSpec, RunSpec};
use crate::render;
use crate::report::{FindingKind, RunReport};
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
pub(super) fn check_same<T: Serialize + DeserializeOwned>(dir: &Path, was: &Value, is: &T) -> anyhow::Result<()> {
    // Both as they would stand in a file of this version: a number may lose its last bit on the way there, and an earlier
    // version knew no value of a field that came later, which then has its default.
    let written = |spec: &T| serde_json::from_slice::<Value>(&serde_json::to_vec(spec)?);
    let was = serde_json::from_value::<T>(was.clone()).map_or_else(|_| Ok(was.clone()), |was| written(&was))?;
    let mut found = Vec::new();
    differences("", &was, &written(is)?, &mut found);
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

/// Every leaf that differs, by its path; null and absent are the same.
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

/// The index of the arm of this name.
///
/// # Errors
/// That there is none.
pub(super) fn arm_of(arms: &[ArmSpec], name: &str) -> Result<usize, String> {
    arms.iter().position(|arm| arm.name == name).ok_or_else(|| "there is no such arm".to_owned())
}

/// Holds the seed and salt that a list tells of a round or step to those that the specification has there.
///
/// # Errors
/// One that gives both.
pub(super) fn seeded(run: &RunSpec, number: u32, listed: (u64, u64)) -> Result<(), String> {
    let of_round = of_round(run, number);
    let planned = (of_round.workload.seed, of_round.key.salt);
    if listed == planned {
        return Ok(());
    }
    let words = |(seed, salt): (u64, u64)| format!("seed {seed} and salt {salt}");
    Err(format!("with {}, where the specification has {}", words(listed), words(planned)))
}

/// Takes a block or step that a file lists, if its specification can have it: anyone may have changed the file since it was
/// written. `place` is where it belongs, or what the caller finds wrong with it.
///
/// # Errors
/// One that names the file, the entry and what is wrong.
pub(super) fn listed<T>(file: &Path, entry: &str, home: &str, place: Result<T, String>) -> anyhow::Result<T> {
    let is_below = Path::new(home).components().all(|part| matches!(part, Component::Normal(_)));
    let fault = match place {
        Ok(place) if is_below => return Ok(place),
        Ok(_) => format!("its directory `{home}` is not below that of the file"),
        Err(fault) => fault,
    };
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

/// A block or step that ran to its end, as the list has it.
pub(super) struct Listed<'a> {
    /// `block` or `step`.
    pub what: &'static str,
    pub home: &'a str,
    pub arm: &'a str,
    /// With the salt, of no other round or step.
    pub seed: u64,
    pub salt: u64,
}

impl Listed<'_> {
    /// Why `report` cannot be its report.
    fn fault_of(&self, report: &RunReport) -> Option<String> {
        let (manifest, listed) = (&report.manifest, self.arm);
        if let Some(other) = manifest.arm.as_deref().filter(|arm| *arm != listed) {
            return Some(format!("its report is of arm `{other}`, and it is listed as one of `{listed}`"));
        }
        let was = (manifest.spec.workload.seed, manifest.spec.key.salt);
        let is = (self.seed, self.salt);
        let words = |(seed, salt): (u64, u64)| format!("seed {seed} and salt {salt}");
        (was != is).then(|| {
            format!("its report has {}, and it is listed with {}: it is another {}'s", words(was), words(is), self.what)
        })
    }
}

/// Its report.
///
/// # Errors
/// When it cannot be read, or is that of another arm, round or step.
pub(super) fn finished(dir: &Path, listed: &Listed<'_>) -> anyhow::Result<RunReport> {
    let Listed { what, home, .. } = listed;
    let path = dir.join(home);
    let lost = || {
        let file = path.join(store::RUN);
        format!(
            "{what} `{home}`, which ran to its end: put its own `{}` back, or begin anew with --out",
            file.display()
        )
    };
    let report = store::read_run(&path).with_context(lost).exit_with(Exit::Usage)?;
    match listed.fault_of(&report) {
        Some(why) => Err(anyhow::Error::msg(why).context(lost())).exit_with(Exit::Usage),
        None => Ok(report),
    }
}

/// Said of what is run again after it could not be run.
pub(super) const AGAIN_SINCE_FAILED: &str = "again, since its first run failed";

/// The same of what was void, for the findings that made it so.
pub(super) fn again_since_void(kinds: impl IntoIterator<Item = FindingKind>) -> String {
    format!("again, since its first run was void: {}", render::kinds(kinds))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::tests::context;
    use crate::report::{Accumulator, Closing, State};

    #[test]
    fn a_report_of_another_arm_round_or_step_is_refused_by_file_with_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let said = |arm: Option<&str>, seed: u64, salt: u64| {
            let run = store::RunDir::create(Some(&dir.path().join(format!("{arm:?}-{seed}-{salt}"))), "x").unwrap();
            let mut context = context(1, 1);
            context.manifest.arm = arm.map(str::to_owned);
            (context.manifest.spec.workload.seed, context.manifest.spec.key.salt) = (seed, salt);
            run.write_report(&Accumulator::new(context).finish(Closing::plain(State::Complete))).unwrap();
            let home = run.path().file_name().unwrap().to_str().unwrap();
            let listed = Listed { what: "block", home, arm: "a", seed: 8, salt: 1 };
            let found = finished(dir.path(), &listed).map(|report| report.manifest.arm);
            found.map_err(|why| (format!("{why:#}"), run.path().join(store::RUN).display().to_string()))
        };
        assert_eq!(said(Some("a"), 8, 1), Ok(Some("a".to_owned())));
        for (arm, seed, salt, fault) in [
            ("b", 8, 1, "its report is of arm `b`, and it is listed as one of `a`"),
            (
                "a",
                7,
                0,
                "its report has seed 7 and salt 0, and it is listed with seed 8 and salt 1: it is another block's",
            ),
            ("a", 8, 0, "seed 8 and salt 0"),
            ("a", 9, 1, "seed 9 and salt 1"),
        ] {
            let (why, file) = said(Some(arm), seed, salt).unwrap_err();
            assert!(why.contains(fault) && why.contains(&file) && why.contains("--out"), "{why}");
        }
    }

    /// Of each field that a file may lack: a later version has it, and goes on with what an earlier one began.
    #[test]
    fn a_field_that_the_file_does_not_know_yet_has_its_default_and_is_no_difference() {
        let spec = context(1, 1).manifest.spec;
        let whole = serde_json::to_value(&spec).unwrap();
        let mut without = 0;
        for (room, fields) in whole.as_object().unwrap() {
            for field in fields.as_object().into_iter().flat_map(Map::keys) {
                let mut was = whole.clone();
                was[room].as_object_mut().unwrap().remove(field);
                if serde_json::from_value::<RunSpec>(was.clone()).is_ok_and(|read| read == spec) {
                    check_same(Path::new("x"), &was, &spec).unwrap();
                    without += 1;
                }
            }
        }
        assert!(without > 5, "{without}");
        let mut other = whole;
        other["load"]["connections"] = json!("per_turn");
        let why = check_same(Path::new("x"), &other, &spec).unwrap_err().to_string();
        assert!(why.contains("`load.connections` was \"per_turn\" and is \"kept\""), "{why}");
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
