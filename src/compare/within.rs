//! Fewer rounds than an interval needs: how sure is a ratio inside the runs that there are?
//!
//! Both arms of a round ran the same sessions, so a session is drawn for both at once: what is hard about a prompt is then
//! hard in both. The interval says how the figures depend on which groups and sessions were asked. How two runs of the same
//! thing differ it cannot know, and it is labelled so.

use std::collections::BTreeMap;

use crate::report::{Latency, Source, Stat, TurnSample, metric};
use crate::stats::{Clusters, LogInterval, Quantile, cluster_interval};

/// The turns of one round.
struct Round {
    clusters: Clusters,
    baseline: Turns,
    other: Turns,
}

/// Turns with the number of their session.
type Turns = Vec<(usize, TurnSample)>;

/// The turns of two arms over few rounds.
#[derive(Default)]
pub(super) struct WithinRuns {
    rounds: Vec<Round>,
}

/// A figure of one arm that can be computed again from drawn sessions.
enum Figure {
    /// Σ part / Σ whole by session: a mean, or a hit rate.
    Quotient(Vec<(usize, f64, f64)>),
    /// Ascending values.
    Quantile(Vec<(usize, f64)>, Quantile),
}

impl WithinRuns {
    /// Adds a round of both arms.
    pub(super) fn add(&mut self, baseline: &[TurnSample], other: &[TurnSample]) {
        let mut sessions: BTreeMap<(u32, u32), usize> =
            baseline.iter().chain(other).map(|turn| ((turn.group, turn.session), 0)).collect();
        let mut sizes = vec![];
        let mut last = None;
        for (number, ((group, _), at)) in sessions.iter_mut().enumerate() {
            *at = number;
            if last.replace(*group) != Some(*group) {
                sizes.push(0);
            }
            sizes.last_mut().into_iter().for_each(|size| *size += 1);
        }
        let numbered = |turns: &[TurnSample]| -> Turns {
            turns.iter().filter_map(|turn| Some((*sessions.get(&(turn.group, turn.session))?, *turn))).collect()
        };
        let (baseline, other) = (numbered(baseline), numbered(other));
        self.rounds.push(Round { clusters: Clusters::new(&sizes), baseline, other });
    }

    /// The interval on the logarithm of a metric's ratio; none where no figure of single turns makes the metric, as of a
    /// throughput.
    pub(super) fn interval(&self, key: &str, level: f64) -> Option<LogInterval> {
        let source = metric(key)?.source;
        let figures: Vec<(Figure, Figure)> = self
            .rounds
            .iter()
            .map(|round| Some((figure(key, source, &round.baseline)?, figure(key, source, &round.other)?)))
            .collect::<Option<_>>()?;
        let clusters: Vec<_> = self.rounds.iter().map(|round| round.clusters.clone()).collect();
        cluster_interval(&clusters, level, |drawn| {
            let logs = figures.iter().zip(drawn).map(|((baseline, other), drawn)| {
                let (baseline, other) = (baseline.of(drawn)?, other.of(drawn)?);
                (baseline > 0.0 && other > 0.0).then(|| (other / baseline).ln())
            });
            crate::stats::mean(&logs.collect::<Option<Vec<_>>>()?)
        })
    }
}

fn figure(key: &str, source: Source, turns: &Turns) -> Option<Figure> {
    match source {
        Source::Latency(Latency::Itl | Latency::Icl, _) => None,
        Source::Latency(latency, stat) => Some(latency_figure(latency, stat, turns)),
        Source::Figure(_) if key == "cache_hit_rate.value" => {
            let shares = turns.iter().filter_map(|(session, turn)| {
                let (cached, prompt) = turn.cached()?;
                Some((*session, f64::from(cached), f64::from(prompt)))
            });
            Some(Figure::Quotient(shares.collect()))
        }
        Source::Figure(_) => None,
    }
}

fn latency_figure(latency: Latency, stat: Stat, turns: &Turns) -> Figure {
    let values = turns.iter().filter_map(|(session, turn)| Some((*session, turn.latency(latency)?)));
    match stat.quantile() {
        None => Figure::Quotient(values.map(|(session, value)| (session, value, 1.0)).collect()),
        Some(quantile) => {
            let mut values: Vec<_> = values.collect();
            values.sort_by(|a, b| a.1.total_cmp(&b.1));
            Figure::Quantile(values, quantile)
        }
    }
}

