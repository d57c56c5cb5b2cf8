//! Each mistake gets one clear sentence that names the input and the way out, the documented exit code, and loses no
//! finished record.

use std::path::Path;

use assert_cmd::Command;

use crate::scripted::{Answer, Scripted, chat_stream};

/// Runs gspbench in an empty directory; exit code, standard output and standard error.
pub(crate) fn gspbench(args: &[&str], dir: &Path) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_gspbench"))
        .args(args)
        .current_dir(dir)
        .env_remove("OPENAI_API_KEY")
        .timeout(std::time::Duration::from_secs(120))
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Whether runs ended with exit code 0, or void for nothing but how late this machine, which also runs the other tests,
/// was itself. `dirs` are those of all their blocks.
pub(crate) fn ended_well(exit: i32, dirs: &[&Path]) -> bool {
    let voids = |dir: &&Path| -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(dir.join("run.json")).unwrap_or_else(|_| panic!("exit code {exit}"));
        let report: serde_json::Value = serde_json::from_str(&text).expect("strict JSON, whatever happened");
        report["validity"]["voids"].as_array().unwrap().clone()
    };
    let voids = dirs.iter().map(voids).collect::<Vec<_>>().concat();
    let is_late = !voids.is_empty() && voids.iter().all(|void| void["kind"] == "client");
    exit == if is_late { 4 } else { 0 }
}

