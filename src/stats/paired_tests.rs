//! What the verdicts do on synthetic series of blocks: their error, their power, and what order protects from.

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::ChaCha8Rng;
use rand_distr::{Distribution as _, StandardNormal};

use super::*;

const DRAWS: usize = 1_000;
const ROUNDS: usize = 6;
/// ± 2 %.
const THRESHOLD: f64 = 0.019_802_627_296_179_71;

/// Blocks of two arms whose logarithms are normal.
#[derive(Clone, Copy)]
struct Series {
    /// Of each block by itself: 0.01 is 1 %.
    noise: f64,
    /// Of both blocks of a round: its prompts, its placement of keys, its hour.
    shared: f64,
    /// From one block to the next.
    drift: f64,
    /// Of the second arm.
    effect: f64,
    order: Order,
    rounds: usize,
}

#[derive(Clone, Copy)]
enum Order {
    /// AB BA AB BA …
    Alternating,
    /// A A A … B B B …
    OneAfterTheOther,
}

impl Order {
    /// When the blocks of a round run.
    fn places(self, round: usize, rounds: usize) -> (usize, usize) {
        match self {
            Self::Alternating if round.is_multiple_of(2) => (2 * round, 2 * round + 1),
            Self::Alternating => (2 * round + 1, 2 * round),
            Self::OneAfterTheOther => (round, rounds + round),
        }
    }
}

impl Series {
    const QUIET: Self =
        Self { noise: 0.01, shared: 0.0, drift: 0.0, effect: 0.0, order: Order::Alternating, rounds: ROUNDS };

    fn logs(self, random: &mut ChaCha8Rng) -> Vec<f64> {
        let mut normal = |spread: f64| -> f64 {
            let z: f64 = StandardNormal.sample(random);
            spread * z
        };
        let rounds = (0..self.rounds).map(|round| {
            let (a, b) = self.order.places(round, self.rounds);
            let of_round = normal(self.shared);
            let at = |place: usize| of_round + self.drift * place as f64;
            let baseline = at(a) + normal(self.noise);
            at(b) + normal(self.noise) + self.effect - baseline
        });
        rounds.collect()
    }

    /// How often each standing comes out, in the order above, below, within, across; of a metric that is better lower, "above"
    /// is worse.
    fn standings(self, threshold: f64) -> [usize; 4] {
        let mut random = ChaCha8Rng::seed_from_u64(42);
        let mut counts = [0; 4];
        for _ in 0..DRAWS {
            let standing = t_interval(&self.logs(&mut random), 0.95).unwrap().standing(threshold);
            counts[standing as usize] += 1;
        }
        counts
    }
}

#[test]
fn an_arm_against_itself_is_called_better_or_worse_in_at_most_one_case_of_twenty() {
    for noise in [0.01, 0.02, 0.03] {
        for drift in [0.0, 0.005, 0.02] {
            let series = Series { noise, shared: 0.03, drift, ..Series::QUIET };
            let [above, below, ..] = series.standings(THRESHOLD);
            assert!(above + below <= DRAWS / 20, "noise {noise}, drift {drift}: {above} + {below}");
        }
    }
}

#[test]
fn five_per_cent_are_called_worse_in_nine_cases_of_ten_at_six_rounds() {
    let worse = Series { effect: 0.05_f64.ln_1p(), ..Series::QUIET };
    for (shared, drift) in [(0.0, 0.0), (0.03, 0.0), (0.03, 0.005)] {
        let [above, below, within, _] = Series { shared, drift, ..worse }.standings(THRESHOLD);
        assert!(above >= DRAWS * 9 / 10, "a round's own noise {shared}, drift {drift}: {above}");
        assert_eq!((below, within), (0, 0));
    }
}

