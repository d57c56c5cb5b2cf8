//! The audit and the oracle against the simulated fleet in virtual time: the published closed forms, over the same load loop,
//! accumulator and oracle that a run uses. Then, as processes, the facts that only some servers tell.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use gspbench::client::{Asks, CachedDetails};
use gspbench::clock::{Clock, run_virtual};
use gspbench::drive::{Limits, Load, Stop, drive};
use gspbench::policy::{Affinity, Guard, Method};
use gspbench::profile::{self, KeyScope, Pacing, RunSpec};
use gspbench::record::{Outcome, Place, PlaceSource, TurnRecord};
use gspbench::report::{
    Accumulator, Cached, Closing, Context, Host, Manifest, ObservedOracle, Oracle, RoundRobinOracle, RunReport,
    ServerFacts, State, WorkloadFacts,
};
use gspbench::sim::{Handle, JobId, Preset, Settings, Submission, Update, start};
use gspbench::text::Vocabulary;
use gspbench::workload::{self, Api, Observing, Plan, Prompt, Prompter};
use serde_json::Value;

use crate::end_to_end::{Sim, gspbench, json, lines};
use crate::scripted::{Answer, Scripted, Step};
use crate::wire_client::Sender;

const RANKS: u32 = 8;

/// `quick` with changes as `--set` takes them.
fn spec(changes: &[&str]) -> RunSpec {
    let fixed = ["workload.history=\"synthetic\"", "load.warmup_sessions=0", "workload.seed=7"];
    let changes = fixed.iter().chain(changes).map(|text| profile::Override::Assign((*text).to_owned()));
    let raw = profile::load("quick", profile::builtin("quick").unwrap(), &changes.collect::<Vec<_>>()).unwrap();
    profile::run_spec(&raw, &profile::Context { name: "test".into(), drawn_seed: 7, compares_arms: true }).unwrap()
}

/// Every word a token, numbered as they come.
#[derive(Debug, Default)]
struct Numbers(Mutex<HashMap<String, u32>>);

impl Numbers {
    fn encode(&self, prompt: &Prompt) -> Bytes {
        let mut known = self.0.lock().unwrap();
        let text = prompt.text();
        let number = |word: &str| {
            let next = u32::try_from(known.len()).unwrap();
            known.entry(word.to_owned()).or_insert(next).to_le_bytes()
        };
        text.split_whitespace().flat_map(number).collect::<Vec<u8>>().into()
    }
}

/// Serves one turn by the fleet, and notes what a reply on the native route tells.
async fn serve(fleet: Handle, clock: Clock, mut turn: TurnRecord, body: Bytes) -> (TurnRecord, String) {
    let prompt: Arc<[u32]> = body.chunks(4).map(|id| u32::from_le_bytes(id.try_into().unwrap())).collect();
    turn.prompt_tokens = u32::try_from(prompt.len()).ok();
    let output = (0..turn.planned_output_tokens).map(|n| u32::MAX - n).collect();
    turn.sent_us = Some(clock.now().into());
    let mut ticket = fleet.submit(Submission { id: JobId(0), key: turn.key.clone(), prompt, output, pin: None });
    while let Some(update) = ticket.next().await {
        match update {
            Update::Routed { dispatch, .. } => {
                turn.place = Some(Place::Rank(dispatch.rank));
                turn.place_source = Some(PlaceSource::MetaInfo);
            }
            Update::Admitted { cached, .. } => turn.cached_tokens = Some(cached),
            Update::Token { index, at, is_last } => {
                turn.first_us = turn.first_us.or(Some(at.into()));
                turn.output_tokens = Some(index);
                if is_last {
                    (turn.last_us, turn.done_us, turn.outcome) = (Some(at.into()), Some(at.into()), Outcome::Complete);
                    break;
                }
            }
            Update::Refused(why) => panic!("{why}"),
        }
    }
    (turn, String::new())
}

