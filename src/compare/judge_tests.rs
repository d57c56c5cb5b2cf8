//! Intervals, verdicts, gates and costs over hand-made reports.

use std::path::{Path, PathBuf};

use super::*;
use crate::compare::{BlockResult, Comparison, Doubt, Turns, compare, no_turns};
use crate::report::tests::{answered_after, context};
use crate::report::{Accumulator, Closing, CounterDelta, CounterRole, State, TurnSample};

/// A block of eight turns whose TTFT is `ttft` ms, in round `round`; odd rounds run the baseline first.
fn block(round: u32, arm: &str, ttft: u64) -> BlockResult {
    let mut accumulator = Accumulator::new(context(1, 8));
    (0..8).for_each(|session| accumulator.add(&answered_after(session, ttft)));
    let mut report = accumulator.finish(Closing::plain(State::Complete));
    report.metrics.request_throughput = Some(1e4 / ttft as f64);
    let is_second = (arm == "a") == round.is_multiple_of(2);
    report.manifest.started_utc = format!("2026-01-02T03:{round:02}:{}0Z", u8::from(is_second));
    BlockResult { round, arm: arm.into(), report, dir: Some(PathBuf::from(arm)) }
}

/// Rounds of two arms, by their TTFTs.
fn blocks(ttfts: &[(u64, u64)]) -> Vec<BlockResult> {
    (1..).zip(ttfts).flat_map(|(round, (a, b))| [block(round, "a", *a), block(round, "b", *b)]).collect()
}

fn settings(gates: &[&str]) -> Settings {
    Settings { fail_if: gates.iter().map(|gate| gate.parse().unwrap()).collect(), ..Settings::new("a") }
}

fn contrast<'a>(comparison: &'a Comparison, key: &str) -> &'a Contrast {
    &comparison.metrics.iter().find(|row| row.key == key).unwrap().contrasts[0]
}

const SLOWER: [(u64, u64); 6] =
    [(1_000, 1_100), (1_010, 1_105), (990, 1_098), (1_003, 1_110), (1_001, 1_095), (997, 1_099)];

#[test]
fn a_slower_arm_is_worse_on_the_primary_at_95_per_cent_and_its_sign_flip_p_is_the_floor() {
    let comparison = compare(&blocks(&SLOWER), &settings(&[]), &no_turns).unwrap();
    let primary = contrast(&comparison, "ttft_ms.mean");
    let interval = primary.interval.unwrap();
    assert_eq!((primary.verdict, primary.unjudged), (Some(Verdict::Worse), None));
    assert_eq!((interval.level, interval.basis), (0.95, Basis::Rounds));
    assert!(interval.low > 1.08 && interval.high < 1.12, "{interval:?}");
    assert_eq!(primary.sign_flip, Some(SignFlip { p: 0.031_25, floor: 0.031_25 }));
    assert!(primary.smallest_effect.is_some_and(|effect| (0.02..0.05).contains(&effect)));
    assert!(primary.noise_floor().is_some_and(|floor| (0.08..0.12).contains(&floor)));
    assert!(comparison.doubts.is_empty(), "{:?}", comparison.doubts);
}

#[test]
fn the_others_share_five_per_cent_of_error_and_only_headlines_are_judged() {
    let comparison = compare(&blocks(&SLOWER), &settings(&[]), &no_turns).unwrap();
    let judged = |row: &&MetricRow| row.key != "ttft_ms.mean" && row.contrasts[0].verdict.is_some();
    let others: Vec<_> = comparison.metrics.iter().filter(judged).collect();
    assert!(others.len() >= 3 && others.iter().all(|row| row.judged));
    for row in &others {
        let level = row.contrasts[0].interval.unwrap().level;
        assert!((level - (1.0 - 0.05 / others.len() as f64)).abs() < 1e-6, "{}: {level}", row.key);
        assert_eq!(row.contrasts[0].sign_flip, None);
    }
    let median = contrast(&comparison, "ttft_ms.p50");
    assert_eq!((median.verdict, median.unjudged), (None, Some(Unjudged::Descriptive)));
    assert!(median.interval.is_some());
    let tail = contrast(&comparison, "ttft_ms.p99");
    assert_eq!((tail.verdict, tail.unjudged), (None, Some(Unjudged::FewSamples)), "48 samples make no p99");
    assert_eq!(contrast(&comparison, "request_throughput").verdict, Some(Verdict::Worse), "higher is better there");
}