#[test]
fn where_noise_hides_five_per_cent_the_verdict_is_unclear_and_the_smallest_effect_says_why() {
    for noise in [0.02, 0.03] {
        let series = Series { noise, effect: 0.05_f64.ln_1p(), ..Series::QUIET };
        let [_, below, within, _] = series.standings(THRESHOLD);
        assert_eq!((below, within), (0, 0), "never called better or the same");
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let mut effects: Vec<f64> =
            (0..DRAWS).map(|_| smallest_effect(&series.logs(&mut random), 0.95, THRESHOLD).unwrap()).collect();
        effects.sort_by(f64::total_cmp);
        assert!(effects[DRAWS / 2] > 0.055, "noise {noise}: {}", effects[DRAWS / 2]);
    }
}

#[test]
fn the_rounds_that_the_readme_asks_for_are_enough_and_half_of_them_are_not() {
    for (noise, threshold, rounds) in [
        (0.01, THRESHOLD, 5),
        (0.01, 0.0, 4),
        (0.02, THRESHOLD, 13),
        (0.03, THRESHOLD, 26),
        (0.02, 0.0, 6),
        (0.03, 0.0, 11),
    ] {
        let series = Series { noise, effect: 0.05_f64.ln_1p(), rounds, ..Series::QUIET };
        let [above, ..] = series.standings(threshold);
        assert!(above >= DRAWS * 9 / 10, "noise {noise}, threshold {threshold}, {rounds} rounds: {above}");
        let [above, ..] = Series { rounds: rounds.div_ceil(2), ..series }.standings(threshold);
        assert!(above < DRAWS * 9 / 10, "noise {noise}, threshold {threshold}, half of {rounds} rounds: {above}");
    }
}

#[test]
fn a_drift_is_no_difference_in_alternating_order_and_is_one_arm_after_the_other() {
    let drifting = Series { drift: 0.01, ..Series::QUIET };
    let [above, below, ..] = drifting.standings(THRESHOLD);
    assert!(above + below <= DRAWS / 100, "{above} + {below}");
    let [above, ..] = Series { order: Order::OneAfterTheOther, ..drifting }.standings(THRESHOLD);
    assert!(above >= DRAWS * 99 / 100, "{above}");
}

#[test]
fn the_smallest_effect_is_seen_about_four_times_in_five() {
    // The spread is estimated from each series, so this takes the effect that holds on average.
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let effects: Vec<f64> =
        (0..DRAWS).map(|_| smallest_effect(&Series::QUIET.logs(&mut random), 0.95, THRESHOLD).unwrap()).collect();
    let effect = mean(&effects).unwrap();
    let [above, ..] = Series { effect, ..Series::QUIET }.standings(THRESHOLD);
    assert!((DRAWS * 7 / 10..DRAWS * 9 / 10).contains(&above), "{above}");
}

#[test]
fn intervals_cover_the_truth_as_often_as_they_say() {
    for (level, rounds) in [(0.95, 3), (0.95, 6), (0.99375, 6), (0.8, 12)] {
        let mut random = ChaCha8Rng::seed_from_u64(11);
        let covered = (0..4 * DRAWS).filter(|_| {
            let logs: Vec<f64> = (0..rounds)
                .map(|_| {
                    let z: f64 = StandardNormal.sample(&mut random);
                    0.1 + 0.02 * z
                })
                .collect();
            let interval = t_interval(&logs, level).unwrap();
            interval.low <= 0.1 && 0.1 <= interval.high
        });
        let share = covered.count() as f64 / (4 * DRAWS) as f64;
        // Four standard errors of a share over 4,000 draws.
        let tolerance = 4.0 * (level * (1.0 - level) / (4 * DRAWS) as f64).sqrt();
        assert!((share - level).abs() < tolerance, "{level} of {rounds} rounds: {share}");
    }
}

#[test]
fn quantiles_are_those_of_the_printed_tables() {
    for (n, p, want) in [(6, 0.975, 2.570_582), (3, 0.975, 4.302_653), (2, 0.975, 12.706_205), (6, 0.8, 0.919_544)] {
        assert!((t_quantile(n, p).unwrap() - want).abs() < 1e-5, "{n} {p}");
    }
    assert_eq!((t_quantile(1, 0.975), t_quantile(0, 0.975)), (None, None));
}

