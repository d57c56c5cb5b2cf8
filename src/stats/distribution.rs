//! A mergeable distribution of durations: an HDR histogram for quantiles, exact integers for the rest.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

/// Highest value that the histogram resolves, in µs: one hour. Larger ones are counted, and answered by the maximum.
const HIGHEST_US: u64 = 3_600_000_000;
/// Significant decimal digits of the histogram: buckets are at most 0.1 % wide.
const DIGITS: u8 = 3;

/// Durations in microseconds. `PartialEq` is exact: equal samples in any order and grouping give equal distributions.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    histogram: Histogram<u64>,
    count: u64,
    /// Samples above [`HIGHEST_US`]; they stand in the last bucket of the histogram.
    above: u64,
    /// Nanoseconds, since an interval shared by several tokens is no whole number of microseconds.
    sum_ns: u128,
    squares_ns2: u128,
    min_ns: u64,
    max_ns: u64,
}

/// A quantile as a fraction. A type of its own because 0.5 and 50 are both plausible, and one of them silently gives the
/// maximum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantile(f64);

/// What is said of a distribution, all in one unit. `std` is that of the population, as bench_serving prints it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub count: u64,
    pub mean: f64,
    pub std: f64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// A text that is no encoded histogram.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("not base64: {0}")]
    Base64(#[from] base64::DecodeError),
    #[error("not an HDR histogram in V2 deflate format: {0}")]
    Hdr(String),
}

impl Quantile {
    pub const P50: Self = Self(0.50);
    pub const P90: Self = Self(0.90);
    pub const P95: Self = Self(0.95);
    pub const P99: Self = Self(0.99);

    /// A fraction in 0…1; none for anything else.
    #[must_use]
    pub fn fraction(q: f64) -> Option<Self> {
        (0.0..=1.0).contains(&q).then_some(Self(q))
    }

    /// The quantile whose nearest rank among `count` values is `rank`, from 0; none when there are not so many. It lies half a
    /// rank below, where no rounding reaches a neighbour.
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
    pub(super) fn of_rank(rank: u64, count: u64) -> Option<Self> {
        (rank < count).then(|| Self((rank as f64 + 0.5) / count as f64))
    }

    /// The index, from 0, of this quantile among `count` ascending values (nearest rank); none of nothing.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts stay below 2^53, and a fraction of a count is a count"
    )]
    pub fn rank_of(self, count: u64) -> Option<u64> {
        // 0.07 × 100 is 7.000000000000001: without the nudge the rank would be one too high.
        let rank = (self.0 * count as f64 - 1e-9).ceil() as u64;
        (count > 0).then(|| rank.clamp(1, count) - 1)
    }
}

impl Default for Distribution {
    fn default() -> Self {
        Self {
            // Grows with its greatest sample: a report has dozens, and most hold milliseconds or nothing.
            histogram: Histogram::new(DIGITS).expect("constant digits are valid"),
            count: 0,
            above: 0,
            sum_ns: 0,
            squares_ns2: 0,
            min_ns: u64::MAX,
            max_ns: 0,
        }
    }
}

impl Distribution {
    /// Adds `n` samples of `us` microseconds each; 0 is a value like any other.
    pub fn record(&mut self, us: u64, n: u64) {
        self.record_nanos(us.saturating_mul(1000), n);
    }

    /// Adds `n` samples of `ns` nanoseconds each.
    pub fn record_nanos(&mut self, ns: u64, n: u64) {
        let wide = u128::from(ns);
        self.add(ns, n, wide * u128::from(n), wide * wide * u128::from(n));
    }

    /// Shares `total_us` evenly over `parts` samples. The sum stays exact, though a part need not be.
    pub fn record_split(&mut self, total_us: u64, parts: u64) {
        let total_ns = total_us.saturating_mul(1000);
        let Some(part_ns) = (total_ns.saturating_add(parts / 2)).checked_div(parts) else { return };
        let wide = u128::from(total_ns);
        self.add(part_ns, parts, wide, wide * wide / u128::from(parts));
    }

    fn add(&mut self, ns: u64, n: u64, sum_ns: u128, squares_ns2: u128) {
        if n == 0 {
            return;
        }
        let us = ns / 1000 + u64::from(ns % 1000 >= 500);
        self.histogram.record_n(us.min(HIGHEST_US), n).expect("the histogram grows");
        self.count += n;
        self.above += if us > HIGHEST_US { n } else { 0 };
        self.sum_ns += sum_ns;
        self.squares_ns2 = self.squares_ns2.saturating_add(squares_ns2);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds all samples of `other`. Associative and commutative.
    pub fn merge(&mut self, other: &Self) {
        let Self { histogram, count, above, sum_ns, squares_ns2, min_ns, max_ns } = other;
        self.histogram.add(histogram).expect("the histogram grows");
        self.count += count;
        self.above += above;
        self.sum_ns += sum_ns;
        self.squares_ns2 = self.squares_ns2.saturating_add(*squares_ns2);
        self.min_ns = self.min_ns.min(*min_ns);
        self.max_ns = self.max_ns.max(*max_ns);
    }

    /// The histogram for a file, always of one range: how far one has grown depends on the order of its samples.
    pub(super) fn histogram(&self) -> Histogram<u64> {
        let mut whole = Histogram::new_with_bounds(1, HIGHEST_US, DIGITS).expect("constant bounds are valid");
        whole.add(&self.histogram).expect("its samples are within the bounds");
        whole
    }

    /// Number of samples.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The quantile in µs: the middle of its bucket, never outside the exact minimum and maximum; none of nothing.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an hour in µs is far below 2^53")]
    pub fn quantile(&self, q: Quantile) -> Option<f64> {
        let rank = q.rank_of(self.count)?;
        let (min, max) = (micros(self.min_ns), micros(self.max_ns));
        if rank + self.above >= self.count {
            return Some(max);
        }
        let upper_edge = self.histogram.value_at_quantile(q.0);
        Some((self.histogram.median_equivalent(upper_edge) as f64).clamp(min, max))
    }

    /// The arithmetic mean in µs, exact.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| wide(self.sum_ns) / wide(self.count.into()) / 1e3)
    }

