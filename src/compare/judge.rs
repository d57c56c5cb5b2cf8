//! From the ratios of rounds to intervals and verdicts.
//!
//! The block is the unit: a round gives one ratio, and three rounds or more give an interval by how these differ. One primary
//! metric is declared beforehand and has a 95 % interval; the m other judged ones share an error of 5 % between them, 1 − 0.05/m
//! each (Bonferroni). All other metrics have the interval of the latter and no verdict. Levels hold for one arm against the
//! baseline, not for all arms together.

use super::settings::Settings;
use super::shape::{Basis, Contrast, Interval, MetricRow, SignFlip, Unjudged, Verdict};
use super::within::WithinRuns;
use crate::report::Better;
use crate::stats::{self, LogInterval, Standing, rounded};

/// Error that is shared: the level of one interval is 1 − this / how many share it.
const ERROR: f64 = 0.05;
/// Fewer have no spread worth the name.
pub(super) const LEAST_ROUNDS: usize = 3;

/// One arm after the baseline, as far as its contrasts share a fate.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fate {
    pub control: bool,
    /// The arms ran the same work, or the reader wants to know all the same.
    pub comparable: bool,
}

/// Gives the contrasts at `at` their intervals and verdicts. `runs` is asked only when the rounds are too few.
pub(super) fn judge(rows: &mut [MetricRow], at: usize, fate: Fate, settings: &Settings, runs: &WithinRuns) {
    let can_be_judged = |row: &MetricRow| obstacle(row, at, fate).is_none();
    let others = rows.iter().filter(|row| row.key != settings.primary && can_be_judged(row)).count().max(1);
    for row in rows {
        let is_primary = row.key == settings.primary;
        let level = 1.0 - if is_primary { ERROR } else { share(others) };
        let obstacle = obstacle(row, at, fate);
        let logs = logs(&row.contrasts[at]);
        let found = match obstacle {
            Some(Unjudged::NotComparable | Unjudged::NotMeasured) => None,
            _ => interval(row, &logs, level, runs),
        };
        let threshold = settings.threshold.ln_1p();
        let contrast = &mut row.contrasts[at];
        contrast.interval = found.map(|(interval, basis)| ratios(interval, level, basis));
        contrast.unjudged = obstacle.or(found.is_none().then_some(Unjudged::FewRounds));
        if let (Some((interval, _)), None) = (found, obstacle) {
            contrast.verdict = Some(verdict(interval.standing(threshold), row.better));
        }
        if logs.len() >= LEAST_ROUNDS && contrast.interval.is_some() {
            let effect = stats::smallest_effect(&logs, level, threshold);
            contrast.smallest_effect = effect.map(|log| rounded(log.exp_m1()));
            contrast.sign_flip = stats::sign_flip_p(&logs)
                .filter(|_| is_primary)
                .map(|p| SignFlip { p: rounded(p), floor: stats::sign_flip_floor(logs.len()) });
        }
    }
}

/// The part of the error that each of `m` has.
#[expect(clippy::cast_precision_loss, reason = "metrics are few")]
fn share(m: usize) -> f64 {
    ERROR / m as f64
}

/// What keeps a contrast from a verdict, whatever its interval.
fn obstacle(row: &MetricRow, at: usize, fate: Fate) -> Option<Unjudged> {
    let is_thin = || [0, at + 1].iter().any(|arm| row.arms[*arm].samples < row.least_samples);
    if !fate.comparable {
        Some(Unjudged::NotComparable)
    } else if logs(&row.contrasts[at]).is_empty() {
        Some(Unjudged::NotMeasured)
    } else if fate.control {
        Some(Unjudged::Control)
    } else if !row.judged {
        Some(Unjudged::Descriptive)
    } else {
        is_thin().then_some(Unjudged::FewSamples)
    }
}

/// Empty where a ratio has no logarithm, as that of a hit rate of 0.
fn logs(contrast: &Contrast) -> Vec<f64> {
    let known = contrast.ratios.iter().filter_map(|round| round.ratio);
    known.map(|ratio| (ratio > 0.0).then(|| ratio.ln())).collect::<Option<_>>().unwrap_or_default()
}

fn interval(row: &MetricRow, logs: &[f64], level: f64, runs: &WithinRuns) -> Option<(LogInterval, Basis)> {
    if logs.len() >= LEAST_ROUNDS {
        return Some((stats::t_interval(logs, level)?, Basis::Rounds));
    }
    let inside = row.judged.then(|| runs.interval(&row.key, level)).flatten()?;
    Some((inside, Basis::WithinOneRun))
}

fn ratios(interval: LogInterval, level: f64, basis: Basis) -> Interval {
    let LogInterval { low, high } = interval;
    Interval { low: rounded(low.exp()), high: rounded(high.exp()), level: rounded(level), basis }
}

fn verdict(standing: Standing, better: Better) -> Verdict {
    match (standing, better) {
        (Standing::Within, _) => Verdict::Same,
        (Standing::Across, _) => Verdict::Unclear,
        (Standing::Above, Better::Higher) | (Standing::Below, Better::Lower) => Verdict::Better,
        (Standing::Above, Better::Lower) | (Standing::Below, Better::Higher) => Verdict::Worse,
    }
}

impl Contrast {
    /// Of an unclear contrast whose whole interval lies on one side of no change: whether the arm is above the baseline. There is
    /// a difference then, but perhaps one below the threshold.
    #[must_use]
    pub fn leans_up(&self) -> Option<bool> {
        let Interval { low, high, .. } = self.interval.filter(|_| self.verdict == Some(Verdict::Unclear))?;
        (low > 1.0 || high < 1.0).then_some(low > 1.0)
    }

    /// The largest change, as a share, inside the interval. Of an arm against itself it is the noise floor of the setup: what
    /// such rounds cannot tell from none. None without an interval over rounds: one within a run knows nothing of how runs
    /// differ.
    #[must_use]
    pub fn noise_floor(&self) -> Option<f64> {
        let interval = self.interval.filter(|interval| interval.basis == Basis::Rounds)?;
        let logs = LogInterval { low: interval.low.ln(), high: interval.high.ln() };
        Some(rounded(logs.reach().exp_m1()))
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
