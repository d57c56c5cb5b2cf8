//! Whole runs, with the figures that the rows of the traps name, each in full where other files hold a part of it: what is
//! printed, what is measured and when it ends (B40, B43, B59, B65, B68, B77, B82, B86, B87, B90, B116), and where bodies are made (B70).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gspbench::clock::Clock;
use gspbench::compare::{BlockResult, Settings, Unjudged, compare, no_turns};
use gspbench::drive::{Limits, Load, Stop, drive};
use gspbench::lanes::Lanes;
use gspbench::record::{Failure, Outcome, TurnRecord};
use gspbench::render::{self, terminal};
use gspbench::report::RunReport;
use gspbench::text::Vocabulary;
use gspbench::units::Micros;
use gspbench::workload::{self, Prompter};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::bad_input::{ended_well, gspbench, small};
use crate::load::{self, MS, SECOND, near, reply};
use crate::play::{content, ending};
use crate::scripted::{Answer, Scripted, Seen, Step, chat_stream, chunk, end, head};
use crate::traps_program::{Ran, abc, server, server_with};

/// A tokenizer that puts a token of its own before every text.
pub(crate) fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bpe-2k.tokenizer.json")
}

/// The page of a run, without its line breaks.
fn shown(report: &RunReport) -> String {
    terminal(&render::run(report)).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// B40: eight in flight, 160 turns, a server that is done at once and ends no connection before the client's end does.
#[test]
fn the_report_is_printed_while_the_server_keeps_every_connection() {
    let server = server(|_, _| abc());
    let ran = Ran::new(&server, &["--gsp-prompts-per-group=160", "--max-concurrency=8"]);
    assert_eq!((ran.ended_well(), &ran.totals()["complete"]), (true, &json!(160)), "{}", ran.stderr);
    assert!(ran.stdout.contains("160 of 160"), "{}", ran.stdout);
    assert_eq!(server.turns().len(), 161);
    let of_turns: BTreeSet<usize> = server.turns()[1..].iter().map(|seen| seen.connection).collect();
    assert!(of_turns.len() < 160, "connections are kept, so that there were some to wait for");
}

/// B43: six turns of TTFT 100 ms and ten tokens, six that end with an error, of which three had begun in no time.
#[test]
fn half_of_the_turns_failing_leaves_the_latencies_of_the_other_half() {
    let sent = AtomicU32::new(0);
    let toml = "workload.groups = 1\nworkload.sessions_per_group = 12\nload.max_concurrency = 1";
    let report = load::run(toml, move |clock, turn, stop| {
        let nth = sent.fetch_add(1, Ordering::Relaxed);
        async move {
            if nth.is_multiple_of(2) {
                return reply(clock, turn, stop, (100 * MS, 10 * MS, 10)).await;
            }
            let now = Some(clock.now().into());
            let first_us = now.filter(|_| nth % 4 == 1);
            let outcome = Outcome::Failed(Failure::InBandError);
            TurnRecord { sent_us: now, first_us, answer_us: first_us, last_us: first_us, done_us: now, outcome, ..turn }
        }
    });
    let ttft = report.metrics.ttft_ms.unwrap();
    assert_eq!((ttft.count, ttft.min, ttft.p50), (6, 100.0, 100.0));
    assert_eq!((report.totals.complete, report.totals.failed), (6, 6));
    assert_eq!(report.totals.failure_rate(), Some(0.5));
    let page = shown(&report);
    assert!(page.contains("Successful requests 6 of 12") || page.contains("Successful requests │ 6 of 12"), "{page}");
    assert!(page.contains("6 of 12 turns failed (50 %): in_band_error 6"), "{page}");
}

/// B59: 200 a second, 2,000 turns of 1 ms: what was asked for, what was kept and how late it was are printed.
#[test]
fn a_rate_is_printed_with_what_was_kept_of_it_and_how_late_it_was() {
    let open = |rate: f64, sessions: u32, more: &str| {
        format!(
            "workload.groups = 1\nworkload.sessions_per_group = {sessions}\nload.rate = {rate:?}\nload.burstiness = inf{more}"
        )
    };
    let kept = load::run(&open(200.0, 2_000, ""), |clock, turn, stop| reply(clock, turn, stop, (MS, MS, 1)));
    assert_eq!(kept.windows.whole.to_us, Micros(9_996_000), "the last is sent at 9.995 s");
    let rate = kept.client.rate.unwrap();
    assert_eq!((rate.asked, rate.planned, rate.achieved), (200.0, Some(200.0), Some(200.0)));
    let page = shown(&kept);
    for words in
        ["rate: 200.0 sessions/s asked for, 200.0 as the schedule came out, 200.0 as sent", "send lag p99 0.00 ms"]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    // Two at a time, 200 ms each: ten a second, whatever is asked for.
    let capped = open(20.0, 200, "\nload.max_concurrency = 2");
    let late = load::run(&capped, |clock, turn, stop| reply(clock, turn, stop, (200 * MS, MS, 1)));
    let lag = late.client.send_lag_ms.unwrap();
    // Turn n is due at 50 n ms, and waits until one of the two before it has ended: 100 ⌊n / 2⌋ ms.
    assert_eq!(lag.max, 9_900.0);
    near(Some(lag.p50), 4_900.0);
    near(Some(lag.p90), 8_900.0);
    near(Some(lag.p99), 9_800.0);
    let page = shown(&late);
    let printed = |before: &str| -> Option<f64> {
        page.split(before).nth(1)?.split(' ').next().unwrap().replace(',', "").parse().ok()
    };
    near(printed("send lag p99 "), 9_800.0);
    near(printed("rate: "), 20.0);
    near(printed("sessions/s asked for, "), 20.0);
    // From the first to the last, which is due at 9.95 s.
    near(printed("as the schedule came out, "), 199.0 / 19.85);
}

/// B65: 64 prompts and no flag about the load. The first turn takes 3 s, the others 1 s: 66 s of turns in 3 s.
#[test]
fn the_default_limit_and_what_was_in_flight_are_printed() {
    let sent = AtomicU32::new(0);
    let report = load::run("workload.groups = 1\nworkload.sessions_per_group = 64", move |clock, turn, stop| {
        let first = if sent.fetch_add(1, Ordering::Relaxed) == 0 { 3 * SECOND } else { SECOND };
        reply(clock, turn, stop, (first, MS, 1))
    });
    assert_eq!((report.client.in_flight.mean, report.client.in_flight.max), (Some(22.0), Some(32)));
    let page = shown(&report);
    for words in ["closed loop, 32 sessions in flight", "22.00 turns in flight (max 32)"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    // Where there is a rate, a limit that binds is no part of the question, and has a finding of its own.
    let toml = "workload.groups = 1\nworkload.sessions_per_group = 200\nload.rate = 20.0\nload.burstiness = inf\nload.max_concurrency = 2";
    let bound = load::run(toml, |clock, turn, stop| reply(clock, turn, stop, (200 * MS, MS, 1)));
    let page = shown(&bound);
    for words in ["at most 2 in flight", "turns waited for a permit of --max-concurrency", "(max 2)"] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

/// B68: the first eight replies after the probe are slow, and none of them is in a figure; the measured phase begins when the
/// last of them has ended, with the counters read in between.
#[test]
fn no_slow_reply_of_the_warm_up_is_measured_and_no_pause_follows_it() {
    let server = server_with(
        |_, turn| match turn {
            1..=8 => Answer::Steps(vec![head(), Step::Pause(SECOND), Step::Note, chunk(abc_events()), end()]),
            _ => abc(),
        },
        |seen| {
            let page = "vllm:prompt_tokens_total{engine=\"0\"} 5\n";
            (seen.path == "/metrics").then(|| Answer::Whole(200, "text/plain", page.to_owned()))
        },
    );
    let flags = ["--warmup-requests=8", "--max-concurrency=8", "--gsp-prompts-per-group=100"];
    let ran = Ran::new(&server, &flags);
    let (report, turns) = (ran.report(), server.turns());
    assert_eq!((turns.len(), &report["metrics"]["ttft_ms"]["count"]), (109, &json!(100)), "{}", ran.stderr);
    let (slow, measured) = turns[1..].split_at(8);
    let id = |seen: &Seen| seen.header("x-request-id").unwrap().to_owned();
    let recorded: BTreeSet<String> = ran.turns().iter().map(|turn| turn["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(measured.iter().map(id).collect::<BTreeSet<_>>(), recorded, "all that is measured, and nothing else");
    assert!(slow.iter().all(|seen| !recorded.contains(&id(seen))));
    let prompts = |part: &[Seen]| part.iter().map(|seen| seen.json()["messages"].to_string()).collect::<BTreeSet<_>>();
    assert!(prompts(slow).is_disjoint(&prompts(measured)));
    // By the server's clock, and in spans of the warm-up itself.
    let (began, ended) = (slow[0].at, *server.noted().iter().max().unwrap());
    assert!(measured[0].at >= ended, "not before the warm-up has ended");
    assert!(measured[0].at - ended < ended - began, "{:?}", measured[0].at - ended);
    let scrapes = server.seen().into_iter().filter(|seen| seen.path == "/metrics");
    assert!(scrapes.into_iter().any(|seen| (ended..measured[0].at).contains(&seen.at)), "counters are read in between");
}

fn abc_events() -> String {
    content("a") + &content("b") + &content("c") + &ending(12, 3)
}

/// B70: the first body of a session, with all of its text, is made beside the lanes and before a lane asks for it.
#[test]
fn prompts_are_made_off_the_threads_that_carry_streams() {
    let spec = load::spec("workload.groups = 1\nworkload.sessions_per_group = 64");
    let vocabulary = Arc::new(Vocabulary::from_file(&tokenizer()).unwrap());
    let plan = Arc::new(workload::plan(&spec, &vocabulary).unwrap());
    let (made, sent) = (Arc::new(Mutex::new(vec![])), Arc::new(Mutex::new(vec![])));
    let name = || std::thread::current().name().unwrap_or_default().to_owned();
    let (makes, sends) = (Arc::clone(&made), Arc::clone(&sent));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let load = Load {
            run_id: "t".into(),
            prompter: Arc::new(Prompter::new(plan, vocabulary)),
            limits: Limits {
                sessions: Some(4),
                turns: None,
                ramp_up: Duration::ZERO,
                duration: None,
                think: Duration::ZERO,
            },
            clock: Clock::wall(),
            lanes: Lanes::threads(2).unwrap(),
            stop: Stop::default(),
            watch: Arc::default(),
        };
        let (sender, mut receiver) = mpsc::channel::<TurnRecord>(16);
        let prepare = move |_: &TurnRecord, prompt: &workload::Prompt| {
            makes.lock().unwrap().push(name());
            prompt.ids()
        };
        let send = move |mut turn: TurnRecord, _: Option<Vec<u32>>, ()| {
            let sends = Arc::clone(&sends);
            async move {
                sends.lock().unwrap().push(name());
                turn.outcome = Outcome::Complete;
                (turn, String::new())
            }
        };
        let receiving = async { while receiver.recv().await.is_some() {} };
        tokio::join!(drive(load, prepare, |_, _| (), send, sender), receiving);
    });
    let is_lane = |name: &&String| name.starts_with("lane-");
    let (made, sent) = (made.lock().unwrap(), sent.lock().unwrap());
    assert_eq!((made.len(), made.iter().filter(is_lane).count()), (64, 0));
    assert_eq!((sent.len(), sent.iter().filter(is_lane).count()), (64, 64));
}

/// B77: headers and then silence, no reply at all, and silence after five tokens: the run ends, and says which it was.
#[test]
fn a_run_ends_though_its_server_falls_silent() {
    let server = server(|_, turn| match turn {
        0 => abc(),
        1 => Answer::Steps(vec![head(), Step::Hold]),
        2 => Answer::Steps(vec![Step::Hold]),
        _ => Answer::Steps(vec![head(), chunk(content("x").repeat(5)), Step::Hold]),
    });
    let timeouts = [
        "--set",
        "timeout.connect=\"1s\"",
        "--set",
        "timeout.first_byte=\"1s\"",
        "--set",
        "timeout.idle=\"2s\"",
        "--max-concurrency=4",
    ];
    let ran = Ran::new(&server, &timeouts);
    let totals = ran.totals();
    assert_eq!(totals["failed_by_kind"], json!({"first_byte_timeout": 2, "idle_timeout": 2}), "{}", ran.stderr);
    let frames = |kind: &str| -> Vec<Value> {
        ran.turns().iter().filter(|turn| turn["outcome"] == kind).map(|turn| turn["frames"].clone()).collect()
    };
    assert_eq!((frames("idle_timeout"), frames("first_byte_timeout")), (vec![json!(5); 2], vec![json!(0); 2]));
    assert_eq!((ran.exit, server.turns().len()), (4, 5));
}

/// B82(a)
#[test]
fn a_bare_ipv6_host_is_reached_and_named_with_its_brackets() {
    let Ok(server) = Scripted::start_at("[::1]:0", |seen: &Seen| match seen.method.as_str() {
        "POST" if !seen.path.starts_with("/flush") && !seen.path.starts_with("/reset") => abc(),
        _ => Answer::Whole(404, "application/json", "{}".to_owned()),
    }) else {
        eprintln!("skipped: this host has no ::1");
        return;
    };
    let port = server.url.rsplit(':').next().unwrap().to_owned();
    for host in ["::1", "[::1]"] {
        let dir = tempfile::tempdir().unwrap();
        let before = server.turns().len();
        let (exit, _, stderr) = gspbench(&small(&["--host", host, "--port", &port, "--out", "out"]), dir.path());
        assert!(ended_well(exit, &[&dir.path().join("out")]), "{host}: {stderr}");
        assert_eq!(server.turns().len() - before, 5, "{host}");
    }
    let named = format!("[::1]:{port}");
    assert!(server.seen().iter().all(|seen| seen.header("host") == Some(named.as_str())));
}

/// B86, B90: 200 prompts of 1,000 tokens, counted by the server with the same tokenizer; and 36 of which it makes 37, since it
/// puts a token before what it gets.
#[test]
fn prompts_have_the_length_that_was_asked_for_and_a_token_more_is_called_out() {
    let run = |question: &str, prompts: &str, adds_bos: bool| {
        let encoder = tokenizers::Tokenizer::from_file(tokenizer()).unwrap();
        let server = server(move |seen, _| {
            let body = seen.json();
            let texts = body["messages"].as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap());
            let tokens = texts.map(|text| encoder.encode(text, adds_bos).unwrap().len()).sum();
            Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], tokens))
        });
        let path = tokenizer();
        let lengths = ["--gsp-system-prompt-len=0", question, prompts, "--max-concurrency=8"];
        Ran::new(&server, &[&lengths[..], &["--tokenizer", path.to_str().unwrap()]].concat())
    };
    let exact = run("--gsp-question-len=1000", "--gsp-prompts-per-group=200", false);
    let turns = exact.turns();
    assert_eq!(turns.len(), 200, "{}", exact.stderr);
    for turn in &turns {
        assert_eq!((&turn["prompt_tokens"], &turn["planned_prompt_tokens"]), (&json!(1_000), &json!(1_000)));
    }
    assert!(!exact.findings().contains("prompt_length"));
    let second_bos = run("--gsp-question-len=36", "--gsp-prompts-per-group=8", true);
    assert_eq!(second_bos.totals()["prompt_tokens"], 8 * 37);
    assert!(second_bos.findings().contains("prompt_length"));
    let words = "mean prompt 37.0 tokens by the server, 36.0 by the tokenizer";
    assert!(
        second_bos.stdout.split_whitespace().collect::<Vec<_>>().join(" ").contains(words),
        "{}",
        second_bos.stdout
    );
}

