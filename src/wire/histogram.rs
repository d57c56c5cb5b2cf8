//! Histograms of an exposition, put together from their samples: `_bucket` lines in any order, `_sum` and `_count`.
//!
//! What a histogram says is believed only as a whole. A bucket that is not a number, or counts that fall where bounds rise,
//! make it one of which nothing is known; it is still there, since "not readable" and "not yet shown" are two things when
//! scrapes are compared.

use std::collections::BTreeMap;

use super::prometheus::{Sample, number};

/// One histogram: a series of a family.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// That of the family, without `_bucket`.
    pub name: String,
    /// Without `le`.
    pub labels: BTreeMap<String, String>,
    /// Upper bounds, ascending, the last one infinite, with the samples at or below each. None where they are no such counts.
    pub cumulative: Option<Vec<(f64, u64)>>,
    /// None where it is not told, or not a number.
    pub sum: Option<f64>,
}

/// Gathers histograms sample by sample.
#[derive(Debug, Default)]
pub struct Histograms {
    families: BTreeMap<String, BTreeMap<BTreeMap<String, String>, Parts>>,
}

#[derive(Debug, Default)]
struct Parts {
    /// Bounds and counts as they came.
    buckets: Vec<(f64, f64)>,
    sum: Option<f64>,
    count: Option<f64>,
}

/// What a sample is to its histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Bucket,
    Sum,
    Count,
}

/// The family of which a sample of this name is a bucket.
#[must_use]
pub fn bucket_of(name: &str) -> Option<&str> {
    name.strip_suffix("_bucket")
}

fn part(name: &str) -> Option<(&str, Part)> {
    let sum = || Some((name.strip_suffix("_sum")?, Part::Sum));
    let count = || Some((name.strip_suffix("_count")?, Part::Count));
    bucket_of(name).map(|family| (family, Part::Bucket)).or_else(sum).or_else(count)
}

impl Histograms {
    /// Takes in what a sample says of a histogram whose family is wanted, and gives the sample back unless it is a bucket,
    /// which tells nothing alone.
    pub fn take(&mut self, sample: Sample, is_wanted: impl Fn(&str) -> bool) -> Option<Sample> {
        let Some((family, part)) = part(&sample.name).filter(|(family, _)| is_wanted(family)) else {
            return Some(sample);
        };
        match part {
            Part::Sum => tell(&mut self.parts(family, sample.labels.clone()).sum, sample.value),
            Part::Count => tell(&mut self.parts(family, sample.labels.clone()).count, sample.value),
            Part::Bucket => {
                let Sample { name, mut labels, value } = sample;
                // A line without a bound is no bucket of anything.
                let bound = labels.remove("le").as_deref().and_then(number)?;
                self.parts(bucket_of(&name)?, labels).buckets.push((bound, value));
                return None;
            }
        }
        Some(sample)
    }

    fn parts(&mut self, family: &str, labels: BTreeMap<String, String>) -> &mut Parts {
        self.families.entry(family.to_owned()).or_default().entry(labels).or_default()
    }

    /// All of them, by name and labels.
    #[must_use]
    pub fn finish(self) -> Vec<Histogram> {
        let series = |(name, mut series): (String, BTreeMap<_, _>)| {
            join(&mut series);
            series.into_iter().map(move |(labels, parts): (_, Parts)| parts.read(name.clone(), labels))
        };
        self.families.into_iter().flat_map(series).collect()
    }
}

/// What is told twice is not known.
fn tell(part: &mut Option<f64>, value: f64) {
    *part = Some(part.map_or(value, |_| f64::NAN));
}

/// Some exporters label a sum and count otherwise than the buckets. Where a family has one of each, and they count the same,
/// they are one histogram, under the labels of the sum.
fn join(series: &mut BTreeMap<BTreeMap<String, String>, Parts>) {
    let [(_, one), (_, other)] = series.iter().collect::<Vec<_>>()[..] else { return };
    let is_split = |buckets: &Parts, sums: &Parts| {
        let are_apart = buckets.sum.or(buckets.count).is_none() && sums.buckets.is_empty();
        are_apart && buckets.buckets.iter().any(|bucket| *bucket == (f64::INFINITY, sums.count.unwrap_or(f64::NAN)))
    };
    if !is_split(one, other) && !is_split(other, one) {
        return;
    }
    let (mut joined, mut name) = (Parts::default(), BTreeMap::new());
    for (labels, Parts { buckets, sum, count }) in std::mem::take(series) {
        if buckets.is_empty() {
            name = labels;
        }
        joined.buckets.extend(buckets);
        joined.sum = joined.sum.or(sum);
        joined.count = joined.count.or(count);
    }
    series.insert(name, joined);
}

impl Parts {
    fn read(self, name: String, labels: BTreeMap<String, String>) -> Histogram {
        let Self { buckets, sum, count } = self;
        Histogram { name, labels, cumulative: cumulative(buckets, count), sum: sum.filter(|sum| sum.is_finite()) }
    }
}

/// Bounds in their order; the infinite one may be missing where a count stands for it, and counts as many where it does not.
fn cumulative(mut buckets: Vec<(f64, f64)>, count: Option<f64>) -> Option<Vec<(f64, u64)>> {
    match (buckets.iter().find(|(bound, _)| *bound == f64::INFINITY), count) {
        (None, count) => buckets.push((f64::INFINITY, count?)),
        (Some((_, all)), Some(count)) if *all != count => return None,
        (Some(_), _) => {}
    }
    buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let whole: Option<Vec<(f64, u64)>> =
        buckets.into_iter().map(|(bound, value)| Some((bound, whole(value)?))).collect();
    let ascends = |pair: &[(f64, u64)]| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1;
    whole.filter(|counts| counts.windows(2).all(ascends))
}