/// Asserts exit code and words; nothing may be on standard output.
#[track_caller]
pub(crate) fn refuses(args: &[&str], code: i32, words: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let (exit, stdout, stderr) = gspbench(args, dir.path());
    assert_eq!(exit, code, "{args:?}: {stderr}");
    assert_eq!(stdout, "", "{args:?}");
    let results = dir.path().join("gspbench-results");
    let left = std::fs::read_dir(&results).map(|entries| entries.count()).unwrap_or(0);
    assert_eq!(left, 0, "{args:?} left an empty result behind");
    for word in words {
        assert!(stderr.contains(word), "{args:?}: `{word}` is not in: {stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}

const SMALL: [&str; 8] = [
    "--gsp-num-groups=1",
    "--gsp-prompts-per-group=4",
    "--gsp-system-prompt-len=8",
    "--gsp-question-len=4",
    "--gsp-output-len=3",
    "--max-concurrency=1",
    "--warmup-requests=0",
    "--seed=1",
];

pub(crate) fn small<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["run"], &SMALL[..], more].concat()
}

#[test]
fn a_wrong_command_line_is_told_what_is_wrong() {
    refuses(&["runn"], 2, &["`runn`", "--help"]);
    refuses(&["fit"], 2, &["`gspbench fit` is not built yet"]);
    refuses(&["run"], 2, &["--target"]);
    refuses(&["run", "--target", "localhost:30000"], 2, &["`localhost:30000`", "http://"]);
    refuses(&["run", "--target", "pin:round_robin@h:1"], 2, &["`pin:round_robin@h:1`", "http://"]);
    refuses(&["run", "--target", "pin:fair@http://h:1"], 2, &["`fair`", "prefix_affinity", "oracle"]);
    refuses(&["run", "--target", "pin:oracle,guard=none@http://h:1"], 2, &["guard=none", "prefix_affinity"]);
    let own = ["run", "--target", "pin:oracle@http://h:1", "--header", "X-Data-Parallel-Rank=1"];
    refuses(&own, 2, &["of its own", "leave one"]);
    refuses(&["run", "--target", "http://h:1", "--gsp-num-groups", "many"], 2, &["--gsp-num-groups", "`many`"]);
    refuses(&["run", "--target", "http://h:1", "--goodput", "itl:100"], 2, &["--goodput", "`itl:100`", "ttft:200"]);
    refuses(&["run", "--target", "http://h:1", "--goodput", "ttft:0"], 2, &["slo.ttft_ms", "above 0"]);
    refuses(&["run", "--target", "http://h:1", "--extra-request-body", "{"], 2, &["--extra-request-body"]);
    refuses(&["run", "--target", "http://h:1", "--api", "grpc"], 2, &["--api", "grpc", "chat"]);
    let for_ever = ["run", "--target", "http://h:1", "--ready-check-timeout-sec", "18446744073709551615"];
    refuses(&for_ever, 2, &["--ready-check-timeout-sec", "18446744073709551615"]);
    refuses(&["ab", "--arm", "a=sim:round_robin"], 2, &["two arms"]);
    refuses(&["ab", "--arm", "a=sim:round_robin", "--arm", "b"], 2, &["`b`", "NAME=TARGET"]);
}

#[test]
fn what_cannot_be_is_usage_and_leaves_no_directory() {
    let url = ["--target", "http://127.0.0.1:1"];
    let cases: [(&[&str], &[&str]); 12] = [
        (&["--target", "sim:nope"], &["`sim:nope`", "'nope'"]),
        (&["--target", "sim:round_robin,colour=red"], &["--colour"]),
        (&["--target", "sim:round_robin,guard=nope"], &["'nope'"]),
        (&["--target", "sim:round_robin", "--set", "sim.preset=nope"], &["`sim`", "nope"]),
        (&[url[0], url[1], "--set", "sim.guard=nope"], &["`sim`", "nope"]),
        (&[url[0], url[1], "--header", "a b=c"], &["`a b`"]),
        (&[url[0], url[1], "--header", "Transfer-Encoding=chunked"], &["transfer-encoding", "leave it out"]),
        (&[url[0], url[1], "--set", "key.headers=[\"a b\"]"], &["`key.headers`", "`a b`"]),
        (&[url[0], url[1], "--metrics-url", "nowhere"], &["`nowhere`", "http://"]),
        (&[url[0], url[1], "--flush-cache", "--no-flush-cache"], &["--flush-cache", "--no-flush-cache"]),
        (&[url[0], url[1], "--seed", "18446744073709551615"], &["--seed", "9223372036854775807"]),
        (&[url[0], url[1], "--extra-request-body", "{\"messages\":[]}"], &["`request.extra_body.messages`"]),
    ];
    for (more, words) in cases {
        refuses(&[&["run"], more].concat(), 2, words);
    }
    // Whoever typed a flag is told of that flag, and of the key that a profile has for it.
    for (flag, key) in [
        ("--gsp-num-groups", "workload.groups"),
        ("--gsp-prompts-per-group", "workload.sessions_per_group"),
        ("--gsp-num-turns", "workload.turns"),
        ("--gsp-output-len", "workload.output_tokens"),
        ("--gsp-question-len", "workload.question_tokens"),
        ("--max-concurrency", "load.max_concurrency"),
        ("--request-rate", "load.rate"),
        ("--time-scale", "sim.time_scale"),
        ("--rounds", "experiment.rounds"),
    ] {
        let told = format!("`{flag}` (`{key}`): 0");
        refuses(&["ab", flag, "0"], 2, &[&told, "give"]);
        refuses(&["ab", "--set", &format!("{key}=0")], 2, &[&format!("error: `{key}`: 0"), "give"]);
    }
    refuses(&["ab", "--rounds", "5000000"], 2, &["`--rounds` (`experiment.rounds`): 5000000", "at most 10000"]);
    let gate = ["run", "--target", "sim:round_robin", "--fail-if", "failed>0"];
    refuses(&gate, 2, &["`failed > 0`: run.json has no `failed`", "`totals.failed`"]);
    refuses(&["ab", "--set", "experiment.primary=nope"], 2, &["`nope` is no metric"]);
    refuses(&["ab", "--arm", "a=sim:nope", "--arm", "b=sim:round_robin"], 2, &["`sim:nope`"]);
}

#[test]
fn what_changes_nothing_is_said_and_a_dead_metrics_url_too() {
    let server = Scripted::start(|seen| match seen.method.as_str() {
        "POST" if !seen.path.starts_with("/flush") => {
            Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12))
        }
        _ => Answer::Whole(404, "application/json", "{}".to_owned()),
    });
    let dir = tempfile::tempdir().unwrap();
    let more = [
        "--out=out",
        "--time-scale=9",
        "--request-rate=inf",
        "--burstiness=1.0",
        "--metrics-url",
        "http://127.0.0.1:1",
    ];
    let (exit, stdout, stderr) = gspbench(&small(&[&["--target", &server.url], &more[..]].concat()), dir.path());
    assert!(ended_well(exit, &[&dir.path().join("out")]), "{stderr}");
    assert!(stdout.contains("could not be read"), "{stdout}");
    for word in ["`sim.time_scale` changes nothing", "--burstiness changes nothing"] {
        assert!(stderr.contains(word), "`{word}`: {stderr}");
    }
}