fn facts(plan: &Plan) -> WorkloadFacts {
    let (totals, spread) = (plan.totals(), workload::round_robin(plan, RANKS));
    WorkloadFacts {
        digest: plan.digest.clone(),
        groups: u32::try_from(totals.groups).unwrap(),
        sessions: totals.sessions,
        turns: totals.turns,
        prompt_tokens: totals.prompt_tokens,
        output_tokens: totals.output_tokens,
        distinct_prompts: totals.distinct_prompts,
        router_key: None,
        oracle: Oracle {
            ideal_reuse: Some(workload::ideal(plan).ratio),
            round_robin: Some(RoundRobinOracle {
                ranks: spread.ranks,
                reuse: spread.reuse,
                cold_pairs: spread.cold_pairs,
                split_share: spread.split_share,
            }),
            observed: None,
            aliasing: vec![],
        },
    }
}

/// Drives the plan against eight ranks of the method, without a guard, and reports.
fn measure(spec: &RunSpec, method: Method) -> RunReport {
    let vocabulary = Arc::new(Vocabulary::words());
    let plan = Arc::new(workload::plan(spec, &vocabulary).unwrap());
    let mut settings = Settings::from(Preset::find("generic-8xh100").unwrap());
    settings.method = method;
    settings.affinity = Affinity { guard: Guard::None, ..Affinity::default() };
    let Pacing::Closed { sessions } = spec.load.pacing else { panic!("a closed loop") };
    let manifest = Manifest {
        version: String::new(),
        argv: vec![],
        spec: spec.clone(),
        target: None,
        host: Host::default(),
        started_utc: String::new(),
        debug_build: false,
        arm: None,
        round: None,
    };
    let server = ServerFacts { ranks: Some(RANKS), page_tokens: Some(1), ..ServerFacts::default() };
    let mut accumulator = Accumulator::new(Context { manifest, workload: facts(&plan), server });
    let mut observing = Observing::new(&plan);
    let turns = run_virtual(|clock| async move {
        let (fleet, running) = start(&settings, clock.clone());
        let fleet_task = tokio::spawn(running);
        let limits = Limits {
            sessions: Some(sessions.get() as usize),
            turns: None,
            ramp_up: std::time::Duration::ZERO,
            duration: None,
            think: std::time::Duration::ZERO,
        };
        let prompter = Arc::new(Prompter::new(plan, vocabulary));
        let load = Load {
            run_id: "t".into(),
            prompter,
            limits,
            clock: clock.clone(),
            stop: Stop::default(),
            watch: Arc::default(),
        };
        let (sender, mut receiver) = tokio::sync::mpsc::channel(64);
        let numbers = Numbers::default();
        let serving = move |turn, body| serve(fleet.clone(), clock.clone(), turn, body);
        let driving = drive(load, move |_, prompt| numbers.encode(prompt), serving, sender);
        let collecting = async {
            let mut turns = vec![];
            while let Some(turn) = receiver.recv().await {
                turns.push(turn);
            }
            turns
        };
        let (_, turns) = tokio::join!(driving, collecting);
        fleet_task.await.unwrap();
        turns
    })
    .unwrap();
    for turn in &turns {
        accumulator.add(turn);
        let id = (turn.group, turn.session, turn.turn);
        let prompt = turn.planned_prompt_tokens.unwrap().into();
        observing.add(id, prompt, turn.planned_output_tokens, turn.place.clone());
    }
    let observed = observing.observed();
    let observed = ObservedOracle { reuse: observed.reuse, cold_pairs: observed.cold_pairs };
    let report = accumulator.finish(Closing { observed: Some(observed), ..Closing::plain(State::Complete) });
    assert!(report.totals.balanced() && report.totals.complete == report.workload.turns);
    assert_eq!(report.totals.prompt_tokens, report.totals.planned_prompt_tokens, "a word is a token");
    report
}

fn near(value: f64, want: f64, within: f64, what: &str) {
    assert!((value - want).abs() <= within, "{what}: {value} is not {want} ± {within}");
}

/// The table of SGLang PR #31170, with short replies.
const PUBLISHED: [&str; 6] = [
    "workload.groups=16",
    "workload.sessions_per_group=32",
    "workload.system_tokens=4096",
    "workload.question_tokens=128",
    "workload.output_tokens=16",
    "load.max_concurrency=64",
];

#[expect(clippy::cast_precision_loss, reason = "small counts")]
fn float(count: u64) -> f64 {
    count as f64
}