impl Figure {
    /// The figure when each session counts as often as it was drawn; none when no drawn session has it.
    fn of(&self, drawn: &[u32]) -> Option<f64> {
        match self {
            Self::Quotient(parts) => {
                let (mut part, mut whole) = (0.0, 0.0);
                for (session, value, weight) in parts {
                    let times = f64::from(*drawn.get(*session)?);
                    part += times * value;
                    whole += times * weight;
                }
                (whole > 0.0).then(|| part / whole)
            }
            Self::Quantile(values, quantile) => {
                let times = |session: &usize| drawn.get(*session).copied().map(u64::from);
                let count = values.iter().map(|(session, _)| times(session)).sum::<Option<u64>>()?;
                let mut left = quantile.rank_of(count)?;
                for (session, value) in values {
                    let times = times(session)?;
                    if left < times {
                        return Some(*value);
                    }
                    left -= times;
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::TurnRecord;
    use crate::report::tests::served;
    use crate::units::Micros;

    /// Turns of 8 groups of 6 sessions whose TTFT is `of(group, session)` ms.
    fn turns(of: impl Fn(u32, u32) -> u64) -> Vec<TurnSample> {
        let grid = (0..8).flat_map(|group| (0..6).map(move |session| (group, session)));
        grid.map(|(group, session)| {
            let first_us = Some(Micros(of(group, session) * 1_000));
            let turn = TurnRecord { group, session, first_us, sent_us: Some(Micros(0)), ..served(session, 0, 0, 50) };
            TurnSample::of(&turn).unwrap()
        })
        .collect()
    }

    #[test]
    fn what_is_hard_in_both_arms_cancels() {
        let mut runs = WithinRuns::default();
        let base = |group: u32, session: u32| u64::from(100 + 50 * group + session);
        runs.add(&turns(base), &turns(|group, session| 2 * base(group, session)));
        for key in ["ttft_ms.mean", "ttft_ms.p50", "ttft_ms.p99"] {
            let interval = runs.interval(key, 0.95).unwrap();
            let two = 2.0_f64.ln();
            assert!((interval.low - two).abs() < 1e-9 && (interval.high - two).abs() < 1e-9, "{key}: {interval:?}");
        }
        let hits = runs.interval("cache_hit_rate.value", 0.95).unwrap();
        assert_eq!((hits.low, hits.high), (0.0, 0.0));
    }

    #[test]
    fn a_gain_in_some_groups_alone_is_as_unsure_as_groups_are_few() {
        let mut runs = WithinRuns::default();
        runs.add(&turns(|_, _| 100), &turns(|group, _| if group < 4 { 50 } else { 100 }));
        let interval = runs.interval("ttft_ms.mean", 0.95).unwrap();
        // Of eight groups, half halved: 75 ms, and of a draw of eight about 58 to 92.
        assert!(interval.low < 0.65_f64.ln() && interval.high > 0.85_f64.ln(), "{interval:?}");
    }

    #[test]
    fn a_throughput_and_a_gap_are_no_figures_of_single_turns() {
        let mut runs = WithinRuns::default();
        runs.add(&turns(|_, _| 100), &turns(|_, _| 90));
        for key in ["request_throughput", "itl_ms.p99", "no_such"] {
            assert_eq!(runs.interval(key, 0.95), None);
        }
        assert_eq!(WithinRuns::default().interval("ttft_ms.mean", 0.95), None);
    }

    #[test]
    fn the_weighted_quantile_is_that_of_the_drawn_turns() {
        let values: Vec<(usize, f64)> = (0..10).map(|at| (at, at as f64)).collect();
        let figure = Figure::Quantile(values, Quantile::P90);
        assert_eq!(figure.of(&[1; 10]), Some(8.0));
        assert_eq!(figure.of(&[9, 0, 0, 0, 0, 0, 0, 0, 0, 1]), Some(0.0));
        assert_eq!(figure.of(&[8, 0, 0, 0, 0, 0, 0, 0, 0, 2]), Some(9.0));
        assert_eq!(figure.of(&[0; 10]), None);
    }
}
