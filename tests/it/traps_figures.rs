//! What a figure may rest on: the server's own count, whatever a tokenizer makes of the text (row B26 of the traps), and a
//! clock that only runs forward (B54).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::bad_input::gspbench;
use crate::end_to_end::lines;
use crate::play::{DONE, Figures, chat, content, ending, finish, script, usage};
use crate::scripted::{Answer, BREATH, Scripted, Step, chunk, end, head};
use crate::small_runs::{kinds, run_json};

/// The test tokenizer, made to read every run of spaces as one space, and the spelling of its special token as that token.
fn merging_tokenizer(dir: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bpe-2k.tokenizer.json");
    let mut tokenizer: Value = serde_json::from_str(&std::fs::read_to_string(source).unwrap()).unwrap();
    tokenizer["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "});
    let path = dir.join("tokenizer.json");
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let read = tokenizers::Tokenizer::from_file(&path).unwrap();
    assert_eq!(read.encode(" ".repeat(8), false).unwrap().len(), 1, "it merges spaces");
    path
}

/// A chat reply of these events, each a read of its own as far as the host allows.
fn reply(pieces: &[&str], last: String) -> Answer {
    let pieces = pieces.iter().flat_map(|piece| [chunk(content(piece)), BREATH]);
    let steps: Vec<Step> = [head(), BREATH].into_iter().chain(pieces).chain([chunk(last), end()]).collect();
    Answer::Steps(steps)
}

/// A run of so many turns, one after the other, under this tokenizer, written to `out` and `line.jsonl`.
fn run(server: &Scripted, tokenizer: &Path, turns: usize, dir: &Path) -> Value {
    let (prompts, tokenizer) = (format!("--gsp-prompts-per-group={turns}"), tokenizer.to_str().unwrap());
    let args = [
        "run",
        "--target",
        &server.url,
        "--tokenizer",
        tokenizer,
        "--gsp-num-groups=1",
        &prompts,
        "--gsp-system-prompt-len=8",
        "--gsp-question-len=4",
        "--gsp-output-len=8",
        "--disable-ignore-eos",
        "--max-concurrency=1",
        "--warmup-requests=0",
        "--seed=1",
        "--out=out",
        "--output-file=line.jsonl",
        "--output-details",
    ];
    let (exit, _, stderr) = gspbench(&args, dir);
    assert!(matches!(exit, 0 | 4), "{exit}: {stderr}");
    run_json(dir)
}

/// Row B26: eight tokens of one space each, which a tokenizer would read as one.
#[test]
fn spaces_that_a_tokenizer_merges_are_as_many_tokens_as_the_server_counted() {
    let mut writes = script((0..8).map(|at| (100 + 10 * at, content(" "))));
    writes.extend(script([(180, ending(10, 8))]));
    let turn = chat(&writes).0.complete();
    assert_eq!((turn.output_tokens, turn.tpot_ms(), turn.output_estimated), (Some(8), Some(10.0), false));

    let dir = tempfile::tempdir().unwrap();
    let tokenizer = merging_tokenizer(dir.path());
    let server = Scripted::start(|seen| match seen.method.as_str() {
        "POST" => reply(&[" "; 8], ending(10, 8)),
        _ => Answer::Whole(404, "application/json", "{}".to_owned()),
    });
    let report = run(&server, &tokenizer, 4, dir.path());
    let totals = &report["totals"];
    assert_eq!((&totals["complete"], &totals["output_tokens"]), (&4.into(), &32.into()));
    assert_eq!(totals["output_estimated_turns"], 0);
    let seconds = report["metrics"]["duration_s"].as_f64().unwrap();
    let rate = report["metrics"]["output_throughput"].as_f64().unwrap();
    assert!((rate * seconds - 32.0).abs() < 0.01, "{rate} tokens a second over {seconds} s");
    let turns = lines(&dir.path().join("out/requests.jsonl"));
    assert!(turns.iter().all(|turn| turn["output_tokens"] == 8 && turn["output_estimated"] == false), "{turns:?}");
    let line = &lines(&dir.path().join("line.jsonl"))[0];
    assert_eq!((&line["total_output_tokens"], &line["output_lens"]), (&32.into(), &json!([8, 8, 8, 8])));
    // Nothing was encoded again, so that figure of bench_serving is not there, under its name or another.
    assert_eq!(line.get("total_output_tokens_retokenized"), Some(&Value::Null));
    for file in ["out/run.json", "out/requests.jsonl", "out/report.md"] {
        let text = std::fs::read_to_string(dir.path().join(file)).unwrap();
        assert!(!text.to_lowercase().contains("retoken"), "{file}: {text}");
    }
}

