//! Experiments as a whole: control arms, resuming, an arm against itself, recorded history.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::bad_input::gspbench;
use crate::end_to_end::{json as read, lines};
use crate::interrupt::wait_for;
use crate::scripted::{Answer, Scripted, chat_stream};

const WORKLOAD: [&str; 7] = [
    "--gsp-num-groups=2",
    "--gsp-prompts-per-group=6",
    "--gsp-system-prompt-len=128",
    "--gsp-question-len=16",
    "--gsp-output-len=4",
    "--max-concurrency=2",
    "--api=generate",
];

fn ab<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["ab"], &WORKLOAD[..], more].concat()
}

/// Arm and state of each block on file.
fn blocks(out: &Path) -> Vec<String> {
    let blocks = read(&out.join("ab.json"))["blocks"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    blocks.iter().map(|b| format!("{} {} {}", b["round"], text(&b["arm"]), text(&b["state"]))).collect()
}

#[test]
fn control_arms_send_what_they_say_and_are_never_judged() {
    let home = tempfile::tempdir().unwrap();
    let sim = "sim:prefix_affinity,guard=none,ranks=2,time-scale=20";
    let arms = [
        format!("plan={sim}"),
        format!("bare={sim};keys=none"),
        format!("fresh={sim};keys=per_turn"),
        format!("zero={sim};prompts=zero_reuse"),
    ];
    let arms: Vec<&str> = arms.iter().flat_map(|arm| ["--arm", arm.as_str()]).collect();
    let more = [&["--rounds=2", "--gsp-num-turns=2", "--seed=5", "--out=out"], &arms[..]].concat();
    let (code, _, stderr) = gspbench(&ab(&more), home.path());
    assert_eq!(code, 0, "a control arm does other work, and that voids nothing: {stderr}");
    let out = home.path().join("out");
    let report = |arm: &str| read(&out.join("round-01").join(arm).join("run.json"));
    let keys = |arm: &str| -> Vec<Option<String>> {
        let turns = lines(&out.join("round-01").join(arm).join("requests.jsonl"));
        turns.iter().map(|turn| turn["key"].as_str().map(str::to_owned)).collect()
    };
    let distinct = |arm: &str| keys(arm).into_iter().flatten().collect::<std::collections::BTreeSet<_>>().len();
    assert_eq!((distinct("plan"), distinct("fresh"), distinct("zero")), (12, 24, 12), "a key a session, or a turn");
    assert!(keys("bare").iter().all(Option::is_none));
    assert_eq!(report("plan")["workload"]["digest"], report("bare")["workload"]["digest"], "the workload is the same");
    let zero = report("zero");
    assert_ne!(zero["workload"]["digest"], report("plan")["workload"]["digest"]);
    assert_eq!(zero["workload"]["oracle"]["ideal_reuse"], 0.0);
    assert_eq!(zero["totals"]["prompt_tokens"], report("plan")["totals"]["prompt_tokens"]);
    let cached = zero["totals"]["cached_tokens"].as_u64().unwrap();
    assert!(cached < 24, "no prompt begins like another, but for a word by chance: {cached}");
    assert!(report("plan")["totals"]["cached_tokens"].as_u64().unwrap() > 24 * 64);
    let arms = read(&out.join("comparison.json"))["arms"].clone();
    let controls: Vec<_> = arms.as_array().unwrap().iter().map(|arm| arm["control"].as_bool().unwrap()).collect();
    assert_eq!(controls, [false, true, true, true]);
}

#[test]
fn an_experiment_goes_on_where_it_was_interrupted_and_only_with_its_own_specification() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out");
    let arms = ["--arm=a=sim:round_robin,ranks=2,time-scale=20", "--arm=b=sim:prefix_affinity,ranks=2,time-scale=20"];
    let with = |more: &[&'static str]| ab(&[&arms[..], more].concat());
    let child = Command::new(env!("CARGO_BIN_EXE_gspbench"))
        .args(with(&["--rounds=4", "--out=out"]))
        .current_dir(home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the second round", || out.join("round-02").exists().then_some(()));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    let done = |states: &[String]| states.iter().filter(|state| state.ends_with("complete")).count();
    let before = done(&blocks(&out));
    assert!((2..8).contains(&before));
    let first = std::fs::read(out.join("round-01/a/run.json")).unwrap();

    let (code, _, stderr) = gspbench(&with(&["--rounds=6", "--resume=out"]), home.path());
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("`rounds` was 4 and is 6"), "{stderr}");
    let (code, _, stderr) = gspbench(&with(&["--rounds=4", "--resume=out", "--gsp-output-len=5"]), home.path());
    assert!(code == 2 && stderr.contains("`run.workload.output_tokens.max` was 4 and is 5"), "{stderr}");

    let (code, stdout, stderr) = gspbench(&with(&["--rounds=4", "--resume=out"]), home.path());
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("4 rounds"), "{stdout}");
    let all = blocks(&out);
    assert_eq!(done(&all), 8, "{all:?}");
    let order: Vec<&str> = all.iter().filter_map(|block| block.strip_suffix(" complete")).collect();
    assert_eq!(order, ["1 a", "1 b", "2 b", "2 a", "3 a", "3 b", "4 b", "4 a"]);
    assert_eq!(std::fs::read(out.join("round-01/a/run.json")).unwrap(), first, "what was done stays as it was");

    let (code, stdout, stderr) = gspbench(&["ab", "--resume=out"], home.path());
    assert_eq!(code, 0, "nothing is left to run, so it is only compared: {stderr}");
    assert!(stdout.contains("4 rounds"));
    assert_eq!(blocks(&out), all);
}

