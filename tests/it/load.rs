//! From a load to its report, on the virtual clock: windows, cut-off, empty and tiny sets (rows B50 to B54, B57, B62, B65,
//! B69, B113 of the traps). Exact figures, no socket.

use std::future::Future;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use gspbench::clock::{Clock, run_virtual};
use gspbench::drive::{Limits, Load, Stop, drive};
use gspbench::lanes::Lanes;
use gspbench::profile::{self, Pacing, RunSpec};
use gspbench::record::{EndedBy, Failure, Gap, Outcome, Place, TurnRecord};
use gspbench::render::{html_run, markdown, terminal};
use gspbench::report::{
    Accumulator, ClientSide, Closing, Context, Manifest, Oracle, RunReport, ServerFacts, State, WorkloadFacts,
};
use gspbench::text::Vocabulary;
use gspbench::units::{Micros, Rank};
use gspbench::workload::{self, Prompter};
use tokio::sync::mpsc;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn spec(toml: &str) -> RunSpec {
    let sizes = "workload.system_tokens = 4\nworkload.question_tokens = 5\nworkload.output_tokens = 15\nworkload.seed = 7\nrequest.ignore_eos = false";
    let profile = profile::load("test", &format!("{toml}\n{sizes}"), &[]).unwrap();
    let context = profile::Context { name: "test".into(), drawn_seed: 7, compares_arms: false };
    profile::run_spec(&profile, &context).unwrap()
}

pub(crate) fn context(spec: &RunSpec, plan: &workload::Plan) -> Context {
    let totals = plan.totals();
    Context {
        manifest: Manifest { version: "test".into(), ..Manifest::of(spec.clone()) },
        workload: WorkloadFacts {
            digest: plan.digest.clone(),
            groups: spec.workload.groups.get(),
            sessions: totals.sessions,
            turns: totals.turns,
            prompt_tokens: totals.prompt_tokens,
            output_tokens: totals.output_tokens,
            distinct_prompts: totals.distinct_prompts,
            router_key: None,
            oracle: Oracle::default(),
        },
        server: ServerFacts::default(),
    }
}

