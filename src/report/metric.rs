//! THE registry of metrics: key, label, unit, which way is better, least samples, where the value comes from. JSON paths,
//! tables and comparisons read it; nothing else names a metric.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::latency::Latency;
use super::shape::RunReport;
use crate::stats::{Quantile, Summary};

/// Which way a metric is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    Higher,
    Lower,
}

/// What is said of a latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stat {
    Mean,
    P50,
    P90,
    P95,
    P99,
}

/// Where a metric's value comes from.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// One figure of a run: over several runs it can only be averaged.
    Figure(fn(&RunReport) -> Option<f64>),
    /// A statistic of a distribution: over several runs it comes from the merged histogram.
    Latency(Latency, Stat),
}

/// One metric.
#[derive(Debug, Clone)]
pub struct Metric {
    /// Its path under `metrics` in run.json, such as `ttft_ms.mean`.
    pub key: String,
    /// In bench_serving's words, with the unit.
    pub label: String,
    pub unit: &'static str,
    pub better: Better,
    /// Below this many samples the value is shown with `~` and not judged.
    pub least_samples: u64,
    /// One of the few that a comparison judges; the others are shown beside them.
    pub headline: bool,
    pub source: Source,
}

/// The figures by which routing policies are argued about in public: throughput, reuse, the first token, and the tails that a
/// loaded rank gives. Few, since each one more that is judged widens the intervals of all.
const HEADLINES: [&str; 11] = [
    "request_throughput",
    "output_throughput",
    "cache_hit_rate.value",
    "goodput",
    "slo_attainment",
    "ttft_ms.mean",
    "ttft_ms.p99",
    "itl_ms.p99",
    "tpot_ms.mean",
    "tpot_ms.p99",
    "e2e_ms.p99",
];

impl Stat {
    /// In the order of tables.
    pub const ALL: [Self; 5] = [Self::Mean, Self::P50, Self::P90, Self::P95, Self::P99];

    /// The key in a summary.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P95 => "p95",
            Self::P99 => "p99",
        }
    }

    /// The word in front of a latency's name.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Mean => "Mean",
            Self::P50 => "Median",
            Self::P90 => "P90",
            Self::P95 => "P95",
            Self::P99 => "P99",
        }
    }

    /// The figure in a summary.
    #[must_use]
    pub fn of(self, summary: &Summary) -> f64 {
        match self {
            Self::Mean => summary.mean,
            Self::P50 => summary.p50,
            Self::P90 => summary.p90,
            Self::P95 => summary.p95,
            Self::P99 => summary.p99,
        }
    }

    /// The quantile; none for the mean.
    #[must_use]
    pub fn quantile(self) -> Option<Quantile> {
        match self {
            Self::Mean => None,
            Self::P50 => Some(Quantile::P50),
            Self::P90 => Some(Quantile::P90),
            Self::P95 => Some(Quantile::P95),
            Self::P99 => Some(Quantile::P99),
        }
    }

    /// For a 99th percentile ten samples beyond the mark: fewer make the tail a matter of luck.
    #[must_use]
    pub fn least_samples(self) -> u64 {
        match self {
            Self::P99 => 1_000,
            Self::Mean | Self::P50 | Self::P90 | Self::P95 => 1,
        }
    }
}

impl Metric {
    /// The value in one run; none when it was not measured.
    #[must_use]
    pub fn value(&self, report: &RunReport) -> Option<f64> {
        let value = match self.source {
            Source::Figure(get) => get(report),
            Source::Latency(latency, stat) => latency.of(&report.metrics).map(|summary| stat.of(summary)),
        };
        // A result of another program may lack one percentile of several.
        value.filter(|value| value.is_finite())
    }

    /// The samples that a plan of so many turns and output tokens gives at most, in one run that all of it completes.
    #[must_use]
    pub fn planned_samples(&self, turns: u64, output_tokens: u64) -> u64 {
        match self.source {
            // A gap lies between two tokens.
            Source::Latency(Latency::Itl | Latency::Icl, _) => output_tokens.saturating_sub(turns),
            Source::Figure(_) | Source::Latency(..) => turns,
        }
    }