#[test]
fn an_arm_against_itself_shows_the_noise() {
    let home = tempfile::tempdir().unwrap();
    let more = ["--aa", "--rounds=2", "--arm=a=sim:round_robin,ranks=2,time-scale=20", "--out=out"];
    let (code, stdout, stderr) = gspbench(&ab(&more), home.path());
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains("a.again"), "{stdout}");
    let out = home.path().join("out");
    let (_, again, _) = gspbench(&["compare", "out"], home.path());
    let file = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    for form in [stdout, again, file("report.md"), file("report.html")] {
        let words = form.split_whitespace().collect::<Vec<_>>().join(" ");
        for said in
            ["noise floor: over 2 rounds, Mean TTFT", "a.again is the same server as a, and any difference between"]
        {
            assert!(words.contains(said), "`{said}` is not in:\n{form}");
        }
    }
    assert_eq!(read(&out.join("comparison.json"))["noise_floor"]["rounds"], 2);
    assert_eq!(blocks(&out)[1], "1 a.again complete");
    assert_eq!(read(&out.join("comparison.json"))["doubts"], serde_json::json!([]), "AB BA, however short the blocks");
}

#[test]
fn an_arm_that_cannot_run_beside_itself_is_refused_or_named() {
    let home = tempfile::tempdir().unwrap();
    let arms = ["--aa", "--arm=a=http://127.0.0.1:1", "--arm=b=http://127.0.0.1:1"];
    let (code, _, said) = gspbench(&ab(&arms), home.path());
    assert!(code == 2 && said.contains("give one --arm"), "{said}");
    std::fs::write(
        home.path().join("two.toml"),
        "[[arm]]\nname = \"a\"\ntarget = \"http://127.0.0.1:1\"\n[[arm]]\nname = \"b\"\ntarget = \"http://127.0.0.1:1\"\n",
    )
    .unwrap();
    let (_, _, said) = gspbench(&["ab", "two.toml", "--aa", "--ready-check-timeout-sec=1"], home.path());
    assert!(said.contains("against itself, and not b"), "{said}");
}

