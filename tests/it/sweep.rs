//! `gspbench sweep` against simulated servers, as a user runs it.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use assert_cmd::Command;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::bad_input::refuses;
use crate::interrupt::wait_for;
use crate::scripted::{Answer, Scripted, chat_stream};

fn gspbench(words: &[&str]) -> (i32, String, String) {
    let output = Command::cargo_bin("gspbench").unwrap().args(words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

const ARMS: [&str; 4] = ["--arm", "rr=sim:round_robin,ranks=2", "--arm", "pa=sim:prefix_affinity,ranks=2"];
pub(crate) const SMALL: [&str; 8] = [
    "--gsp-num-groups=2",
    "--gsp-prompts-per-group=4",
    "--gsp-system-prompt-len=64",
    "--gsp-question-len=8",
    "--gsp-output-len=4",
    "--warmup-requests=0",
    "--seed=7",
    "--time-scale=20",
];

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn dirs(sweep: &Value) -> Vec<&str> {
    sweep["steps"].as_array().unwrap().iter().map(|step| step["dir"].as_str().unwrap()).collect()
}

/// Whether a step is void, for nothing but how late this machine, which also runs the other tests, was itself.
fn was_late(out: &Path) -> bool {
    let sweep = json(&out.join("sweep.json"));
    let points = sweep["curves"]["arms"].as_array().unwrap().iter().flat_map(|arm| arm["points"].as_array().unwrap());
    let voids: Vec<_> = points.flat_map(|point| point["voids"].as_array().unwrap()).collect();
    assert!(voids.iter().all(|void| *void == "client"), "{voids:?}");
    !voids.is_empty()
}

#[test]
fn two_arms_climb_a_list_side_by_side_and_the_directory_renders_again_in_every_form() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("sweep");
    let dir = out.to_str().unwrap();
    // Limits that every turn meets: what is asked here is the order and the books, not the speed of this host.
    let goal = ["--concurrencies=1,4", "--goodput", "ttft:600000", "e2el:600000", "--attainment=0.5", "--out", dir];
    let (code, shown, said) = gspbench(&[&["sweep"], &ARMS[..], &SMALL, &goal].concat());
    let is_late = was_late(&out);
    assert!(code == 0 || is_late, "{shown}{said}");
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for arm in ["rr", "pa"] {
        let holds = words.contains(&format!("{arm} holds ttft:600000 e2el:600000 up to 4 sessions in flight"));
        assert!(holds || is_late, "{shown}");
    }
    let sweep = json(&out.join("sweep.json"));
    assert_eq!(sweep["state"], "complete");
    let mut steps = dirs(&sweep);
    // A step that was void for how late this host was runs again.
    steps.retain(|dir| !dir.ends_with(".2"));
    assert_eq!(steps, ["step-01/rr", "step-01/pa", "step-02/pa", "step-02/rr"]);
    let run = |step: &str| json(&out.join(step).join("run.json"));
    let digest = |step: &str| run(step)["workload"]["digest"].clone();
    assert_eq!(digest("step-01/rr"), digest("step-01/pa"), "arms of a step do the same work");
    assert_ne!(digest("step-01/rr"), digest("step-02/rr"), "no step finds the prompts of another");
    assert_eq!(run("step-02/pa")["manifest"]["spec"]["load"]["pacing"]["closed"]["sessions"], 4);
    assert_eq!(run("step-02/pa")["server"]["cold"]["warm_groups"], 0, "the cache was flushed between steps");
    let metrics = &run("step-02/pa")["metrics"];
    assert_eq!((&metrics["slo_attainment"], &metrics["goodput"]), (&1.0.into(), &metrics["request_throughput"]));
    renders_again(&out, &shown);
}

fn renders_again(out: &Path, shown: &str) {
    let dir = out.to_str().unwrap();
    assert_eq!(gspbench(&["report", dir]).1, shown);
    let csv = gspbench(&["report", dir, "--format", "csv"]).1;
    let rows: Vec<_> = csv.lines().map(|line| line.split(',').take(4).collect::<Vec<_>>().join(",")).collect();
    assert_eq!(
        rows,
        ["arm,step,axis,level", "rr,1,concurrency,1", "pa,1,concurrency,1", "rr,2,concurrency,4", "pa,2,concurrency,4"]
    );
    let html = gspbench(&["report", dir, "--format", "html"]).1;
    assert_eq!(html.matches("<svg").count(), 4, "every curve is drawn");
    assert_eq!(html.trim_end(), fs::read_to_string(out.join("report.html")).unwrap().trim_end());
    assert!(fs::read_to_string(out.join("report.md")).unwrap().contains("✅") || was_late(out));
    says_what_was_measured(out, shown);
    let (code, _, said) = gspbench(&["report", dir, "--format", "jsonl"]);
    assert!(code == 2 && said.contains("step-NN/ARM"), "{said}");
    let line = gspbench(&["report", out.join("step-01/rr").to_str().unwrap(), "--format", "jsonl"]).1;
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["goodput_slos_ms"]["ttft"], &line["slo_attainment"]), (&600_000.0.into(), &1.0.into()));
    assert_eq!(line["request_goodput"], line["request_throughput"]);
}