/// B87: a question of one token and no system prompt, under a tokenizer that puts a token before every text.
#[test]
fn a_prompt_of_one_token_is_one_real_token() {
    let server = server(|_, _| abc());
    let path = tokenizer();
    let flags = ["--gsp-system-prompt-len=0", "--gsp-question-len=1", "--tokenizer", path.to_str().unwrap()];
    let ran = Ran::new(&server, &flags);
    assert_eq!(ran.totals()["planned_prompt_tokens"], 4, "{}", ran.stderr);
    let encoder = tokenizers::Tokenizer::from_file(&path).unwrap();
    let mut prompts = BTreeSet::new();
    for seen in &server.turns()[1..] {
        let body = seen.json();
        let messages = body["messages"].as_array().unwrap();
        let text = messages[0]["content"].as_str().unwrap();
        assert!(messages.len() == 1 && !text.trim().is_empty(), "{body}");
        assert_eq!(encoder.encode(text, false).unwrap().len(), 1, "{text:?}");
        assert_eq!(encoder.encode(text, true).unwrap().len(), 2, "the server's own is no part of the length");
        prompts.insert(text.to_owned());
    }
    assert_eq!(prompts.len(), 4);
}

/// B116: A of 100 tokens, all of which succeed; B of 40 tokens, a tenth of which fails.
#[test]
fn arms_of_other_lengths_and_failures_are_not_compared_and_their_latencies_are_shown() {
    let toml = "workload.groups = 1\nworkload.sessions_per_group = 30\nload.max_concurrency = 3";
    let arm = |name: &str, tokens: u32, fails: u32| {
        let sent = AtomicU32::new(0);
        let report = load::run(toml, move |clock, turn, stop| {
            let has_failed = sent.fetch_add(1, Ordering::Relaxed) < fails;
            async move {
                let turn = reply(clock, turn, stop, (100 * MS, 10 * MS, tokens)).await;
                let outcome = if has_failed { Outcome::Failed(Failure::Reset) } else { turn.outcome };
                TurnRecord { outcome, ..turn }
            }
        });
        BlockResult { round: 1, arm: name.into(), report, dir: None }
    };
    let settings = Settings::new("a");
    let (long, failing, short) = (arm("a", 100, 0), arm("b", 40, 3), arm("b", 40, 0));
    let e2e = |block: &BlockResult| block.report.metrics.e2e_ms.unwrap().mean;
    assert!(e2e(&failing) < e2e(&long), "the figure that would mislead");

    let comparison = compare(&[long.clone(), failing.clone()], &settings, &no_turns).unwrap();
    let fields: Vec<_> = comparison.differences.iter().map(|found| found.field.as_str()).collect();
    assert_eq!((comparison.comparable, fields), (false, vec!["mean output length", "failure rate"]));
    let page = terminal(&render::comparison(&comparison)).split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "NOT COMPARABLE",
        "mean output length of b is 40.0, of the baseline 100.0",
        "failure rate of b is 10.0 %, of the baseline 0.0 %",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
    // A tenth failing voids the run: its own page has the figures of those that did not.
    for block in [&long, &failing] {
        let page = shown(&block.report);
        assert!(page.contains("│ TTFT 100.0 ") && page.contains("│ TPOT 10.00 "), "{page}");
    }
    // Of other lengths alone: both figures of both arms side by side, and no verdict.
    let comparison = compare(&[long, short], &settings, &no_turns).unwrap();
    assert!(!comparison.comparable);
    for (key, value) in [("ttft_ms.mean", 100.0), ("tpot_ms.mean", 10.0)] {
        let row = comparison.metrics.iter().find(|row| row.key == key).unwrap();
        assert_eq!(row.arms.iter().map(|arm| arm.value).collect::<Vec<_>>(), [Some(value); 2], "{key}");
        let contrast = &row.contrasts[0];
        assert_eq!((contrast.verdict, contrast.unjudged), (None, Some(Unjudged::NotComparable)), "{key}");
    }
}
