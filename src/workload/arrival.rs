//! When sessions start in an open loop: absolute offsets, which nothing else in the plan can move.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution, Gamma};

use super::seed::derive;
use crate::profile::Pacing;

/// Offsets from the start of the run, ascending, the first at 0; `None` in a closed loop.
///
/// Gaps are gamma distributed with mean 1 / rate and shape `burstiness`: 1 is a Poisson process, more is more even. Each
/// gap has a generator of its own, drawn at unit rate, so that a doubled rate halves every offset and moves nothing else.
pub(super) fn arrivals(seed: u64, pacing: Pacing, sessions: usize) -> Option<Vec<Duration>> {
    let Pacing::Open { per_second, burstiness, sessions: _ } = pacing else { return None };
    let gaps = Gamma::new(burstiness, 1.0 / burstiness).expect("a burstiness above 0, as checked");
    let mut due = 0.0;
    let offsets = (0..sessions as u64).map(|at| {
        if at > 0 {
            due += gaps.sample(&mut ChaCha8Rng::seed_from_u64(derive(seed, "arrival", &[at])));
        }
        Duration::try_from_secs_f64(due / per_second).unwrap_or(Duration::MAX)
    });
    Some(offsets.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(per_second: f64, burstiness: f64) -> Vec<Duration> {
        arrivals(7, Pacing::Open { per_second, burstiness, sessions: None }, 2_000).unwrap()
    }

    #[test]
    fn the_mean_gap_is_one_over_the_rate_whatever_the_burstiness() {
        for burstiness in [0.25, 1.0, 8.0] {
            let all = open(5.0, burstiness);
            let mean = all.last().unwrap().as_secs_f64() / 1_999.0;
            assert!((mean - 0.2).abs() < 0.2 * 0.15, "burstiness {burstiness}: mean gap {mean}");
            assert!(all.is_sorted() && all[0].is_zero());
        }
    }

    #[test]
    fn a_higher_burstiness_makes_gaps_more_even() {
        let spread = |all: Vec<Duration>| {
            let gaps: Vec<f64> = all.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
            gaps.iter().map(|gap| (gap - 0.2).powi(2)).sum::<f64>() / 1_999.0
        };
        let [bursty, poisson, even] = [0.25, 1.0, 8.0].map(|shape| spread(open(5.0, shape)));
        // The variance of a gamma gap is mean² / shape: .16, .04 and .005.
        assert!((poisson - 0.04).abs() < 0.01 && bursty > 0.1 && even < 0.008, "{bursty} {poisson} {even}");
    }

    #[test]
    fn the_rate_only_scales_and_more_sessions_move_no_arrival() {
        for (slow, fast) in open(5.0, 1.0).iter().zip(open(10.0, 1.0)) {
            assert!((slow.as_secs_f64() - 2.0 * fast.as_secs_f64()).abs() < 1e-6);
        }
        let pacing = Pacing::Open { per_second: 5.0, burstiness: 1.0, sessions: None };
        assert_eq!(arrivals(7, pacing, 10).unwrap(), open(5.0, 1.0)[..10]);
    }
}
