//! Cases that need the whole program (B12, B40–B53, B83–B85, B97–B103, B107–B112; counters: `traps_metrics`): `gspbench run` against a scripted server; what it
//! reports, what it writes, what the server saw.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use assert_cmd::Command;
use serde_json::{Value, json};

use crate::bad_input::{ended_well, gspbench, small};
use crate::play::{DONE, content, counts, ending, event, finish, role, usage};
use crate::scripted::{Answer, Scripted, Seen, Step, chat_stream, chunk, head, stream};

/// A server whose turns are answered by `turn`, which gets the number of the turn: 0 is the probe. It knows no other route.
pub(crate) fn server(turn: impl Fn(&Seen, usize) -> Answer + Send + Sync + 'static) -> Scripted {
    server_with(turn, |_| None)
}

/// The same, with further routes.
pub(crate) fn server_with(
    turn: impl Fn(&Seen, usize) -> Answer + Send + Sync + 'static,
    other: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static,
) -> Scripted {
    let turns = AtomicUsize::new(0);
    Scripted::start(move |seen| match seen.method.as_str() {
        "POST" if !["/flush", "/reset"].iter().any(|route| seen.path.starts_with(route)) => {
            turn(seen, turns.fetch_add(1, Ordering::SeqCst))
        }
        _ => other(seen).unwrap_or_else(|| Answer::Whole(404, "application/json", "{}".to_owned())),
    })
}

pub(crate) fn abc() -> Answer {
    Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12))
}

/// What a run left behind.
pub(crate) struct Ran {
    pub exit: i32,
    pub stdout: String,
    pub stderr: String,
    dir: tempfile::TempDir,
}

impl Ran {
    /// Four single-turn sessions, one after the other, with further flags.
    pub(crate) fn new(server: &Scripted, flags: &[&str]) -> Self {
        Self::at(&server.url, flags)
    }

    /// The same, at an address of that server in other words.
    fn at(url: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (exit, stdout, stderr) =
            gspbench(&small(&[&["--target", url, "--out", "out"], flags].concat()), dir.path());
        Self { exit, stdout, stderr, dir }
    }

    pub(crate) fn report(&self) -> Value {
        let text =
            std::fs::read_to_string(self.dir.path().join("out/run.json")).unwrap_or_else(|_| panic!("{}", self.stderr));
        serde_json::from_str(&text).expect("strict JSON, whatever happened")
    }

