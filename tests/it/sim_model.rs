//! The simulated fleet against closed forms and published shapes: a closed loop in model time, no clock and no socket.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use gspbench::clock::{Clock, run_virtual};
use gspbench::policy::{Affinity, Guard, Method};
use gspbench::sim::{Event, Fleet, JobId, Preset, Settings, Submission, Update, start};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

/// Groups that share a prompt of `shared` tokens, each request with `own` tokens after it.
#[derive(Debug, Clone, Copy)]
struct Workload {
    groups: u32,
    per_group: u32,
    shared: u32,
    own: u32,
    output: u32,
    concurrency: usize,
    is_shuffled: bool,
}

/// The table of SGLang PR #31170.
const PUBLISHED: Workload =
    Workload { groups: 16, per_group: 32, shared: 4096, own: 128, output: 256, concurrency: 64, is_shuffled: true };

#[derive(Debug, Default)]
struct Outcome {
    seconds: f64,
    requests: f64,
    ttft: Vec<f64>,
    tpot: Vec<f64>,
    prompt: u64,
    cached: u64,
    computed: u64,
    spilled: u64,
    cold_pairs: BTreeSet<(u16, u32)>,
    per_rank: BTreeMap<u16, u32>,
    log: String,
}

impl Outcome {
    fn reuse(&self) -> f64 {
        float(self.cached) / float(self.prompt)
    }

