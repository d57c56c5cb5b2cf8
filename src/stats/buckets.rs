//! A histogram that someone else kept: counts between bounds, and a sum. It tells a mean, and between which bounds a quantile
//! lies; where in between it does not tell, and nothing here guesses.

use std::cmp::Ordering;

use super::Quantile;

/// Samples that are not negative, by the bounds between which they lie. Only bounds with samples are held.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Buckets {
    /// Ascending, and none overlaps another.
    buckets: Vec<Bucket>,
    /// None where it is not known.
    sum: Option<f64>,
}

/// The samples above `from` and at or below `to`; without a `to`, all above `from`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    pub from: f64,
    pub to: Option<f64>,
    pub count: u64,
}

impl Bucket {
    fn is_below(&self, other: &Self) -> bool {
        self.to.is_some_and(|to| to <= other.from)
    }

    fn has_bounds_of(&self, other: &Self) -> bool {
        self.from == other.from && self.to == other.to
    }

    fn order(&self, other: &Self) -> Ordering {
        let end = |bucket: &Self| bucket.to.unwrap_or(f64::INFINITY);
        self.from.total_cmp(&other.from).then(end(self).total_cmp(&end(other)))
    }
}

impl Buckets {
    /// From ascending upper bounds with the samples at or below each; of an infinite bound, all. None where counts fall, or a
    /// bound is below 0 or that of the bucket before.
    #[must_use]
    pub fn from_cumulative(cumulative: &[(f64, u64)], sum: Option<f64>) -> Option<Self> {
        let (mut from, mut below, mut buckets) = (0.0, 0, vec![]);
        for (at, &(bound, all)) in cumulative.iter().enumerate() {
            let count = all.checked_sub(below)?;
            if bound.is_nan() || bound < from || (bound == from && at > 0) {
                return None;
            }
            if count > 0 {
                buckets.push(Bucket { from, to: Some(bound).filter(|to| to.is_finite()), count });
            }
            (from, below) = (bound, all);
        }
        Some(Self::with(buckets, sum))
    }

    /// From buckets that hold samples, those of equal bounds together; none where two overlap, or nobody can count so many.
    #[must_use]
    pub fn new(mut buckets: Vec<Bucket>, sum: Option<f64>) -> Option<Self> {
        buckets.retain(|bucket| bucket.count > 0);
        buckets.sort_by(Bucket::order);
        let mut apart: Vec<Bucket> = Vec::with_capacity(buckets.len());
        let mut all = 0_u64;
        for bucket in buckets {
            all = all.checked_add(bucket.count)?;
            match apart.last_mut() {
                Some(last) if last.has_bounds_of(&bucket) => last.count += bucket.count,
                Some(last) if !last.is_below(&bucket) => return None,
                _ => apart.push(bucket),
            }
        }
        Some(Self::with(apart, sum))
    }

    /// A sum of which the mean lies outside of the buckets is not theirs: nobody knows what it sums up.
    fn with(buckets: Vec<Bucket>, sum: Option<f64>) -> Self {
        let mut whole = Self { buckets, sum };
        if whole.mean().is_some_and(|mean| !whole.can_have(mean)) {
            whole.sum = None;
        }
        whole
    }

    /// Bounds and sums are rounded on their way, and a difference of sums has the rounding of both.
    fn can_have(&self, mean: f64) -> bool {
        const ROUNDING: f64 = 1e-6;
        let least = self.buckets.first().map_or(0.0, |bucket| bucket.from);
        let most = self.buckets.last().and_then(|bucket| bucket.to).unwrap_or(f64::MAX);
        mean >= least - ROUNDING * least.max(1.0) && mean <= most + ROUNDING * most.max(1.0)
    }