#[test]
fn round_robin_reuses_what_the_closed_form_says_and_the_audit_counts_its_pairs() {
    let report = measure(&spec(&PUBLISHED), Method::RoundRobin);
    let oracle = &report.workload.oracle;
    let (spread, seen) = (oracle.round_robin.as_ref().unwrap(), oracle.observed.as_ref().unwrap());
    near(spread.cold_pairs, 126.5, 0.05, "expected cold (rank, group) pairs");
    near(spread.reuse, 0.7302, 5e-5, "expected reuse");
    near(float(seen.cold_pairs), spread.cold_pairs, 3.0, "this shuffle's pairs");
    near(seen.reuse, (512.0 - float(seen.cold_pairs)) * 4096.0 / 2_162_688.0, 1e-9, "reuse given the pairs");
    near(report.metrics.cache_hit_rate.value.unwrap(), 0.7302, 0.02, "measured reuse");
    assert!(report.metrics.cache_hit_rate.value.unwrap() <= seen.reuse + 1e-9, "no cache has what was never there");

    let affinity = &report.affinity;
    assert_eq!(affinity.key_by, KeyScope::Group);
    assert_eq!(
        affinity.keys_per_rank.iter().sum::<u64>(),
        seen.cold_pairs,
        "a key is a group: its pairs are its places"
    );
    assert_eq!((affinity.keys, affinity.load_max_over_mean, affinity.load_cv), (Some(16), Some(1.0), Some(0.0)));
    assert_eq!(affinity.off_majority_per_rank.iter().sum::<u64>(), affinity.off_majority_turns.unwrap());
    // 32 turns over 8 ranks put some 8 of them on the fullest: most turns are off it.
    assert!(affinity.off_majority_turns.unwrap() > 300, "{:?}", affinity.off_majority_turns);
    let cold = affinity.by_cached.iter().find(|band| band.cached == Cached::Cold).unwrap();
    assert!(cold.turns >= seen.cold_pairs, "each pair is cold once at least");
    assert!(cold.ttft_ms.unwrap().mean > affinity.by_cached.last().unwrap().ttft_ms.unwrap().mean);
}

#[test]
fn prefix_affinity_reuses_all_that_the_workload_allows_and_no_key_leaves_its_rank() {
    let report = measure(&spec(&PUBLISHED), Method::PrefixAffinity);
    let (oracle, affinity) = (&report.workload.oracle, &report.affinity);
    let seen = oracle.observed.as_ref().unwrap();
    assert_eq!(seen.cold_pairs, 16, "one rank a group");
    near(seen.reuse, 0.9394, 5e-5, "expected reuse at the places seen");
    near(seen.reuse, oracle.ideal_reuse.unwrap(), 1e-6, "that is the ideal");
    near(report.metrics.cache_hit_rate.value.unwrap(), 0.9394, 0.05, "measured: groups that start together miss more");
    assert_eq!((affinity.off_majority_turns, affinity.keys_per_rank.iter().sum()), (Some(0), 16));
    assert!(affinity.load_max_over_mean.unwrap() > 1.0, "and the ranks pay for it");
    assert_eq!(affinity.hot_keys.len(), 5);
    assert!(affinity.hot_keys.iter().all(|hot| hot.turns == 32 && hot.places == 1));
}

