//! Pairing, ratios and comparability over hand-made reports.

use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::compare::{Pooling, no_turns};
use crate::profile::{Gaps, History, Pacing};
use crate::report::tests::{answered_after, context, failed};
use crate::report::{Accumulator, Closing, State};

/// A block whose turns have these TTFTs, in ms.
fn block(round: u32, arm: &str, ttfts: &[u64]) -> BlockResult {
    let mut accumulator = Accumulator::new(context(1, ttfts.len() as u64));
    (0..).zip(ttfts).for_each(|(session, ttft)| accumulator.add(&answered_after(session, *ttft)));
    BlockResult { round, arm: arm.into(), report: accumulator.finish(Closing::plain(State::Complete)), dir: None }
}

fn metric<'a>(comparison: &'a Comparison, key: &str) -> &'a MetricRow {
    comparison.metrics.iter().find(|row| row.key == key).unwrap()
}

#[test]
fn each_round_has_its_own_ratio_and_their_mean_is_geometric() {
    let blocks = [
        block(1, "a", &[100]),
        block(1, "b", &[50]),
        block(2, "b", &[200]),
        block(2, "a", &[100]),
        block(3, "a", &[9]),
    ];
    let comparison = compare(&blocks, &Settings::new("a"), &no_turns).unwrap();
    let contrast = &metric(&comparison, "ttft_ms.mean").contrasts[0];
    assert_eq!(contrast.ratios.iter().map(|round| round.ratio).collect::<Vec<_>>(), [Some(0.5), Some(2.0), None]);
    assert_eq!(contrast.geometric_mean, Some(1.0));
    assert_eq!((contrast.interval, contrast.verdict), (None, None));
    assert_eq!((comparison.comparable, comparison.rounds), (true, vec![1, 2, 3]));
}

#[test]
fn percentiles_over_rounds_come_from_merged_histograms() {
    let fast: Vec<u64> = vec![10; 9];
    let blocks = [block(1, "a", &fast), block(2, "a", &[1_000]), block(1, "b", &[10]), block(2, "b", &[10])];
    let comparison = compare(&blocks, &Settings::new("a"), &no_turns).unwrap();
    let median = metric(&comparison, "ttft_ms.p50");
    assert_eq!(median.pooling, Pooling::MergedHistograms);
    let value = median.arms[0].value.unwrap();
    assert!((value - 10.0).abs() < 0.02, "{value} is no median of nine 10s and one 1,000; their mean is 505");
    assert_eq!(median.arms[0].samples, 10);
    assert_eq!(metric(&comparison, "ttft_ms.mean").arms[0].value, Some(109.0));
    assert_eq!(metric(&comparison, "request_throughput").pooling, Pooling::MeanOfRounds);
    let row = &comparison.arms[0].ranks[0];
    assert_eq!((row.turns, row.hit_rate, row.ttft_ms.unwrap().count), (10, Some(0.5), 10));
}

#[test]
fn the_baseline_comes_first_whatever_the_order() {
    let blocks = [block(1, "b", &[1]), block(1, "c", &[1]), block(1, "a", &[1])];
    let comparison =
        compare(&blocks, &Settings { controls: vec!["c".into()], ..Settings::new("a") }, &no_turns).unwrap();
    let names: Vec<_> = comparison.arms.iter().map(|arm| (arm.name.as_str(), arm.control)).collect();
    assert_eq!(names, [("a", false), ("b", false), ("c", true)]);
}

#[test]
fn a_void_block_gives_no_number_and_its_valid_repetition_does() {
    let mut void = block(1, "b", &[9_000]);
    void.report.validity.verdict = Verdict::Void;
    let alone = compare(&[block(1, "a", &[100]), void.clone()], &Settings::new("a"), &no_turns).unwrap();
    assert_eq!(metric(&alone, "ttft_ms.mean").contrasts[0].geometric_mean, None);
    assert_eq!((alone.arms[1].void_rounds.as_slice(), alone.arms[1].planned), ([1].as_slice(), Some(1)));
    let repeated =
        compare(&[block(1, "a", &[100]), block(1, "b", &[50]), void], &Settings::new("a"), &no_turns).unwrap();
    assert_eq!(metric(&repeated, "ttft_ms.mean").contrasts[0].geometric_mean, Some(0.5));
}

#[test]
fn a_block_that_did_not_end_gives_no_number_and_is_not_comparable() {
    for state in [State::Interrupted, State::Running] {
        let mut half = block(1, "b", &[3_600]);
        half.report.state = state;
        for (blocks, at) in [
            ([block(1, "a", &[100]), half.clone()], 1),
            ([BlockResult { arm: "a".into(), ..half.clone() }, block(1, "b", &[100])], 0),
        ] {
            let comparison = compare(&blocks, &Settings::new("a"), &no_turns).unwrap();
            assert!(!comparison.comparable);
            assert_eq!(comparison.differences[0].field, "state");
            assert_eq!(metric(&comparison, "ttft_ms.mean").contrasts[0].geometric_mean, None);
            let ratios = comparison.metrics.iter().flat_map(|row| &row.contrasts).flat_map(|of| &of.ratios);
            assert!(ratios.into_iter().all(|round| round.ratio.is_none()));
            let arm = &comparison.arms[at];
            assert_eq!((arm.unfinished_rounds.as_slice(), arm.hit_rate.value), ([1].as_slice(), None));
            assert!(!arm.has_valid_round());
        }
    }
}

