//! Pairs the blocks of a round and takes ratios.

use std::collections::BTreeMap;

use super::comparable::differences;
use super::pool;
use super::shape::{Comparison, Contrast, Difference, MetricRow, RoundRatio, SCHEMA};
use crate::report::{Metric, RunReport, State, Verdict, metrics};
use crate::stats::{geometric_mean, rounded};

/// One run of one arm in one round.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockResult {
    /// From 1.
    pub round: u32,
    pub arm: String,
    pub report: RunReport,
}

/// Blocks that cannot be laid side by side at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    #[error("no block of the baseline `{baseline}`: the arms are {arms}")]
    NoBaseline { baseline: String, arms: String },
    #[error("only the arm `{0}`: give at least two arms to compare")]
    OneArm(String),
    #[error("no round has both `{baseline}` and `{arm}`: an arm is compared with the baseline of its own round")]
    NoCommonRound { baseline: String, arm: String },
}

/// The blocks of one arm by round.
type Rounds<'a> = BTreeMap<u32, &'a RunReport>;

/// Lays arms side by side: `baseline` first, the others in order of appearance. Of two blocks of one arm in one round the
/// valid one counts, else the later. Void blocks and unfinished ones are listed, and none of their numbers is used.
///
/// # Errors
/// When there is nothing to pair.
pub fn compare(blocks: &[BlockResult], baseline: &str, controls: &[String]) -> Result<Comparison, CompareError> {
    let arms = by_arm(blocks, baseline)?;
    let (_, base) = &arms[0];
    let mut differing = Vec::new();
    for (arm, rounds) in &arms[1..] {
        let both: Vec<_> =
            rounds.iter().filter_map(|(round, report)| Some((round, base.get(round)?, report))).collect();
        if both.is_empty() {
            return Err(CompareError::NoCommonRound { baseline: baseline.into(), arm: (*arm).into() });
        }
        differing.extend(both.into_iter().flat_map(|(round, base, report)| differences(*round, arm, base, report)));
    }
    let mut rounds: Vec<u32> = blocks.iter().map(|block| block.round).collect();
    rounds.sort_unstable();
    rounds.dedup();
    let pooled = arms.iter().map(|(name, blocks)| {
        let all: Vec<_> = blocks.iter().map(|(round, report)| (*round, *report)).collect();
        pool::arm(name, controls.iter().any(|control| control == name), &all, &valid(blocks))
    });
    Ok(Comparison {
        schema: SCHEMA,
        baseline: baseline.to_owned(),
        arms: pooled.collect(),
        comparable: differing.is_empty(),
        differences: unique(differing),
        metrics: metrics().iter().filter_map(|metric| row(metric, &arms, &rounds)).collect(),
        rounds,
    })
}

fn by_arm<'a>(blocks: &'a [BlockResult], baseline: &str) -> Result<Vec<(&'a str, Rounds<'a>)>, CompareError> {
    let mut arms: Vec<(&str, Rounds)> = Vec::new();
    for BlockResult { round, arm, report } in blocks {
        let at = arms.iter().position(|(name, _)| name == arm).unwrap_or_else(|| {
            arms.push((arm, Rounds::new()));
            arms.len() - 1
        });
        let kept = arms[at].1.entry(*round).or_insert(report);
        if is_valid(report) || !is_valid(kept) {
            *kept = report;
        }
    }
    let Some(at) = arms.iter().position(|(name, _)| *name == baseline) else {
        let arms = arms.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        return Err(CompareError::NoBaseline { baseline: baseline.into(), arms });
    };
    if arms.len() == 1 {
        return Err(CompareError::OneArm(baseline.into()));
    }
    arms[..=at].rotate_right(1);
    Ok(arms)
}

/// A part of a plan is other work than the plan, however good its numbers are.
fn is_valid(report: &RunReport) -> bool {
    report.state == State::Complete && report.validity.verdict == Verdict::Valid
}

fn valid<'a>(rounds: &Rounds<'a>) -> Vec<&'a RunReport> {
    rounds.values().copied().filter(|report| is_valid(report)).collect()
}

/// A metric that no arm has is left out.
fn row(metric: &Metric, arms: &[(&str, Rounds)], rounds: &[u32]) -> Option<MetricRow> {
    let values: Vec<_> = arms.iter().map(|(_, blocks)| pool::value(metric, &valid(blocks))).collect();
    values.iter().any(|value| value.value.is_some()).then(|| MetricRow {
        key: metric.key.clone(),
        label: metric.label.clone(),
        unit: metric.unit.to_owned(),
        better: metric.better,
        least_samples: metric.least_samples,
        pooling: pool::pooling(metric),
        arms: values,
        contrasts: arms[1..].iter().map(|(arm, blocks)| contrast(metric, arm, &arms[0].1, blocks, rounds)).collect(),
    })
}

fn contrast(metric: &Metric, arm: &str, baseline: &Rounds, other: &Rounds, rounds: &[u32]) -> Contrast {
    let value = |blocks: &Rounds, round| metric.value(blocks.get(&round).filter(|report| is_valid(report))?);
    let ratio = |round| {
        let (base, other) = (value(baseline, round)?, value(other, round)?);
        (base > 0.0).then(|| rounded(other / base))
    };
    let ratios: Vec<_> = rounds.iter().map(|round| RoundRatio { round: *round, ratio: ratio(*round) }).collect();
    let known: Vec<f64> = ratios.iter().filter_map(|round| round.ratio).collect();
    Contrast {
        arm: arm.to_owned(),
        geometric_mean: geometric_mean(&known).map(rounded),
        ratios,
        interval: None,
        verdict: None,
    }
}