#[test]
fn sessions_split_as_chance_says_under_round_robin_and_never_under_affinity() {
    let turns = |turns: &str, sessions: &str| {
        let changes = [
            "workload.groups=48",
            "workload.sessions_per_group=1",
            "workload.system_tokens=200",
            "workload.question_tokens={ min = 40, max = 400 }",
            "workload.output_tokens={ min = 4, max = 40 }",
            "key.by=\"session\"",
            turns,
            sessions,
        ];
        spec(&changes)
    };
    let two = measure(&turns("workload.turns=2", "load.max_concurrency=11"), Method::RoundRobin);
    // 42 of 48, as two independent draws of a rank give it.
    let split = float(two.affinity.split_sessions.unwrap()) / 48.0;
    near(two.workload.oracle.round_robin.as_ref().unwrap().split_share.unwrap(), 0.875, 1e-9, "expected");
    near(split, 0.875, 0.1, "sessions that moved");
    near(two.affinity.stickiness.unwrap(), 1.0 - split, 1e-6, "of two turns one step");
    let first = &two.affinity.split_examples[0].places;
    assert!(first.len() == 2 && first[0] != first[1], "{first:?}");

    let five = measure(&turns("workload.turns=5", "load.max_concurrency=11"), Method::RoundRobin);
    let oracle = &five.workload.oracle;
    let (spread, seen) = (oracle.round_robin.as_ref().unwrap(), oracle.observed.as_ref().unwrap());
    // A group is one session here, and its turns follow each other: nothing collides, and the oracle is exact.
    near(five.metrics.cache_hit_rate.value.unwrap(), seen.reuse, 1e-6, "measured against the places seen");
    near(seen.reuse, spread.reuse, 0.06, "this run against the mean of all");
    let bands: Vec<_> = five.affinity.by_turn.iter().map(|band| (band.from, band.to, band.turns)).collect();
    assert_eq!(bands, [(1, 1, 48), (2, 2, 48), (3, 4, 96), (5, 8, 48)]);
    assert_eq!(five.affinity.by_turn[0].hit_rate, Some(0.0), "a first turn finds nothing");

    let home = measure(&turns("workload.turns=5", "load.max_concurrency=11"), Method::PrefixAffinity);
    let affinity = &home.affinity;
    assert_eq!((affinity.split_sessions, affinity.stickiness), (Some(0), Some(1.0)));
    assert_eq!((affinity.off_majority_turns, affinity.split_examples.len()), (Some(0), 0));
    near(home.metrics.cache_hit_rate.value.unwrap(), home.workload.oracle.ideal_reuse.unwrap(), 1e-6, "reuse");
}

/// Two groups of three sessions of two turns, one at a time.
const SMALL: [&str; 8] = [
    "--gsp-num-groups=2",
    "--gsp-prompts-per-group=3",
    "--gsp-num-turns=2",
    "--gsp-system-prompt-len=100",
    "--gsp-question-len=20",
    "--gsp-output-len=4",
    "--max-concurrency=1",
    "--seed=3",
];

fn turns(dir: &Path) -> Vec<Value> {
    lines(&dir.join("out/requests.jsonl"))
}

#[test]
fn a_server_without_a_cache_report_still_tells_the_cached_tokens_of_every_turn() {
    for api in ["chat", "completions"] {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("truth.jsonl");
        let sim = Sim::start(&["--ranks=2", "--disable-cache-report", "--log", log.to_str().unwrap()]);
        gspbench(&[&["run", "--target", &sim.url, "--api", api, "--out", "out"], &SMALL[..]].concat(), dir.path());
        sim.stop();
        let truth: HashMap<String, Value> = lines(&log)
            .into_iter()
            .filter_map(|row| Some((row["request_id"].as_str()?.to_owned(), row["cached_tokens"].clone())))
            .collect();
        let turns = turns(dir.path());
        assert!(turns.iter().any(|turn| turn["cached_tokens"] == 0), "{api}: silence is a zero here");
        for turn in turns {
            assert_eq!(turn["cached_tokens"], truth[turn["id"].as_str().unwrap()], "{api}: {}", turn["id"]);
        }
    }
}

#[test]
fn the_native_route_shows_where_the_time_to_the_first_token_went() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::start(&["--ranks=2"]);
    let args = ["run", "--target", &sim.url, "--api=generate", "--out=out"];
    let table = gspbench(&[&args, &SMALL[..]].concat(), dir.path());
    let run = json(&dir.path().join("out/run.json"));
    assert_eq!(run["ttft_split"]["turns"], 12);
    for part in ["intake_ms", "queue_ms", "prefill_ms", "return_ms", "outside_ms"] {
        assert_eq!(run["ttft_split"][part]["count"], 12, "{part}");
    }
    // A turn alone on its rank waits for nobody; its prefill is a step of 42 ms and more, twenty times as fast.
    assert!(run["ttft_split"]["prefill_ms"]["min"].as_f64().unwrap() >= 42.0 / 20.0);
    for turn in turns(dir.path()) {
        let times = turn["server_times"].as_object().unwrap();
        let told: u64 = times.values().map(|us| us.as_u64().unwrap()).sum();
        let ttft = turn["first_us"].as_u64().unwrap() - turn["sent_us"].as_u64().unwrap();
        assert!(times.len() == 4 && told <= ttft + 1_000, "{told} of {ttft}: {turn}");
    }
    assert!(table.contains("TTFT, as its server tells (ms)") && table.contains("prefill"), "{table}");
}

