//! Pairs the blocks of a round and takes ratios.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::comparable::Unlike;
use super::cost::cost;
use super::judge::{Fate, LEAST_ROUNDS, judge};
use super::setting::setting;
use super::settings::{Settings, Turns};
use super::shape::{Comparison, Contrast, MetricRow, NoiseFloor, RoundRatio, SCHEMA};
use super::within::WithinRuns;
use super::{doubt, gate, pool};
use crate::report::{Metric, RunReport, State, Verdict, metrics};
use crate::stats::{geometric_mean, rounded};

/// One run of one arm in one round.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockResult {
    /// From 1.
    pub round: u32,
    pub arm: String,
    pub report: RunReport,
    /// Where its files stand, if they do.
    pub dir: Option<PathBuf>,
}

/// Blocks that cannot be laid side by side at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    #[error("no block has ended, so there is nothing to compare")]
    NoBlock,
    #[error("no block of the baseline `{baseline}`: the arms are {arms}")]
    NoBaseline { baseline: String, arms: String },
    #[error("only the arm `{0}`: give at least two arms to compare")]
    OneArm(String),
    #[error("no round has both `{baseline}` and `{arm}`: an arm is compared with the baseline of its own round")]
    NoCommonRound { baseline: String, arm: String },
}

/// The blocks of one arm by round.
type Rounds<'a> = BTreeMap<u32, &'a BlockResult>;

/// Lays arms side by side: the baseline first, the others in order of appearance. Of two blocks of one arm in one round the
/// valid one counts, else the later. Void blocks and unfinished ones are listed, and none of their numbers is used. `turns` is
/// asked only where the rounds are too few for an interval.
///
/// # Errors
/// When there is nothing to pair.
pub fn compare(blocks: &[BlockResult], settings: &Settings, turns: &Turns<'_>) -> Result<Comparison, CompareError> {
    let arms = by_arm(blocks, &settings.baseline)?;
    let (base_name, base) = &arms[0];
    let Unlike { differences, remarks, server_info } = unlike(&arms, settings)?;
    let mut rounds: Vec<u32> = blocks.iter().map(|block| block.round).collect();
    rounds.sort_unstable();
    rounds.dedup();
    let pooled = arms.iter().map(|(name, blocks)| {
        let all: Vec<_> = blocks.iter().map(|(round, block)| (*round, &block.report)).collect();
        pool::arm(name, settings.is_control(name), &all, &valid(blocks))
    });
    let mut comparison = Comparison {
        schema: SCHEMA,
        setting: setting(&firsts(&arms)),
        baseline: settings.baseline.clone(),
        primary: settings.primary.clone(),
        threshold: settings.threshold,
        arms: pooled.collect(),
        interrupted: settings.interrupted.clone(),
        comparable: differences.is_empty(),
        aa: settings.aa,
        noise_floor: None,
        mismatch_allowed: settings.allow_mismatch,
        differences,
        remarks,
        server_info,
        doubts: vec![],
        metrics: metrics().iter().filter_map(|metric| row(metric, &arms, &rounds, &settings.primary)).collect(),
        rounds,
        costs: vec![],
        gates: vec![],
        commands: commands(&firsts(&arms)),
    };
    for (at, (arm, rounds)) in arms[1..].iter().enumerate() {
        let pairs = valid_pairs(base, rounds);
        let reports = pairs.iter().map(|(base, other)| (&base.report, &other.report));
        comparison.doubts.extend(doubt::order(base_name, arm, reports.clone()));
        comparison.costs.push(cost(arm, reports));
        let fate = Fate {
            control: settings.is_control(arm),
            comparable: settings.allow_mismatch || !comparison.differences.iter().any(|of| of.arm == *arm),
        };
        let inside = if pairs.len() < LEAST_ROUNDS { within(&pairs, turns) } else { WithinRuns::default() };
        judge(&mut comparison.metrics, at, fate, settings, &inside);
    }
    comparison.noise_floor = settings.aa.then(|| noise_floor(&comparison)).flatten();
    let of_arm = |name: &str| {
        let rounds = arms.iter().filter(|(arm, _)| *arm == name).flat_map(|(_, rounds)| rounds);
        rounds.map(|(round, block)| (*round, &block.report)).collect()
    };
    comparison.gates = gate::outcomes(&settings.fail_if, &comparison, &of_arm);
    Ok(comparison)
}

/// Of arms that are one and the same: the ratios of the primary metric, and what rounds of that spread cannot tell from nothing.
fn noise_floor(comparison: &Comparison) -> Option<NoiseFloor> {
    let row = comparison.metrics.iter().find(|row| row.key == comparison.primary)?;
    let contrast = row.contrasts.first()?;
    let ratios = || contrast.ratios.iter().filter_map(|round| round.ratio);
    Some(NoiseFloor {
        rounds: ratios().count() as u64,
        least_ratio: ratios().reduce(f64::min)?,
        most_ratio: ratios().reduce(f64::max)?,
        change: contrast.noise_floor(),
    })
}

