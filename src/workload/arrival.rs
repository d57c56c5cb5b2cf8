//! When sessions start in an open loop: absolute offsets, which nothing else in the plan can move.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution, Gamma};

use super::seed::derive;
use crate::profile::{Gaps, LoadSpec, Pacing};

/// Due after the end of all things, and yet a clock's time can be added to it.
const NEVER: Duration = Duration::from_secs(u64::MAX / 4);

/// Offsets from the start of the run, ascending, the first at 0; `None` in a closed loop.
///
/// Gaps have the mean 1 / rate. Each has a generator of its own, drawn at unit rate, so that a doubled rate halves every
/// offset and moves nothing else. With a ramp-up of T the rate grows linearly from 0 over T: the same arrivals in another
/// time, since by t < T a fraction t/2T of rate · t sessions are due instead of all.
pub(super) fn arrivals(seed: u64, load: &LoadSpec, sessions: usize) -> Option<Vec<Duration>> {
    let Pacing::Open { per_second, gaps, sessions: _ } = load.pacing else { return None };
    let gap: Box<dyn Fn(u64) -> f64> = match gaps {
        Gaps::Even => Box::new(|_| 1.0),
        Gaps::Gamma(shape) => {
            let gaps = Gamma::new(shape, 1.0 / shape).expect("a burstiness above 0, as checked");
            Box::new(move |at| gaps.sample(&mut ChaCha8Rng::seed_from_u64(derive(seed, "arrival", &[at]))))
        }
    };
    let ramp = load.ramp_up.as_secs_f64();
    let mut due = 0.0;
    let offsets = (0..sessions as u64).map(|at| {
        due += if at > 0 { gap(at) } else { 0.0 };
        Duration::try_from_secs_f64(ramped(due / per_second, ramp)).unwrap_or(NEVER).min(NEVER)
    });
    Some(offsets.collect())
}

/// When that which a full rate brings by `seconds` has come, if the rate grows linearly over the first `ramp` seconds.
fn ramped(seconds: f64, ramp: f64) -> f64 {
    if seconds < ramp / 2.0 { (2.0 * ramp * seconds).sqrt() } else { seconds + ramp / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::sample::spec;

    fn arrive(seed: u64, per_second: f64, gaps: Gaps, ramp_up: u64, sessions: usize) -> Vec<Duration> {
        let mut load = spec(1, 1, 1, 1, 1, 1).load;
        load.pacing = Pacing::Open { per_second, gaps, sessions: None };
        load.ramp_up = Duration::from_secs(ramp_up);
        arrivals(seed, &load, sessions).unwrap()
    }

    fn open(per_second: f64, burstiness: f64) -> Vec<Duration> {
        arrive(7, per_second, Gaps::Gamma(burstiness), 0, 2_000)
    }

    /// Mean gap and its coefficient of variation.
    fn spread(all: &[Duration]) -> (f64, f64) {
        let gaps: Vec<f64> = all.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let count = f64::from(u32::try_from(gaps.len()).unwrap());
        let mean = gaps.iter().sum::<f64>() / count;
        (mean, (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count).sqrt() / mean)
    }

    /// Row B64 of the traps.
    #[test]
    fn a_seed_gives_one_poisson_schedule_and_more_arrivals_move_no_earlier_one() {
        let poisson = |seed, sessions| arrive(seed, 5.0, Gaps::Gamma(1.0), 0, sessions);
        let all = poisson(7, 3_000);
        assert_eq!(all, poisson(7, 3_000), "to the nanosecond");
        assert_eq!(all[..1_000], poisson(7, 1_000));
        assert_ne!(all, poisson(8, 3_000));
        let (mean, variation) = spread(&all);
        assert!((mean - 0.2).abs() < 0.2 * 0.05 && (0.95..1.05).contains(&variation), "{mean} {variation}");
    }

    #[test]
    fn even_gaps_are_all_one_over_the_rate() {
        let all = arrive(7, 200.0, Gaps::Even, 0, 2_000);
        assert_eq!(
            (all[0], all[1], all[1_999]),
            (Duration::ZERO, Duration::from_millis(5), Duration::from_millis(9_995))
        );
    }

    #[test]
    fn a_ramp_lets_the_rate_grow_linearly_and_then_changes_nothing() {
        let all = arrive(7, 100.0, Gaps::Even, 10, 2_000);
        let by = |seconds: u64| all.partition_point(|due| *due < Duration::from_secs(seconds));
        // ∫ 100 t / 10 dt = 5 t²: 125 by 5 s, 500 by 10 s; 100 a second from then on.
        assert!(by(5).abs_diff(125) <= 1 && by(10).abs_diff(500) <= 1 && by(15).abs_diff(1_000) <= 1);
        assert!(all.is_sorted() && all[0].is_zero());
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
        let [bursty, poisson, even] = [0.25, 1.0, 8.0].map(|shape| spread(&open(5.0, shape)).1);
        // The coefficient of variation of a gamma gap is 1 / √shape: 2, 1 and .35.
        assert!((poisson - 1.0).abs() < 0.1 && bursty > 1.7 && even < 0.4, "{bursty} {poisson} {even}");
    }

    #[test]
    fn the_rate_only_scales() {
        for (slow, fast) in open(5.0, 1.0).iter().zip(open(10.0, 1.0)) {
            assert!((slow.as_secs_f64() - 2.0 * fast.as_secs_f64()).abs() < 1e-6);
        }
    }
}