#[test]
fn what_a_server_says_does_not_steer_the_terminal() {
    let body = "{\"error\":{\"message\":\"a\\u001b[2Jb\\u009b31mc\"}} \u{1b}]0;x\u{7}";
    let server = Scripted::start(move |seen| match seen.path.as_str() {
        "/v1/models" => Answer::Whole(200, "application/json", "{}".to_owned()),
        _ => Answer::Whole(400, "application/json", body.to_owned()),
    });
    let dir = tempfile::tempdir().unwrap();
    let (exit, _, stderr) = gspbench(&small(&["--target", &server.url]), dir.path());
    assert_eq!(exit, 3);
    assert!(stderr.contains("400") && !stderr.chars().any(|c| c.is_control() && c != '\n'), "{stderr:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    for args in [&["profiles"][..], &["plan", "quick"], &["--help"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output =
            std::process::Command::new(env!("CARGO_BIN_EXE_gspbench")).args(args).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("standard output") && stderr.lines().count() == 1, "{args:?}: {stderr}");
    }
}

#[test]
fn an_arm_that_dies_leaves_the_rounds_before_it_compared() {
    // The second server takes one flush and refuses the next.
    let serve = |flushes: usize| {
        let left = std::sync::Mutex::new(flushes);
        Scripted::start(move |seen| match (seen.method.as_str(), seen.path.starts_with("/flush")) {
            ("POST", true) => {
                let mut left = left.lock().unwrap();
                *left = left.saturating_sub(1);
                Answer::Whole(if *left == 0 { 500 } else { 200 }, "text/plain", "worn out".to_owned())
            }
            ("POST", false) => Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12)),
            _ => Answer::Whole(404, "application/json", "{}".to_owned()),
        })
    };
    let (steady, dying) = (serve(99), serve(2));
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (format!("a={}", steady.url), format!("b={}", dying.url));
    let args = [&["ab", "--rounds=3", "--api=chat", "--out=out", "--arm", &a, "--arm", &b], &SMALL[..]].concat();
    let (exit, stdout, stderr) = gspbench(&args, dir.path());
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(dir.path().join("out").join(name)).unwrap()).unwrap()
    };
    let blocks = read("ab.json")["blocks"].clone();
    let states: Vec<_> = blocks.as_array().unwrap().iter().map(|block| block["state"].as_str().unwrap()).collect();
    let is_late = |void: &serde_json::Value| void["kind"] == "client";
    let dirs = blocks.as_array().unwrap().iter().filter(|block| block["state"] == "void");
    let voids: Vec<_> = dirs.map(|block| read(&format!("{}/run.json", block["dir"].as_str().unwrap()))).collect();
    if voids.iter().any(|run| run["validity"]["voids"].as_array().unwrap().iter().all(is_late)) {
        println!("skipped: this host was late itself, and blocks that are void run again");
        return;
    }
    assert_eq!(exit, 3, "{stderr}");
    assert!(stderr.contains("worn out") && stderr.contains("round 2") && stderr.contains("arm `b`"), "{stderr}");
    assert!(stdout.contains("Mean TTFT"), "{stdout}");
    assert_eq!(states, ["complete", "complete", "failed", "complete", "failed"], "once more, then it is given up");
    assert!(blocks[2]["reason"].as_str().unwrap().contains("worn out"));
    assert_eq!(read("comparison.json")["rounds"], serde_json::json!([1, 2]));
}

