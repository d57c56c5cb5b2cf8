//! What the server's side adds to a run: its load over time, and what it says of a run that is not to be believed.

use serde_json::Value;

use crate::bad_input::{gspbench, small};
use crate::end_to_end::Sim;
use crate::interrupt::wait_for;
use crate::scripted::{Answer, Scripted, Step, chat_stream};
use crate::small_runs::{LONG, kinds, router, run_json, server, short_run, valid_run};

#[test]
fn the_load_of_every_rank_is_sampled_during_the_run_and_shown() {
    let sim = Sim::start(&["--ranks=8"]);
    let dir = tempfile::tempdir().unwrap();
    let (exit, stdout, stderr) = gspbench(&small(&["--target", &sim.url, "--out", "out"]), dir.path());
    assert_eq!(exit, 0, "{stderr}");
    let series = run_json(dir.path())["server"]["series"].clone();
    let ranks: std::collections::BTreeSet<_> =
        series.as_array().unwrap().iter().map(|load| load["place"]["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, (0..8).collect());
    for word in ["Load of the server", "queued", "KV use %"] {
        assert!(stdout.contains(word), "`{word}`: {stdout}");
    }
    let markdown = std::fs::read_to_string(dir.path().join("out/report.md")).unwrap();
    assert!(markdown.contains("Load of the server"), "{markdown}");
}

#[test]
fn a_load_that_is_not_to_be_looked_at_is_not_asked_for() {
    let loads = || server(|seen| (seen.path == "/v1/loads").then(|| Answer::Whole(200, "text/plain", "{}".to_owned())));
    let asked = |server: &Scripted| server.seen().iter().filter(|seen| seen.path == "/v1/loads").count();
    let (usual, off) = (loads(), loads());
    valid_run(&usual, &[]);
    valid_run(&off, &["--sample-interval=0"]);
    assert!(asked(&usual) > 0);
    assert_eq!(asked(&off), 0);
}

#[test]
fn a_server_that_holds_every_question_beside_the_turns_delays_none_of_them() {
    let held = server(|seen| (seen.path == "/v1/loads").then(|| Answer::Steps(vec![Step::Hold])));
    let (report, printed) = valid_run(&held, &[]);
    assert_eq!((&report["totals"]["complete"], &report["server"]["series"]), (&4.into(), &serde_json::json!([])));
    assert!(!printed.contains("Load of the server"), "{printed}");
    let seen = held.seen();
    let asked: Vec<_> = seen.iter().filter(|seen| seen.path == "/v1/loads").map(|seen| seen.connection).collect();
    assert!(!asked.is_empty(), "the load was asked for");
    assert!(held.turns().iter().all(|turn| !asked.contains(&turn.connection)), "on a connection of its own");
}

/// What vLLM answers beside its turns, with this word on a reset.
fn vllm(reset: &'static str) -> Scripted {
    server(move |seen| {
        let json = |body: &str| Some(Answer::Whole(200, "application/json", body.to_owned()));
        match (seen.method.as_str(), seen.path.as_str()) {
            (_, "/v1/models") => json("{\"data\":[{\"id\":\"m\",\"owned_by\":\"vllm\"}]}"),
            (_, "/version") => json("{\"version\":\"0.32.0\"}"),
            (_, "/metrics") => json(
                "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_running{engine=\"1\"} 0\n\
                 vllm:cache_config_info{num_gpu_blocks=\"100\",block_size=\"16\"} 1\n",
            ),
            ("POST", "/reset_prefix_cache") => json(reset),
            _ => None,
        }
    })
}

#[test]
fn vllm_is_known_described_and_reset() {
    let server = vllm("{\"success\":true}");
    let (report, printed) = valid_run(&server, &[]);
    let told = &report["server"];
    assert_eq!((&told["kind"], &told["version"], &told["ranks"]), (&"vllm".into(), &"0.32.0".into(), &2.into()));
    assert_eq!((&told["kv_tokens_per_rank"], &told["kv_tokens_total"]), (&800.into(), &1_600.into()));
    assert_eq!(told["flush"]["by"], "reset_prefix_cache");
    assert!(printed.contains("--enable-prompt-tokens-details"), "{printed}");
    let refusing = vllm("{\"success\":false}");
    let dir = tempfile::tempdir().unwrap();
    let (exit, _, stderr) = gspbench(&small(&["--target", &refusing.url]), dir.path());
    assert_eq!(exit, 3, "{stderr}");
    assert!(stderr.contains("success") && stderr.contains("--no-flush-cache"), "{stderr}");
}

/// Whether `/metrics` answers after so many turns.
type Answers = fn(u32) -> bool;

#[test]
fn counters_that_the_probe_saw_and_no_scrape_does_are_missed() {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    // The answer of /metrics by the number of turns so far, of which the first is the probe.
    let shows = |answers: Answers| {
        let turns = AtomicU32::new(0);
        server(move |seen| {
            let turn = u32::from(seen.method == "POST" && seen.path.starts_with("/v1/"));
            let turns = turns.fetch_add(turn, SeqCst);
            let page = "vllm:prompt_tokens_total{engine=\"0\"} 5\n";
            let code = if answers(turns) { 200 } else { 503 };
            (seen.path == "/metrics").then(|| Answer::Whole(code, "text/plain", page.to_owned()))
        })
    };
    let unread = |server: &Scripted| {
        let (report, printed) = valid_run(server, &["--no-flush-cache", "--warmup-requests=0"]);
        let unread = report["server"]["unread"].as_array().unwrap().iter();
        let unread: Vec<_> =
            unread.map(|of| [&of["source"], &of["when"]].map(|word| word.as_str().unwrap().to_owned())).collect();
        (unread, kinds(&report, "warnings").contains(&"scrape".to_owned()), printed)
    };
    let cases: [(Answers, &str); 3] =
        [(|turns| turns == 0, "both"), (|turns| turns < 2, "after"), (|turns| turns != 1, "before")];
    for (answers, when) in cases {
        let server = shows(answers);
        let (unread, is_warned, printed) = unread(&server);
        assert_eq!(unread, [[server.url.clone(), when.to_owned()]], "{printed}");
        assert!(is_warned && printed.contains("could not be read"), "{printed}");
    }
    for answers in [(|_| true) as Answers, |_| false] {
        let (unread, is_warned, printed) = unread(&shows(answers));
        assert_eq!((unread, is_warned), (vec![], false), "{printed}");
    }
}

#[test]
fn replies_that_are_shorter_than_asked_for_void_the_run() {
    let (report, printed) = short_run(&server(|_| None), &["--set", "workload.output_tokens=4"]);
    assert_eq!(kinds(&report, "voids"), ["output_length"]);
    assert!(printed.contains("VOID(output_length)"), "{printed}");
}

#[test]
fn another_process_at_the_end_of_the_run_voids_it() {
    // Whoever answers after the first measured turn is another process.
    let turns = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let sent = std::sync::Arc::clone(&turns);
    let restarted = server(move |seen| {
        use std::sync::atomic::Ordering::SeqCst;
        if seen.method == "POST" && seen.path.starts_with("/v1/") {
            sent.fetch_add(1, SeqCst);
        }
        (seen.path == "/metrics").then(|| {
            let started = if turns.load(SeqCst) > 1 { 2_000 } else { 1_000 };
            Answer::Whole(200, "text/plain", format!("process_start_time_seconds {started}\n"))
        })
    });
    let (report, printed) = short_run(&restarted, &[]);
    assert_eq!(kinds(&report, "voids"), ["restart"]);
    assert!(printed.contains("VOID(restart)"), "{printed}");
}

#[test]
fn a_server_that_goes_away_in_the_run_voids_it() {
    let sim = Sim::at_speed(1, &["--ranks=2"]);
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("out/requests.jsonl");
    let url = sim.url.clone();
    let many = ["run", "--target", &url, "--out", "out", "--set", "workload.sessions_per_group=60"];
    let args = [&many, &LONG[..]].concat();
    let (exit, printed) = std::thread::scope(|scope| {
        let running = scope.spawn(|| gspbench(&args, dir.path()));
        wait_for("the first turns", || std::fs::read_to_string(&log).ok().filter(|text| text.lines().count() > 2));
        sim.stop();
        let (exit, stdout, stderr) = running.join().unwrap();
        (exit, stdout + &stderr)
    });
    assert_eq!(exit, 4, "{printed}");
    let report = run_json(dir.path());
    assert!(kinds(&report, "voids").contains(&"restart".to_owned()), "{printed}");
    assert!(report["totals"]["refused_turns"].as_u64().unwrap() > 0 && printed.contains("were refused"), "{printed}");
}

#[test]
fn a_router_that_answers_nothing_but_turns_is_measured() {
    let bare = server(|_| None);
    let (report, printed) = valid_run(&bare, &[]);
    let paths: Vec<_> = bare.seen().into_iter().take(4).map(|seen| seen.path).collect();
    assert_eq!(paths, ["/ready", "/readiness", "/health", "/v1/models"]);
    assert_eq!(report["server"]["kind"], Value::Null);
    assert!(printed.contains("the server does not tell counters") && printed.contains("--metrics-url"), "{printed}");
}

#[test]
fn a_server_that_is_not_ready_yet_is_waited_for() {
    let asked = std::sync::atomic::AtomicU32::new(0);
    let slow = server(move |seen| {
        (seen.path == "/readiness").then(|| {
            let is_ready = asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 1;
            let body = "{\"status\":\"ready\",\"healthy_workers\":2,\"total_workers\":2}";
            Answer::Whole(if is_ready { 200 } else { 503 }, "application/json", body.to_owned())
        })
    });
    let (report, _) = valid_run(&slow, &["--ready-check-timeout-sec=60"]);
    assert_eq!(slow.seen().iter().filter(|seen| seen.path == "/readiness").count(), 3);
    assert_eq!(report["server"]["kind"], "smg");
}

#[test]
fn fields_that_a_strict_server_refuses_are_left_out_and_that_is_said() {
    let strict = server(|seen| {
        let refused = ["ignore_eos", "continuous_usage_stats"].into_iter().find(|field| seen.body.contains(field))?;
        let body = format!("{{\"detail\":\"Unexpected fields in the request: {{'{refused}'}}\"}}");
        Some(Answer::Whole(422, "application/json", body))
    });
    let (report, printed) = valid_run(&strict, &[]);
    for field in ["`ignore_eos`", "`continuous_usage_stats`"] {
        assert!(printed.contains(field), "{field}: {printed}");
    }
    assert_eq!((&report["totals"]["complete"], &report["totals"]["failed"]), (&4.into(), &0.into()));
    assert_eq!(report["manifest"]["spec"]["request"]["ignore_eos"], false, "as it was sent");
}

#[test]
fn odd_counts_and_ranks_fail_neither_the_probe_nor_a_turn() {
    for rank in ["-1", "70000", "\"a\"", "2.5"] {
        let odd = Scripted::start(move |seen| match seen.path.as_str() {
            "/generate" => {
                let frame = |finish: &str| {
                    format!(
                        "data: {{\"text\":\"a b c\",\"meta_info\":{{\"prompt_tokens\":12.0,\"completion_tokens\":\"3\",\
                         \"cached_tokens\":0.0,\"dp_rank\":{rank},\"finish_reason\":{finish}}}}}\n\n"
                    )
                };
                let body = frame("null") + &frame("{\"type\":\"length\"}") + "data: [DONE]\n\n";
                Answer::Whole(200, "text/event-stream", body)
            }
            _ => Answer::Whole(404, "application/json", "{}".to_owned()),
        });
        let (report, _) = valid_run(&odd, &["--api=generate"]);
        assert_eq!(
            (&report["totals"]["complete"], &report["totals"]["output_tokens"]),
            (&4.into(), &12.into()),
            "{rank}"
        );
        assert_eq!(report["affinity"]["attribution"]["known"], 0, "{rank}");
    }
}

#[test]
fn a_router_that_routes_scrapes_by_its_policy_is_never_scraped() {
    let asked = |server: &Scripted| {
        let beside = ["/metrics", "/v1/loads", "/flush_cache"];
        server.seen().iter().filter(|seen| beside.iter().any(|route| seen.path.starts_with(route))).count()
    };
    let vllm_router = router("All servers healthy", (500, "Cache flush failed on one or more servers"));
    let (report, printed) = valid_run(&vllm_router, &[]);
    assert_eq!((asked(&vllm_router), &report["server"]["kind"]), (0, &"vllm-router".into()), "{printed}");
    assert_eq!(
        (&report["server"]["counters"], &report["server"]["unread"]),
        (&Value::from([(); 0]), &Value::from([(); 0]))
    );
    for word in ["the server does not tell counters", "--metrics-url", "--prometheus-port"] {
        assert!(printed.contains(word), "`{word}`: {printed}");
    }
    // Further addresses tell in its place, and other routers are asked as ever.
    let own = router("OK", (404, ""));
    let (report, _) = valid_run(&vllm_router, &["--metrics-url", &own.url]);
    assert_eq!(asked(&vllm_router), 0);
    assert_eq!(report["server"]["counters"][0]["source"], own.url.as_str());
    valid_run(&own, &[]);
    assert!(asked(&own) > 0);
}

#[test]
fn connections_are_counted_with_those_opened_ahead_and_with_those_that_replace_closed_ones() {
    let of = |server: &Scripted| {
        let (report, _) = valid_run(server, &["--max-concurrency=1"]);
        assert_eq!(report["totals"]["complete"], 4);
        ["connections", "redials"].map(|figure| report["client"][figure].as_u64().unwrap())
    };
    assert_eq!(of(&server(|_| None)), [1, 0]);
    let closing = server(|seen| {
        let body = chat_stream(&["a", "b", "c"], 12);
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n\r\n", body.len());
        (seen.method == "POST" && seen.path.starts_with("/v1/")).then(|| Answer::Raw((head + &body).into_bytes()))
    });
    assert_eq!(of(&closing), [4, 3]);
}