/// Every form says what `ab` and `run` say of themselves.
fn says_what_was_measured(out: &Path, shown: &str) {
    let host = json(&out.join("step-01/rr/run.json"))["manifest"]["host"]["cpu_model"].as_str().map(str::to_owned);
    let file = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    for form in [shown.to_owned(), file("report.md"), file("report.html")] {
        let words = form.replace("\\_", "_").split_whitespace().collect::<Vec<_>>().join(" ");
        for said in [
            "SIMULATED (generic-8xh100, model time runs 20 times as fast)",
            "workload quick: 2 groups × 4 sessions",
            "1, 4 sessions in flight",
            "seed 7 in step 1 and one more in each step after it",
            "measured by gspbench",
            "How to run it again",
            "--concurrencies=1,4",
        ]
        .into_iter()
        .chain(host.as_deref())
        {
            assert!(words.contains(said), "`{said}` is not in:\n{form}");
        }
    }
}

#[test]
fn an_arm_that_misses_its_objectives_stops_to_climb_and_that_is_a_result() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("sweep");
    // No reply over a socket comes within a microsecond.
    let words = ["--goodput", "ttft:0.001", "--out", out.to_str().unwrap()];
    let (code, shown, said) = gspbench(&[&["sweep"], &ARMS[..2], &SMALL, &words].concat());
    let sweep = json(&out.join("sweep.json"));
    assert_eq!(sweep["curves"]["arms"][0]["points"].as_array().unwrap().len(), 1);
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let (ends, claim, stopped) = match was_late(&out) {
        false => (0, "rr does not hold ttft:0.001 at 1 session in flight, the lowest load", "slo_missed"),
        true => (4, "rr: nothing is known of 1 session in flight, the lowest load", "unusable"),
    };
    assert_eq!(code, ends, "{shown}{said}");
    assert!(words.contains(claim), "{shown}");
    assert_eq!(sweep["curves"]["arms"][0]["stopped"], stopped);
}

#[test]
fn an_interrupt_keeps_the_steps_that_have_run_and_the_report_says_that_no_arm_came_to_its_end() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("sweep");
    let shown = interrupted(&out, Signal::INT);
    let sweep = json(&out.join("sweep.json"));
    assert_eq!(sweep["state"], "interrupted");
    assert_eq!(sweep["curves"]["arms"][0]["points"][0]["turns"], 8, "the first step is whole");
    was_late(&out);
    assert!(sweep["curves"]["arms"].as_array().unwrap().iter().all(|arm| arm["stopped"].is_null()));
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words.matches("The sweep ended before this arm had climbed as far as it was to.").count(), 2, "{shown}");
    let (_, again, said) = gspbench(&["report", out.to_str().unwrap()]);
    assert!(again == shown && said.contains("gspbench sweep --resume"), "{said}");
    assert!(out.join("report.md").exists() && out.join("report.html").exists());
}

/// Eight loads of both arms.
fn long() -> Vec<&'static str> {
    let more = ["--concurrencies=1,2,3,4,5,6,7,8", "--gsp-output-len=64", "--time-scale=4", "--disable-tqdm"];
    let small = SMALL.iter().filter(|word| !word.starts_with("--gsp-output-len") && !word.starts_with("--time-scale"));
    ["sweep"].iter().chain(&ARMS).chain(small).chain(&more).copied().collect()
}

