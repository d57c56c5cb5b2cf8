//! Closed forms over hand-made turns, conservation, and the law of merging.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;
use crate::profile::sample::spec;
use crate::profile::{Api, Pacing, Popularity};
use crate::record::{EndedBy, Failure, Gap, Marks, Outcome, Place, PlaceSource, ServerTimes, TurnId, TurnRecord};
use crate::units::Rank;

/// A small closed-loop run of two groups: the context of tests here and in other rooms.
pub(crate) fn context(turns_per_session: u32, turns: u64) -> Context {
    let mut spec = spec(2, 4, turns_per_session, 90, 10, 4);
    spec.name = "small".into();
    spec.key.headers = vec!["x-smg-routing-key".into()];
    spec.request.api = Api::Generate;
    spec.request.headers = BTreeMap::from([("Authorization".into(), "Bearer secret".into())]);
    spec.load.pacing = Pacing::Closed { sessions: NonZeroU32::new(2).unwrap() };
    (spec.server.ranks, spec.server.kv_tokens_per_rank) = (NonZeroU32::MIN, 1_000);
    spec.sim.guard = "none".into();
    Context {
        manifest: Manifest {
            version: "0.1.0".into(),
            argv: vec!["gspbench".into(), "run".into(), "--header".into(), "Authorization: Bearer secret".into()],
            started_utc: "2026-01-02T03:04:05Z".into(),
            ..Manifest::of(spec)
        },
        workload: WorkloadFacts {
            digest: "00ff".into(),
            groups: 2,
            sessions: turns / u64::from(turns_per_session),
            turns,
            prompt_tokens: 100 * turns,
            output_tokens: 4 * turns,
            distinct_prompts: turns,
            router_key: None,
            oracle: Oracle::default(),
        },
        // A page larger than any prompt here: these tests are not about cold starts.
        server: ServerFacts { ranks: Some(2), page_tokens: Some(1 << 20), ..ServerFacts::default() },
    }
}

/// Sent at `at` ms, first token 100 ms later, then three tokens 10 ms apart.
pub(crate) fn served(session: u32, at: u64, rank: u16, cached: u32) -> TurnRecord {
    let id = TurnId { group: session % 2, session, turn: 0 };
    let us = |ms: u64| Some(Micros(ms * 1_000));
    TurnRecord {
        sent_us: us(at),
        first_us: us(at + 100),
        answer_us: us(at + 100),
        last_us: us(at + 130),
        done_us: us(at + 131),
        outcome: Outcome::Complete,
        status: Some(200),
        prompt_tokens: Some(100),
        planned_prompt_tokens: Some(100),
        cached_tokens: Some(cached),
        output_tokens: Some(4),
        frames: 4,
        first_frame_tokens: Some(1),
        place: Some(Place::Rank(Rank(rank))),
        place_source: Some(PlaceSource::MetaInfo),
        gaps: vec![Gap::new(10_000, Some(1)); 3],
        ..TurnRecord::planned(id.to_string(), id, Some(format!("g{}", id.group)), Micros(at * 1_000), 4)
    }
}

/// Half of the prompt cached, first token after `ttft` ms.
pub(crate) fn answered_after(session: u32, ttft: u64) -> TurnRecord {
    let first = Some(Micros(ttft * 1_000));
    TurnRecord { first_us: first, answer_us: first, ..served(session, 0, 0, 50) }
}

/// A reply that was reset under way.
pub(crate) fn failed(session: u32) -> TurnRecord {
    ended(session, 0, Outcome::Failed(Failure::Reset))
}

pub(crate) fn ended(session: u32, at: u64, outcome: Outcome) -> TurnRecord {
    TurnRecord { outcome, ..served(session, at, 0, 0) }
}

pub(super) fn report(turns: &[TurnRecord]) -> RunReport {
    let mut accumulator = Accumulator::new(context(1, turns.len() as u64));
    turns.iter().for_each(|turn| accumulator.add(turn));
    accumulator.finish(Closing::plain(State::Complete))
}