/// Runs a profile against a server that replies as `serve` says; a turn that is cut keeps what had arrived.
pub(crate) fn run<F>(toml: &str, serve: impl Fn(Clock, TurnRecord, Stop) -> F + Send + Sync + 'static) -> RunReport
where
    F: Future<Output = TurnRecord> + Send + 'static,
{
    let spec = spec(toml);
    let vocabulary = Arc::new(Vocabulary::words());
    let plan = Arc::new(workload::plan(&spec, &vocabulary).unwrap());
    let mut accumulator = Accumulator::new(context(&spec, &plan));
    let sessions = match spec.load.pacing {
        Pacing::Closed { sessions } => Some(sessions),
        Pacing::Open { sessions, .. } => sessions,
    };
    run_virtual(|clock| async move {
        let load = Load {
            run_id: "t".into(),
            prompter: Arc::new(Prompter::new(plan, vocabulary)),
            limits: Limits {
                sessions: sessions.map(|n| n.get() as usize),
                turns: None,
                ramp_up: spec.load.ramp_up,
                duration: spec.load.duration,
                think: spec.load.think,
            },
            clock: clock.clone(),
            lanes: Lanes::default(),
            stop: Stop::default(),
            watch: Arc::default(),
        };
        let (watch, stop) = (Arc::clone(&load.watch), load.stop.clone());
        let (sender, mut receiver) = mpsc::channel::<TurnRecord>(16);
        let send = move |turn: TurnRecord, (), ()| {
            let serving = serve(clock.clone(), turn, stop.clone());
            async move { (serving.await, String::new()) }
        };
        let recording = async {
            while let Some(turn) = receiver.recv().await {
                accumulator.mark(watch.marks());
                accumulator.add(&turn);
            }
            accumulator.mark(watch.marks());
        };
        let (driven, ()) = tokio::join!(drive(load, |_, _| (), |_, ()| (), send, sender), recording);
        accumulator.finish(Closing {
            ended_by: Some(driven.ended_by),
            client: ClientSide { in_flight_max: u64::try_from(watch.max_in_flight()).ok(), ..ClientSide::default() },
            ..Closing::plain(State::Complete)
        })
    })
    .unwrap()
}

/// A reply of `tokens` tokens: the first after `first`, each further one `gap` later.
pub(crate) async fn reply(
    clock: Clock,
    mut turn: TurnRecord,
    stop: Stop,
    (first, gap, tokens): (Duration, Duration, u32),
) -> TurnRecord {
    let sent = clock.now();
    turn.sent_us = Some(sent.into());
    turn.prompt_tokens = Some(9);
    turn.outcome = Outcome::Complete;
    for token in 0..tokens {
        let at = sent + first + gap * token;
        tokio::select! {
            biased;
            () = clock.sleep_until(at) => {},
            () = stop.cut.cancelled() => {
                turn.outcome = Outcome::Cancelled;
                break;
            },
        }
        match token {
            0 => (turn.first_us, turn.first_frame_tokens) = (Some(at.into()), Some(1)),
            _ => turn.gaps.push(Gap::new(u32::try_from(gap.as_micros()).unwrap(), Some(1))),
        }
        turn.frames += 1;
        turn.last_us = Some(at.into());
        turn.output_tokens = Some(token + 1);
    }
    turn.done_us = Some(clock.now().into());
    turn
}

pub(crate) fn near(value: Option<f64>, want: f64) {
    assert!(value.is_some_and(|value| (value - want).abs() < 0.005 * want), "{value:?} is not {want}");
}

/// Row B69: 10 in flight, 100 turns of 1 s, the last one 20 s.
#[test]
fn the_steady_window_leaves_out_the_tail_and_both_figures_are_named() {
    let sent = AtomicU32::new(0);
    let report = run(
        "workload.groups = 1\nworkload.sessions_per_group = 100\nload.max_concurrency = 10",
        move |clock, turn, stop| {
            let is_last = sent.fetch_add(1, Ordering::Relaxed) == 99;
            let last = if is_last { 20 * SECOND } else { SECOND };
            reply(clock, turn, stop, (last, MS, 1))
        },
    );
    let steady = report.windows.steady.as_ref().unwrap();
    assert_eq!((steady.from_us, steady.to_us), (Micros(0), Micros(9_000_000)));
    assert_eq!(steady.request_throughput, Some(10.0));
    near(report.metrics.request_throughput, 100.0 / 29.0);
    assert_eq!((report.metrics.ttft_ms.unwrap().max, steady.latency["ttft_ms"].max), (20_000.0, 1_000.0));
    assert_eq!(report.windows.drain.unwrap().seconds, 20.0);
    near(report.client.littles_law_ratio, 1.0);
    assert_eq!((report.client.in_flight.max, report.ended_by), (Some(10), Some(EndedBy::Plan)));
    near(report.client.in_flight.mean, (99.0 + 20.0) / 29.0);
}

/// Row B50: 100 turns of 10 tokens end in 10 s, one after the other; beside them one hangs until its time-out at 60 s.
#[test]
fn a_turn_that_hangs_stretches_the_whole_run_but_not_the_window_to_the_last_success() {
    let toml = "workload.groups = 1\nworkload.sessions_per_group = 101\nload.max_concurrency = 2";
    let sent = AtomicU32::new(0);
    let report = run(toml, move |clock, turn, stop| {
        let hangs = sent.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            if hangs {
                let sent_us = Some(clock.now().into());
                clock.sleep_until(clock.now() + 60 * SECOND).await;
                let outcome = Outcome::Failed(Failure::FirstByteTimeout);
                return TurnRecord { sent_us, done_us: Some(clock.now().into()), outcome, ..turn };
            }
            reply(clock, turn, stop, (91 * MS, MS, 10)).await
        }
    });
    let windows = &report.windows;
    let short = windows.to_last_success.as_ref().unwrap();
    assert_eq!((short.from_us, short.to_us), (Micros(0), Micros(10_000_000)));
    assert_eq!((short.request_throughput, short.output_throughput), (Some(10.0), Some(100.0)));
    assert_eq!(short.total_throughput, Some(190.0));
    assert_eq!((windows.whole.from_us, windows.whole.to_us), (Micros(0), Micros(60_000_000)));
    near(windows.whole.output_throughput, 1_000.0 / 60.0);
    let line = "to the last success, from 0.00 to 10.00 s: 10.00 req/s, 100.0 output tok/s · whole run, from 0.00 to 60.00 s: 1.67 req/s, 16.67 output tok/s";
    let page = markdown(&gspbench::render::run(&report));
    assert!(page.contains(line), "{page}");
    // Ten seconds of 60 are no steady state of the run.
    assert!(windows.steady_reason.as_ref().unwrap().contains("16 % of the run"));
    assert_eq!((windows.drain.unwrap().from_us, windows.drain.unwrap().seconds), (Micros(9_900_000), 50.1));
    assert_eq!(report.totals.failed_by_kind["first_byte_timeout"], 1);
}

