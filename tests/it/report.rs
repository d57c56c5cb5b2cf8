//! `report` and `compare` as commands, on a saved run: `tests/data/run`, made once by the command line in its run.json.
//! It must stay readable: whoever changes the shape of run.json finds out here.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Standard output, standard error and exit code.
pub(crate) struct Ended {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) code: i32,
}

pub(crate) fn gspbench(words: &[&str], dirs: &[&Path]) -> Ended {
    let output = Command::cargo_bin("gspbench").unwrap().args(words).args(dirs).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { out: text(output.stdout), err: text(output.stderr), code: output.status.code().unwrap() }
}

pub(crate) fn saved() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/run")
}

pub(crate) fn saved_json() -> Value {
    serde_json::from_str(&fs::read_to_string(saved().join("run.json")).unwrap()).unwrap()
}

/// A copy of the saved run under `home`, changed by `edit`.
pub(crate) fn copy(home: &TempDir, name: &str, edit: impl FnOnce(&mut Value)) -> PathBuf {
    let dir = home.path().join(name);
    fs::create_dir_all(&dir).unwrap();
    let mut run = saved_json();
    edit(&mut run);
    fs::write(dir.join("run.json"), run.to_string()).unwrap();
    fs::copy(saved().join("requests.jsonl"), dir.join("requests.jsonl")).unwrap();
    dir
}

#[test]
fn a_saved_run_is_shown_in_every_form() {
    let table = gspbench(&["report"], &[&saved()]);
    assert_eq!((table.code, table.err.as_str()), (0, ""));
    for part in ["Failed requests", "TTFT", "ITL", "TPOT", "E2E Latency", "Cache hit rate", "rank 1", "stickiness"] {
        assert!(table.out.contains(part), "{part} in\n{}", table.out);
    }
    let markdown = gspbench(&["report", "--format", "markdown"], &[&saved()]);
    assert!(markdown.out.starts_with("### gspbench run") && markdown.out.contains("<details>"));
    let json = gspbench(&["report", "--format", "json"], &[&saved()]);
    assert!(holds(&serde_json::from_str(&json.out).unwrap(), &saved_json()), "a saved number changed");
}

/// Whether `new` tells all that `old` tells: a newer program may know more keys.
fn holds(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (_, Value::Null) => true,
        (Value::Object(new), Value::Object(old)) => {
            old.iter().all(|(key, old)| new.get(key).map_or(old.is_null(), |new| holds(new, old)))
        }
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| holds(new, old))
        }
        _ => new == old,
    }
}

#[test]
fn one_block_given_twice_is_refused_and_not_dropped() {
    let home = TempDir::new().unwrap();
    let block = |experiment: &str, arm: &str| {
        copy(&home, &format!("{experiment}/round-01/{arm}"), |run| {
            run["manifest"]["arm"] = json!(arm);
            run["manifest"]["round"] = json!(1);
        })
    };
    let [a1, b1, a2, b2] = [("e1", "a"), ("e1", "b"), ("e2", "a"), ("e2", "b")].map(|(e, arm)| block(e, arm));
    let both = gspbench(&["compare", "--format", "json"], &[&a1, &b1, &a2, &b2]);
    let comparison: Value = serde_json::from_str(&both.out).unwrap();
    assert_eq!((both.code, &comparison["rounds"]), (0, &json!([1, 2])), "{}", both.err);
    let twice = gspbench(&["compare"], &[&a1, &b1, &a1]);
    assert_eq!((twice.code, twice.out.as_str()), (2, ""));
    assert!(twice.err.contains("both round 1 of the arm `a`"), "{}", twice.err);
}