    pub(crate) fn turns(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.path().join("out/requests.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn totals(&self) -> Value {
        self.report()["totals"].clone()
    }

    /// Whether the run is valid but for how late this machine, which also runs the other tests, was itself.
    pub(crate) fn ended_well(&self) -> bool {
        ended_well(self.exit, &[&self.dir.path().join("out")])
    }

    /// Kinds of the voids and warnings.
    pub(crate) fn findings(&self) -> BTreeSet<String> {
        let validity = self.report()["validity"].clone();
        let all = ["voids", "warnings"].map(|list| validity[list].as_array().unwrap().clone()).concat();
        all.iter().map(|finding| finding["kind"].as_str().unwrap().to_owned()).collect()
    }
}

/// Every planned turn ends in exactly one outcome.
#[track_caller]
fn assert_conserved(totals: &Value) {
    let count = |key: &str| totals[key].as_u64().unwrap();
    assert_eq!(
        count("planned"),
        count("complete") + count("failed") + count("cancelled") + count("skipped"),
        "{totals}"
    );
    let by_kind: u64 = totals["failed_by_kind"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(by_kind, count("failed"));
}

/// B40
#[test]
fn the_program_ends_though_the_server_keeps_its_connections() {
    let server = server(|_, _| {
        let stream = [head(), chunk(content("a") + &content("b") + &content("c") + &ending(10, 3)), Step::Hold];
        Answer::Steps(stream.into())
    });
    let ran = Ran::new(&server, &["--gsp-prompts-per-group=40", "--max-concurrency=8"]);
    assert_eq!((ran.ended_well(), &ran.totals()["complete"]), (true, &json!(40)), "{}", ran.stderr);
    assert_eq!(server.turns().len(), 41);
}

/// B81: a target that is a name is shown with the addresses that its look-up gave; one in digits has none.
#[test]
fn the_address_behind_a_name_is_printed_and_stored() {
    let server = server(|_, _| abc());
    let named = server.url.replace("127.0.0.1", "localhost");
    assert_ne!(named, server.url);
    let ran = Ran::at(&named, &[]);
    let found = ran.report()["server"]["resolved"]["localhost"].clone();
    let found: Vec<&str> = found.as_array().unwrap().iter().map(|ip| ip.as_str().unwrap()).collect();
    assert!(found.contains(&"127.0.0.1"), "{found:?}");
    let line = format!("localhost → {}", found.join(", "));
    assert!(ran.stdout.contains(&line), "{line}: {}", ran.stdout);
    let digits = Ran::new(&server, &[]);
    assert!(digits.report()["server"].get("resolved").is_none() && !digits.stdout.contains('→'), "{}", digits.stdout);
}

/// B43, B47, B49, B50
#[test]
fn failures_are_counted_by_kind_and_enter_no_latency() {
    let page = "<html>".to_owned() + &"busy ".repeat(1000) + "</html>";
    let server = server(move |_, turn| match turn % 5 {
        1 => Answer::Whole(503, "text/html", page.clone()),
        2 => Answer::Whole(200, "text/event-stream", event(&json!({"error": {"message": "no"}})) + DONE),
        3 => Answer::Whole(200, "text/event-stream", role() + &finish("stop") + &usage(10, 0) + DONE),
        _ => abc(),
    });
    let ran = Ran::new(&server, &["--gsp-prompts-per-group=20"]);
    let (report, totals) = (ran.report(), ran.totals());
    assert_eq!(totals["failed_by_kind"], json!({"http_503": 4, "in_band_error": 4, "no_output": 4}));
    assert_conserved(&totals);
    assert_eq!(
        (&totals["complete"], &totals["output_tokens"], &totals["prompt_tokens"]),
        (&json!(8), &json!(24), &json!(96))
    );
    for latency in ["ttft_ms", "e2e_ms"] {
        assert_eq!(report["metrics"][latency]["count"], 8, "{latency}");
    }
    assert!(report["metrics"]["ttft_ms"]["min"].as_f64().unwrap() > 0.0);
    assert_eq!((ran.exit, &report["validity"]["verdict"]), (4, &json!("void")));
    let refused: Vec<Value> = ran.turns().into_iter().filter(|turn| turn["outcome"] == "http_503").collect();
    for turn in &refused {
        let kept = turn["detail"].as_str().unwrap();
        assert!(kept.starts_with("<html>busy") && kept.len() <= 200 && kept.len() > 190);
    }
}

/// B52(a), B53
#[test]
fn replies_of_one_token_have_no_rate_and_the_file_is_strict_json() {
    let server = server(|_, _| stream([content("a"), ending(10, 1)]));
    let ran = Ran::new(&server, &["--gsp-output-len=1"]);
    let report = ran.report();
    assert_eq!((ran.ended_well(), &report["metrics"]["ttft_ms"]["count"]), (true, &json!(4)), "{}", ran.stderr);
    assert_eq!((&report["metrics"]["tpot_ms"], &report["metrics"]["itl_ms"]), (&Value::Null, &Value::Null));
}

/// B52(b), B53
#[test]
fn when_every_turn_fails_every_latency_is_null_and_the_report_is_there() {
    let server = server(|_, turn| if turn == 0 { abc() } else { Answer::Whole(500, "text/plain", "no".to_owned()) });
    let ran = Ran::new(&server, &[]);
    let report = ran.report();
    assert_eq!((ran.exit, &ran.totals()["failed"]), (4, &json!(4)), "{}", ran.stderr);
    for latency in ["ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "ttft_from_due_ms"] {
        assert_eq!(report["metrics"][latency], Value::Null, "{latency}");
    }
    assert!(!ran.stdout.contains("NaN") && !ran.stdout.contains("inf"), "{}", ran.stdout);
    assert!(ran.dir.path().join("out/report.md").is_file());
}

/// B12, B23, B78
#[test]
fn what_was_no_plain_stream_is_said_in_the_summary() {
    let body = json!({"choices": [{"index": 0, "message": {"content": "a b c"}, "finish_reason": "stop"}], "usage": counts(12, 3)});
    let whole = server(move |_, _| Answer::Whole(200, "application/json", body.to_string()));
    let ran = Ran::new(&whole, &[]);
    let (report, totals) = (ran.report(), ran.totals());
    assert_eq!((&totals["complete"], &totals["oddities"]), (&json!(4), &json!({"not_streamed": 4})));
    assert_eq!((&report["metrics"]["ttft_ms"], &report["metrics"]["e2e_ms"]["count"]), (&Value::Null, &json!(4)));
    assert!(ran.findings().contains("oddities") && ran.stdout.contains("not_streamed 4"), "{}", ran.stdout);
    let at_once = server(|_, _| abc());
    let ran = Ran::new(&at_once, &[]);
    assert_eq!(ran.totals()["oddities"], json!({"came_at_once": 4}), "a proxy that buffers looks like this");
    assert_eq!(ran.report()["metrics"]["tpot_ms"], Value::Null);
    assert!(ran.findings().contains("oddities") && ran.stdout.contains("came_at_once 4"), "{}", ran.stdout);
    let silent = server(|_, _| stream([content("a"), content("b"), content("c"), finish("length"), DONE.to_owned()]));
    let ran = Ran::new(&silent, &[]);
    let totals = ran.totals();
    assert_eq!((&totals["output_estimated_turns"], &totals["output_tokens"]), (&json!(4), &json!(12)));
    assert!(ran.findings().contains("estimated"));
}

/// B97, B98
#[test]
fn replies_of_another_length_than_asked_for_are_called_out() {
    for words in [&["a"; 1][..], &["a"; 40]] {
        let server = server(move |_, _| Answer::Whole(200, "text/event-stream", chat_stream(words, 12)));
        let ran = Ran::new(&server, &[]);
        let bodies: Vec<Value> = server.turns().iter().map(Seen::json).collect();
        assert!(bodies[1..].iter().all(|body| body["max_tokens"] == 3 && body["ignore_eos"] == true));
        assert_eq!(ran.totals()["output_tokens"], 4 * words.len(), "never the number asked for");
        assert!(ran.exit == 4 && ran.findings().contains("output_length"), "{}", ran.stderr);
    }
    let server = server(|_, _| abc());
    let ran = Ran::new(&server, &["--extra-request-body", "{\"max_completion_tokens\":3}"]);
    assert_eq!((ran.ended_well(), &server.turns()[1].json()["max_completion_tokens"]), (true, &json!(3)));
}

/// B100, B101, B102, B103
#[test]
fn a_conversation_holds_the_servers_own_words_and_one_key() {
    // Each reply is a word that the client cannot know.
    let server =
        server(|_, turn| Answer::Whole(200, "text/event-stream", chat_stream(&[&format!("word{turn}"), "b", "c"], 12)));
    let ran = Ran::new(&server, &["--gsp-num-turns=3", "--warmup-requests=2", "--key-by=session"]);
    assert_eq!((ran.ended_well(), &ran.totals()["complete"]), (true, &json!(12)), "{}", ran.stderr);
    let turns: Vec<(usize, Seen)> = server.turns().into_iter().enumerate().collect();
    let key = |seen: &Seen| seen.header("x-session-id").unwrap_or_default().to_owned();
    let mut sessions: BTreeMap<String, Vec<(usize, Value)>> = BTreeMap::new();
    for (at, seen) in &turns[1..] {
        assert_eq!(seen.header("x-smg-routing-key"), seen.header("x-session-id"));
        sessions.entry(key(seen)).or_default().push((*at, seen.json()["messages"].clone()));
    }
    // Two of the warm-up, four that are measured; no key is shared.
    assert_eq!(sessions.values().map(Vec::len).collect::<Vec<_>>(), [3; 6]);
    for session in sessions.values() {
        for (turn, (_, messages)) in session.iter().enumerate() {
            let said: Vec<&str> = messages.as_array().unwrap().iter().map(|m| m["role"].as_str().unwrap()).collect();
            let mut expected = vec!["system", "user"];
            expected.extend(["assistant", "user"].repeat(turn));
            assert_eq!(said, expected);
            for (earlier, (at, _)) in session[..turn].iter().enumerate() {
                assert_eq!(messages[2 + 2 * earlier]["content"], format!("word{at}bc"));
            }
        }
    }
}

/// B101
#[test]
fn each_turn_of_a_conversation_has_its_own_length_and_hits() {
    let server = server(|seen, _| {
        let turn = seen.json()["messages"].as_array().unwrap().len() / 2 - 1;
        let (prompt, cached) = [(100, 0), (250, 90), (400, 240)][turn.min(2)];
        let mut usage = counts(prompt, 3);
        usage["prompt_tokens_details"] = json!({"cached_tokens": cached});
        let end = event(&json!({"choices": [], "usage": usage}));
        stream([content("a"), content("b"), content("c"), finish("length"), end, DONE.to_owned()])
    });
    let ran = Ran::new(&server, &["--gsp-num-turns=3", "--gsp-prompts-per-group=1"]);
    let report = ran.report();
    assert_eq!((&ran.totals()["prompt_tokens"], &ran.totals()["cached_tokens"]), (&json!(750), &json!(330)));
    let hit = report["metrics"]["cache_hit_rate"].clone();
    assert!((hit["value"].as_f64().unwrap() - 0.44).abs() < 1e-9, "{hit}");
    let rows: Vec<_> = ran.turns().iter().map(|turn| (turn["turn"].clone(), turn["prompt_tokens"].clone())).collect();
    assert_eq!(rows, [(json!(0), json!(100)), (json!(1), json!(250)), (json!(2), json!(400))]);
}

/// B102
#[test]
fn a_failed_turn_ends_its_session_and_the_rest_is_skipped() {
    let server = server(|seen, _| match seen.json()["messages"].as_array().unwrap().len() {
        4 => Answer::Whole(500, "text/plain", "no".to_owned()),
        _ => abc(),
    });
    let ran = Ran::new(&server, &["--gsp-num-turns=3"]);
    let totals = ran.totals();
    assert_conserved(&totals);
    assert_eq!((&totals["complete"], &totals["failed"], &totals["skipped"]), (&json!(4), &json!(4), &json!(4)));
    assert_eq!(server.turns().len(), 1 + 8, "third turns are not sent");
}

/// B107
#[test]
fn cached_tokens_that_are_not_told_are_no_misses() {
    let server = server(|_, turn| {
        let mut usage = counts(1000, 3);
        usage["prompt_tokens_details"] = if turn % 2 == 0 { json!({"cached_tokens": 800}) } else { Value::Null };
        let end = event(&json!({"choices": [], "usage": usage}));
        stream([content("a"), content("b"), content("c"), finish("length"), end, DONE.to_owned()])
    });
    let ran = Ran::new(&server, &["--gsp-prompts-per-group=10"]);
    assert_eq!(ran.report()["metrics"]["cache_hit_rate"], json!({"value": 0.8, "coverage": 0.5}));
    assert_eq!(ran.totals()["prompt_tokens"], 10_000);
}

/// B110, B112
#[test]
fn results_of_two_runs_at_once_go_to_two_folders_with_plain_names() {
    let server = server(|_, _| abc());
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--target", &server.url, "--model", "org/name:tag|x", "--tag", "a/b:c|d \"e\""];
    let args = small(&flags);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert!(matches!(gspbench(&args, dir.path()).0, 0 | 4)));
        }
    });
    let runs: Vec<_> =
        std::fs::read_dir(dir.path().join("gspbench-results")).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(runs.len(), 2);
    for run in runs {
        let name = run.file_name().unwrap().to_str().unwrap();
        assert!(!name.contains(['/', '\\', ':', '*', '?', '"', '<', '>', '|']), "{name}");
        let report: Value = serde_json::from_str(&std::fs::read_to_string(run.join("run.json")).unwrap()).unwrap();
        assert_eq!(report["server"]["model"], "org/name:tag|x");
    }
}