#[test]
fn another_load_history_or_build_is_another_work() {
    type Change = fn(&mut RunReport);
    let sessions = |n| Pacing::Closed { sessions: NonZeroU32::new(n).unwrap() };
    let open = Pacing::Open { per_second: 2.0, gaps: Gaps::Gamma(1.0), sessions: None };
    let base = block(1, "a", &[100]);
    assert_eq!(base.report.manifest.spec.load.pacing, sessions(2), "what the changes below change");
    let changes: [(&str, Change); 9] = [
        ("load", |r| r.manifest.spec.load.pacing = Pacing::Closed { sessions: NonZeroU32::new(16).unwrap() }),
        ("load", |r| {
            r.manifest.spec.load.pacing = Pacing::Open { per_second: 2.0, gaps: Gaps::Even, sessions: None };
        }),
        ("load", |r| r.manifest.spec.load.max_turns_in_flight = NonZeroU32::new(3)),
        ("load", |r| r.manifest.spec.load.think = Duration::from_millis(1)),
        ("load", |r| r.manifest.spec.load.duration = Some(Duration::from_secs(9))),
        ("load", |r| r.manifest.spec.load.ramp_up = Duration::from_secs(1)),
        ("warm-up sessions", |r| r.manifest.spec.load.warmup_sessions += 1),
        ("debug build", |r| r.manifest.debug_build = true),
        ("client version", |r| r.manifest.version = "9.9.9".into()),
    ];
    for (field, change) in changes {
        let mut other = block(1, "b", &[100]);
        change(&mut other.report);
        let comparison = compare(&[base.clone(), other], &Settings::new("a"), &no_turns).unwrap();
        let fields: Vec<_> = comparison.differences.iter().map(|difference| difference.field.as_str()).collect();
        assert_eq!((comparison.comparable, fields), (false, vec![field]));
    }
    let mut even = [base.clone(), block(1, "b", &[100])];
    even.iter_mut().for_each(|block| block.report.manifest.spec.load.pacing = open);
    assert!(compare(&even, &Settings::new("a"), &no_turns).unwrap().comparable);
    even[1].report.manifest.spec.workload.history = History::Synthetic;
    assert!(compare(&even, &Settings::new("a"), &no_turns).unwrap().comparable, "single turns have no history");
    even.iter_mut().for_each(|block| block.report.manifest.spec.workload.turns = NonZeroU32::new(2).unwrap());
    assert_eq!(compare(&even, &Settings::new("a"), &no_turns).unwrap().differences[0].field, "history");
}

/// Row B116 of the traps.
#[test]
fn unlike_work_is_not_comparable_and_the_reason_is_named() {
    let mut other = block(1, "b", &[100]);
    other.report.workload.digest = "beef".into();
    other.report.totals.output_tokens = Some(5);
    other.report.server.model = Some("m".into());
    let comparison = compare(&[block(1, "a", &[100]), other], &Settings::new("a"), &no_turns).unwrap();
    assert!(!comparison.comparable);
    let fields: Vec<_> = comparison.differences.iter().map(|difference| difference.field.as_str()).collect();
    assert_eq!(fields, ["digest", "mean output length"]);
}

/// Row B97 of the traps: up to 2 % either way the work is alike.
#[test]
fn mean_output_lengths_may_differ_by_two_percent_and_no_more() {
    let is_alike = |tokens: u64| {
        let [mut a, mut b] = ["a", "b"].map(|arm| block(1, arm, &[100]));
        (a.report.totals.output_tokens, b.report.totals.output_tokens) = (Some(10_000), Some(tokens));
        compare(&[a, b], &Settings::new("a"), &no_turns).unwrap().comparable
    };
    assert_eq!([9_799, 9_800, 10_200, 10_201].map(is_alike), [false, true, true, false]);
}

/// Row B116 of the traps.
#[test]
fn survivors_of_an_arm_that_fails_more_are_not_comparable() {
    let mut accumulator = Accumulator::new(context(1, 2));
    accumulator.add(&answered_after(0, 100));
    accumulator.add(&failed(1));
    let failing = BlockResult {
        round: 1,
        arm: "b".into(),
        report: accumulator.finish(Closing::plain(State::Complete)),
        dir: None,
    };
    let comparison = compare(&[block(1, "a", &[100, 100]), failing], &Settings::new("a"), &no_turns).unwrap();
    assert_eq!(comparison.differences[0].field, "failure rate");
    assert_eq!(comparison.differences[0].other, "50.0 %");
}

#[test]
fn what_cannot_be_paired_is_refused() {
    let said = |blocks: &[BlockResult]| compare(blocks, &Settings::new("a"), &no_turns).unwrap_err();
    assert_eq!(said(&[block(1, "a", &[1])]), CompareError::OneArm("a".into()));
    assert!(matches!(said(&[block(1, "b", &[1])]), CompareError::NoBaseline { .. }));
    assert!(matches!(said(&[block(1, "a", &[1]), block(2, "b", &[1])]), CompareError::NoCommonRound { .. }));
}