#[test]
fn a_declared_metric_that_is_no_headline_is_judged_as_the_primary() {
    let settings = Settings { primary: "e2e_ms.mean".into(), threshold: 0.5, ..settings(&[]) };
    let comparison = compare(&blocks(&SLOWER), &settings, &no_turns).unwrap();
    let primary = contrast(&comparison, "e2e_ms.mean");
    assert_eq!((primary.verdict, primary.interval.unwrap().level), (Some(Verdict::Same), 0.95));
    assert!(primary.sign_flip.is_some() && contrast(&comparison, "ttft_ms.mean").sign_flip.is_none());
}

#[test]
fn a_control_is_shown_and_never_judged() {
    let settings = Settings { controls: vec!["b".into()], ..settings(&["ttft_ms.mean worse 1%"]) };
    let comparison = compare(&blocks(&SLOWER), &settings, &no_turns).unwrap();
    for row in &comparison.metrics {
        assert_eq!(
            (row.contrasts[0].verdict, row.contrasts[0].unjudged),
            (None, Some(Unjudged::Control)),
            "{}",
            row.key
        );
    }
    assert!(contrast(&comparison, "ttft_ms.mean").interval.is_some());
    assert!(comparison.gates.is_empty(), "gates look at no control");
}

#[test]
fn other_work_is_not_judged_unless_the_reader_insists() {
    let mut unlike = blocks(&SLOWER);
    unlike.iter_mut().filter(|block| block.arm == "b").for_each(|block| block.report.workload.digest = "beef".into());
    let refused = compare(&unlike, &settings(&[]), &no_turns).unwrap();
    let primary = contrast(&refused, "ttft_ms.mean");
    assert_eq!((primary.interval, primary.verdict, primary.unjudged), (None, None, Some(Unjudged::NotComparable)));
    let allowed = compare(&unlike, &Settings { allow_mismatch: true, ..settings(&[]) }, &no_turns).unwrap();
    assert_eq!(contrast(&allowed, "ttft_ms.mean").verdict, Some(Verdict::Worse));
    assert_eq!((allowed.comparable, allowed.differences[0].field.as_str()), (false, "digest"));
}

#[test]
fn servers_that_differ_in_more_than_the_policy_are_other_work_and_a_control_may() {
    let mut unlike = blocks(&SLOWER);
    for (at, block) in unlike.iter_mut().enumerate() {
        let policy = if block.arm == "a" { "round_robin" } else { "prefix_affinity" };
        block.report.server.info = Some(serde_json::json!({
            "load_balance_method": policy, "port": at, "tp_size": if block.arm == "a" { 8 } else { 4 },
        }));
    }
    let fields = |settings: &Settings| {
        let comparison = compare(&unlike, settings, &no_turns).unwrap();
        assert_eq!(comparison.server_info.len(), 3, "all of it is listed: {:?}", comparison.server_info);
        comparison.differences.iter().map(|difference| difference.field.clone()).collect::<Vec<_>>()
    };
    assert_eq!(fields(&settings(&[])), ["server_info.tp_size"]);
    let named = vec!["load_balance_method".into(), "tp_size".into()];
    assert!(fields(&Settings { server_info_may_differ: named, ..settings(&[]) }).is_empty());
    assert!(fields(&Settings { controls: vec!["b".into()], ..settings(&[]) }).is_empty());
}

/// Sixteen turns in four groups, whose TTFTs spread a little.
fn turns(dir: &Path) -> Option<Vec<TurnSample>> {
    let ttft = if dir == Path::new("a") { 1_000 } else { 1_100 };
    let turns = (0..16).map(|session| {
        let mut turn = answered_after(session, ttft + u64::from(session % 3));
        turn.group = session % 4;
        TurnSample::of(&turn)
    });
    turns.collect()
}

#[test]
fn one_round_is_judged_inside_itself_and_says_so() {
    let asked: &Turns<'_> = &turns;
    let comparison = compare(&blocks(&SLOWER[..1]), &settings(&[]), asked).unwrap();
    let primary = contrast(&comparison, "ttft_ms.mean");
    assert_eq!((primary.verdict, primary.interval.unwrap().basis), (Some(Verdict::Worse), Basis::WithinOneRun));
    assert_eq!(primary.noise_floor(), None, "one run knows nothing of how runs differ");
    assert_eq!((primary.sign_flip, primary.smallest_effect), (None, None));
    let throughput = contrast(&comparison, "request_throughput");
    assert_eq!((throughput.interval, throughput.unjudged), (None, Some(Unjudged::FewRounds)));
    assert!(matches!(comparison.doubts[..], [Doubt::FixedOrder { rounds: 1, .. }]), "{:?}", comparison.doubts);
}

