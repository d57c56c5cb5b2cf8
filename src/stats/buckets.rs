//! A histogram that someone else kept: counts between bounds, and a sum. It tells a mean, and between which bounds a quantile
//! lies; where in between it does not tell, and nothing here guesses.

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
}

impl Buckets {
    /// From ascending upper bounds with the samples at or below each; of an infinite bound, all. None where counts fall, or a
    /// bound is below 0.
    #[must_use]
    pub fn from_cumulative(cumulative: &[(f64, u64)], sum: Option<f64>) -> Option<Self> {
        let (mut from, mut below, mut buckets) = (0.0, 0, vec![]);
        for &(bound, all) in cumulative {
            let count = all.checked_sub(below)?;
            if bound.is_nan() || bound < from {
                return None;
            }
            if count > 0 {
                buckets.push(Bucket { from, to: Some(bound).filter(|to| to.is_finite()), count });
            }
            (from, below) = (bound, all);
        }
        Some(Self { buckets, sum })
    }

    /// From buckets that hold samples; none where two overlap.
    #[must_use]
    pub fn new(mut buckets: Vec<Bucket>, sum: Option<f64>) -> Option<Self> {
        buckets.retain(|bucket| bucket.count > 0);
        let end = |bucket: &Bucket| bucket.to.unwrap_or(f64::INFINITY);
        buckets.sort_by(|a, b| a.from.total_cmp(&b.from).then(end(a).total_cmp(&end(b))));
        buckets.windows(2).all(|pair| pair[0].is_below(&pair[1])).then_some(Self { buckets, sum })
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
        for before in &earlier.buckets {
            let same = buckets.iter_mut().find(|bucket| bucket.has_bounds_of(before))?;
            same.count = same.count.checked_sub(before.count)?;
        }
        let sum = match (self.sum, earlier.sum) {
            // Nothing yet is the sum of nothing, whatever an exporter writes for it.
            (sum, _) if earlier.buckets.is_empty() => sum,
            (Some(sum), Some(before)) if sum < before => return None,
            (sum, before) => sum.zip(before).map(|(sum, before)| sum - before),
        };
        buckets.retain(|bucket| bucket.count > 0);
        Some(Self { buckets, sum })
    }

    /// Both together; none where a bucket of one lies across one of the other, so that no count of it is known.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Option<Self> {
        let mut buckets = self.buckets.clone();
        for bucket in &other.buckets {
            match buckets.iter_mut().find(|own| own.has_bounds_of(bucket)) {
                Some(own) => own.count += bucket.count,
                None => buckets.push(*bucket),
            }
        }
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