#[test]
fn a_run_that_was_killed_is_made_again_from_its_turns() {
    let home = TempDir::new().unwrap();
    let killed = copy(&home, "killed", |run| {
        run["state"] = json!("running");
        for part in ["totals", "metrics", "windows", "ranks", "affinity", "histograms"] {
            run[part] = gspbench_empty()[part].clone();
        }
    });
    let again = gspbench(&["report", "--format", "json"], &[&killed]);
    assert_eq!(again.code, 0, "{}", again.err);
    assert!(again.err.contains("did not end") && again.err.contains("12 turns"), "{}", again.err);
    let (again, mut saved): (Value, Value) = (serde_json::from_str(&again.out).unwrap(), saved_json());
    // The saved report is of a version whose windows had no rate of input.
    saved["windows"]["whole"]["input_throughput"] = saved["metrics"]["input_throughput"].clone();
    for part in ["totals", "metrics", "ranks", "histograms"] {
        assert_eq!(again[part], saved[part], "{part}");
    }
    assert_eq!(again["windows"]["whole"], saved["windows"]["whole"]);
    for figure in ["stickiness", "off_majority_turns", "keys_per_rank", "attribution"] {
        assert_eq!(again["affinity"][figure], saved["affinity"][figure], "{figure}");
    }
}

/// The parts of the report of a run of which no turn has ended.
fn gspbench_empty() -> Value {
    let home = TempDir::new().unwrap();
    let started = copy(&home, "started", |run| run["state"] = json!("running"));
    fs::write(started.join("requests.jsonl"), "").unwrap();
    let shown = gspbench(&["report", "--format", "json"], &[&started]);
    serde_json::from_str(&shown.out).unwrap()
}

#[test]
fn a_torn_last_line_loses_one_turn_and_no_other() {
    let home = TempDir::new().unwrap();
    let torn = copy(&home, "torn", |run| run["state"] = json!("running"));
    let log = torn.join("requests.jsonl");
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, &text[..text.len() - 20]).unwrap();
    let shown = gspbench(&["report"], &[&torn]);
    assert_eq!(shown.code, 0);
    assert!(shown.out.contains("11 of 12") && shown.err.contains("11 turns"), "{}\n{}", shown.out, shown.err);
}

#[test]
fn a_run_that_was_killed_before_its_first_turn_is_said_to_hold_none() {
    let home = TempDir::new().unwrap();
    let killed = copy(&home, "killed", |run| run["state"] = json!("running"));
    fs::remove_file(killed.join("requests.jsonl")).unwrap();
    let shown = gspbench(&["report"], &[&killed]);
    assert!(shown.code == 2 && shown.err.contains("the run ended before its first turn"), "{}", shown.err);
}

#[test]
fn an_interrupted_run_is_shown_as_such_and_a_void_one_has_its_own_exit_code() {
    let home = TempDir::new().unwrap();
    let interrupted = copy(&home, "i", |run| run["state"] = json!("interrupted"));
    let shown = gspbench(&["report"], &[&interrupted]);
    assert!(shown.code == 0 && shown.out.lines().next().unwrap().contains("interrupted"), "{}", shown.out);
    let void = copy(&home, "v", |run| run["validity"]["verdict"] = json!("void"));
    let shown = gspbench(&["report"], &[&void]);
    assert!(shown.code == 4 && shown.out.lines().next().unwrap().contains("VOID"), "{}", shown.out);
}

#[test]
fn what_cannot_be_read_is_said_in_one_sentence_that_names_it() {
    let home = TempDir::new().unwrap();
    let empty = home.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let newer = copy(&home, "newer", |run| run["schema"] = json!(99));
    let foreign = copy(&home, "foreign", |run| *run = json!({"schema": 1, "completed": 3}));
    let half = copy(&home, "half", |_| ());
    let text = fs::read_to_string(half.join("run.json")).unwrap();
    fs::write(half.join("run.json"), &text[..text.len() / 2]).unwrap();
    let bad_line = copy(&home, "bad_line", |run| run["state"] = json!("running"));
    fs::write(bad_line.join("requests.jsonl"), "{\"id\": 1}\n").unwrap();
    let experiment = home.path().join("experiment");
    fs::create_dir(&experiment).unwrap();
    fs::write(experiment.join("ab.json"), "{}").unwrap();
    let cases = [
        (home.path().join("nowhere"), "does not exist"),
        (empty, "holds no run.json"),
        (newer, "newer gspbench"),
        (foreign, "is not what gspbench writes"),
        (half, "is not what gspbench writes"),
        (bad_line, "line 1"),
        (experiment, "is not what gspbench writes"),
    ];
    for (path, words) in cases {
        let shown = gspbench(&["report"], &[&path]);
        assert_eq!((shown.code, shown.out.as_str()), (2, ""), "{}", path.display());
        assert_eq!(shown.err.trim_end().lines().count(), 1, "{}", shown.err);
        assert!(shown.err.contains(words) && shown.err.contains(path.to_str().unwrap()), "{}", shown.err);
    }
}