/// Row B51: four in flight, 2.05 s, 15 tokens each at 100, 200 … 1,500 ms.
#[test]
fn the_duration_keeps_the_tokens_that_arrived_and_counts_no_cut_turn() {
    let toml =
        "workload.groups = 1\nworkload.sessions_per_group = 400\nload.max_concurrency = 4\nload.duration = \"2050ms\"";
    let report = run(toml, |clock, turn, stop| reply(clock, turn, stop, (100 * MS, 100 * MS, 15)));
    assert_eq!(report.ended_by, Some(EndedBy::Duration));
    let totals = &report.totals;
    assert_eq!((totals.planned, totals.complete, totals.failed, totals.cancelled), (400, 4, 0, 396));
    assert!(totals.balanced());
    near(report.metrics.output_throughput, 80.0 / 2.05);
    near(report.metrics.finished_output_throughput, 60.0 / 2.05);
    let page = terminal(&gspbench::render::run(&report));
    let line = "finished-only: 29.27 output tok/s of complete turns · with the tokens of turns that were cut: 39.02";
    assert!(page.contains(line), "{page}");
    assert_eq!((totals.output_tokens, report.metrics.ttft_ms.unwrap().count), (Some(60), 4));
    assert_eq!(report.validity.voids, [], "cut turns are no errors");
    let reason = report.windows.steady_reason.as_ref().unwrap();
    assert!(reason.starts_with("4 turns sent under full load, and 8"), "{reason}");
}

/// A duration-limited run is full to its end: that is its steady window.
#[test]
fn a_run_that_its_duration_ends_is_steady_until_then() {
    let toml = "workload.groups = 1\nworkload.sessions_per_group = 400\nload.max_concurrency = 4\nload.duration = \"10s\"\nload.ramp_up = \"1s\"";
    let report = run(toml, |clock, turn, stop| reply(clock, turn, stop, (100 * MS, 100 * MS, 5)));
    let steady = report.windows.steady.unwrap();
    assert_eq!((steady.from_us, steady.to_us), (Micros(750_000), Micros(10_000_000)));
    // Four streams of ten tokens a second.
    near(steady.output_throughput, 40.0);
    near(steady.request_throughput, 8.0);
    assert_eq!(report.windows.drain.unwrap().seconds, 0.0);
    near(report.client.littles_law_ratio, 1.0);
}

/// Row B52 and B53: replies of one token, no reply at all, and one reply.
#[test]
fn tiny_and_empty_sets_have_nulls_and_no_nan() {
    let toml = "workload.groups = 1\nworkload.sessions_per_group = 20\nload.max_concurrency = 4";
    let ones = run(toml, |clock, turn, stop| reply(clock, turn, stop, (10 * MS, MS, 1)));
    assert!(ones.metrics.tpot_ms.is_none() && ones.metrics.itl_ms.is_none());
    assert_eq!(ones.metrics.ttft_ms.unwrap().count, 20);
    let none = run(toml, |clock, turn, _| async move {
        let now = Some(clock.now().into());
        TurnRecord { sent_us: now, done_us: now, outcome: Outcome::Failed(Failure::Http(500)), ..turn }
    });
    let metrics = serde_json::to_value(&none.metrics).unwrap();
    for key in ["ttft_ms", "itl_ms", "icl_ms", "tpot_ms", "e2e_ms", "ttft_from_due_ms", "e2e_from_due_ms"] {
        assert!(metrics[key].is_null(), "{key}");
    }
    assert!(!serde_json::to_string(&none).unwrap().contains("NaN"));
    let one = run("workload.groups = 1\nworkload.sessions_per_group = 1", |clock, turn, stop| {
        reply(clock, turn, stop, (70 * MS, MS, 2))
    });
    let ttft = one.metrics.ttft_ms.unwrap();
    assert_eq!((ttft.count, ttft.p50, ttft.p99), (1, 70.0, 70.0));
}

