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
    mut statistic: impl FnMut(&[Vec<u32>]) -> Option<f64>,
) -> Option<LogInterval> {
    if runs.is_empty() || runs.iter().any(|clusters| clusters.sessions < 2) {
        return None;
    }
    let mut random = ChaCha8Rng::seed_from_u64(0x6773_7062);
    let mut draw = || runs.iter().map(|clusters| clusters.draw(&mut random)).collect::<Vec<_>>();
    let figures = (0..RESAMPLES).filter_map(|_| statistic(&draw()));
    let mut figures: Vec<f64> = figures.filter(|figure| figure.is_finite()).collect();
    if figures.len() < RESAMPLES - RESAMPLES / 10 {
        return None;
    }
    figures.sort_by(f64::total_cmp);
    let tail = (1.0 - level) / 2.0;
    let at = |q| super::exact_quantile(&figures, super::Quantile::fraction(q)?);
    Some(LogInterval { low: at(tail)?, high: at(1.0 - tail)? })
}
