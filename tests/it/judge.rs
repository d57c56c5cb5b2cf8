//! Verdicts, comparability and gates as commands, on copies of the saved run.

use std::fs;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

fn gspbench(words: &[&str], dirs: &[PathBuf]) -> (i32, String, String) {
    let output = Command::cargo_bin("gspbench").unwrap().args(words).args(dirs).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn saved() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/run")
}

/// A run of an arm whose mean TTFT is `ttft` ms.
fn run(home: &TempDir, arm: &str, round: u32, ttft: f64, edit: impl FnOnce(&mut Value)) -> PathBuf {
    let dir = home.path().join(format!("round-{round:02}/{arm}"));
    fs::create_dir_all(&dir).unwrap();
    let mut run: Value = serde_json::from_str(&fs::read_to_string(saved().join("run.json")).unwrap()).unwrap();
    run["manifest"]["arm"] = json!(arm);
    run["manifest"]["round"] = json!(round);
    // A server of someone else's, of which nothing but the policy may differ.
    run["manifest"]["target"] = json!({"url": "http://h:1"});
    run["metrics"]["ttft_ms"]["mean"] = json!(ttft);
    edit(&mut run);
    fs::write(dir.join("run.json"), run.to_string()).unwrap();
    fs::copy(saved().join("requests.jsonl"), dir.join("requests.jsonl")).unwrap();
    dir
}

/// Four rounds of two arms, the second slower by about `factor`.
fn rounds(home: &TempDir, factor: f64) -> Vec<PathBuf> {
    let noise = [1.0, 1.004, 0.997, 1.002];
    let round = |(at, noise): (u32, f64)| {
        [run(home, "a", at, 500.0, |_| {}), run(home, "b", at, 500.0 * factor * noise, |_| {})]
    };
    (1..).zip(noise).flat_map(round).collect()
}

#[test]
fn a_comparison_states_its_verdict_and_a_gate_decides_the_exit_code() {
    let home = TempDir::new().unwrap();
    let dirs = rounds(&home, 1.1);
    let (code, out, err) = gspbench(&["compare"], &dirs);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("b is worse than a: Mean TTFT (ms) +10."), "{out}");
    let gated = |gate: &str| gspbench(&["compare", "--fail-if", gate], &dirs);
    assert_eq!((gated("ttft_ms.mean worse 5%").0, gated("ttft_ms.mean worse 20%").0), (5, 0));
    let (code, out, _) = gated("ttft_ms.mean worse 5%");
    assert!(code == 5 && out.contains("gate FAILED, b: `ttft_ms.mean worse 5%`"), "{out}");
    let same = gspbench(&["compare", "--threshold", "0.2"], &dirs).1;
    assert!(same.contains("b is as good as a, within ±20 %"), "{same}");
}

#[test]
fn a_wrong_gate_is_refused_with_the_grammar_before_anything_runs() {
    let home = TempDir::new().unwrap();
    let dirs = rounds(&home, 1.0);
    for (gate, words) in [
        ("ttft_ms.p99 slower 5%", "METRIC OP VALUE"),
        ("ttft_ms.p98 worse 5%", "ttft_ms.p99"),
        ("totals.fail > 0", "`totals.failed`"),
    ] {
        let (code, out, err) = gspbench(&["compare", "--fail-if", gate], &dirs);
        assert_eq!((code, out.as_str()), (2, ""), "{gate}: {err}");
        assert!(err.contains(gate.split(' ').next().unwrap()) && err.contains(words), "{gate}: {err}");
    }
    let (code, _, err) = gspbench(&["run", "--target", "http://127.0.0.1:9", "--fail-if", "ttft_ms.p99 worse 5%"], &[]);
    assert!(code == 2 && err.contains("no baseline"), "{err}");
    // Nothing listens there: a gate that was looked at late would end as an unreachable target.
    let arms = ["--arm", "a=http://127.0.0.1:9", "--arm", "b=http://127.0.0.1:9"];
    for gate in [["--fail-if", "e2e_ms.p999 > 5"], ["--set", "experiment.fail_if=[\"e2e_ms.p999 > 5\"]"]] {
        let (code, _, err) = gspbench(&[&["ab"], &arms[..], &gate].concat(), &[]);
        assert!(code == 2 && err.contains("`e2e_ms.p999`") && err.contains("`e2e_ms.p99`"), "{err}");
    }
    let (code, _, err) = gspbench(&["ab", "--set", "experiment.fail_if=[\"totals.failed is 0\"]"], &[]);
    assert!(code == 2 && err.contains("`totals.failed is 0`"), "{err}");
    let (code, _, err) = gspbench(&["ab", "--set", "experiment.threshold=2"], &[]);
    assert!(code == 2 && err.contains("`experiment.threshold`"), "{err}");
}

#[test]
fn other_work_ends_with_its_own_code_unless_it_is_allowed_and_the_difference_is_shown_either_way() {
    let home = TempDir::new().unwrap();
    let a = run(&home, "a", 1, 500.0, |_| {});
    let b = run(&home, "b", 1, 500.0, |run| run["server"]["info"]["chunked_prefill_size"] = json!(1));
    let dirs = [a, b];
    let difference = "server_info.chunked_prefill_size of b is 1";
    let (code, out, _) = gspbench(&["compare"], &dirs);
    assert!(code == 4 && out.contains("NOT COMPARABLE") && out.contains(difference), "{out}");
    let (code, out, _) = gspbench(&["compare", "--allow-mismatch"], &dirs);
    assert!(code == 0 && out.contains("NOT THE SAME WORK") && out.contains(difference), "{out}");
    let (code, out, _) = gspbench(&["compare", "--may-differ", "chunked_prefill_size"], &dirs);
    assert!(code == 0 && out.contains("Where server_info differs") && !out.contains("NOT "), "{out}");
}

#[test]
fn single_runs_of_two_machines_are_judged_within_themselves_with_what_speaks_against_it() {
    let home = TempDir::new().unwrap();
    let a = run(&home, "a", 1, 500.0, |_| {});
    let b = run(&home, "b", 1, 500.0, |run| {
        run["manifest"]["host"]["cores"] = json!(99);
        run["manifest"]["started_utc"] = json!("2027-03-04T05:06:07Z");
    });
    let (code, out, _) = gspbench(&["compare"], &[a, b]);
    let out = out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(code, 0, "{out}");
    for words in [
        "within 1 round, which says nothing of the next run",
        "doubt: b: a ran first in the only round",
        "note: client host of b is 99 cores",
        "note: date of b is 2027-03-04",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
}