#[test]
fn a_wrong_profile_is_shown_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.toml");
    let path = file.to_str().unwrap();
    let cases = [
        ("[workload]\ngrups = 3\n", &["mine.toml", "line 2", "grups"][..]),
        ("[workload]\ngroups = \"three\"\n", &["mine.toml", "line 2", "three"]),
        ("[load]\nrate = -1.0\n", &["`load.rate`", "above 0"]),
        ("[request]\nprompt_as = \"ids\"\n", &["`request.prompt_as`", "--tokenizer"]),
        ("[workload\n", &["mine.toml", "line 1"]),
    ];
    for (text, words) in cases {
        std::fs::write(&file, text).unwrap();
        refuses(&["run", path, "--target", "http://127.0.0.1:1"], 2, words);
    }
    refuses(
        &["run", "no-such-profile", "--target", "http://127.0.0.1:1"],
        2,
        &["`no-such-profile`", "gspbench profiles"],
    );
}

#[test]
fn a_tokenizer_that_is_none_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokenizer.json");
    std::fs::write(&file, "{\"version\": 1}").unwrap();
    let path = file.to_str().unwrap();
    refuses(&small(&["--target", "http://127.0.0.1:1", "--tokenizer", path]), 2, &["tokenizer.json"]);
    refuses(&small(&["--target", "http://127.0.0.1:1", "--tokenizer", "/no/such/file"]), 2, &["/no/such/file"]);
}

#[test]
fn nobody_listening_is_exit_code_3_and_names_the_address() {
    // A port that was free a moment ago: bound, then let go.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    refuses(&small(&["--target", &url]), 3, &[&url, "refused", "is the server up"]);
}

#[test]
fn a_server_that_refuses_the_probe_is_quoted() {
    let models = "{\"data\":[{\"id\":\"real-model\"}]}";
    let server = |status: u16, body: &'static str| {
        Scripted::start(move |seen| match seen.path.as_str() {
            "/v1/models" => Answer::Whole(200, "application/json", models.to_owned()),
            _ => Answer::Whole(status, "application/json", body.to_owned()),
        })
    };
    let missing = server(404, "{\"detail\":\"Not Found\"}");
    refuses(&small(&["--target", &missing.url]), 3, &["/v1/chat/completions", "404", "Not Found", "--api"]);
    let locked = server(401, "{\"error\":\"Unauthorized\"}");
    refuses(&small(&["--target", &locked.url]), 3, &["401", "Unauthorized", "OPENAI_API_KEY"]);
    let picky = server(400, "{\"error\":{\"message\":\"temperature must be 1\"}}");
    refuses(&small(&["--target", &picky.url]), 3, &["400", "temperature must be 1"]);
    refuses(&small(&["--target", &picky.url, "--model", "other"]), 3, &["`other`", "real-model", "--model"]);
}

#[test]
fn an_output_directory_that_exists_or_cannot_be_made_is_refused_before_any_request() {
    let server = Scripted::start(|_| Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12)));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    refuses(&small(&["--target", &server.url, "--out", path]), 2, &[path, "exists"]);
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let below = file.join("out");
    refuses(&small(&["--target", &server.url, "--out", below.to_str().unwrap()]), 2, &[below.to_str().unwrap()]);
    assert!(server.seen().is_empty(), "{:?}", server.seen());
}