/// The same difference in every round is said once, for its first round.
fn unique(differences: Vec<Difference>) -> Vec<Difference> {
    let mut kept: Vec<Difference> = Vec::new();
    for new in differences {
        let same = |old: &Difference| (&old.arm, &old.field) == (&new.arm, &new.field);
        if !kept.iter().any(same) {
            kept.push(new);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use super::*;
    use crate::compare::Pooling;
    use crate::profile::{Gaps, History, Pacing};
    use crate::report::tests::{answered_after, context, failed};
    use crate::report::{Accumulator, Closing, State};

    /// A block whose turns have these TTFTs, in ms.
    fn block(round: u32, arm: &str, ttfts: &[u64]) -> BlockResult {
        let mut accumulator = Accumulator::new(context(1, ttfts.len() as u64));
        (0..).zip(ttfts).for_each(|(session, ttft)| accumulator.add(&answered_after(session, *ttft)));
        BlockResult { round, arm: arm.into(), report: accumulator.finish(Closing::plain(State::Complete)) }
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
        let comparison = compare(&blocks, "a", &[]).unwrap();
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
        let comparison = compare(&blocks, "a", &[]).unwrap();
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
        let comparison = compare(&blocks, "a", &["c".into()]).unwrap();
        let names: Vec<_> = comparison.arms.iter().map(|arm| (arm.name.as_str(), arm.control)).collect();
        assert_eq!(names, [("a", false), ("b", false), ("c", true)]);
    }

    #[test]
    fn a_void_block_gives_no_number_and_its_valid_repetition_does() {
        let mut void = block(1, "b", &[9_000]);
        void.report.validity.verdict = Verdict::Void;
        let alone = compare(&[block(1, "a", &[100]), void.clone()], "a", &[]).unwrap();
        assert_eq!(metric(&alone, "ttft_ms.mean").contrasts[0].geometric_mean, None);
        assert_eq!((alone.arms[1].void_rounds.as_slice(), alone.arms[1].planned), ([1].as_slice(), 1));
        let repeated = compare(&[block(1, "a", &[100]), block(1, "b", &[50]), void], "a", &[]).unwrap();
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
                let comparison = compare(&blocks, "a", &[]).unwrap();
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
            let comparison = compare(&[base.clone(), other], "a", &[]).unwrap();
            let fields: Vec<_> = comparison.differences.iter().map(|difference| difference.field.as_str()).collect();
            assert_eq!((comparison.comparable, fields), (false, vec![field]));
        }
        let mut even = [base.clone(), block(1, "b", &[100])];
        even.iter_mut().for_each(|block| block.report.manifest.spec.load.pacing = open);
        assert!(compare(&even, "a", &[]).unwrap().comparable);
        even[1].report.manifest.spec.workload.history = History::Synthetic;
        assert!(compare(&even, "a", &[]).unwrap().comparable, "single turns have no history");
        even.iter_mut().for_each(|block| block.report.manifest.spec.workload.turns = NonZeroU32::new(2).unwrap());
        assert_eq!(compare(&even, "a", &[]).unwrap().differences[0].field, "history");
    }

    #[test]
    fn unlike_work_is_not_comparable_and_the_reason_is_named() {
        let mut other = block(1, "b", &[100]);
        other.report.workload.digest = "beef".into();
        other.report.totals.output_tokens = Some(5);
        other.report.server.model = Some("m".into());
        let comparison = compare(&[block(1, "a", &[100]), other], "a", &[]).unwrap();
        assert!(!comparison.comparable);
        let fields: Vec<_> = comparison.differences.iter().map(|difference| difference.field.as_str()).collect();
        assert_eq!(fields, ["digest", "mean output length"]);
    }

    #[test]
    fn survivors_of_an_arm_that_fails_more_are_not_comparable() {
        let mut accumulator = Accumulator::new(context(1, 2));
        accumulator.add(&answered_after(0, 100));
        accumulator.add(&failed(1));
        let failing =
            BlockResult { round: 1, arm: "b".into(), report: accumulator.finish(Closing::plain(State::Complete)) };
        let comparison = compare(&[block(1, "a", &[100, 100]), failing], "a", &[]).unwrap();
        assert_eq!(comparison.differences[0].field, "failure rate");
        assert_eq!(comparison.differences[0].other, "50.0 %");
    }

    #[test]
    fn what_cannot_be_paired_is_refused() {
        let said = |blocks: &[BlockResult]| compare(blocks, "a", &[]).unwrap_err();
        assert_eq!(said(&[block(1, "a", &[1])]), CompareError::OneArm("a".into()));
        assert!(matches!(said(&[block(1, "b", &[1])]), CompareError::NoBaseline { .. }));
        assert!(matches!(said(&[block(1, "a", &[1]), block(2, "b", &[1])]), CompareError::NoCommonRound { .. }));
    }
}
