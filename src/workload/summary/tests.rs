use super::*;
use crate::profile::sample::spec;
use crate::text::Vocabulary;
use crate::workload::plan;

const COST: StepCost = StepCost {
    decode_base: Duration::from_millis(6),
    prefill_base: Duration::from_millis(42),
    per_token: Duration::from_micros(100),
    chunk: 1024,
};

/// Keys dealt out by their last hex digit.
fn summary(spec: &RunSpec) -> PlanSummary {
    let plan = plan(spec, &Vocabulary::words()).unwrap();
    let prompter = Prompter::new(plan.into(), Vocabulary::words().into());
    PlanSummary::new(spec, &prompter, COST, |key| usize::from(key.as_bytes()[16] % 8))
}

#[test]
fn the_estimate_is_the_bound_of_the_published_table() {
    let mut gsp = spec(16, 32, 1, 4096, 128, 256);
    gsp.load.pacing = Pacing::Closed { sessions: 64.try_into().unwrap() };
    let summary = summary(&gsp);
    // 131,072 tokens × 0.1 ms + 16 steps × 42 ms + 512 × 255 / 64 steps × (6 + 0.1 × 64) ms.
    assert!((summary.run_time.affinity_s.unwrap() - (13.1072 + 0.672 + 2040.0 * 0.0124)).abs() < 1e-9);
    // The run that the table reports took 512 / 7.88 = 65 s with affinity and 94 s without: the bound is below both.
    assert!(summary.run_time.round_robin_s > summary.run_time.ideal_s && summary.run_time.round_robin_s < 94.0);
}

#[test]
fn an_open_loop_lasts_until_its_last_session_ends_and_holds_as_many_as_littles_law_says() {
    let mut open = spec(4, 50, 1, 100, 10, 101);
    open.load.pacing = Pacing::Open { per_second: 2.0, gaps: crate::profile::Gaps::Gamma(1.0), sessions: None };
    let summary = summary(&open);
    assert!(summary.run_time.ideal_s > 80.0, "200 sessions at 2 a second");
    // A session alone: 42 ms and 100 steps of 6.8 ms; two a second are 1.44 at once.
    assert_eq!(summary.in_flight, 2);
}

#[test]
fn working_sets_count_the_groups_of_a_rank_and_the_sessions_in_flight() {
    let mut gsp = spec(16, 32, 1, 4000, 100, 60);
    gsp.load.pacing = Pacing::Closed { sessions: 64.try_into().unwrap() };
    let summary = summary(&gsp);
    let placement = summary.placement.as_ref().unwrap();
    assert_eq!(placement.keys, 16);
    assert_eq!(placement.turns_per_rank.iter().sum::<u64>(), 512);
    let rank = |at: usize| placement.keys_per_rank[at] * 4000 + 64 * 160 * placement.turns_per_rank[at] / 512;
    assert_eq!(summary.working_set.affinity, (0..8).map(rank).max());
    // Nearly all 16 groups meet every rank, beside 8 sessions in flight.
    assert_eq!(summary.working_set.round_robin, rounded(summary.round_robin.cold_pairs / 8.0 * 4000.0 + 8.0 * 160.0));
}

#[test]
fn keys_that_split_a_group_cost_what_the_oracle_says() {
    let reuse = |by| {
        let mut chat = spec(6, 10, 4, 4000, 100, 60);
        chat.key.by = by;
        let placement = summary(&chat).placement.unwrap();
        (placement.expected.reuse, placement.split_share)
    };
    let ideal = summary(&spec(6, 10, 4, 4000, 100, 60)).ideal.ratio;
    assert_eq!(reuse(KeyScope::Group), (ideal, 0.0));
    let (by_session, by_turn) = (reuse(KeyScope::Session), reuse(KeyScope::Turn));
    assert!(by_session.0 < ideal && by_session.1 == 0.0, "each rank pays the system prompt of a group once");
    assert!(by_turn.0 < by_session.0 && by_turn.1 > 0.9);
}

#[test]
fn the_prompt_of_a_lone_session_is_held_only_while_the_session_lasts() {
    let mut chat = spec(60, 1, 5, 6144, 2048, 128);
    chat.load.pacing = Pacing::Closed { sessions: 12.try_into().unwrap() };
    chat.server.ranks = 1.try_into().unwrap();
    let sets = summary(&chat).working_set;
    assert_eq!((sets.affinity, sets.round_robin), (Some(12 * (6144 + 5 * 2176)), 12 * (6144 + 5 * 2176)));
}

#[test]
fn warnings_say_which_caches_hold_the_workload() {
    let kinds = |kv| {
        let mut gsp = spec(16, 32, 1, 4000, 100, 60);
        gsp.server.kv_tokens_per_rank = kv;
        summary(&gsp).warnings
    };
    assert!(matches!(kinds(1_000_000)[0], PlanWarning::FitsEverywhere { cold_affinity: 16, .. }));
    assert!(matches!(kinds(40_000)[0], PlanWarning::RoundRobinThrashes { held: 40_000, .. }));
    assert!(matches!(kinds(4_000)[0], PlanWarning::AffinityThrashes { held: 4_000, .. }));
}

#[test]
fn warnings_name_idle_and_hot_ranks_aliasing_and_a_plan_without_reuse() {
    let mut few = spec(2, 8, 3, 400, 10, 6);
    few.load.pacing = Pacing::Closed { sessions: 8.try_into().unwrap() };
    let warnings = summary(&few).warnings;
    assert!(warnings.iter().any(|w| matches!(w, PlanWarning::IdleRanks { idle: 6.., ranks: 8 })), "{warnings:?}");
    assert!(warnings.iter().any(|w| matches!(w, PlanWarning::HotRank { over_mean: 4.0.., .. })), "{warnings:?}");
    let cycles = warnings.iter().filter(|w| matches!(w, PlanWarning::Aliasing { ranks: 8, .. })).count();
    assert_eq!(cycles, 2, "{warnings:?}");
    assert!(summary(&spec(9, 1, 1, 400, 10, 6)).warnings.contains(&PlanWarning::NoReuse));
    let mut keyless = spec(2, 8, 1, 400, 10, 6);
    keyless.key.by = KeyScope::None;
    assert_eq!((summary(&keyless).placement, summary(&keyless).working_set.affinity), (None, None));
}