/// Starts the long sweep, sends it a signal once a step has run, and gives what it printed.
fn interrupted(out: &Path, signal: Signal) -> String {
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_gspbench"))
        .args(long())
        .arg("--out")
        .arg(out)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("a step that has run", || {
        let sweep: Value = serde_json::from_str(&fs::read_to_string(out.join("sweep.json")).ok()?).unwrap();
        (sweep["steps"].as_array()?.len() > 1).then_some(())
    });
    kill_process(Pid::from_child(&child), signal).unwrap();
    let ended = child.wait_with_output().unwrap();
    let (shown, said) = (String::from_utf8(ended.stdout).unwrap(), String::from_utf8(ended.stderr).unwrap());
    if signal == Signal::INT {
        assert_eq!(ended.status.code(), Some(130), "{shown}{said}");
        assert!(said.contains(&format!("gspbench sweep --resume {}", out.display())), "{said}");
    }
    shown
}

/// The rows of a sweep by arm, step and turns.
fn rows(out: &Path) -> Vec<String> {
    let csv = gspbench(&["report", out.to_str().unwrap(), "--format", "csv"]).1;
    csv.lines().skip(1).map(|line| line.split(',').take(5).collect::<Vec<_>>().join(",")).collect()
}

/// What each step that has ended left behind.
fn finished(out: &Path) -> Vec<(String, String)> {
    let sweep = json(&out.join("sweep.json"));
    let steps = sweep["steps"].as_array().unwrap().iter();
    let ended = steps.filter(|step| step["state"] == "complete" || step["state"] == "void");
    ended
        .map(|step| step["dir"].as_str().unwrap().to_owned())
        .map(|dir| (fs::read_to_string(out.join(&dir).join("run.json")).unwrap(), dir))
        .collect()
}

#[test]
fn a_sweep_goes_on_where_a_signal_or_a_kill_left_it_and_only_with_its_own_specification() {
    for signal in [Signal::INT, Signal::KILL] {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("sweep");
        interrupted(&out, signal);
        let before = finished(&out);
        assert!(!before.is_empty());
        let resume = ["--resume", out.to_str().unwrap()];

        let with = |more: &[&str]| gspbench(&[&long()[..], &resume, more].concat());
        let (code, _, said) = with(&["--gsp-output-len=5"]);
        assert!(code == 2 && said.contains("`run.workload.output_tokens.max` was 64 and is 5"), "{said}");
        let words: Vec<_> = long().into_iter().filter(|word| !word.starts_with("--concurrencies")).collect();
        let (code, _, said) = gspbench(&[&words[..], &resume, &["--concurrencies=1,2"]].concat());
        assert!(code == 2 && said.contains("`levels.given` was [1.0,2.0"), "{said}");
        assert_eq!(finished(&out), before, "what is refused changes nothing");

        // The second time with nothing but the directory.
        let (code, shown, said) =
            if signal == Signal::INT { with(&[]) } else { gspbench(&[&["sweep"], &resume[..]].concat()) };
        assert!(code == 0 || was_late(&out), "{shown}{said}");
        let sweep = json(&out.join("sweep.json"));
        assert_eq!(sweep["state"], "complete");
        assert_eq!(finished(&out)[..before.len()], before, "what was done stays as it was");
        let wanted = (1..=8).flat_map(|level| ["rr", "pa"].map(|arm| format!("{arm},{level},concurrency,{level},8")));
        assert_eq!(rows(&out), wanted.collect::<Vec<_>>(), "every arm has every load once");
        let distinct: std::collections::BTreeSet<_> = dirs(&sweep).into_iter().collect();
        assert_eq!(distinct.len(), dirs(&sweep).len());

        let (code, again, said) = gspbench(&[&["sweep"], &resume[..]].concat());
        assert!(code == 0 || was_late(&out), "nothing is left to run: {said}");
        assert_eq!(again, shown);
        assert_eq!(json(&out.join("sweep.json")), sweep);
    }
}

#[test]
fn what_is_no_sweep_is_not_resumed() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().to_str().unwrap();
    refuses(&["sweep", "--resume", dir], 2, &["holds no sweep.json"]);
    refuses(&["sweep", "--resume", dir, "--out", "x"], 2, &["--resume", "--out"]);
}