#[test]
fn a_server_that_drops_streams_loses_no_finished_record() {
    let turns = std::sync::atomic::AtomicU32::new(0);
    let server = Scripted::start(move |seen| {
        if seen.method != "POST" || seen.path.starts_with("/flush") {
            return Answer::Whole(404, "application/json", "{}".to_owned());
        }
        // The probe and every other turn are served; the rest is cut inside the stream.
        let whole = chat_stream(&["a", "b", "c"], 12);
        if turns.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(2) {
            return Answer::Whole(200, "text/event-stream", whole);
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let cut = &whole[..whole.len() / 2];
        Answer::Raw(format!("{head}{:x}\r\n{cut}\r\n", cut.len()).into_bytes())
    });
    let dir = tempfile::tempdir().unwrap();
    let (exit, stdout, stderr) = gspbench(&small(&["--target", &server.url, "--out", "out"]), dir.path());
    assert_eq!(exit, 4, "half of the turns failed, so the run is void: {stderr}");
    assert!(stdout.contains("Failed"), "{stdout}");
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(dir.path().join("out/run.json")).unwrap()).unwrap();
    assert_eq!(report["totals"]["planned"], 4);
    assert_eq!(report["totals"]["complete"], 2);
    assert_eq!(report["totals"]["failed_by_kind"]["truncated"], 2);
    assert_eq!(report["metrics"]["ttft_ms"]["count"], 2);
    let lines = std::fs::read_to_string(dir.path().join("out/requests.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 4);
    assert_eq!(report["validity"]["verdict"], "void");
}

#[test]
fn what_a_turn_sends_is_what_the_profile_says() {
    let server = Scripted::start(|seen| match seen.method.as_str() {
        "POST" if !seen.path.starts_with("/flush") => {
            Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12))
        }
        _ => Answer::Whole(404, "application/json", "{}".to_owned()),
    });
    let dir = tempfile::tempdir().unwrap();
    let extra = [
        "--target",
        &server.url,
        "--out",
        "out",
        "--extra-request-body",
        "{\"top_k\":1}",
        "--header",
        "X-Team=a=b",
        "X-More=c",
    ];
    let (exit, _, stderr) = gspbench(&small(&extra), dir.path());
    assert!(ended_well(exit, &[&dir.path().join("out")]), "{stderr}");
    let turns = server.turns();
    // One probe, four turns.
    assert_eq!(turns.len(), 5);
    let measured = &turns[1..];
    for turn in measured {
        let body = turn.json();
        assert_eq!(turn.path, "/v1/chat/completions");
        assert_eq!(turn.header("x-smg-routing-key"), turn.header("x-session-id"));
        assert!(turn.header("x-smg-routing-key").is_some_and(|key| key.len() == 17 && key.starts_with('g')));
        assert_eq!((turn.header("x-team"), turn.header("accept-encoding")), (Some("a=b"), Some("identity")));
        assert_eq!(turn.header("x-more"), Some("c"), "a second value of one flag");
        assert_eq!(turn.header("authorization"), None, "no key, no header");
        assert_eq!((body["max_tokens"].clone(), body["top_k"].clone()), (3.into(), 1.into()));
        assert_eq!((body["ignore_eos"].clone(), body["stream"].clone()), (true.into(), true.into()));
        let words = |at: usize| body["messages"][at]["content"].as_str().unwrap().split(' ').count();
        assert_eq!((words(0), words(1)), (8, 4));
    }
    let distinct = |name: &str| {
        measured.iter().filter_map(|turn| turn.header(name)).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!((distinct("x-smg-routing-key"), distinct("x-request-id")), (1, 4));
    assert_ne!(
        turns[0].header("x-smg-routing-key"),
        turns[1].header("x-smg-routing-key"),
        "the probe has no measured key"
    );
}

/// bench_serving takes several headers after one flag; a profile may stand behind them all the same.
#[test]
fn a_profile_behind_headers_is_no_header() {
    let dir = tempfile::tempdir().unwrap();
    let plan = |args: &[&str]| gspbench(&[&["plan", "--seed=1"], args].concat(), dir.path());
    let (exit, plain, stderr) = plan(&["quick"]);
    assert_eq!(exit, 0, "{stderr}");
    for args in
        [&["--header", "A=b", "quick"][..], &["--header", "A=b", "C=d", "quick"], &["quick", "--header", "A=b", "C=d"]]
    {
        assert_eq!(plan(args), (0, plain.clone(), stderr.clone()), "{args:?}");
    }
    let (exit, _, stderr) = plan(&["quick", "--header", "A=b", "other"]);
    assert!(exit == 2 && stderr.contains("`other` is no header"), "{stderr}");
    assert_eq!(plan(&["--header", "quick"]).0, 2, "the first value is a header or a mistake");
}