/// Row B54: of 99 streams, 97 never had an output; their unset instants are no instants.
#[test]
fn streams_without_a_first_token_have_no_ttft() {
    let toml = "workload.groups = 1\nworkload.sessions_per_group = 99\nload.max_concurrency = 9";
    let sent = AtomicU32::new(0);
    let report = run(toml, move |clock, turn, stop| {
        let tokens = if sent.fetch_add(1, Ordering::Relaxed) < 2 { 3 } else { 0 };
        async move {
            let turn = reply(clock, turn, stop, (50 * MS, 10 * MS, tokens)).await;
            let outcome = if tokens == 0 { Outcome::Failed(Failure::NoOutput) } else { turn.outcome };
            TurnRecord { outcome, ..turn }
        }
    });
    let ttft = report.metrics.ttft_ms.unwrap();
    assert_eq!((ttft.count, ttft.min, ttft.max), (2, 50.0, 50.0));
}

/// Row B57: five requests of 100 to 500 ms, and none. In the report and on the page.
#[test]
fn a_p99_of_few_samples_is_marked_and_one_of_none_is_no_zero() {
    let toml = "workload.groups = 1\nworkload.sessions_per_group = 5\nload.max_concurrency = 1";
    let sent = AtomicU32::new(0);
    let few = run(toml, move |clock, turn, stop| {
        let nth = 1 + sent.fetch_add(1, Ordering::Relaxed);
        reply(clock, turn, stop, (nth * 100 * MS, MS, 1))
    });
    let ttft = few.metrics.ttft_ms.unwrap();
    assert_eq!((ttft.count, ttft.min, ttft.p99, ttft.max), (5, 100.0, 500.0, 500.0));
    near(Some(ttft.p50), 300.0);
    let page = gspbench::render::run(&few);
    let shown = markdown(&page);
    assert!(shown.contains("| TTFT | 300.0 | 299.9 | 500.0 | 500.0 | \\~500.0 | 5 |"), "{shown}");
    for text in [&shown, &terminal(&page), &html_run(&few)] {
        assert!(text.contains("from fewer than 1,000 samples"), "{text}");
    }

    let none = run(toml, |clock, turn, _| async move {
        let now = Some(clock.now().into());
        TurnRecord { sent_us: now, done_us: now, outcome: Outcome::Failed(Failure::Http(500)), ..turn }
    });
    let json = serde_json::to_value(&none).unwrap();
    let latencies =
        json["metrics"].as_object().unwrap().iter().filter(|(key, _)| key.ends_with("_ms") && *key != "failed_ms");
    assert_eq!(latencies.clone().count(), 8);
    for (key, summary) in latencies {
        assert!(summary.is_null(), "{key}: {summary}");
    }
    assert_eq!(json["windows"]["to_last_success"], serde_json::Value::Null);
    let shown = markdown(&gspbench::render::run(&none));
    for label in ["TTFT", "ITL", "ICL", "TPOT", "E2E Latency", "TTFT from due", "E2E from due"] {
        assert!(shown.contains(&format!("| {label} | – | – | – | – | – | 0 |")), "{label}: {shown}");
    }
}