#[test]
fn the_servers_log_of_requests_gives_the_ranks_that_an_openai_stream_does_not_tell() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("truth.jsonl");
    let sim = Sim::start(&["--ranks=2", "--log", log.to_str().unwrap()]);
    gspbench(&[&["run", "--target", &sim.url, "--api=chat", "--out=out"], &SMALL[..]].concat(), dir.path());
    sim.stop();
    let before = json(&dir.path().join("out/run.json"));
    assert_eq!(
        (&before["affinity"]["attribution"]["known"], before["ranks"].as_array().unwrap().len()),
        (&0.into(), 0)
    );
    assert!(before["affinity"]["attribution"]["reason"].as_str().unwrap().contains("--export-file"));

    // As SGLang writes it: the reply's meta_info beside the parameters, in one folder, a file an hour; the last line is torn.
    let rows: Vec<Value> = lines(&log).into_iter().filter(|row| row["rid"].is_string()).collect();
    let line = |row: &Value| serde_json::json!({"request_parameters": "{\"rid\": null}", "id": row["rid"], "dp_rank": row["rank"], "queue_time": 0.5});
    let exported: Vec<String> = rows.iter().map(|row| format!("{}\n", line(row))).collect();
    let (first, second) = exported.split_at(exported.len() / 2);
    let folder = dir.path().join("export");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("sglang-request-metrics-20261130_05.log"), first.concat()).unwrap();
    std::fs::write(folder.join("sglang-request-metrics-20261130_06.log"), second.concat() + "{\"id\":\"x").unwrap();
    std::fs::write(folder.join("other.txt"), "no log").unwrap();
    let table = gspbench(&["report", "out", "--export-file", "export"], dir.path());
    assert!(table.contains("(from export_file)") && table.contains("rank 1"), "{table}");

    let after = json(&dir.path().join("out/run.json"));
    assert_eq!(after["affinity"]["attribution"]["known"], 12);
    assert!(after["workload"]["oracle"]["observed"]["cold_pairs"].as_u64().unwrap() >= 2);
    assert_eq!((&after["ttft_split"]["queue_ms"]["p50"], &after["totals"]), (&500.0.into(), &before["totals"]));
    let ranks: HashMap<&str, &Value> = rows.iter().map(|row| (row["rid"].as_str().unwrap(), &row["rank"])).collect();
    for turn in turns(dir.path()) {
        assert_eq!(&turn["place"]["rank"], ranks[turn["request_id"].as_str().unwrap()]);
        assert_eq!(turn["place_source"], "export_file");
    }
    assert_eq!(gspbench(&["report", "out"], dir.path()), table, "what was joined is on file");
}

#[test]
fn where_each_worker_has_a_model_name_of_its_own_the_reply_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::start(&["--ranks=2", "--model=worker-a"]);
    let args = ["run", "--target", &sim.url, "--api=chat", "--place-field=model", "--out=out"];
    let table = gspbench(&[&args, &SMALL[..]].concat(), dir.path());
    let run = json(&dir.path().join("out/run.json"));
    assert_eq!((&run["ranks"][0]["place"]["node"], &run["ranks"][0]["turns"]), (&"worker-a".into(), &12.into()));
    assert_eq!(run["affinity"]["attribution"]["source"], "model");
    assert!(table.contains("│ worker-a "), "{table}");
}

/// A reply of one piece of text, with further fields in its events and a further header.
fn reply(header: &str, more: &str) -> Answer {
    let text = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}}}}]{more}}}\n\n");
    let end = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n";
    let body = text + end;
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{header}content-length: {}\r\n\r\n", body.len());
    Answer::Steps(vec![Step::Write((head + &body).into_bytes())])
}

