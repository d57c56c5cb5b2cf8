//! The forms in which a saved run or experiment leaves the program, and results of other programs that come in.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::report::{Ended, copy, gspbench, saved, saved_json};

/// Two rounds of two arms, made of the saved run.
fn experiment(home: &TempDir) -> PathBuf {
    let mut blocks = vec![];
    for (round, arm) in [(1, "a"), (1, "b"), (2, "b"), (2, "a")] {
        let dir = format!("round-{round:02}/{arm}");
        copy(home, &dir, |run| {
            run["manifest"]["arm"] = json!(arm);
            run["manifest"]["round"] = json!(round);
        });
        blocks.push(json!({"round": round, "arm": arm, "seed": 1, "salt": 1, "state": "complete", "dir": dir}));
    }
    let arm = |name| json!({"name": name, "target": {"url": "http://h:1"}, "control": false});
    let spec = json!({
        "run": saved_json()["manifest"]["spec"], "rounds": 2, "primary": "ttft_ms.mean", "threshold": 0.02,
        "arms": [arm("a"), arm("b")],
    });
    fs::write(home.path().join("ab.json"), json!({"schema": 1, "spec": spec, "blocks": blocks}).to_string()).unwrap();
    home.path().to_owned()
}

fn report(format: &str, dir: &Path) -> String {
    let Ended { out, err, code } = gspbench(&["report", "--format", format], &[dir]);
    assert_eq!((code, err.as_str()), (0, ""), "{format}");
    out
}

fn foreign(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/foreign").join(name)
}

#[test]
fn an_experiment_is_reported_as_it_is_compared() {
    let home = TempDir::new().unwrap();
    let dir = experiment(&home);
    for format in ["terminal", "table", "markdown", "json", "csv", "jsonl", "hlog", "html"] {
        let compared = gspbench(&["compare", "--format", format], &[&dir]);
        assert_eq!((compared.code, compared.out), (0, report(format, &dir)), "{format}: {}", compared.err);
    }
}

#[test]
fn csv_has_one_head_for_runs_and_experiments_and_every_row_fills_it() {
    let home = TempDir::new().unwrap();
    let (run, experiment) = (report("csv", &saved()), report("csv", &experiment(&home)));
    assert_eq!(run.lines().next(), experiment.lines().next());
    for text in [&run, &experiment] {
        let fields: Vec<_> = text.lines().map(|line| line.split(',').count()).collect();
        assert!(fields.len() > 40 && fields.iter().all(|count| *count == fields[0]), "{text}");
    }
    let mean = saved_json()["metrics"]["ttft_ms"]["mean"].as_f64().unwrap();
    assert!(run.contains(&format!(",ttft_ms.mean,ms,{mean},")), "{run}");
    for row in ["a,1,ttft_ms.mean,ms,", "b,2,ttft_ms.mean,ms,", "b,,ttft_ms.mean,ms,", "a,1,totals.failed,turns,0,"] {
        assert_eq!(experiment.matches(&format!("\n{row}")).count(), 1, "{row}");
    }
}

#[test]
fn a_line_of_bench_serving_is_made_of_each_run_and_compares_like_any_other() {
    let home = TempDir::new().unwrap();
    assert_eq!(report("jsonl", &experiment(&home)).lines().count(), 4);
    let line: Value = serde_json::from_str(&report("jsonl", &saved())).unwrap();
    let run = saved_json();
    assert_eq!((&line["completed"], &line["duration"]), (&run["totals"]["complete"], &run["metrics"]["duration_s"]));
    for key in ["median_ttft_ms", "p99_tpot_ms", "mean_itl_ms", "std_e2e_latency_ms", "concurrency"] {
        assert!(line[key].is_number(), "{key}: {line}");
    }
    assert_eq!(line["x_gspbench"]["workload"]["digest"], run["workload"]["digest"]);
    let detailed = gspbench(&["report", "--format", "jsonl", "--output-details"], &[&saved()]);
    let detailed: Value = serde_json::from_str(&detailed.out).unwrap();
    assert_eq!(detailed["ttfts"].as_array().unwrap().len(), 12);
    let [one, two] = ["one.jsonl", "two.jsonl"].map(|name| home.path().join(name));
    for file in [&one, &two] {
        let words = ["report", "--format", "jsonl", "--output", file.to_str().unwrap()];
        assert_eq!(gspbench(&words, &[&saved()]).out, "");
    }
    let compared = gspbench(&["compare"], &[&one, &two]);
    assert_eq!(compared.code, 0, "{}{}", compared.out, compared.err);
    assert!(compared.out.contains("does not record") && compared.out.contains("digest"), "{}", compared.out);
    let mixed = gspbench(&["compare"], &[&saved(), &one]);
    assert!(mixed.code == 4 && mixed.out.contains("NOT COMPARABLE: client"), "{}", mixed.out);
}

