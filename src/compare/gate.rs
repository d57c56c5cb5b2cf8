//! Gates on a comparison: they look at the arms after the baseline that are no controls.

use super::judge::LEAST_ROUNDS;
use super::shape::{Comparison, Contrast, Interval, MetricRow};
use crate::report::{Better, Condition, Gate, GateOutcome, RunReport, Source, judge_run, metric};
use crate::units::{grouped, plural};

/// What every arm of an experiment is to run.
#[derive(Debug, Clone, Copy)]
pub struct Planned {
    pub rounds: u32,
    /// In one round.
    pub turns: u64,
    pub output_tokens: u64,
}

/// What will keep a gate from being judged, so that it fails, however the runs come out; in words, with the way out.
#[must_use]
pub fn planned_obstacle(gate: &Gate, planned: Planned, primary: &str) -> Option<String> {
    let Condition::Worse(_) = gate.condition else { return None };
    let metric = metric(&gate.metric)?;
    let Planned { rounds, turns, output_tokens } = planned;
    let samples = metric.planned_samples(turns, output_tokens).saturating_mul(rounds.into());
    let says = |why: String| Some(format!("the gate `{gate}` cannot be judged, and will fail: {why}"));
    if samples < metric.least_samples {
        let mean = match metric.source {
            Source::Latency(latency, _) => format!(", or a gate on `{}.mean`", latency.key()),
            Source::Figure(_) => String::new(),
        };
        return says(format!(
            "{} planned over {}, and {} are needed; run more sessions or rounds{mean}",
            plural(samples, "sample"),
            plural(rounds.into(), "round"),
            grouped(metric.least_samples)
        ));
    }
    // A judged figure may have an interval within one run.
    let is_judged = metric.headline || metric.key == primary;
    if !is_judged && usize::try_from(rounds).is_ok_and(|rounds| rounds < LEAST_ROUNDS) {
        return says(format!(
            "{} planned, and {LEAST_ROUNDS} are needed for its interval",
            plural(rounds.into(), "round")
        ));
    }
    None
}

/// One outcome a gate and arm. `blocks` gives the reports of an arm.
pub(super) fn outcomes<'a>(
    gates: &[Gate],
    comparison: &Comparison,
    blocks: &dyn Fn(&str) -> Vec<(u32, &'a RunReport)>,
) -> Vec<GateOutcome> {
    let mut outcomes = vec![];
    for gate in gates {
        for (at, arm) in comparison.arms[1..].iter().enumerate().filter(|(_, arm)| !arm.control) {
            let (passed, seen) = match gate.condition {
                Condition::Worse(share) => worse(comparison, &gate.metric, at, share),
                Condition::Is(..) => every_block(gate, &blocks(&arm.name)),
            };
            outcomes.push(GateOutcome { gate: gate.to_string(), arm: Some(arm.name.clone()), passed, seen });
        }
    }
    outcomes
}

/// Fails when the whole interval is worse than the baseline by more than `share`, and when there is no interval: what cannot be
/// judged does not pass.
fn worse(comparison: &Comparison, key: &str, at: usize, share: f64) -> (bool, String) {
    let row = comparison.metrics.iter().find(|row| row.key == key);
    let Some((row, contrast)) = row.and_then(|row| Some((row, row.contrasts.get(at)?))) else {
        return (false, "no arm has this metric".to_owned());
    };
    let Some(interval) = contrast.interval else {
        return (false, "it cannot be judged: there is no interval; run three rounds or more".to_owned());
    };
    if is_thin(row, at) {
        let seen = format!("it cannot be judged: fewer than {} stand behind it", plural(row.least_samples, "sample"));
        return (false, seen);
    }
    let (least, most) = badness(row.better, interval);
    let passed = least <= share.ln_1p();
    let open = if passed && most > share.ln_1p() { "; this is not excluded, run more rounds" } else { "" };
    (passed, format!("{}{open}", words(contrast, interval)))
}

fn is_thin(row: &MetricRow, at: usize) -> bool {
    [0, at + 1].iter().any(|arm| row.arms[*arm].samples < row.least_samples)
}

/// How much worse it is at least and at most, as logarithms.
fn badness(better: Better, interval: Interval) -> (f64, f64) {
    let (low, high) = (interval.low.ln(), interval.high.ln());
    match better {
        Better::Lower => (low, high),
        Better::Higher => (-high, -low),
    }
}

fn words(contrast: &Contrast, interval: Interval) -> String {
    let change = |ratio: f64| format!("{:+.1} %", (ratio - 1.0) * 100.0);
    let mean = contrast.geometric_mean.map_or_else(|| "–".to_owned(), change);
    format!("it changed by {mean}, interval {} to {}", change(interval.low), change(interval.high))
}

/// Fails with the first block that fails.
fn every_block(gate: &Gate, blocks: &[(u32, &RunReport)]) -> (bool, String) {
    let outcomes: Vec<_> = blocks.iter().map(|(round, report)| (round, judge_run(gate, report))).collect();
    match outcomes.iter().find(|(_, outcome)| !outcome.passed) {
        Some((round, outcome)) => (false, format!("round {round}: {}", outcome.seen)),
        None if outcomes.is_empty() => (false, "no block of this arm has run".to_owned()),
        None => (true, format!("it did not hold in any of its {}", plural(outcomes.len() as u64, "block"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_that_the_plan_cannot_feed_is_told_before_the_run_with_what_it_needs() {
        let said = |gate: &str, rounds, turns| {
            let planned = Planned { rounds, turns, output_tokens: turns * 11 };
            planned_obstacle(&gate.parse().unwrap(), planned, "ttft_ms.mean")
        };
        let thin = said("ttft_ms.p99 worse 5%", 4, 249).unwrap();
        for words in
            ["`ttft_ms.p99 worse 5%`", "996 samples planned over 4 rounds", "1,000 are needed", "`ttft_ms.mean`"]
        {
            assert!(thin.contains(words), "{thin}");
        }
        assert_eq!(said("ttft_ms.p99 worse 5%", 4, 250), None);
        assert_eq!(said("itl_ms.p99 worse 5%", 4, 25), None, "ten gaps a turn");
        assert_eq!(said("ttft_ms.mean worse 5%", 1, 1), None);
        assert_eq!(said("totals.failed > 0", 1, 1), None);
        assert!(said("ttft_ms.p90 worse 5%", 2, 900).unwrap().contains("2 rounds planned, and 3 are needed"));
        assert_eq!(said("ttft_ms.p90 worse 5%", 3, 900), None);
    }
}