    fn rps(&self) -> f64 {
        self.requests / self.seconds
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / float(values.len() as u64)
}

#[expect(clippy::cast_precision_loss, reason = "small counts")]
fn float(count: u64) -> f64 {
    count as f64
}

fn settings(method: Method, guard: Guard) -> Settings {
    let mut settings = Settings::from(Preset::find("qwen3.5-122b-8xh100-pr31170").unwrap());
    settings.method = method;
    settings.affinity = Affinity { guard, ..Affinity::default() };
    settings
}

struct Flying {
    group: u32,
    sent: Duration,
    first: Duration,
}

/// Runs the workload to its end: `concurrency` requests in flight, the next 1 to 4 ms after one has ended.
fn run(settings: &Settings, workload: &Workload, seed: u64) -> Outcome {
    let mut rng = rand::rngs::ChaCha8Rng::seed_from_u64(seed);
    let mut order: Vec<(u32, u32)> =
        (0..workload.groups).flat_map(|group| (0..workload.per_group).map(move |index| (group, index))).collect();
    if workload.is_shuffled {
        order.shuffle(&mut rng);
    }
    let output: Arc<[u32]> = (0..workload.output).map(|index| 9_000_000 + index).collect();
    let mut waiting: VecDeque<(u32, u32)> = order.into();
    let mut due: VecDeque<Duration> = (0..workload.concurrency).map(|_| Duration::ZERO).collect();
    let (mut fleet, mut events, mut now) = (Fleet::new(settings), vec![], Duration::ZERO);
    let mut flying: BTreeMap<JobId, Flying> = BTreeMap::new();
    let mut outcome = Outcome::default();
    let mut step: Option<Duration> = None;
    loop {
        // Everything that arrives before the step ends is sent first; then the step ends.
        let arrival = due.front().copied().filter(|_| !waiting.is_empty());
        match (arrival, step) {
            (Some(at), end) if end.is_none_or(|end| at <= end) => {
                due.pop_front();
                now = at.max(now);
                let (group, index) = waiting.pop_front().unwrap();
                let shared = (0..workload.shared).map(|token| group * 10_000 + token);
                let own =
                    (0..workload.own).map(|token| 1_000_000 + (group * workload.per_group + index) * 1000 + token);
                let prompt: Arc<[u32]> = shared.chain(own).collect();
                let id = JobId(u64::from(group * workload.per_group + index));
                let key = Some(format!("{seed}-{group}"));
                outcome.prompt += prompt.len() as u64;
                let submission = Submission { id, key, prompt, output: Arc::clone(&output), pin: None, salt: 0 };
                let dispatch = fleet.submit(now, &submission).unwrap();
                outcome.spilled += u64::from(dispatch.spilled());
                *outcome.per_rank.entry(dispatch.rank.0).or_default() += 1;
                flying.insert(id, Flying { group, sent: now, first: now });
                if step.is_none() && due.front() != Some(&now) {
                    step = fleet.begin(now, &mut events);
                }
            }
            (_, Some(end)) => {
                now = end;
                fleet.commit(now, &mut events);
                step = fleet.begin(now, &mut events);
            }
            (Some(_) | None, None) => break,
        }
        for event in events.drain(..) {
            writeln!(outcome.log, "{now:?} {event:?}").unwrap();
            match event {
                Event::Admitted { job, rank, cached, .. } => {
                    outcome.cached += u64::from(cached);
                    if cached < workload.shared {
                        outcome.cold_pairs.insert((rank, flying[&job].group));
                    }
                }
                Event::Token { job, index, is_last } => {
                    let request = flying.get_mut(&job).unwrap();
                    if index == 1 {
                        request.first = now;
                        outcome.ttft.push((now - request.sent).as_secs_f64());
                    }
                    if is_last {
                        let request = flying.remove(&job).unwrap();
                        let gaps = f64::from(workload.output.max(2) - 1);
                        outcome.tpot.push((now - request.first).as_secs_f64() / gaps);
                        let think = if workload.concurrency == 1 { 0 } else { rng.random_range(1000..4000) };
                        let at = now + Duration::from_micros(think);
                        let place = due.partition_point(|&other| other <= at);
                        due.insert(place, at);
                    }
                }
            }
        }
    }
    assert!(flying.is_empty() && waiting.is_empty());
    let counts = fleet.counts();
    outcome.computed = counts.iter().map(|counts| counts.prefill_input).sum();
    let hit: u64 = counts.iter().map(|counts| counts.prefill_hit).sum();
    assert_eq!(
        (hit, hit + outcome.computed),
        (outcome.cached, outcome.prompt),
        "every prompt token is hit or computed"
    );
    outcome.requests = float(u64::from(workload.groups * workload.per_group));
    outcome.seconds = now.as_secs_f64();
    outcome
}

#[test]
fn reuse_of_the_published_workload_is_the_oracles() {
    let round_robin = run(&settings(Method::RoundRobin, Guard::None), &PUBLISHED, 1);
    assert!((round_robin.reuse() - 0.7302).abs() < 0.02, "{}", round_robin.reuse());
    let affinity = run(&settings(Method::PrefixAffinity, Guard::None), &PUBLISHED, 1);
    assert!((affinity.reuse() - 0.9394).abs() < 0.005, "{}", affinity.reuse());
    assert_eq!(affinity.spilled, 0);
}

#[test]
fn cold_rank_group_pairs_explain_the_reuse() {
    let outcome = run(&settings(Method::RoundRobin, Guard::None), &PUBLISHED, 2);
    let expected = (512 - outcome.cold_pairs.len() as u64) * 4096;
    assert!(outcome.cached <= expected, "a pair is cold at least once");
    assert!(expected - outcome.cached < 4096 * 4, "{} of {expected}", outcome.cached);
}

#[test]
fn one_request_at_a_time_under_affinity_reuses_exactly_what_the_workload_allows() {
    let workload =
        Workload { concurrency: 1, groups: 4, per_group: 5, shared: 512, own: 16, output: 4, is_shuffled: true };
    let outcome = run(&settings(Method::PrefixAffinity, Guard::None), &workload, 3);
    assert_eq!(outcome.cached, 4 * (5 - 1) * 512);
    let long = Workload { shared: 4096, ..workload };
    let outcome = run(&settings(Method::PrefixMatch, Guard::None), &long, 3);
    assert_eq!(outcome.cached, 4 * (5 - 1) * 4096, "prefix_match hashes 4096 tokens, which must all be shared");
    for method in Method::ALL {
        let one_rank = Settings { ranks: 1, ..settings(method, Guard::Requests) };
        assert_eq!(run(&one_rank, &workload, 3).cached, 4 * (5 - 1) * 512, "{method} with one rank");
    }
}

#[test]
fn round_robin_in_order_makes_every_rank_cold_for_every_group() {
    let workload =
        Workload { concurrency: 1, groups: 3, per_group: 16, shared: 512, own: 16, output: 2, is_shuffled: false };
    let outcome = run(&settings(Method::RoundRobin, Guard::None), &workload, 0);
    assert_eq!(outcome.cold_pairs.len(), 3 * 8);
    assert_eq!(outcome.cached, (3 * 16 - 3 * 8) * 512);
    assert!(outcome.per_rank.values().all(|&requests| requests == 6));
}

#[test]
fn the_published_shape_holds_on_average_over_placements() {
    let runs = |method, guard| (0..5).map(|seed| run(&settings(method, guard), &PUBLISHED, seed)).collect::<Vec<_>>();
    let average = |runs: &[Outcome], value: fn(&Outcome) -> f64| mean(&runs.iter().map(value).collect::<Vec<_>>());
    let (round_robin, affinity) = (runs(Method::RoundRobin, Guard::None), runs(Method::PrefixAffinity, Guard::None));
    let (before, after) = (average(&round_robin, Outcome::rps), average(&affinity, Outcome::rps));
    let ttft = |outcome: &Outcome| mean(&outcome.ttft);
    let tpot = |outcome: &Outcome| mean(&outcome.tpot);
    let (slow, fast) = (average(&round_robin, ttft), average(&affinity, ttft));
    let computed = average(&round_robin, |o| float(o.computed)) / average(&affinity, |o| float(o.computed));
    println!("rps {before:.2} {after:.2} ttft {slow:.3} {fast:.3} computed ratio {computed:.2}");
    println!("tpot {:.4} {:.4}", average(&round_robin, tpot), average(&affinity, tpot));
    assert!((1.3..1.75).contains(&(after / before)), "{before} {after}");
    assert!(slow / fast >= 2.0, "{slow} {fast}");
    assert!(average(&round_robin, tpot) > average(&affinity, tpot));
    assert!((computed - 4.4).abs() < 0.4, "{computed}");
    for outcome in round_robin.iter().chain(&affinity) {
        let law =
            float(PUBLISHED.concurrency as u64) / (ttft(outcome) + f64::from(PUBLISHED.output - 1) * tpot(outcome));
        assert!((law / outcome.rps() - 1.0).abs() < 0.1, "the loop was full but for its end: {law} {}", outcome.rps());
    }
}

#[test]
fn the_request_guard_spills_and_the_token_guard_too() {
    for guard in [Guard::Requests, Guard::Tokens] {
        let outcome = run(&settings(Method::PrefixAffinity, guard), &PUBLISHED, 4);
        println!("{guard}: spilled {} reuse {:.4} rps {:.2}", outcome.spilled, outcome.reuse(), outcome.rps());
        assert!(outcome.spilled > 0 && outcome.reuse() < 0.9394);
    }
}

#[test]
fn a_seed_gives_one_event_log() {
    let workload = Workload { per_group: 6, output: 20, concurrency: 16, ..PUBLISHED };
    let log = |seed| run(&settings(Method::PrefixAffinity, Guard::Requests), &workload, seed).log;
    assert_eq!(log(7), log(7));
    assert_ne!(log(7), log(8));
}

#[test]
fn a_small_cache_never_reuses_more_than_an_endless_one() {
    let workload = Workload { concurrency: 1, per_group: 8, output: 2, ..PUBLISHED };
    let endless = run(&settings(Method::RoundRobin, Guard::None), &workload, 5);
    let mut small = settings(Method::RoundRobin, Guard::None);
    small.limits.kv_tokens = 12_000;
    let small = run(&small, &workload, 5);
    assert!(small.cached < endless.cached, "{} {}", small.cached, endless.cached);
}

/// Sends prompts one after the other through the fleet's task and notes where each went, what it found, and when.
async fn one_by_one(clock: Clock, settings: Settings) -> Vec<(u16, u32, Duration, Duration)> {
    let (handle, running) = start(&settings, clock.clone());
    let task = tokio::spawn(running);
    let mut seen = vec![];
    for turn in 0..12_u32 {
        let prompt: Arc<[u32]> = (0..700).map(|token| (turn % 3) * 1000 + token).chain([turn + 5000]).collect();
        let key = Some(format!("group {}", turn % 3));
        let output: Arc<[u32]> = (0..3).collect();
        let mut ticket = handle.submit(Submission { id: JobId(0), key, prompt, output, pin: None, salt: 0 });
        let (mut rank, mut found, mut arrived) = (0, 0, Duration::ZERO);
        while let Some(update) = ticket.next().await {
            match update {
                Update::Routed { dispatch, at } => (rank, arrived) = (dispatch.rank.0, at),
                Update::Admitted { cached, .. } => found = cached,
                Update::Token { is_last: true, at, .. } => {
                    seen.push((rank, found, at - arrived, clock.now()));
                    break;
                }
                Update::Token { .. } | Update::Refused(_) => {}
            }
        }
    }
    drop(handle);
    task.await.unwrap();
    seen
}

#[test]
fn the_fleets_task_is_exact_in_virtual_time_and_places_as_it_does_by_the_wall() {
    let settings = settings(Method::PrefixAffinity, Guard::None);
    let exact = run_virtual(|clock| one_by_one(clock, settings.clone())).unwrap();
    let decode = Duration::from_micros(6_000 + 8 * 100);
    let mut now = Duration::ZERO;
    for (turn, &(_, found, took, at)) in exact.iter().enumerate() {
        assert_eq!(found, if turn < 3 { 0 } else { 700 });
        let prefill = Duration::from_micros(42_000 + u64::from(701 - found) * 100);
        assert_eq!(took, prefill + 2 * decode, "turn {turn}");
        now += took;
        assert_eq!(at, now, "no time passes between turns");
    }
    let fast = Settings { time_scale: 1000.0, ..settings };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let walled = runtime.block_on(one_by_one(Clock::wall(), fast));
    let places = |seen: &[(u16, u32, Duration, Duration)]| seen.iter().map(|turn| (turn.0, turn.1)).collect::<Vec<_>>();
    assert_eq!(places(&walled), places(&exact));
}