#[test]
fn closed_forms_of_two_turns() {
    let report = report(&[served(0, 0, 0, 0), served(1, 869, 1, 90)]);
    let metrics = &report.metrics;
    assert_eq!(metrics.duration_s, Some(1.0));
    assert_eq!((metrics.request_throughput, metrics.input_throughput), (Some(2.0), Some(200.0)));
    assert_eq!((metrics.output_throughput, metrics.total_throughput), (Some(8.0), Some(208.0)));
    assert_eq!(metrics.cache_hit_rate, HitRate { value: Some(0.45), coverage: Some(1.0) });
    let means = [metrics.ttft_ms, metrics.itl_ms, metrics.icl_ms, metrics.tpot_ms, metrics.e2e_ms];
    assert_eq!(means.map(|summary| summary.unwrap().mean), [100.0, 10.0, 10.0, 10.0, 130.0]);
    assert_eq!(metrics.itl_ms.unwrap().count, 6);
    assert_eq!(report.client.in_flight.mean, Some(0.262));
    // C / (TTFT + 3 · TPOT) = 2 / 0.13 s; two turns in one second are 13 % of that.
    assert_eq!((report.client.littles_law_ratio, report.client.littles_law_edges), (Some(0.13), Some(0.13)));
    assert_eq!(report.windows.whole.latency["ttft_ms"], metrics.ttft_ms.unwrap());
    assert_eq!(report.validity.verdict, Verdict::Valid);
}

#[test]
fn failed_turns_enter_no_latency_and_add_no_tokens() {
    let slow = TurnRecord { first_us: Some(Micros(9_000_000)), ..ended(1, 0, Outcome::Failed(Failure::Truncated)) };
    let report = report(&[served(0, 0, 0, 0), slow]);
    assert_eq!(report.metrics.ttft_ms.unwrap().max, 100.0);
    assert_eq!((report.totals.output_tokens, report.totals.prompt_tokens), (Some(4), Some(100)));
    assert_eq!(report.totals.failed_by_kind["truncated"], 1);
    assert_eq!(report.affinity.attribution.turns, 1);
    assert_eq!(report.validity.voids[0].kind, FindingKind::Errors);
}

#[test]
fn turns_cut_by_the_end_add_what_arrived_to_rates_and_nothing_else() {
    let cut = TurnRecord { output_tokens: None, frames: 3, ..ended(1, 869, Outcome::Cancelled) };
    let report = report(&[served(0, 0, 0, 0), cut]);
    assert_eq!(report.metrics.output_throughput, Some(7.0));
    assert_eq!(report.metrics.finished_output_throughput, Some(4.0));
    assert_eq!(report.totals.output_tokens, Some(4));
    assert_eq!(report.metrics.ttft_ms.unwrap().count, 1);
}

#[test]
fn coverage_tells_unreported_cached_tokens_from_zero() {
    let silent = TurnRecord { cached_tokens: None, ..served(1, 0, 0, 0) };
    let half = report(&[served(0, 0, 0, 50), silent.clone()]);
    assert_eq!(half.metrics.cache_hit_rate, HitRate { value: Some(0.5), coverage: Some(0.5) });
    let none = report(&[silent]);
    assert_eq!(none.metrics.cache_hit_rate, HitRate { value: None, coverage: Some(0.0) });
    assert_eq!(none.totals.cached_tokens, None);
}

#[test]
fn a_run_without_a_turn_has_no_number() {
    let report = report(&[]);
    assert_eq!(report.metrics, Metrics::default());
    assert!(report.histograms.is_empty() && report.ranks.is_empty());
    assert!(metrics().iter().all(|metric| metric.value(&report).is_none()));
}

#[test]
fn idle_ranks_have_a_row_and_count_in_the_balance() {
    let report = report(&[served(0, 0, 0, 0), served(1, 0, 0, 0)]);
    assert_eq!(report.ranks.iter().map(|row| row.turns).collect::<Vec<_>>(), [2, 0]);
    assert_eq!(report.affinity.load_max_over_mean, Some(2.0));
}