/// What the arms did not do alike, over every round that an arm has in common with the baseline.
fn unlike(arms: &[(&str, Rounds<'_>)], settings: &Settings) -> Result<Unlike, CompareError> {
    let (base_name, base) = &arms[0];
    let mut found = Unlike::default();
    for (arm, rounds) in &arms[1..] {
        let both = both(base, rounds);
        if both.is_empty() {
            return Err(CompareError::NoCommonRound { baseline: (*base_name).into(), arm: (*arm).into() });
        }
        for (round, base, other) in both {
            found.add(round, arm, &base.report, &other.report, settings);
        }
    }
    Ok(found)
}

/// The rounds that both ran.
fn both<'a>(base: &Rounds<'a>, other: &Rounds<'a>) -> Vec<(u32, &'a BlockResult, &'a BlockResult)> {
    other.iter().filter_map(|(round, block)| Some((*round, *base.get(round)?, *block))).collect()
}

/// Those of them whose numbers may be used.
fn valid_pairs<'a>(base: &Rounds<'a>, other: &Rounds<'a>) -> Vec<(&'a BlockResult, &'a BlockResult)> {
    let both = both(base, other).into_iter();
    both.filter(|(_, a, b)| is_valid(&a.report) && is_valid(&b.report)).map(|(_, a, b)| (a, b)).collect()
}

/// The turns of all pairs; nothing when those of any block are not at hand.
fn within(pairs: &[(&BlockResult, &BlockResult)], turns: &Turns<'_>) -> WithinRuns {
    let read = |block: &BlockResult| turns(block.dir.as_deref()?);
    let mut runs = WithinRuns::default();
    for (base, other) in pairs {
        let (Some(base), Some(other)) = (read(base), read(other)) else { return WithinRuns::default() };
        runs.add(&base, &other);
    }
    runs
}

/// Each arm with its first block.
fn firsts<'a>(arms: &[(&'a str, Rounds<'a>)]) -> Vec<(&'a str, &'a RunReport)> {
    let first = |(arm, rounds): &(&'a str, Rounds<'a>)| Some((*arm, &rounds.values().next()?.report));
    arms.iter().filter_map(first).collect()
}

/// The command lines of the arms' first blocks; arms of one `ab` have the same.
fn commands(firsts: &[(&str, &RunReport)]) -> Vec<String> {
    let mut commands: Vec<String> = vec![];
    for command in firsts.iter().filter_map(|(_, report)| report.command()) {
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    commands
}

fn by_arm<'a>(blocks: &'a [BlockResult], baseline: &str) -> Result<Vec<(&'a str, Rounds<'a>)>, CompareError> {
    let mut arms: Vec<(&str, Rounds)> = Vec::new();
    for block in blocks {
        let at = arms.iter().position(|(name, _)| *name == block.arm).unwrap_or_else(|| {
            arms.push((&block.arm, Rounds::new()));
            arms.len() - 1
        });
        let kept = arms[at].1.entry(block.round).or_insert(block);
        if is_valid(&block.report) || !is_valid(&kept.report) {
            *kept = block;
        }
    }
    if arms.is_empty() {
        return Err(CompareError::NoBlock);
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
    rounds.values().map(|block| &block.report).filter(|report| is_valid(report)).collect()
}

/// A metric that no arm has is left out.
fn row(metric: &Metric, arms: &[(&str, Rounds)], rounds: &[u32], primary: &str) -> Option<MetricRow> {
    let values: Vec<_> = arms.iter().map(|(_, blocks)| pool::value(metric, &valid(blocks))).collect();
    values.iter().any(|value| value.value.is_some()).then(|| MetricRow {
        key: metric.key.clone(),
        label: metric.label.clone(),
        unit: metric.unit.to_owned(),
        better: metric.better,
        least_samples: metric.least_samples,
        judged: metric.headline || metric.key == primary,
        pooling: pool::pooling(metric),
        arms: values,
        contrasts: arms[1..].iter().map(|(arm, blocks)| contrast(metric, arm, &arms[0].1, blocks, rounds)).collect(),
    })
}

fn contrast(metric: &Metric, arm: &str, baseline: &Rounds, other: &Rounds, rounds: &[u32]) -> Contrast {
    let value = |blocks: &Rounds, round| {
        metric.value(blocks.get(&round).map(|block| &block.report).filter(|report| is_valid(report))?)
    };
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
        unjudged: None,
        sign_flip: None,
        smallest_effect: None,
    }
}

#[cfg(test)]
#[path = "pair_tests.rs"]
mod tests;