#[test]
fn few_rounds_without_their_turns_have_no_interval_and_no_verdict() {
    let comparison = compare(&blocks(&SLOWER[..2]), &settings(&[]), &no_turns).unwrap();
    let primary = contrast(&comparison, "ttft_ms.mean");
    assert_eq!((primary.interval, primary.verdict, primary.unjudged), (None, None, Some(Unjudged::FewRounds)));
    assert_eq!(comparison.doubts, [], "AB BA");
}

#[test]
fn one_arm_always_first_is_doubted_by_when_the_blocks_started() {
    let mut fixed = blocks(&SLOWER);
    for block in &mut fixed {
        let second = u8::from(block.arm == "b");
        block.report.manifest.started_utc = format!("2026-01-02T03:{:02}:{second}0Z", block.round);
    }
    let comparison = compare(&fixed, &settings(&[]), &no_turns).unwrap();
    assert_eq!(comparison.doubts, [Doubt::FixedOrder { arm: "b".into(), first: "a".into(), rounds: 6 }]);
}

#[test]
fn gates_fail_on_what_is_shown_to_be_worse_and_on_what_cannot_be_judged() {
    let gates = [
        "ttft_ms.mean worse 5%",
        "ttft_ms.mean worse 10%",
        "ttft_ms.mean worse 20%",
        "request_throughput worse 5%",
        "ttft_ms.p99 worse 50%",
        "totals.failed > 0",
        "ttft_ms.mean > 1105",
        "cache_hit_rate.value < 0.9",
    ];
    let comparison = compare(&blocks(&SLOWER), &settings(&gates), &no_turns).unwrap();
    let outcomes: Vec<_> = comparison.gates.iter().map(|gate| (gate.passed, gate.seen.as_str())).collect();
    let passed: Vec<_> = outcomes.iter().map(|(passed, _)| *passed).collect();
    assert_eq!(passed, [false, true, true, false, false, true, false, false], "{outcomes:?}");
    assert!(outcomes[1].1.contains("not excluded"), "its interval reaches beyond 10 %: {}", outcomes[1].1);
    assert!(!outcomes[2].1.contains("not excluded"));
    assert!(outcomes[4].1.contains("cannot be judged"));
    assert!(outcomes[6].1.contains("round 4"), "the first that fails: {}", outcomes[6].1);
    let few = compare(&blocks(&SLOWER[..1]), &settings(&gates[2..3]), &no_turns).unwrap();
    assert!(!few.gates[0].passed && few.gates[0].seen.contains("three rounds"));
}

#[test]
fn the_cost_is_that_of_paired_rounds_by_the_servers_counters() {
    let mut counted = blocks(&SLOWER);
    let counter = |role, delta| CounterDelta {
        source: "http://h".into(),
        name: "n".into(),
        labels: [].into(),
        role: Some(role),
        place: None,
        node: None,
        before: Some(0.0),
        after: Some(delta),
        delta: Some(delta),
    };
    for block in &mut counted {
        let (tokens, busy) = if block.arm == "a" { (589_824.0, 61e6) } else { (131_072.0, 17e6) };
        block.report.server.counters =
            vec![counter(CounterRole::ComputedTokens, tokens), counter(CounterRole::PrefillBusyUs, busy)];
    }
    let comparison = compare(&counted, &settings(&[]), &no_turns).unwrap();
    let tokens = comparison.costs[0].computed_tokens.unwrap();
    assert_eq!((tokens.baseline, tokens.other), (6.0 * 589_824.0, 6.0 * 131_072.0));
    assert_eq!(comparison.costs[0].prefill_busy_ms.unwrap().other, 6.0 * 17_000.0);
    counted[0].report.server.counters.clear();
    let partial = compare(&counted, &settings(&[]), &no_turns).unwrap();
    assert_eq!(partial.costs[0].computed_tokens, None, "a part of a sum would mislead");
}