#[test]
fn turns_that_an_interrupt_left_unheard_of_are_cancelled() {
    let mut accumulator = Accumulator::new(context(1, 10));
    accumulator.add(&served(0, 0, 0, 0));
    let running = accumulator.finish(Closing::plain(State::Running)).totals;
    assert_eq!((running.planned, running.complete, running.cancelled), (10, 1, 0));
    let ended = accumulator.finish(Closing::plain(State::Interrupted)).totals;
    assert_eq!((ended.cancelled, ended.balanced()), (9, true));
}

#[test]
fn a_report_reads_back_and_hides_secrets() {
    let report = report(&[served(0, 0, 0, 0), served(1, 333, 1, 77)]);
    let json = serde_json::to_string(&report).unwrap();
    assert!(!json.contains("secret") && !json.contains("NaN"));
    assert_eq!(serde_json::from_str::<RunReport>(&json).unwrap(), report);
}

#[test]
fn the_keys_of_run_json_are_those_of_the_design() {
    let json = serde_json::to_value(report(&[served(0, 0, 0, 0)])).unwrap();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    insta::assert_snapshot!(keys(&json), @"affinity client ended_by histograms manifest metrics placement ranks schema server state timeline totals ttft_split validity windows workload");
    insta::assert_snapshot!(keys(&json["metrics"]), @"answer_ms cache_hit_rate duration_s e2e_from_due_ms e2e_ms finished_output_throughput goodput icl_ms input_throughput itl_ms output_throughput request_throughput slo_attainment total_throughput tpot_ms ttft_from_due_ms ttft_ms");
    insta::assert_snapshot!(keys(&json["affinity"]), @"attribution by_cached by_popularity by_turn hot_keys kept_connections key_by keys keys_per_rank load_cv load_max_over_mean off_majority_per_rank off_majority_turns overlap_tokens sessions sides spilled split_examples split_sessions stickiness zero_hit_share");
    insta::assert_snapshot!(keys(&json["client"]), @"busiest_lane cap_wait_ms connect_ms connections cpu_cores in_flight littles_law_edges littles_law_ratio own_lag_ms rate redials runtime_lag_ms send_lag_ms");
    insta::assert_snapshot!(keys(&json["totals"]), @"cached_above_prompt_turns cached_reported_turns cached_tokens cancelled complete failed failed_by_kind output_estimated_turns output_tokens planned planned_output_tokens planned_prompt_tokens prompt_tokens reasoning_tokens resends short_output_turns skipped unheard_output_tokens unheard_prompt_tokens unheard_requests");
}

#[test]
fn the_parts_of_ttft_are_those_that_the_server_tells_and_the_rest() {
    let all = ServerTimes {
        intake_us: Some(5_000),
        queue_us: Some(20_000),
        prefill_us: Some(60_000),
        return_us: Some(10_000),
    };
    let some = ServerTimes { queue_us: Some(30_000), ..ServerTimes::default() };
    let turns = [Some(all), Some(some), None].map(|server_times| TurnRecord { server_times, ..served(0, 0, 0, 0) });
    let split = report(&turns).ttft_split.unwrap();
    assert_eq!(split.turns, 2);
    assert_eq!((split.intake_ms.unwrap().mean, split.queue_ms.unwrap().mean), (5.0, 25.0));
    assert_eq!((split.prefill_ms.unwrap().mean, split.return_ms.unwrap().count), (60.0, 1));
    // 100 ms to the first token, 95 of them in the server; of the other turns the rest is unknown.
    assert_eq!((split.outside_ms.unwrap().mean, split.outside_ms.unwrap().count), (5.0, 1));
    assert_eq!(report(&turns[2..]).ttft_split, None);
}

#[test]
fn places_that_are_learned_after_the_run_give_the_report_that_they_would_have_given_in_it() {
    let known = [served(0, 0, 0, 0), served(1, 869, 1, 90), failed(2)];
    let hidden = known.clone().map(|turn| TurnRecord { place: None, place_source: None, ..turn });
    let before = report(&hidden);
    assert!(before.ranks.is_empty() && before.affinity.attribution.reason.is_some());
    let mut attributing = Attributing::new(before);
    known.iter().for_each(|turn| attributing.add(turn));
    assert_eq!(attributing.finish(None), report(&known));
}

