//! Quantiles in which failures count.

use super::{Distribution, Quantile};

/// The quantile, in µs, of the samples and of `failures` more that took for ever (nearest rank over both): +∞ where it falls
/// on a failure, none of nothing.
///
/// A failed turn has no latency, and leaving it out flatters the rest: the p99 of a server that answers 980 turns of 1,000
/// fast and 20 never is no fast one. It is the quantile of right-censored values, all of which lie beyond every measured one.
#[must_use]
pub fn quantile_with_failures(samples: &Distribution, failures: u64, q: Quantile) -> Option<f64> {
    let rank = q.rank_of(samples.count() + failures)?;
    if rank >= samples.count() {
        return Some(f64::INFINITY);
    }
    samples.quantile(Quantile::of_rank(rank, samples.count())?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> Distribution {
        let mut whole = Distribution::default();
        values.iter().for_each(|us| whole.record(*us, 1));
        whole
    }

    #[test]
    fn two_failures_in_a_hundred_take_the_99th_percentile_and_leave_the_95th() {
        let fast = of(&[10; 98]);
        assert_eq!(quantile_with_failures(&fast, 2, Quantile::P99), Some(f64::INFINITY));
        assert_eq!(quantile_with_failures(&fast, 2, Quantile::P95), Some(10.0));
        assert_eq!(quantile_with_failures(&of(&[10; 99]), 1, Quantile::P99), Some(10.0));
        assert_eq!(quantile_with_failures(&of(&[]), 1, Quantile::P50), Some(f64::INFINITY));
        assert_eq!(quantile_with_failures(&of(&[]), 0, Quantile::P50), None);
    }

    /// Among `values` in ascending order, and failures after them.
    fn assert_nearest_rank(values: &[u64], failures: u64, q: f64) {
        let q = Quantile::fraction(q).unwrap();
        let failed = (0..failures).map(|_| f64::INFINITY);
        let all: Vec<f64> = values.iter().map(|us| *us as f64).chain(failed).collect();
        let want = crate::stats::exact_quantile(&all, q);
        let seen = quantile_with_failures(&of(values), failures, q);
        match (seen, want) {
            (Some(seen), Some(want)) if want.is_finite() => assert!((seen - want).abs() <= want / 1000.0 + 0.5),
            _ => assert_eq!(seen, want),
        }
    }

    /// A case that the property once failed on.
    #[test]
    fn it_is_the_nearest_rank_where_many_values_are_zero() {
        let mut values = [
            0, 0, 0, 0, 0, 0, 0, 0, 0, 47631, 1978616, 1501055, 1447050, 452087, 194752, 1066025, 1181523, 720794,
            1652359, 79500, 1112357, 1867096, 173474, 1354367, 120913, 1111284, 1973052, 1078143, 624342, 555784,
            1927998, 879869, 305510, 1124296, 832244,
        ];
        values.sort_unstable();
        assert_nearest_rank(&values, 6, 0.697_765_960_621_501_9);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn it_is_the_nearest_rank_among_all_with_failures_last(
            mut values in prop::collection::vec(0..2_000_000_u64, 0..60),
            failures in 0..30_u64,
            q in 0.0..=1.0_f64,
        ) {
            values.sort_unstable();
            assert_nearest_rank(&values, failures, q);
        }
    }
}
