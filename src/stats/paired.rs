//! Paired log ratios of a few rounds: their mean, how sure it is, and what so few rounds could see.
//!
//! A round's ratio is one observation. Requests inside it share caches, batches and queues, and are none.

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use super::mean;

/// Power at which the smallest effect is stated: four times in five.
const POWER: f64 = 0.8;
/// Most rounds whose signs are all tried: 2²⁰ sums take milliseconds.
const MOST_ROUNDS: usize = 20;

/// An interval on a mean of logarithms.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogInterval {
    pub low: f64,
    pub high: f64,
}

/// Where a whole interval lies, seen from ± a threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Above,
    Below,
    /// Inside: as good as equal.
    Within,
    /// Across a threshold: the data do not say.
    Across,
}

impl LogInterval {
    /// The whole interval against ± `threshold`, all three as logarithms.
    #[must_use]
    pub fn standing(self, threshold: f64) -> Standing {
        match self {
            Self { low, .. } if low > threshold => Standing::Above,
            Self { high, .. } if high < -threshold => Standing::Below,
            Self { low, high } if low >= -threshold && high <= threshold => Standing::Within,
            _ => Standing::Across,
        }
    }

    /// The largest effect, up or down, that lies in the interval.
    #[must_use]
    pub fn reach(self) -> f64 {
        self.low.abs().max(self.high.abs())
    }
}

/// The two-sided interval at `level` (such as 0.95) on the mean of `logs`: x̄ ± t(1 − (1 − level)/2; n − 1) · s/√n
/// (Student 1908, "The Probable Error of a Mean"). None below two values.
///
/// Its level holds for independent, normal values; pairing inside a round takes out what a round has in common, and an order
/// that alternates keeps a linear drift out of the mean and leaves it in the spread.
#[must_use]
pub fn t_interval(logs: &[f64], level: f64) -> Option<LogInterval> {
    let (centre, error) = (mean(logs)?, standard_error(logs)?);
    let half = t_quantile(logs.len(), upper(level))? * error;
    Some(LogInterval { low: centre - half, high: centre + half })
}

/// The smallest true effect, as a logarithm, whose interval would lie beyond `threshold` four times in five:
/// threshold + (t(1 − (1 − level)/2) + t(0.8)) · s/√n, the "minimum detectable effect" of Bloom 1995 (Evaluation Review 19)
/// behind a margin. It rests on the spread of these very rounds. None below two values.
#[must_use]
pub fn smallest_effect(logs: &[f64], level: f64, threshold: f64) -> Option<f64> {
    let t = |p| t_quantile(logs.len(), p);
    Some(threshold + (t(upper(level))? + t(POWER)?) * standard_error(logs)?)
}

/// The exact two-sided sign-flip test (Fisher 1935, "The Design of Experiments", §21): the share of all 2ⁿ sign patterns whose
/// sum is at least as far from 0 as the observed one. It assumes no shape, only that swapping the arms of a round would be as
/// likely. None of nothing, and none above 20 rounds, where the interval says enough.
#[must_use]
pub fn sign_flip_p(logs: &[f64]) -> Option<f64> {
    if logs.is_empty() || logs.len() > MOST_ROUNDS {
        return None;
    }
    let size: f64 = logs.iter().map(|log| log.abs()).sum();
    // Sums of the same values in another order differ by rounding.
    let observed = logs.iter().sum::<f64>().abs() - size * 1e-12;
    let total = 1_u32 << logs.len();
    // A Gray code flips one sign a step.
    let mut signs = vec![1.0; logs.len()];
    let mut sum = logs.iter().sum::<f64>();
    let mut extreme = 0_u32;
    for step in 1..=total {
        extreme += u32::from(sum.abs() >= observed);
        let flip = step.trailing_zeros() as usize;
        if let (Some(sign), Some(log)) = (signs.get_mut(flip), logs.get(flip)) {
            *sign = -*sign;
            sum += 2.0 * *sign * log;
        }
    }
    Some(f64::from(extreme) / f64::from(total))
}

/// The smallest p that `rounds` can give: 2 / 2ⁿ, of the observed signs and their mirror.
#[must_use]
pub fn sign_flip_floor(rounds: usize) -> f64 {
    i32::try_from(rounds).map_or(0.0, |rounds| 2.0 / 2.0_f64.powi(rounds))
}

/// s/√n with n − 1 in s; none below two values.
#[expect(clippy::cast_precision_loss, reason = "rounds are few")]
fn standard_error(values: &[f64]) -> Option<f64> {
    let (centre, n) = (mean(values)?, values.len() as f64);
    let squares: f64 = values.iter().map(|value| (value - centre).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt())
}

/// Of Student's distribution with n − 1 degrees of freedom.
#[expect(clippy::cast_precision_loss, reason = "rounds are few")]
fn t_quantile(n: usize, p: f64) -> Option<f64> {
    let freedom = n.checked_sub(1).filter(|freedom| *freedom > 0)? as f64;
    Some(StudentsT::new(0.0, 1.0, freedom).ok()?.inverse_cdf(p))
}

/// The upper quantile of a two-sided level.
fn upper(level: f64) -> f64 {
    1.0 - (1.0 - level) / 2.0
}

#[cfg(test)]
#[path = "paired_tests.rs"]
mod tests;