/// A count, as exporters write it.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number from 0 to 2^53")]
fn whole(value: f64) -> Option<u64> {
    (value.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(&value)).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Exposition;
    use super::*;

    fn read(text: &str) -> Vec<Histogram> {
        let mut histograms = Histograms::default();
        for sample in Exposition::parse(text).samples {
            histograms.take(sample, |family| family == "h");
        }
        histograms.finish()
    }

    fn one(text: &str) -> Histogram {
        let mut all = read(text);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    const INF: f64 = f64::INFINITY;

    /// B109
    #[test]
    fn a_histogram_is_whole_in_any_order_and_its_created_twin_is_none_of_it() {
        let buckets = |labels: &str| {
            let line = |(le, count): (&str, u32)| format!("h_bucket{{{labels}le=\"{le}\"}} {count}\n");
            [("+Inf", 10), ("0.1", 4), ("0.5", 9)].map(line).concat()
        };
        let rest = "h_sum{a=\"x\"} 3.5\nh_count{a=\"x\"} 10\nh_created{a=\"x\"} 1.7e9\ng NaN\n\
                    l{p=\"a \\\"b\\\",\\n}c\"} 1\n# EOF";
        for labels in ["a=\"x\",", ""] {
            let histogram = one(&format!("{}{rest}", buckets(labels)));
            assert_eq!(histogram.cumulative, Some(vec![(0.1, 4), (0.5, 9), (INF, 10)]));
            assert_eq!(histogram.sum, Some(3.5));
            assert_eq!(histogram.labels, BTreeMap::from([("a".to_owned(), "x".to_owned())]), "{labels}");
        }
        // A sum of another count, or one of several, is not taken for that of the buckets.
        for more in ["h_count{a=\"x\"} 11\n", "h_sum{a=\"y\"} 1\n"] {
            let all = read(&format!("{}{rest}\n{more}", buckets("")));
            assert!(all.len() > 1 && all.iter().all(|of| of.sum.is_none() || of.labels.contains_key("a")), "{all:?}");
        }
    }

    #[test]
    fn what_is_no_histogram_is_there_and_says_nothing() {
        let cases = [
            ("h_bucket{le=\"1\"} NaN\nh_bucket{le=\"+Inf\"} 3\nh_sum 1\n", None, Some(1.0)),
            ("h_bucket{le=\"1\"} 4\nh_bucket{le=\"+Inf\"} 3\nh_sum NaN\n", None, None),
            ("h_bucket{le=\"1\"} 1\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 3\n", None, None),
            ("h_bucket{le=\"1\"} -1\nh_bucket{le=\"+Inf\"} 3\n", None, None),
            ("h_bucket{le=\"1\"} 2.5\nh_bucket{le=\"+Inf\"} 3\n", None, None),
            ("h_bucket{le=\"1\"} 1\n", None, None),
            // A count stands for the infinite bucket; so it does for a family without buckets.
            ("h_bucket{le=\"1\"} 1\nh_count 3\nh_sum 9\n", Some(vec![(1.0, 1), (INF, 3)]), Some(9.0)),
            ("h_count 3\nh_sum 9\n", Some(vec![(INF, 3)]), Some(9.0)),
        ];
        for (text, cumulative, sum) in cases {
            let histogram = one(text);
            assert_eq!((histogram.cumulative, histogram.sum), (cumulative, sum), "{text}");
        }
        assert_eq!(read("h_bucket{a=\"b\"} 3\nother_bucket{le=\"1\"} 3\nother_sum 3\n"), []);
    }

    #[test]
    fn only_buckets_of_what_is_wanted_are_taken_away() {
        let mut histograms = Histograms::default();
        let samples = Exposition::parse("h_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\no_bucket{le=\"+Inf\"} 1\nh 1\n");
        let kept: Vec<_> =
            samples.samples.into_iter().filter_map(|of| Some(histograms.take(of, |f| f == "h")?.name)).collect();
        assert_eq!(kept, ["h_sum", "h_count", "o_bucket", "h"]);
    }

    proptest! {
        #[test]
        fn the_order_of_lines_says_nothing(
            own in proptest::collection::vec(0_u32..50, 2..8), seed in any::<u64>(), sum in 0_u32..1000,
        ) {
            let mut lines: Vec<String> = own.iter().scan(0, |all, n| { *all += n; Some(*all) }).enumerate()
                .map(|(at, all)| format!("h_bucket{{a=\"x\",le=\"{at}.5\"}} {all}")).collect();
            let all: u32 = own.iter().sum();
            lines.push(format!("h_bucket{{le=\"+Inf\",a=\"x\"}} {all}"));
            lines.push(format!("h_sum{{a=\"x\"}} {sum}"));
            lines.push(format!("h_count{{a=\"x\"}} {all}"));
            let ordered = one(&lines.join("\n"));
            prop_assert_eq!(ordered.cumulative.as_ref().map(Vec::len), Some(own.len() + 1));
            // Fisher-Yates by a small generator.
            let mut state = seed | 1;
            for at in (1..lines.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                lines.swap(at, usize::try_from(state >> 33).unwrap() % (at + 1));
            }
            prop_assert_eq!(one(&lines.join("\n")), ordered);
        }
    }
}