#[test]
fn a_void_step_runs_again_once_and_stays_on_file_and_in_the_report() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("sweep");
    let posts = AtomicUsize::new(0);
    let server = Scripted::start(move |seen| match seen.method.as_str() {
        // The probe is the first; of the eight turns that follow, one that fails is more than a run may have.
        "POST" if !seen.path.starts_with("/flush") => match posts.fetch_add(1, Ordering::Relaxed) {
            3 => Answer::Whole(500, "application/json", "{}".to_owned()),
            _ => Answer::Whole(200, "text/event-stream", chat_stream(&["x", "x", "x", "x"], 80)),
        },
        _ => Answer::Whole(404, "application/json", "{}".to_owned()),
    });
    let arm = format!("a={}", server.url);
    let words = ["--api=chat", "--concurrencies=1", "--arm", &arm, "--out", out.to_str().unwrap()];
    let (_, shown, said) = gspbench(&[&["sweep"], &SMALL[..], &words].concat());
    let sweep = json(&out.join("sweep.json"));
    assert_eq!(dirs(&sweep), ["step-01/a", "step-01/a.2"], "{shown}{said}");
    let arm = &sweep["curves"]["arms"][0];
    let voids = |points: &Value| points[0]["voids"].as_array().unwrap().iter().any(|void| *void == "errors");
    assert!(voids(&arm["repeated"]) && !voids(&arm["points"]), "{arm}");
    assert_eq!(json(&out.join("step-01/a/run.json"))["totals"]["failed"], 1);
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("a at 1 session in flight, and was run again"), "{shown}");
    assert!(said.contains("1 session in flight · a: again, since its first run was void: errors"), "{said}");
}

#[test]
fn rates_start_sessions_on_time_without_a_cap() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("sweep");
    let words = ["--rates=200,400", "--max-concurrency=2", "--out", out.to_str().unwrap()];
    let (code, shown, said) = gspbench(&[&["sweep"], &ARMS[..2], &SMALL, &words].concat());
    assert!(code == 0 || was_late(&out), "{shown}{said}");
    let (code, again, said_again) = gspbench(&["sweep", "--resume", out.to_str().unwrap()]);
    assert!((code == 0 || was_late(&out)) && again == shown, "{again}{said_again}");
    assert!(said.contains("load.max_concurrency") && said.contains("--goodput"), "{said}");
    let open = &json(&out.join("step-02/rr/run.json"))["manifest"]["spec"]["load"]["pacing"]["open"];
    assert_eq!((&open["per_second"], &open["sessions"]), (&400.0.into(), &Value::Null));
    assert!(shown.contains("sessions/s") && !shown.contains("goodput"), "{shown}");
}

#[test]
fn gates_of_a_profile_are_said_to_be_left_to_others() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("sweep");
    let more =
        ["--concurrencies=1", "--set", "experiment.fail_if=[\"totals.failed >= 0\"]", "--out", dir.to_str().unwrap()];
    let (code, shown, said) = gspbench(&[&["sweep"], &ARMS[..2], &SMALL, &more].concat());
    assert!(code == 0 || was_late(&dir), "{shown}{said}");
    assert!(said.contains("`experiment.fail_if`") && said.contains("a sweep judges no gates"), "{said}");
}

#[test]
fn nonsense_is_refused_with_a_sentence_and_leaves_no_directory() {
    let refuses = |words: &[&str], said: &[&str]| refuses(&[&["sweep"], &ARMS[..2], &SMALL, words].concat(), 2, said);
    refuses(&["--concurrencies=4,2"], &["--concurrencies", "4 stands before 2"]);
    refuses(&["--concurrencies=1.5"], &["whole numbers"]);
    refuses(&["--concurrencies=9"], &["9 sessions can never be in flight", "--gsp-prompts-per-group"]);
    refuses(&["--rates=fast"], &["--rates", "`fast`", "1,2,4"]);
    refuses(&["--rates=1", "--concurrencies=1"], &["--rates", "--concurrencies"]);
    refuses(&["--attainment=0.9"], &["--attainment", "--goodput"]);
    refuses(&["--goodput", "ttft:100", "--attainment=90"], &["--attainment", "0.9"]);
    refuses(&["--max-turns-in-flight=2"], &["load.max_turns_in_flight", "leave it out"]);
    refuses(&["--goodput", "ttft:100", "quick"], &["--goodput", "`quick`"]);
}