#[test]
fn equal_ratios_have_an_interval_of_one_point_and_one_ratio_has_none() {
    let interval = t_interval(&[0.25; 4], 0.95).unwrap();
    assert_eq!((interval.low, interval.high), (0.25, 0.25));
    assert_eq!(
        (t_interval(&[0.25], 0.95), t_interval(&[], 0.95), smallest_effect(&[0.2], 0.95, 0.0)),
        (None, None, None)
    );
}

#[test]
fn six_rounds_of_one_sign_give_the_floor_and_five_can_never_reach_one_in_twenty() {
    assert_eq!(sign_flip_p(&[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]), Some(sign_flip_floor(6)));
    assert_eq!((sign_flip_floor(6), sign_flip_floor(5)), (0.031_25, 0.0625));
    // By hand, of ± 1 ± 2 ± 4: |sum| ≥ 5 for 1 + 2 + 4 and −1 + 2 + 4, and their mirrors: 4 of 8.
    assert_eq!(sign_flip_p(&[-1.0, 2.0, 4.0]), Some(0.5));
    assert_eq!((sign_flip_p(&[0.0; 4]), sign_flip_p(&[]), sign_flip_p(&[1.0; 21])), (Some(1.0), None, None));
}

#[test]
fn a_standing_needs_the_whole_interval() {
    let standing = |low, high| LogInterval { low, high }.standing(0.02);
    assert_eq!(standing(0.021, 0.5), Standing::Above);
    assert_eq!(standing(0.019, 0.5), Standing::Across);
    assert_eq!(standing(-0.02, 0.02), Standing::Within);
    assert_eq!(standing(-0.021, 0.0), Standing::Across);
    assert_eq!(standing(-0.5, -0.021), Standing::Below);
    assert_eq!(standing(-0.5, 0.5), Standing::Across);
}

/// Every pattern by itself, as the definition has it.
fn by_definition(logs: &[f64]) -> f64 {
    let sum = |mask: u32| -> f64 {
        let signed = logs.iter().enumerate().map(|(at, log)| if mask >> at & 1 == 1 { -log } else { *log });
        signed.sum::<f64>().abs()
    };
    let total = 1_u32 << logs.len();
    let extreme = (0..total).filter(|mask| sum(*mask) >= sum(0) - 1e-9).count();
    extreme as f64 / f64::from(total)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_sign_flip_test_is_its_definition(logs in prop::collection::vec((-100..100_i32).prop_map(|n| f64::from(n) / 64.0), 1..9)) {
        let p = sign_flip_p(&logs).unwrap();
        prop_assert_eq!(p, by_definition(&logs));
        prop_assert!(p >= sign_flip_floor(logs.len()) || logs.len() == 1);
    }

    #[test]
    fn swapping_the_arms_mirrors_every_answer(
        logs in prop::collection::vec(-0.2..0.2_f64, 3..9), threshold in 0.0..0.1_f64, level in 0.5..0.999_f64,
    ) {
        let swapped: Vec<f64> = logs.iter().map(|log| -log).collect();
        let (a, b) = (t_interval(&logs, level).unwrap(), t_interval(&swapped, level).unwrap());
        prop_assert!((a.low + b.high).abs() < 1e-12 && (a.high + b.low).abs() < 1e-12);
        let mirror = match a.standing(threshold) {
            Standing::Above => Standing::Below,
            Standing::Below => Standing::Above,
            same => same,
        };
        prop_assert_eq!(b.standing(threshold), mirror);
        prop_assert_eq!(sign_flip_p(&logs), sign_flip_p(&swapped));
    }

    #[test]
    fn a_higher_level_never_makes_an_interval_narrower(
        logs in prop::collection::vec(-0.2..0.2_f64, 2..9), a in 0.5..0.99_f64, more in 0.0..0.009_f64,
    ) {
        let (narrow, wide) = (t_interval(&logs, a).unwrap(), t_interval(&logs, a + more).unwrap());
        prop_assert!(wide.low <= narrow.low + 1e-12 && wide.high >= narrow.high - 1e-12);
    }
}