#[test]
fn workers_that_a_router_names_are_named_in_every_table() {
    let turns = AtomicUsize::new(0);
    // Three workers in turn, whatever the key; the first request is the probe.
    let router = Scripted::start(move |seen| match &*seen.method {
        "POST" => {
            let worker = turns.fetch_add(1, Ordering::SeqCst) % 3;
            reply(&format!("x-smg-routed-worker-id: http://w{worker}:1\r\n"), "")
        }
        _ => Answer::Whole(404, "text/plain", String::new()),
    });
    let dir = tempfile::tempdir().unwrap();
    let more = ["--api=chat", "--out=out", "--warmup-requests=0", "--disable-ignore-eos"];
    let args = [&["run", "--target", &router.url], &SMALL[..], &more].concat();
    // Void or not: a busy host may make the client late, which is not this test's business.
    let output = Command::new(env!("CARGO_BIN_EXE_gspbench")).args(&args).current_dir(dir.path()).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let run = json(&dir.path().join("out/run.json"));
    let rows: Vec<_> =
        run["ranks"].as_array().unwrap().iter().map(|row| (&row["place"]["node"], &row["turns"])).collect();
    let node = |n: u32| Value::from(format!("http://w{n}:1"));
    assert_eq!(rows, [(&node(0), &4.into()), (&node(1), &4.into()), (&node(2), &4.into())]);
    assert_eq!(run["affinity"]["attribution"]["source"], "router_header");
    assert_eq!((&run["affinity"]["split_sessions"], &run["affinity"]["stickiness"]), (&6.into(), &0.0.into()));
    let places = run["affinity"]["split_examples"][0]["places"].as_array().unwrap();
    assert_eq!(places.len(), 2);
    let sequence: Vec<_> = places.iter().map(|place| place["node"].as_str().unwrap()).collect();
    assert!(table.contains(&sequence.join(",")), "{sequence:?} is not in:\n{table}");
    for worker in 0..3 {
        // Rows of two tables, by place and by keys.
        assert!(table.matches(&format!("│ http://w{worker}:1")).count() >= 2, "{table}");
    }
    let markdown = std::fs::read_to_string(dir.path().join("out/report.md")).unwrap();
    assert!(markdown.contains("| http://w2:1 |"), "{markdown}");
}

#[test]
fn fields_are_asked_for_where_the_server_has_them_and_nowhere_else() {
    let nvext = r#","nvext":{"worker_id":{"prefill_worker_id":7,"decode_worker_id":18446744073709551615},"timing":{"prefill_wait_time_ms":1.5,"prefill_time_ms":20}}"#;
    let server = Scripted::start(move |_| reply("", nvext));
    let turn = |asks: Asks| {
        let mut sender = Sender::new(Api::Chat, &server.url);
        sender.settings.shape.asks = asks;
        let turn = sender.build().turn(0).0;
        let body = server.turns().last().unwrap().json();
        (turn, body["nvext"].clone(), body["return_cached_tokens_details"].clone())
    };
    let (_, nvext, details) = turn(Asks::default());
    assert_eq!((nvext, details), (Value::Null, Value::Null));
    let (turn, nvext, details) = turn(Asks { nvext: true, cached_details: CachedDetails::Asked, rank: None });
    assert_eq!((nvext["extra_fields"][0].as_str(), details), (Some("worker_id"), true.into()));
    let pair = Place::Pair { prefill: "7".into(), decode: u64::MAX.to_string() };
    assert_eq!((turn.place, turn.place_source), (Some(pair), Some(PlaceSource::WorkerId)));
    let times = turn.server_times.unwrap();
    assert_eq!(times.spans(), [None, Some(1_500), Some(20_000), None]);
}

#[test]
fn a_run_that_is_pinned_as_a_whole_has_its_place_from_the_pin() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::start(&["--ranks=2"]);
    let args = ["run", "--target", &sim.url, "--api=chat", "--header=X-Data-Parallel-Rank=1", "--out=out"];
    gspbench(&[&args, &SMALL[..]].concat(), dir.path());
    let run = json(&dir.path().join("out/run.json"));
    assert_eq!(run["affinity"]["attribution"]["source"], "pin");
    // The simulator counts where each prompt went: what was claimed is what it saw.
    let turns: Vec<_> = run["ranks"].as_array().unwrap().iter().map(|row| row["turns"].as_u64().unwrap()).collect();
    assert_eq!(turns, [0, 12]);
    assert_eq!(run["validity"]["voids"], Value::Array(vec![]), "counters by rank agree");
}