/// An open loop under a cap: the wait is named, it voids nothing, and the rate that was kept is said.
#[test]
fn a_cap_that_binds_is_called_out() {
    let toml = "workload.groups = 1\nworkload.sessions_per_group = 200\nload.rate = 20.0\nload.burstiness = inf\nload.max_concurrency = 2";
    let report = run(toml, |clock, turn, stop| reply(clock, turn, stop, (200 * MS, MS, 1)));
    let kinds: Vec<_> = report.validity.warnings.iter().map(|w| serde_json::to_value(w.kind).unwrap()).collect();
    // The replies of this server tell no cached tokens.
    assert_eq!(kinds, ["cold_unproven", "cap", "rate"]);
    assert_eq!(report.validity.voids, []);
    assert_eq!(report.client.own_lag_ms.unwrap().max, 0.0);
    assert_eq!(report.client.send_lag_ms, report.client.cap_wait_ms);
    let rate = report.client.rate.unwrap();
    assert_eq!((rate.asked, rate.planned), (20.0, Some(20.0)));
    near(rate.achieved, 199.0 / 19.8);
}

/// Row B62, in the report: the server stands still from 2 s to 4 s, and the clock from due shows it.
#[test]
fn a_frozen_server_shows_in_ttft_from_due() {
    let toml = "workload.groups = 1\nworkload.sessions_per_group = 600\nload.rate = 100.0\nload.burstiness = inf";
    let report = run(toml, |clock, turn, stop| async move {
        let now = clock.now();
        clock.sleep_until(if (2 * SECOND..4 * SECOND).contains(&now) { 4 * SECOND } else { now }).await;
        reply(clock, turn, stop, (5 * MS, MS, 1)).await
    });
    let [from_due, from_sent] = [report.metrics.ttft_from_due_ms, report.metrics.ttft_ms].map(Option::unwrap);
    near(Some(from_due.p90), 1_405.0);
    near(Some(from_due.mean), 340.0);
    assert_eq!(from_sent.max, 5.0, "what a clock from sent alone would have said");
    assert!(report.validity.voids[0].seen.starts_with("send lag"), "{:?}", report.validity.voids);
}

/// Turns of the memory test: few, and ten times as many.
const FEW: u32 = 20_000;
const MANY: u32 = 200_000;

/// Row B113: 180,000 more turns of 64 events add less than 50 MiB, by the high-water mark of a process of their own.
#[test]
fn memory_does_not_grow_with_turns() {
    let [few, many] = [FEW, MANY].map(|turns| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", "load::memory_of_a_run"])
            .env("GSPBENCH_TEST_TURNS", turns.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let kib = text.lines().find_map(|line| line.trim().strip_prefix("high-water KiB ")?.parse::<u64>().ok());
        kib.unwrap_or_else(|| panic!("{text}"))
    });
    println!("{FEW} turns: {few} KiB; {MANY} turns: {many} KiB");
    assert!(many - few < 50 * 1024, "{MANY} turns add {} KiB over {FEW}", many - few);
}

#[test]
#[ignore = "`cargo test` runs it through memory_does_not_grow_with_turns, in a process of its own"]
fn memory_of_a_run() {
    let turns: u32 = std::env::var("GSPBENCH_TEST_TURNS").map_or(FEW, |turns| turns.parse().unwrap());
    let toml = format!(
        "workload.groups = 40\nworkload.sessions_per_group = {}\nworkload.turns = 5\nload.max_concurrency = 64",
        turns / 200
    );
    let report = run(&toml, |clock, mut turn, _| async move {
        let sent = clock.now();
        clock.sleep_until(sent + 640 * MS).await;
        let at = |ms: u32| Some((sent + MS * ms).into());
        (turn.sent_us, turn.first_us, turn.last_us, turn.done_us) = (at(0), at(10), at(640), at(640));
        turn.first_frame_tokens = Some(1);
        turn.gaps = vec![Gap::new(10_000, Some(1)); 63];
        turn.place = Some(Place::Rank(Rank(u16::try_from(turn.session % 8).unwrap())));
        (turn.outcome, turn.frames, turn.output_tokens, turn.prompt_tokens) =
            (Outcome::Complete, 64, Some(64), Some(9));
        turn
    });
    assert_eq!(report.totals.complete, u64::from(turns));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")).unwrap();
    println!("high-water KiB {kib}");
}