    /// Those that hold samples, ascending.
    #[must_use]
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.count).sum()
    }

    /// Of all samples; none where it is not known.
    #[must_use]
    pub fn sum(&self) -> Option<f64> {
        self.sum
    }

    /// None of nothing.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
    pub fn mean(&self) -> Option<f64> {
        let count = self.count();
        self.sum.filter(|_| count > 0).map(|sum| sum / count as f64)
    }

    /// The bucket that holds a quantile (nearest rank); none of nothing.
    #[must_use]
    pub fn holding(&self, q: Quantile) -> Option<Bucket> {
        let rank = q.rank_of(self.count())?;
        let mut below = 0;
        self.buckets.iter().copied().find(|bucket| {
            below += bucket.count;
            rank < below
        })
    }

    /// What came since an earlier look at the same histogram; none where a bucket or the sum fell, for then it has started
    /// again, and where bounds are not those of before.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        let mut buckets = self.buckets.clone();
        // Both ascend.
        let mut later = buckets.iter_mut();
        for before in &earlier.buckets {
            let same = later.find(|bucket| bucket.has_bounds_of(before))?;
            same.count = same.count.checked_sub(before.count)?;
        }
        let sum = match (self.sum, earlier.sum) {
            // Nothing yet is the sum of nothing, whatever an exporter writes for it.
            (sum, _) if earlier.buckets.is_empty() => sum,
            (Some(sum), Some(before)) if sum < before => return None,
            (sum, before) => sum.zip(before).map(|(sum, before)| sum - before),
        };
        buckets.retain(|bucket| bucket.count > 0);
        Some(Self::with(buckets, sum))
    }

    /// Both together; none where a bucket of one lies across one of the other, so that no count of it is known.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Option<Self> {
        let buckets = self.buckets.iter().chain(&other.buckets).copied().collect();
        Self::new(buckets, self.sum.zip(other.sum).map(|(a, b)| a + b))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOUNDS: [f64; 5] = [0.0, 0.5, 1.0, 4.0, 16.0];

    /// A histogram of these samples.
    fn of(samples: &[u32]) -> Buckets {
        with(&BOUNDS, samples)
    }

    fn with(bounds: &[f64], samples: &[u32]) -> Buckets {
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        let at_or_below =
            |bound: f64| samples.iter().filter(|sample| f64::from(**sample) / 8.0 <= bound).count() as u64;
        let cumulative: Vec<_> = bounds.map(|bound| (bound, at_or_below(bound))).collect();
        let sum: f64 = samples.iter().map(|sample| f64::from(*sample) / 8.0).sum();
        Buckets::from_cumulative(&cumulative, Some(sum)).unwrap()
    }

    #[test]
    fn a_quantile_is_told_as_the_bounds_between_which_it_lies() {
        let ten = Buckets::from_cumulative(&[(0.1, 4), (0.5, 9), (f64::INFINITY, 10)], Some(3.5)).unwrap();
        assert_eq!((ten.count(), ten.sum(), ten.mean()), (10, Some(3.5), Some(0.35)));
        assert_eq!(ten.holding(Quantile::P50), Some(Bucket { from: 0.1, to: Some(0.5), count: 5 }));
        assert_eq!(ten.holding(Quantile::P99), Some(Bucket { from: 0.5, to: None, count: 1 }));
        assert_eq!(ten.holding(Quantile::fraction(0.4).unwrap()), Some(Bucket { from: 0.0, to: Some(0.1), count: 4 }));
        let none = Buckets::default();
        assert_eq!((none.count(), none.mean(), none.holding(Quantile::P50)), (0, None, None));
    }

    #[test]
    fn what_fell_or_has_other_bounds_has_no_difference() {
        let before = of(&[1, 20, 100]);
        let restarted = |bounds: &[f64], samples: &[u32]| with(bounds, samples).since(&before);
        assert_eq!(restarted(&BOUNDS, &[1, 20]), None);
        assert_eq!(restarted(&BOUNDS, &[20, 20, 100, 100]), None, "in all it rose");
        assert_eq!(restarted(&[0.5, 2.0, 3.0, 16.0], &[1, 1, 20, 20, 100, 100]), None);
        let sum = |sum| Buckets::from_cumulative(&[(1.0, 2), (f64::INFINITY, 2)], sum).unwrap();
        assert_eq!(sum(Some(1.0)).since(&sum(Some(1.5))), None);
        let unsaid = sum(Some(1.0)).since(&sum(None)).unwrap();
        assert_eq!((unsaid.count(), unsaid.sum()), (0, None));
        assert_eq!(sum(Some(1.0)).since(&Buckets::default()).unwrap().sum(), Some(1.0));
    }

    #[test]
    fn buckets_that_lie_across_each_other_do_not_merge() {
        let (coarse, fine) = (with(&[4.0], &[20]), with(&[2.0, 4.0], &[20]));
        assert_eq!(coarse.merged(&fine), None);
        // Where no bucket lies across another, no count is in doubt.
        assert_eq!(with(&[4.0], &[100]).merged(&with(&[2.0, 4.0], &[1])).unwrap().count(), 2);
        assert_eq!(Buckets::from_cumulative(&[(1.0, 2), (2.0, 1)], None), None);
        assert_eq!(Buckets::from_cumulative(&[(-1.0, 2), (2.0, 3)], None), None);
    }

    #[test]
    fn bounds_and_counts_that_no_number_holds_are_no_histogram() {
        const INF: f64 = f64::INFINITY;
        let read = |cumulative: &[(f64, u64)]| Buckets::from_cumulative(cumulative, None);
        assert_eq!(read(&[(0.1, 2), (INF, 5), (INF, 7)]), None, "a finite bound that overflowed on its way");
        assert_eq!(read(&[(0.1, 2), (0.1, 5), (INF, 7)]), None);
        assert_eq!(read(&[(f64::NAN, 2), (INF, 5)]), None);
        let most = read(&[(1.0, u64::MAX), (INF, u64::MAX)]).unwrap();
        assert_eq!(most.merged(&read(&[(1.0, 1), (INF, 1)]).unwrap()), None);
        assert_eq!(most.merged(&read(&[(1.0, 0), (INF, 1)]).unwrap()), None);
    }

    #[test]
    fn a_sum_that_these_samples_cannot_have_is_not_known() {
        let sum = |sum| Buckets::from_cumulative(&[(0.1, 0), (0.5, 9), (f64::INFINITY, 9)], Some(sum)).unwrap().sum();
        assert_eq!([-5.0, 0.0, 0.8, 4.6, 500.0, 1e300, f64::INFINITY, f64::NAN].map(sum), [None; 8]);
        assert_eq!([0.9, 2.7, 4.5].map(sum), [0.9, 2.7, 4.5].map(Some));
        // What was there before the first sample is none of these samples'.
        let before = Buckets::from_cumulative(&[(f64::INFINITY, 0)], Some(500.0)).unwrap();
        let after = Buckets::from_cumulative(&[(0.5, 9), (f64::INFINITY, 9)], Some(502.0)).unwrap();
        assert_eq!(after.since(&before).unwrap().mean(), None);
    }

    fn samples() -> impl Strategy<Value = Vec<u32>> {
        proptest::collection::vec(0_u32..200, 0..40)
    }

    proptest! {
        #[test]
        fn the_difference_of_two_looks_is_what_came_between(before in samples(), more in samples()) {
            let after = of(&[&before[..], &more].concat());
            prop_assert_eq!(after.since(&of(&before)), Some(of(&more)));
            let nothing = after.since(&after).unwrap();
            prop_assert_eq!((nothing.buckets(), nothing.mean(), nothing.holding(Quantile::P50)), (&[][..], None, None));
        }

        #[test]
        fn merging_is_counting_together_in_any_order(a in samples(), b in samples()) {
            let both = of(&a).merged(&of(&b));
            prop_assert_eq!(&both, &of(&b).merged(&of(&a)));
            prop_assert_eq!(both, Some(of(&[&a[..], &b].concat())));
        }

        #[test]
        fn the_mean_lies_within_the_bounds_and_a_quantile_within_its_bucket(
            raw in proptest::collection::vec(0_u32..200, 1..40), q in 0.0_f64..=1.0,
        ) {
            let (buckets, q) = (of(&raw), Quantile::fraction(q).unwrap());
            let (mean, all) = (buckets.mean().unwrap(), buckets.buckets());
            let top = all[all.len() - 1].to.unwrap_or(f64::INFINITY);
            prop_assert!(all[0].from <= mean && mean <= top, "{mean} {all:?}");
            let mut sorted: Vec<f64> = raw.iter().map(|sample| f64::from(*sample) / 8.0).collect();
            sorted.sort_by(f64::total_cmp);
            let (exact, held) = (super::super::exact_quantile(&sorted, q).unwrap(), buckets.holding(q).unwrap());
            prop_assert!(held.from <= exact && held.to.is_none_or(|to| exact <= to), "{exact} {held:?}");
        }
    }
}
