//! The audit and the oracle against the simulated fleet in virtual time: the published closed forms, over the same load loop,
//! accumulator and oracle that a run uses.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use gspbench::clock::{Clock, run_virtual};
use gspbench::drive::{Limits, Load, Stop, drive};
use gspbench::lanes::Lanes;
use gspbench::policy::{Affinity, Guard, Method};
use gspbench::profile::{self, KeyScope, Pacing, RunSpec};
use gspbench::record::{Outcome, Place, PlaceSource, TurnRecord};
use gspbench::report::{
    Accumulator, Cached, Closing, Context, FindingKind, Manifest, ObservedOracle, Oracle, RoundRobinOracle, RunReport,
    ServerFacts, State, WorkloadFacts,
};
use gspbench::sim::{Handle, JobId, Preset, Settings, Submission, Update, start};
use gspbench::text::Vocabulary;
use gspbench::workload::{self, Observing, Plan, Prompt, Prompter};

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
    let mut ticket =
        fleet.submit(Submission { id: JobId(0), key: turn.key.clone(), prompt, output, pin: None, salt: 0 });
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
    measure_with(spec, method, None)
}

/// The same with another KV capacity of each rank than the preset's, in tokens.
fn measure_with(spec: &RunSpec, method: Method, kv_tokens: Option<u64>) -> RunReport {
    let vocabulary = Arc::new(Vocabulary::words());
    let plan = Arc::new(workload::plan(spec, &vocabulary).unwrap());
    let mut settings = Settings::from(Preset::find("generic-8xh100").unwrap());
    settings.method = method;
    settings.affinity = Affinity { guard: Guard::None, ..Affinity::default() };
    settings.limits.kv_tokens = kv_tokens.unwrap_or(settings.limits.kv_tokens);
    let Pacing::Closed { sessions } = spec.load.pacing else { panic!("a closed loop") };
    let manifest = Manifest::of(spec.clone());
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
            lanes: Lanes::default(),
            run_id: "t".into(),
            prompter,
            limits,
            clock: clock.clone(),
            stop: Stop::default(),
            watch: Arc::default(),
        };
        let (sender, mut receiver) = tokio::sync::mpsc::channel(64);
        let numbers = Numbers::default();
        let serving = move |turn, body, ()| serve(fleet.clone(), clock.clone(), turn, body);
        let driving = drive(load, move |_, prompt| numbers.encode(prompt), |_, _| (), serving, sender);
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
    near(report.metrics.cache_hit_rate.value.unwrap(), 0.7302, 0.002, "measured reuse");
    near(report.metrics.cache_hit_rate.value.unwrap(), seen.reuse, 0.001, "but for prompts still being read");
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
    near(report.metrics.cache_hit_rate.value.unwrap(), 0.9394, 0.002, "measured");
    assert_eq!((affinity.off_majority_turns, affinity.keys_per_rank.iter().sum()), (Some(0), 16));
    assert!(affinity.load_max_over_mean.unwrap() > 1.0, "and the ranks pay for it");
    assert_eq!(affinity.hot_keys.len(), 5);
    assert!(affinity.hot_keys.iter().all(|hot| hot.turns == 32 && hot.places == 1));
}

/// A rank of 40,000 tokens holds the prompts of its turns in flight and little else.
#[test]
fn a_cache_too_small_for_the_working_set_is_called_that_and_an_ample_one_is_not() {
    let warned = |method, kv_tokens| {
        let report = measure_with(&spec(&PUBLISHED), method, kv_tokens);
        report.validity.warnings.iter().any(|warning| warning.kind == FindingKind::Eviction)
    };
    for method in [Method::RoundRobin, Method::PrefixAffinity] {
        assert!(!warned(method, None), "{method:?}: nothing is evicted, and groups that start together are no loss");
    }
    assert!(warned(Method::RoundRobin, Some(40_000)), "16 groups do not fit");
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
