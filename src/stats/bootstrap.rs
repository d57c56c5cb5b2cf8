//! Resampling clusters: how sure is a figure of one run, whose requests depend on each other by design?
//!
//! Turns of a session share their history and sessions of a group share their prompt, so whole groups are drawn with
//! replacement, and inside each drawn group whole sessions (Davison & Hinkley 1997, "Bootstrap Methods and their
//! Application", §3.8). The interval is that of percentiles (Efron & Tibshirani 1993, ch. 13).

use rand::rngs::ChaCha8Rng;
use rand::{RngExt as _, SeedableRng as _};

use super::LogInterval;

/// Resamples: enough for a 95 % interval whose ends move by about a hundredth of its width.
pub const RESAMPLES: usize = 2_000;

/// Sessions by group: the sizes are all that drawing needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clusters {
    /// Indices of the sessions of each group.
    groups: Vec<Vec<usize>>,
    sessions: usize,
}

impl Clusters {
    /// From the number of sessions in each group; sessions are numbered through, group by group.
    #[must_use]
    pub fn new(sizes: &[usize]) -> Self {
        let mut next = 0;
        let groups = sizes.iter().filter(|size| **size > 0).map(|size| {
            let from = next;
            next += size;
            (from..next).collect()
        });
        Self { groups: groups.collect(), sessions: next }
    }

    /// How often each session is drawn in one resample.
    fn draw(&self, random: &mut ChaCha8Rng) -> Vec<u32> {
        let mut drawn = vec![0; self.sessions];
        for _ in 0..self.groups.len() {
            let group = &self.groups[random.random_range(0..self.groups.len())];
            for _ in 0..group.len() {
                drawn[group[random.random_range(0..group.len())]] += 1;
            }
        }
        drawn
    }
}

/// The interval at `level` on a figure that `statistic` computes from how often each session of each run was drawn, over 2,000
/// resamples of a fixed seed; runs are drawn apart from each other. Resamples without the figure are left out; none when they
/// are more than one in ten, or when a run has not two sessions to draw from.
pub fn cluster_interval(
    runs: &[Clusters],
    level: f64,
    statistic: impl FnMut(&[Vec<u32>]) -> Option<f64>,
) -> Option<LogInterval> {
    interval_of(RESAMPLES, runs, level, statistic)
}

fn interval_of(
    resamples: usize,
    runs: &[Clusters],
    level: f64,
    mut statistic: impl FnMut(&[Vec<u32>]) -> Option<f64>,
) -> Option<LogInterval> {
    if runs.is_empty() || runs.iter().any(|clusters| clusters.sessions < 2) {
        return None;
    }
    let mut random = ChaCha8Rng::seed_from_u64(0x6773_7062);
    let mut draw = || runs.iter().map(|clusters| clusters.draw(&mut random)).collect::<Vec<_>>();
    let figures = (0..resamples).filter_map(|_| statistic(&draw()));
    let mut figures: Vec<f64> = figures.filter(|figure| figure.is_finite()).collect();
    if figures.len() < resamples - resamples / 10 {
        return None;
    }
    figures.sort_by(f64::total_cmp);
    let tail = (1.0 - level) / 2.0;
    let at = |q| super::exact_quantile(&figures, super::Quantile::fraction(q)?);
    Some(LogInterval { low: at(tail)?, high: at(1.0 - tail)? })
}

#[cfg(test)]
mod tests {
    use rand_distr::{Distribution as _, StandardNormal};

    use super::*;

    /// The mean over sessions of their values.
    fn mean_interval(sizes: &[usize], values: &[f64]) -> Option<LogInterval> {
        interval_of(300, &[Clusters::new(sizes)], 0.95, |drawn| {
            let parts = values.iter().zip(&drawn[0]);
            let (sum, count) =
                parts.fold((0.0, 0), |(sum, n), (value, times)| (sum + value * f64::from(*times), n + times));
            (count > 0).then(|| sum / f64::from(count))
        })
    }

    #[test]
    fn groups_that_differ_make_the_interval_wide_however_many_sessions_they_have() {
        // Eight groups, whose means are 1..8, of 30 equal sessions each: to count sessions would give 2 · 2.29/√240 = ± 0.3.
        let values: Vec<f64> = (0..240).map(|session| f64::from(session / 30 + 1)).collect();
        let interval = mean_interval(&[30; 8], &values).unwrap();
        // Eight groups: 2 · 2.29/√8 = ± 1.6.
        assert!(interval.low < 3.2 && interval.high > 5.8, "{interval:?}");
    }

    #[test]
    fn equal_sessions_give_a_point_and_one_session_gives_nothing() {
        let interval = mean_interval(&[3, 3], &[2.0; 6]).unwrap();
        assert_eq!((interval.low, interval.high), (2.0, 2.0));
        assert_eq!(mean_interval(&[1], &[2.0]), None);
        assert_eq!(cluster_interval(&[], 0.95, |_| Some(1.0)), None);
        assert_eq!(cluster_interval(&[Clusters::new(&[4])], 0.95, |_| None), None);
    }

    #[test]
    fn every_resample_draws_as_many_sessions_as_equal_groups_have_and_the_same_each_time() {
        let clusters = Clusters::new(&[5, 0, 5, 5]);
        let draw = || clusters.draw(&mut ChaCha8Rng::seed_from_u64(1));
        assert_eq!(draw().iter().sum::<u32>(), 15);
        assert_eq!((draw().len(), draw()), (15, draw()));
    }

    /// 100 worlds of 20 groups with means of their own: nine intervals in ten at least hold the true mean. Percentile
    /// intervals of few clusters are known to be a little narrow.
    #[test]
    fn intervals_hold_the_truth_nearly_as_often_as_they_say() {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let worlds = (0..100).filter(|_| {
            let mut normal = || -> f64 { StandardNormal.sample(&mut random) };
            let mut values = vec![];
            for _ in 0..20 {
                let group = normal();
                values.extend((0..4).map(|_| group + 0.5 * normal()));
            }
            mean_interval(&[4; 20], &values).is_some_and(|interval| interval.low <= 0.0 && 0.0 <= interval.high)
        });
        let held = worlds.count();
        assert!((84..=100).contains(&held), "{held} of 100");
    }
}