#[test]
fn an_arm_that_fails_has_its_cause_in_the_headline_and_a_gate_that_cannot_be_judged_is_told_before_the_run() {
    let home = tempfile::tempdir().unwrap();
    let serve = |is_bad: bool| {
        let posts = AtomicUsize::new(0);
        Scripted::start(move |seen| match seen.method.as_str() {
            // The probe is the first.
            "POST" if !seen.path.starts_with("/flush") => match posts.fetch_add(1, Ordering::Relaxed) {
                1.. if is_bad => Answer::Whole(500, "application/json", "{}".to_owned()),
                _ => Answer::Whole(200, "text/event-stream", chat_stream(&["x", "x", "x", "x"], 150)),
            },
            _ => Answer::Whole(404, "application/json", "{}".to_owned()),
        })
    };
    let (bad, good) = (serve(true), serve(false));
    let arms = [format!("--arm=a={}", bad.url), format!("--arm=b={}", good.url)];
    let gate = "--fail-if=ttft_ms.p99 worse 5%";
    let more = [arms[0].as_str(), &arms[1], "--api=chat", "--rounds=1", "--warmup-requests=0", gate, "--out=out"];
    let (code, stdout, stderr) = gspbench(&ab(&more), home.path());
    assert_eq!(code, 4, "{stdout}{stderr}");
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("b against a is not judged: the only block of a is void: errors"), "{stdout}");
    assert!(stderr.contains("round 1/1 a: again, since its first run was void: errors"), "{stderr}");
    let (before, after) = stderr.split_once("to run: ").unwrap();
    let told = "`ttft_ms.p99 worse 5%` cannot be judged, and will fail: 12 samples planned over 1 round, and 1,000 are";
    assert!(before.contains(told) && !after.contains(told), "{stderr}");
}

#[test]
fn an_odd_number_of_rounds_is_said_to_be_unbalanced() {
    let home = tempfile::tempdir().unwrap();
    let arms = ["--arm=a=http://127.0.0.1:1", "--arm=b=http://127.0.0.1:1"];
    let said = |rounds| gspbench(&ab(&[&arms[..], &[rounds]].concat()), home.path()).2;
    assert!(said("--rounds=3").contains("ran first"), "{}", said("--rounds=3"));
    assert!(!said("--rounds=4").contains("ran first"));
}

#[test]
fn recorded_history_is_the_text_of_unmeasured_replies_and_the_same_in_every_arm() {
    let home = tempfile::tempdir().unwrap();
    let serve = |name: &'static str| {
        let replies = AtomicUsize::new(0);
        Scripted::start(move |seen| match seen.method.as_str() {
            "POST" if !seen.path.starts_with("/flush") => {
                let reply = format!("{name}{}", replies.fetch_add(1, Ordering::Relaxed));
                Answer::Whole(200, "text/event-stream", chat_stream(&[&reply, "x", "x", "x"], 150))
            }
            _ => Answer::Whole(404, "application/json", "{}".to_owned()),
        })
    };
    let (one, two) = (serve("one"), serve("two"));
    let arms = [format!("--arm=a={}", one.url), format!("--arm=b={}", two.url)];
    let more =
        ["--api=chat", "--gsp-num-turns=2", "--history=recorded", "--rounds=1", "--warmup-requests=0", "--out=out"];
    let arms: Vec<&str> = arms.iter().map(String::as_str).collect();
    let (_, _, stderr) = gspbench(&ab(&[&arms[..], &more].concat()), home.path());
    assert!(stderr.contains("recording replies"), "{stderr}");
    let replies = read(&home.path().join("out/replies.json"));
    assert_eq!(replies.as_array().unwrap().len(), 12);
    let recorded: Vec<&Value> = replies.as_array().unwrap().iter().map(|session| &session[0]).collect();
    assert!(recorded.iter().all(|text| text.as_str().unwrap().starts_with("one")), "{recorded:?}");
    let histories = |server: &Scripted, skipped: usize| -> Vec<String> {
        let turns = server.turns();
        let later = turns[skipped..].iter().map(|turn| turn.json()["messages"].clone());
        let mut texts: Vec<String> = later
            .filter(|messages| messages.as_array().unwrap().len() == 4)
            .map(|messages| messages[2]["content"].as_str().unwrap().to_owned())
            .collect();
        texts.sort();
        // A block that is void is run once more.
        texts.dedup();
        texts
    };
    let mut wanted: Vec<String> = recorded.iter().map(|text| text.as_str().unwrap().to_owned()).collect();
    wanted.sort();
    // A probe each; the recording goes to the baseline.
    assert_eq!(histories(&one, 1 + 24), wanted);
    assert_eq!(histories(&two, 1), wanted);
}