#[test]
fn equal_runs_compare_as_equal_and_unlike_ones_not_at_all() {
    let home = TempDir::new().unwrap();
    let same = copy(&home, "same", |_| ());
    let shown = gspbench(&["compare"], &[&saved(), &same]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    let ttft = shown.out.lines().find(|line| line.contains("│ Mean TTFT")).unwrap();
    assert!(ttft.contains("+0.0 … +0.0") && ttft.contains("same"), "{ttft}");
    assert!(shown.out.contains("Failed requests") && shown.out.contains("Per rank: same"), "{}", shown.out);
    let other = copy(&home, "other", |run| run["workload"]["digest"] = json!("beef"));
    let shown = gspbench(&["compare"], &[&saved(), &other]);
    assert_eq!(shown.code, 4);
    assert!(shown.out.contains("NOT COMPARABLE: digest of other is beef"), "{}", shown.out);
    let void = copy(&home, "void", |run| run["validity"]["verdict"] = json!("void"));
    assert_eq!(gspbench(&["compare"], &[&saved(), &void]).code, 4);
}

#[test]
fn what_cannot_be_paired_is_a_usage_error() {
    let home = TempDir::new().unwrap();
    let alone = gspbench(&["compare"], &[&saved()]);
    assert!(alone.code == 2 && alone.err.contains("at least two"), "{}", alone.err);
    let same = copy(&home, "same", |_| ());
    let unknown = gspbench(&["compare", "--baseline", "nobody"], &[&saved(), &same]);
    assert!(unknown.code == 2 && unknown.err.contains("the arms are run, same"), "{}", unknown.err);
    let missing = gspbench(&["compare"], &[&saved(), &home.path().join("nowhere")]);
    assert!(missing.code == 2 && missing.err.contains("does not exist"), "{}", missing.err);
}

#[test]
fn the_blocks_of_an_experiment_are_paired_by_round() {
    let home = TempDir::new().unwrap();
    let mut blocks = vec![];
    for (round, arm) in [(1, "a"), (1, "b"), (2, "b"), (2, "a")] {
        let name = format!("round-{round:02}/{arm}");
        copy(&home, &name, |run| {
            run["workload"]["digest"] = json!(format!("of round {round}"));
            run["metrics"]["request_throughput"] = json!(if arm == "a" { 10 } else { 10 * round });
        });
        blocks.push(json!({"round": round, "arm": arm, "seed": 1, "salt": 1, "state": "complete", "dir": name}));
    }
    blocks.push(json!({"round": 3, "arm": "a", "seed": 1, "salt": 1, "state": "planned", "dir": ""}));
    let arm = |name| json!({"name": name, "target": {"url": "http://h:1"}, "control": false});
    let spec = json!({
        "run": saved_json()["manifest"]["spec"], "rounds": 3, "primary": "ttft_ms.mean", "threshold": 0.02,
        "arms": [arm("a"), arm("b")],
    });
    fs::write(home.path().join("ab.json"), json!({"schema": 1, "spec": spec, "blocks": blocks}).to_string()).unwrap();
    let shown = gspbench(&["compare", "--format", "json"], &[home.path()]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    let comparison: Value = serde_json::from_str(&shown.out).unwrap();
    assert_eq!((&comparison["baseline"], &comparison["rounds"]), (&json!("a"), &json!([1, 2])));
    let row = comparison["metrics"].as_array().unwrap().iter().find(|row| row["key"] == "request_throughput").unwrap();
    let ratios: Vec<_> = row["contrasts"][0]["ratios"].as_array().unwrap().iter().map(|r| &r["ratio"]).collect();
    assert_eq!(ratios, [&json!(1.0), &json!(2.0)]);
    assert_eq!(row["contrasts"][0]["geometric_mean"], json!((2.0_f64.sqrt() * 1e6).round() / 1e6));
    assert_eq!(row["contrasts"][0]["verdict"], Value::Null);
}