    /// Everything that is said of it, in µs; none of nothing, since an empty set has no quantiles.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        let mean = self.mean()?;
        let mean_ns = mean * 1e3;
        let variance = (wide(self.squares_ns2) / wide(self.count.into()) - mean_ns * mean_ns).max(0.0);
        Some(Summary {
            count: self.count,
            mean,
            // One sample, or equal ones, have no spread: what is left of the difference above is rounding.
            std: if self.min_ns == self.max_ns { 0.0 } else { variance.sqrt() / 1e3 },
            min: micros(self.min_ns),
            p50: self.quantile(Quantile::P50)?,
            p90: self.quantile(Quantile::P90)?,
            p95: self.quantile(Quantile::P95)?,
            p99: self.quantile(Quantile::P99)?,
            max: micros(self.max_ns),
        })
    }

    /// The histogram in HDR V2 deflate format, base64. The exact figures beside it travel in the [`Summary`].
    #[must_use]
    pub fn encode(&self) -> String {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&self.histogram(), &mut bytes)
            .expect("a histogram of constant bounds fits the format, and memory takes all bytes");
        STANDARD.encode(bytes)
    }

    /// A distribution from its encoded histogram and its summary in µs, as they stand in a saved file. Mean and spread
    /// are as exact as the summary is.
    ///
    /// Samples of the last two seconds below one hour share a bucket with those above it, and read back as above.
    ///
    /// # Errors
    /// When `encoded` is not base64 of an HDR histogram.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "durations are positive and float casts saturate"
    )]
    pub fn decode(encoded: &str, summary: &Summary) -> Result<Self, DecodeError> {
        let bytes = STANDARD.decode(encoded)?;
        let read: Histogram<u64> = Deserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|error| DecodeError::Hdr(error.to_string()))?;
        let mut whole = Self::default();
        whole.histogram.add(&read).map_err(|error| DecodeError::Hdr(error.to_string()))?;
        let count = read.len();
        if count > 0 {
            let (mean_ns, std_ns) = (summary.mean * 1e3, summary.std * 1e3);
            whole.count = count;
            whole.above = if summary.max > HIGHEST_US as f64 { read.count_at(HIGHEST_US) } else { 0 };
            whole.sum_ns = (mean_ns * count as f64).round() as u128;
            whole.squares_ns2 = ((std_ns * std_ns + mean_ns * mean_ns) * count as f64).round() as u128;
            whole.min_ns = (summary.min * 1e3).round() as u64;
            whole.max_ns = (summary.max * 1e3).round() as u64;
        }
        Ok(whole)
    }
}

impl Summary {
    /// The same in another unit: every figure but the count times `factor`, rounded for storage.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let Self { count, mean, std, min, p50, p90, p95, p99, max } = *self;
        let scale = |value: f64| super::rounded(value * factor);
        Self {
            count,
            mean: scale(mean),
            std: scale(std),
            min: scale(min),
            p50: scale(p50),
            p90: scale(p90),
            p95: scale(p95),
            p99: scale(p99),
            max: scale(max),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a double holds any duration of interest to the nanosecond")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "16 digits of a sum are enough for a mean")]
fn wide(value: u128) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[(u64, u64)]) -> Distribution {
        let mut whole = Distribution::default();
        values.iter().for_each(|(us, n)| whole.record(*us, *n));
        whole
    }

    #[test]
    fn nothing_has_no_quantile_and_no_mean() {
        let empty = Distribution::default();
        assert_eq!((empty.summary(), empty.mean(), empty.quantile(Quantile::P99)), (None, None, None));
    }

    #[test]
    fn one_sample_is_every_figure_of_its_summary() {
        let one = of(&[(1_000_003, 1)]).summary().unwrap();
        for figure in [one.mean, one.min, one.p50, one.p90, one.p95, one.p99, one.max] {
            assert_eq!(figure, 1_000_003.0);
        }
        assert_eq!(one.std, 0.0);
    }