/// B85, and proxies of the environment: the key is in no file and no message, and no proxy is asked.
#[test]
fn a_key_is_written_nowhere_and_no_proxy_is_asked() {
    const KEY: &str = "sk-never-to-be-seen";
    let server = server(|seen, turn| {
        assert_eq!(seen.header("authorization"), Some(format!("Bearer {KEY}").as_str()));
        // A server that repeats what it got.
        if turn == 2 { Answer::Whole(401, "text/plain", format!("bad key: Bearer {KEY}")) } else { abc() }
    });
    let dir = tempfile::tempdir().unwrap();
    let closed = "http://127.0.0.1:1";
    let output = Command::new(env!("CARGO_BIN_EXE_gspbench"))
        .args(small(&["--target", &server.url, "--out", "out"]))
        .current_dir(dir.path())
        .env("OPENAI_API_KEY", KEY)
        .envs(["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"].map(|name| (name, closed)))
        .timeout(std::time::Duration::from_secs(120))
        .output()
        .unwrap();
    let shown = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert_eq!(server.turns().len(), 5, "{shown}");
    assert!(!shown.contains(KEY), "{shown}");
    for entry in std::fs::read_dir(dir.path().join("out")).unwrap() {
        let path = entry.unwrap().path();
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        assert!(!text.contains(KEY), "{}: {text}", path.display());
    }
}

/// B84: a file that holds no certificate is refused before anything is asked.
#[test]
fn a_certificate_file_that_is_none_is_a_usage_error() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("x.pem"), "nothing").unwrap();
    let at =
        |flags: &[&str], dir: &Path| gspbench(&small(&[&["--target", "https://127.0.0.1:1"], flags].concat()), dir);
    let (exit, _, stderr) = at(&["--ca-file", "x.pem"], dir.path());
    assert!(exit == 2 && stderr.contains("x.pem"), "{exit} {stderr}");
    let (exit, _, stderr) = at(&["--ca-file", "x.pem", "--insecure"], dir.path());
    assert!(exit == 2 && stderr.contains("one of the two"), "{exit} {stderr}");
}

/// B27
#[test]
fn several_choices_are_refused_before_anything_is_sent() {
    let server = server(|_, _| abc());
    for extra in ["{\"n\":2}", "{\"sampling_params\":{\"n\":2}}"] {
        let dir = tempfile::tempdir().unwrap();
        let args = small(&["--target", &server.url, "--extra-request-body", extra]);
        let (exit, _, stderr) = gspbench(&args, dir.path());
        assert!(exit == 2 && stderr.contains("several choices"), "{stderr}");
    }
    assert!(server.seen().is_empty());
}