#[test]
fn an_hdr_log_has_a_tag_a_latency_and_arm() {
    let home = TempDir::new().unwrap();
    let (run, experiment) = (report("hlog", &saved()), report("hlog", &experiment(&home)));
    assert!(run.starts_with("#[Histogram log format version 1.3]\n") && run.contains("\nTag=ttft_us,0.000,"), "{run}");
    assert_eq!(experiment.matches("\nTag=ttft_us.a,").count(), 2);
    assert_eq!(experiment.matches("\nTag=e2e_us.b,").count(), 2);
}

#[test]
fn a_document_goes_to_a_new_file_and_over_no_other() {
    let home = TempDir::new().unwrap();
    let page = home.path().join("page.html");
    let words = ["report", "--format", "html", "--output", page.to_str().unwrap()];
    let first = gspbench(&words, &[&saved()]);
    assert_eq!((first.code, first.out.as_str()), (0, ""), "{}", first.err);
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
    let again = gspbench(&words, &[&saved()]);
    assert!(again.code == 2 && again.err.contains("exists already"), "{}", again.err);
    assert_eq!(fs::read_to_string(&page).unwrap(), text);
    let details = gspbench(&["report", "--output-details"], &[&saved()]);
    assert!(details.code == 2 && details.err.contains("--format jsonl"), "{}", details.err);
}

#[test]
fn what_another_program_did_not_record_is_no_zero() {
    let both = gspbench(&["compare", "--format", "json"], &[&foreign("bench_serving.jsonl")]);
    assert_eq!(both.code, 4, "another backend: {}", both.err);
    let comparison: Value = serde_json::from_str(&both.out).unwrap();
    assert_eq!((&comparison["baseline"], &comparison["arms"][0]["failed"]), (&json!("rr"), &Value::Null));
    assert_eq!(comparison["arms"][1]["failed"], json!(1));
    let row = |key: &str| {
        let rows = comparison["metrics"].as_array().unwrap().iter();
        rows.clone().find(|row| row["key"] == key).unwrap()["arms"].clone()
    };
    assert_eq!((&row("ttft_ms.p95")[0]["value"], &row("ttft_ms.mean")[0]["value"]), (&Value::Null, &json!(412.5)));
    assert_eq!(
        (&row("cache_hit_rate.value")[0]["value"], &row("icl_ms.mean")[0]["value"]),
        (&Value::Null, &Value::Null)
    );
    let table = gspbench(&["compare"], &[&foreign("bench_serving.jsonl")]);
    assert!(table.out.contains("not recorded") && table.out.contains("NOT COMPARABLE: backend"), "{}", table.out);
    let csv = gspbench(&["compare", "--format", "csv"], &[&foreign("vllm.json"), &foreign("aiperf.jsonl")]);
    assert!(csv.out.contains(",totals.failed,turns,2,") && csv.out.contains(",totals.planned,turns,,"), "{}", csv.out);
    let home = TempDir::new().unwrap();
    let other = home.path().join("other.json");
    fs::copy(foreign("vllm.json"), &other).unwrap();
    let lines = gspbench(&["compare", "--format", "jsonl"], &[&foreign("vllm.json"), &other]);
    assert!(lines.code == 2 && lines.err.contains("no turns on file"), "{}", lines.err);
}

#[test]
fn a_file_that_is_no_result_is_named_with_what_would_be_one() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("x.json");
    fs::write(&file, "{\"hello\": 1}").unwrap();
    let shown = gspbench(&["compare"], &[&file, &saved()]);
    assert!(shown.code == 2 && shown.err.contains("x.json") && shown.err.contains("AIPerf"), "{}", shown.err);
}

#[test]
fn a_file_that_cannot_be_written_is_told_with_the_flag_that_named_it() {
    let home = TempDir::new().unwrap();
    let nowhere = home.path().join("no/where");
    let (path, two_arms) = (nowhere.to_str().unwrap(), experiment(&home));
    for (args, flag) in [
        (&["report", "--output", path, saved().to_str().unwrap()][..], "`--output`"),
        (&["compare", "--output", path, two_arms.to_str().unwrap()], "`--output`"),
        (&["run", "quick", "--target", "http://127.0.0.1:1", "--output-file", path], "`--output-file`"),
    ] {
        let Ended { out, err, code } = gspbench(args, &[]);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains(path) && err.contains(flag) && !err.contains("`--out`"), "{args:?}: {err}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_grows_beyond_the_limit_of_its_size_is_an_error_and_no_signal() {
    let home = TempDir::new().unwrap();
    let path = home.path().join("page.html");
    let program = env!("CARGO_BIN_EXE_gspbench");
    // In blocks of 512 or 1,024 bytes: less than any page.
    let limited = format!("ulimit -f 1; exec {program} report --format html --output \"$1\" \"$2\"");
    let ended = std::process::Command::new("/bin/sh").args(["-c", &limited, "sh"]).arg(&path).arg(saved()).output();
    let ended = ended.unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{:?}: {said}", ended.status);
    assert!(said.contains("page.html") && said.contains("too large"), "{said}");
    assert!(!path.exists(), "a part of a page is no page");
}