#[test]
fn live_figures_are_those_of_the_report() {
    let mut accumulator = Accumulator::new(context(1, 2));
    accumulator.add(&served(0, 0, 0, 90));
    accumulator.add(&ended(1, 0, Outcome::Failed(Failure::Connect)));
    let live = accumulator.live();
    assert_eq!((live.complete, live.failed, live.output_tokens), (1, 1, 4));
    assert_eq!((live.ttft_p50_ms, live.ttft_p99_ms, live.hit_rate), (Some(100.0), Some(100.0), Some(0.9)));
}

/// A rank, a node or a pair.
fn place(rank: u16, at: u64) -> Place {
    match at % 3 {
        0 => Place::Rank(Rank(rank)),
        1 => Place::node("w".into(), Some(rank.into())),
        _ => Place::Pair { prefill: format!("p{}", rank % 2), decode: format!("d{rank}") },
    }
}

/// Not all spans, and not always.
fn times(at: u64) -> ServerTimes {
    let us = |part: u64| u32::try_from(at * part).ok();
    ServerTimes { queue_us: us(1), prefill_us: us(3).filter(|_| at.is_multiple_of(2)), ..ServerTimes::default() }
}

fn any_turn() -> impl Strategy<Value = (TurnRecord, usize)> {
    let outcome = prop_oneof![
        6 => Just(Outcome::Complete),
        1 => Just(Outcome::Cancelled),
        1 => Just(Outcome::Skipped),
        1 => Just(Outcome::Failed(Failure::Connect)),
        1 => Just(Outcome::Failed(Failure::Http(500))),
    ];
    let gaps = prop::collection::vec((0..50_000_u32, prop::option::of(0..4_u32)), 0..6);
    (
        outcome,
        0..4_u32,
        0..5_u32,
        0..10_000_u64,
        prop::option::of(0..3_u16),
        prop::option::of(0..100_u32),
        gaps,
        0..4_usize,
    )
        .prop_map(|(outcome, session, turn, at, rank, cached_tokens, gaps, part)| {
            let turn = TurnRecord {
                turn,
                outcome,
                cached_tokens,
                place: rank.map(|rank| place(rank, at)),
                place_source: rank
                    .map(|_| if at.is_multiple_of(2) { PlaceSource::MetaInfo } else { PlaceSource::WorkerId }),
                server_times: (at % 5 > 0).then(|| times(at)),
                reused_connection: Some(at % 2 == 0),
                gaps: gaps.into_iter().map(|(us, tokens)| Gap::new(us, tokens)).collect(),
                ..served(session, at, 0, 0)
            };
            (turn, part)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn one_accumulator_and_any_merge_of_parts_give_the_same_report(
        turns in prop::collection::btree_map((0..4_u32, 0..5_u32), any_turn(), 0..14),
        planned in 0..30_u64,
        full in prop::option::of(0..10_000_000_u64),
        last_start in prop::option::of(0..10_000_000_u64),
    ) {
        let marks = Marks { full: full.map(Micros), last_start: last_start.map(Micros) };
        let empty = || {
            let mut context = context(5, planned);
            context.manifest.spec.workload.popularity = Popularity::Zipf(1.0);
            // Some turns are cold, and some are not.
            context.server.page_tokens = Some(50);
            let mut accumulator = Accumulator::new(context);
            accumulator.mark(marks);
            accumulator
        };
        // A turn of the plan happens once.
        let turns: Vec<_> = turns.into_iter().map(|((session, turn), (record, part))| {
            (TurnRecord { session, turn, group: session % 2, ..record }, part)
        }).collect();
        let mut whole = empty();
        turns.iter().for_each(|(turn, _)| whole.add(turn));
        let mut merged = empty();
        for part in (0..4).rev() {
            let mut shard = empty();
            turns.iter().filter(|(_, p)| *p == part).for_each(|(turn, _)| shard.add(turn));
            merged.merge(shard);
        }
        let end = || Closing { ended_by: Some(EndedBy::Plan), ..Closing::plain(State::Complete) };
        let report = whole.finish(end());
        prop_assert_eq!(report.windows.steady.is_some(), report.windows.steady_reason.is_none());
        prop_assert!(report.totals.balanced());
        prop_assert_eq!(report.totals.planned, planned.max(turns.len() as u64));
        prop_assert_eq!(report.ranks.iter().map(|row| row.turns).sum::<u64>(), report.affinity.attribution.known);
        prop_assert_eq!(report, merged.finish(end()));
    }

    #[test]
    fn the_window_to_the_last_success_lies_in_the_run_and_is_all_of_it_when_the_last_to_end_is_a_success(
        turns in prop::collection::vec(any_turn(), 0..14),
        last_at in 10_500..20_000_u64,
    ) {
        let mut turns: Vec<_> = turns.into_iter().map(|(turn, _)| turn).collect();
        let Windows { whole, to_last_success, .. } = report(&turns).windows;
        let complete = turns.iter().filter(|turn| turn.outcome.is_complete());
        prop_assert_eq!(to_last_success.as_ref().map(|window| window.to_us), complete.filter_map(|turn| turn.done_us).max());
        if let Some(short) = to_last_success {
            prop_assert_eq!(short.from_us, whole.from_us);
            prop_assert!(short.to_us <= whole.to_us);
            prop_assert!(short.request_throughput >= whole.request_throughput);
            prop_assert_eq!(short.latency, whole.latency);
        }
        turns.push(served(9, last_at, 0, 0));
        let Windows { whole, to_last_success, .. } = report(&turns).windows;
        prop_assert_eq!(to_last_success, Some(whole));
    }
}

/// Row B17: a stall shows in the pooled gaps of tokens, and in the mean over turns, and these are two figures.
#[test]
fn gaps_are_pooled_over_tokens_and_rates_are_means_over_turns() {
    let turn = |session, gaps: Vec<u32>| {
        let span = gaps.iter().map(|us| u64::from(*us)).sum::<u64>();
        let first = Micros(100_000);
        TurnRecord {
            last_us: Some(Micros(first.0 + span)),
            done_us: Some(Micros(first.0 + span)),
            output_tokens: Some(1 + u32::try_from(gaps.len()).unwrap()),
            gaps: gaps.into_iter().map(|us| Gap::new(us, Some(1))).collect(),
            ..served(session, 0, 0, 0)
        }
    };
    let metrics = report(&[turn(0, vec![100_000]), turn(1, vec![10_000; 100])]).metrics;
    let (itl, tpot) = (metrics.itl_ms.unwrap(), metrics.tpot_ms.unwrap());
    assert_eq!((itl.count, itl.max), (101, 100.0));
    assert!((itl.mean - 1100.0 / 101.0).abs() < 1e-3, "{itl:?}");
    assert_eq!((tpot.count, tpot.mean), (2, 55.0));
}

/// Row B49: 441 replies 429 after 1 ms beside 160 replies 200 after 2 s.
#[test]
fn failures_have_latencies_of_their_own_and_flatter_no_other() {
    let after = |session, ms: u64, outcome| {
        let end = Some(Micros(ms * 1_000));
        TurnRecord { last_us: end, done_us: end, ..ended(session, 0, outcome) }
    };
    let turns: Vec<_> = (0..601)
        .map(|session| match session {
            0..441 => after(session, 1, Outcome::Failed(Failure::Http(429))),
            _ => after(session, 2_000, Outcome::Complete),
        })
        .collect();
    let report = report(&turns);
    assert_eq!((report.totals.complete, report.totals.planned), (160, 601));
    assert_eq!((report.metrics.e2e_ms.unwrap().p50, report.metrics.failed_ms.len()), (2_000.0, 1));
    let refused = report.metrics.failed_ms["http_429"];
    assert_eq!((refused.count, refused.p50, refused.p99, refused.max), (441, 1.0, 1.0, 1.0));
}