/// The whole kind of row B26: no text changes what a server counted.
#[test]
fn what_a_server_counts_stands_whatever_the_text_and_the_tokenizer() {
    const TEXTS: [&[&str]; 8] = [
        &[" ", " ", " "],
        &["      ", "x", "      "],
        &["\n\n\n", "\t", " "],
        &["<|begin|>", "<|begin|>"],
        &["ünï", "cødé ", "文字", "🦀"],
        &["one two three four five six"],
        &["a", "a", "a", "a", "a", "a"],
        &["\u{fffd}", "\u{200b}"],
    ];
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = merging_tokenizer(dir.path());
    let (asked, told) = (AtomicU32::new(0), Arc::new(Mutex::new(BTreeMap::new())));
    let telling = Arc::clone(&told);
    let server = Scripted::start(move |seen| match (seen.method.as_str(), seen.header("x-request-id")) {
        ("POST", Some(id)) => {
            let nth = asked.fetch_add(1, Ordering::SeqCst);
            // From fewer tokens than events to far more.
            let counted = 1 + nth * nth;
            telling.lock().unwrap().insert(id.to_owned(), counted);
            reply(TEXTS[nth as usize % TEXTS.len()], finish("stop") + &usage(10, counted) + DONE)
        }
        _ => Answer::Whole(404, "application/json", "{}".to_owned()),
    });
    let report = run(&server, &tokenizer, 2 * TEXTS.len(), dir.path());
    let told = told.lock().unwrap();
    let turns = lines(&dir.path().join("out/requests.jsonl"));
    assert_eq!(turns.len(), 2 * TEXTS.len());
    for turn in &turns {
        let counted = told[turn["id"].as_str().unwrap()];
        assert_eq!((&turn["output_tokens"], &turn["output_estimated"]), (&counted.into(), &false.into()), "{turn}");
    }
    let sum: u64 = turns.iter().map(|turn| turn["output_tokens"].as_u64().unwrap()).sum();
    assert_eq!(report["totals"]["output_tokens"], sum);
}

/// Where the server does not count, the tokenizer's count of the joined text is used, and bears the name of an estimate.
#[test]
fn a_count_of_our_own_is_an_estimate_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = merging_tokenizer(dir.path());
    let server = Scripted::start(|seen| match seen.method.as_str() {
        "POST" => reply(&[" "; 8], finish("stop") + DONE),
        _ => Answer::Whole(404, "application/json", "{}".to_owned()),
    });
    let report = run(&server, &tokenizer, 4, dir.path());
    assert_eq!(
        (&report["totals"]["output_tokens"], &report["totals"]["output_estimated_turns"]),
        (&4.into(), &4.into())
    );
    let turns = lines(&dir.path().join("out/requests.jsonl"));
    assert!(turns.iter().all(|turn| turn["output_tokens"] == 1 && turn["output_estimated"] == true), "{turns:?}");
    assert!(kinds(&report, "warnings").contains(&"estimated".to_owned()), "{}", report["validity"]);
}

/// Read in place of the system's by every process of the run: each look at the wall clock finds it an hour further back.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const STEPPING_BACK: &str = "
#define _GNU_SOURCE
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static atomic_int looks;
int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (failed == 0 && clock == CLOCK_REALTIME) at->tv_sec -= 3600 * ++looks;
    return failed;
}
";

/// Row B54, second half. The clock of a machine cannot be set for one test, nor can a time namespace shift this clock; so
/// the call that reads it is replaced, in the client and in the server that it starts.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn a_wall_clock_that_is_set_back_during_a_run_changes_no_duration() {
    const HOUR_S: f64 = 3_600.0;
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("clock.c"), dir.path().join("clock.so"));
    std::fs::write(&source, STEPPING_BACK).unwrap();
    // What links this test can build a library.
    let built = std::process::Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.unwrap().success());
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_gspbench"))
        .args(crate::bad_input::small(&["--target=sim:round_robin,ranks=2", "--output-details"]))
        .args(["--gsp-num-turns=2", "--goodput", "ttft:60000"])
        .env("LD_PRELOAD", &library)
        .current_dir(dir.path())
        .timeout(std::time::Duration::from_secs(120))
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 4)), "{stderr}");
    let out = std::fs::read_dir(dir.path().join("gspbench-results")).unwrap().next().unwrap().unwrap().path();
    let report = crate::end_to_end::json(&out.join("run.json"));
    // The folder is named at the first look or later, the start noted at the second or later.
    let started = humantime::parse_rfc3339(report["manifest"]["started_utc"].as_str().unwrap()).unwrap();
    assert!(started.elapsed().unwrap().as_secs_f64() > 2.0 * HOUR_S, "the clock was set back");
    assert_eq!(report["totals"]["complete"], 8);
    let mut turns = lines(&out.join("requests.jsonl"));
    turns.push(report);
    for value in &turns {
        each_number(value, &mut vec![], &mut |path, number| {
            assert!(number >= 0.0, "{path:?}: {number}");
            let per_second = path.iter().find_map(|key| match key.rsplit_once('_')?.1 {
                "us" => Some(1e6),
                "ms" => Some(1e3),
                "s" => Some(1.0),
                _ => None,
            });
            assert!(per_second.is_none_or(|unit| number < HOUR_S * unit), "{path:?}: {number}");
        });
    }
}

/// Every number in it, with the keys that lead there.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn each_number(value: &Value, path: &mut Vec<String>, check: &mut impl FnMut(&[String], f64)) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect(),
        Value::Number(number) => return check(path, number.as_f64().unwrap()),
        _ => return,
    };
    for (key, value) in inner {
        path.push(key);
        each_number(value, path, check);
        path.pop();
    }
}