    /// Row B56 of the traps.
    #[test]
    fn a_thousand_milliseconds_have_the_quantiles_that_anyone_would_say() {
        let summary = of(&(1..=1000).map(|ms| (ms * 1000, 1)).collect::<Vec<_>>()).summary().unwrap();
        assert!((summary.p50 - 500_000.0).abs() <= 500.0, "{}", summary.p50);
        assert!((summary.p99 - 990_000.0).abs() <= 990.0, "{}", summary.p99);
        assert_eq!((summary.min, summary.max, summary.mean), (1_000.0, 1_000_000.0, 500_500.0));
        // Of 1..=n: √((n² − 1) / 12).
        assert!((summary.std - 1000.0 * (999_999.0_f64 / 12.0).sqrt()).abs() < 1e-3);
    }

    /// Row B58 of the traps.
    #[test]
    fn percentiles_of_two_workers_come_from_merged_counts_not_from_their_averages() {
        let mut both = of(&[(10_000, 900)]);
        both.merge(&of(&[(1_000_000, 100)]));
        let summary = both.summary().unwrap();
        let near = |seen: f64, want: f64| (seen - want).abs() <= want / 1000.0;
        assert!(near(summary.p50, 10_000.0) && near(summary.p90, 10_000.0) && near(summary.p95, 1_000_000.0));
    }

    /// Row B56 of the traps.
    #[test]
    fn a_fraction_is_no_percentage() {
        assert_eq!(Quantile::fraction(50.0), None);
        assert_eq!(Quantile::fraction(f64::NAN), None);
        assert_eq!(Quantile::fraction(0.5), Some(Quantile::P50));
    }

    #[test]
    fn zero_and_more_than_an_hour_are_counted() {
        let wide = of(&[(0, 3), (7_200_000_000, 1)]);
        let summary = wide.summary().unwrap();
        assert_eq!((summary.count, summary.p50, summary.max), (4, 0.0, 7_200_000_000.0));
        assert_eq!((wide.quantile(Quantile::P99), wide.above), (Some(7_200_000_000.0), 1));
    }

    #[test]
    fn a_split_keeps_its_sum_and_a_split_into_nothing_is_nothing() {
        let mut split = Distribution::default();
        split.record_split(10, 3);
        split.record_split(10, 0);
        assert_eq!(split.count(), 3);
        assert!((split.mean().unwrap() - 10.0 / 3.0).abs() < 1e-12);
    }

    #[test]
    fn foreign_text_is_refused() {
        let summary = of(&[(1, 1)]).summary().unwrap();
        assert!(matches!(Distribution::decode("?", &summary), Err(DecodeError::Base64(_))));
        assert!(matches!(Distribution::decode("AAAA", &summary), Err(DecodeError::Hdr(_))));
    }

    fn samples() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((prop_oneof![0..5_u64, 0..2_000_000_u64, 0..8_000_000_000_u64], 1..20_u64), 0..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn merging_is_associative_and_commutative(a in samples(), b in samples(), c in samples()) {
            let (a, b, c) = (of(&a), of(&b), of(&c));
            let joined = |x: &Distribution, y: &Distribution| { let mut x = x.clone(); x.merge(y); x };
            prop_assert_eq!(joined(&joined(&a, &b), &c), joined(&a, &joined(&b, &c)));
            prop_assert_eq!(joined(&a, &b), joined(&b, &a));
        }

        #[test]
        fn quantiles_rise_stay_in_bounds_and_are_close_to_the_exact_ones(values in samples()) {
            let whole = of(&values);
            let mut all: Vec<f64> = values.iter().flat_map(|(us, n)| vec![*us as f64; usize::try_from(*n).unwrap()]).collect();
            all.sort_by(f64::total_cmp);
            let Some(summary) = whole.summary() else { prop_assert!(all.is_empty()); return Ok(()) };
            let Summary { min, p50, p90, p95, p99, max, .. } = summary;
            prop_assert!(min <= p50 && p50 <= p90 && p90 <= p95 && p95 <= p99 && p99 <= max);
            prop_assert_eq!((min, max), (all[0], all[all.len() - 1]));
            let exact = crate::stats::exact_quantile(&all, Quantile::P90).unwrap();
            prop_assert!(exact > HIGHEST_US as f64 || (p90 - exact).abs() <= exact / 1000.0 + 0.5, "{} {}", p90, exact);
        }

        #[test]
        fn an_encoded_distribution_reads_back(mut values in samples()) {
            // The bucket that ends at one hour also holds what lies above it; see `decode`.
            let last_bucket = Distribution::default().histogram.lowest_equivalent(HIGHEST_US);
            values.retain(|(us, _)| !(last_bucket..=HIGHEST_US).contains(us));
            let whole = of(&values);
            let Some(summary) = whole.summary() else { return Ok(()) };
            let read = Distribution::decode(&whole.encode(), &summary).unwrap();
            prop_assert_eq!(&read.histogram, &whole.histogram);
            let again = read.summary().unwrap();
            prop_assert_eq!((again.count, again.min, again.max, again.p50, again.p99), (summary.count, summary.min, summary.max, summary.p50, summary.p99));
            prop_assert!((again.mean - summary.mean).abs() <= summary.mean * 1e-9);
        }
    }
}