    /// The samples behind the value in one run.
    #[must_use]
    pub fn samples(&self, report: &RunReport) -> u64 {
        match self.source {
            Source::Figure(_) => report.totals.complete,
            Source::Latency(latency, _) => latency.of(&report.metrics).map_or(0, |summary| summary.count),
        }
    }
}

/// All metrics, in the order of tables.
pub fn metrics() -> &'static [Metric] {
    static REGISTRY: OnceLock<Vec<Metric>> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let latencies = Latency::ALL.into_iter().flat_map(|of| Stat::ALL.map(|stat| latency(of, stat)));
        figures().into_iter().chain(latencies).collect()
    })
}

/// The metric of that key.
#[must_use]
pub fn metric(key: &str) -> Option<&'static Metric> {
    metrics().iter().find(|metric| metric.key == key)
}

fn figures() -> Vec<Metric> {
    let rate = |key, label, unit, get| figure(key, label, unit, Better::Higher, get);
    vec![
        rate("request_throughput", "Request throughput (req/s)", "req/s", |r| r.metrics.request_throughput),
        rate("input_throughput", "Input token throughput (tok/s)", "tok/s", |r| r.metrics.input_throughput),
        rate("output_throughput", "Output token throughput (tok/s)", "tok/s", |r| r.metrics.output_throughput),
        rate("total_throughput", "Total token throughput (tok/s)", "tok/s", |r| r.metrics.total_throughput),
        rate("cache_hit_rate.value", "Cache hit rate (%)", "ratio", |r| r.metrics.cache_hit_rate.value),
        rate("goodput", "Goodput (req/s)", "req/s", |r| r.metrics.goodput),
        rate("slo_attainment", "SLO attainment (%)", "ratio", |r| r.metrics.slo_attainment),
    ]
}

fn figure(key: &str, label: &str, unit: &'static str, better: Better, get: fn(&RunReport) -> Option<f64>) -> Metric {
    let headline = HEADLINES.contains(&key);
    Metric {
        key: key.into(),
        label: label.into(),
        unit,
        better,
        least_samples: 1,
        headline,
        source: Source::Figure(get),
    }
}

fn latency(of: Latency, stat: Stat) -> Metric {
    let key = format!("{}.{}", of.key(), stat.key());
    Metric {
        headline: HEADLINES.contains(&key.as_str()),
        key,
        label: format!("{} {} (ms)", stat.label(), of.label()),
        unit: "ms",
        better: Better::Lower,
        least_samples: stat.least_samples(),
        source: Source::Latency(of, stat),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn labels_are_the_words_of_bench_serving_and_keys_are_unique() {
        for (key, label) in [
            ("ttft_ms.mean", "Mean TTFT (ms)"),
            ("tpot_ms.p50", "Median TPOT (ms)"),
            ("e2e_ms.p99", "P99 E2E Latency (ms)"),
            ("itl_ms.p95", "P95 ITL (ms)"),
            ("output_throughput", "Output token throughput (tok/s)"),
        ] {
            assert_eq!(metric(key).unwrap().label, label);
        }
        let keys: BTreeSet<_> = metrics().iter().map(|metric| &metric.key).collect();
        assert_eq!(keys.len(), metrics().len());
        assert!(metric("ttft_ms").is_none());
    }

    #[test]
    fn every_headline_is_a_metric() {
        let headlines = metrics().iter().filter(|metric| metric.headline).map(|metric| metric.key.as_str());
        assert_eq!(headlines.collect::<Vec<_>>(), HEADLINES);
    }

    #[test]
    fn a_99th_percentile_asks_for_a_thousand_samples() {
        assert_eq!(metric("ttft_ms.p99").unwrap().least_samples, 1_000);
        assert_eq!(metric("ttft_ms.mean").unwrap().least_samples, 1);
    }

    #[test]
    fn a_plan_gives_a_sample_a_turn_or_one_between_two_tokens() {
        let planned = |key| metric(key).unwrap().planned_samples(10, 40);
        assert_eq!(["ttft_ms.p99", "itl_ms.p99", "icl_ms.p50", "goodput"].map(planned), [10, 30, 30, 10]);
    }
}
