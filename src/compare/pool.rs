//! One arm over several rounds.

use std::collections::BTreeMap;

use super::shape::{Arm, ArmValue, Pooling};
use crate::report::{
    Attribution, HistogramRole, HitRate, Latency, Metric, PlaceRow, RunReport, Source, Stat, State, Summary, Verdict,
    WithFailures,
};
use crate::stats::{Distribution, mean, rounded};

/// How a metric is pooled.
pub(super) fn pooling(metric: &Metric) -> Pooling {
    match metric.source {
        Source::Figure(_) => Pooling::MeanOfRounds,
        Source::Latency(..) => Pooling::MergedHistograms,
    }
}

/// The value of a metric over `reports`; none when no report has it.
pub(super) fn value(metric: &Metric, reports: &[&RunReport]) -> ArmValue {
    let samples = reports.iter().map(|report| metric.samples(report)).sum();
    let value = match metric.source {
        Source::Figure(get) => mean_of(reports, get),
        Source::Latency(latency, stat) => pooled_latency(latency, stat, reports),
    };
    ArmValue { value, samples }
}

fn mean_of(reports: &[&RunReport], get: impl Fn(&RunReport) -> Option<f64>) -> Option<f64> {
    mean(&reports.iter().filter_map(|report| get(report)).collect::<Vec<_>>()).map(rounded)
}

/// One report gives its own figure; several are merged. A histogram that cannot be read leaves the metric without a value.
fn pooled_latency(latency: Latency, stat: Stat, reports: &[&RunReport]) -> Option<f64> {
    let measured: Vec<_> = reports.iter().filter_map(|report| Some((*report, latency.of(&report.metrics)?))).collect();
    if let [(_, only)] = measured[..] {
        return Some(stat.of(only)).filter(|value| value.is_finite());
    }
    let parts =
        measured.into_iter().map(|(report, summary)| (report.histograms.get(&latency.histogram_key()), summary));
    let merged = merge(parts)?;
    let us = stat.quantile().map_or_else(|| merged.mean(), |q| merged.quantile(q))?;
    Some(rounded(us / 1e3))
}

/// Encoded histograms with their summaries in ms, as one distribution.
fn merge<'a>(parts: impl Iterator<Item = (Option<&'a String>, &'a Summary)>) -> Option<Distribution> {
    let mut whole = Distribution::default();
    for (encoded, summary) in parts {
        whole.merge(&Distribution::decode(encoded?, &summary.scaled(1e3)).ok()?);
    }
    Some(whole)
}

/// An arm's blocks as one: `all` with their rounds, `valid` those whose numbers may be used.
pub(super) fn arm(name: &str, control: bool, all: &[(u32, &RunReport)], valid: &[&RunReport]) -> Arm {
    let count = |get: fn(&RunReport) -> u64| all.iter().map(|(_, report)| get(report)).sum();
    let told = |name: &str, get: fn(&RunReport) -> u64| {
        all.iter().map(|(_, report)| report.counted(name, get(report))).sum::<Option<u64>>()
    };
    let sum = |get: fn(&RunReport) -> Option<u64>| valid.iter().filter_map(|report| get(report)).reduce(|a, b| a + b);
    let first = |get: fn(&RunReport) -> Option<String>| all.iter().find_map(|(_, report)| get(report));
    let found = |get: fn(&RunReport) -> &[crate::report::Finding]| {
        all.iter().flat_map(|(round, report)| get(report).iter().map(|finding| (*round, finding.clone()))).collect()
    };
    let is_void = |report: &RunReport| report.validity.verdict == Verdict::Void;
    Arm {
        name: name.to_owned(),
        control,
        rounds: all.iter().map(|(round, _)| *round).collect(),
        model: first(|r| r.server.model.clone()),
        load_balance_method: first(|r| r.server.load_balance_method.clone()),
        ranks_told: all.iter().find_map(|(_, report)| report.server.ranks),
        kv_tokens_total: all.iter().find_map(|(_, report)| report.server.kv_tokens_total),
        planned: told("planned", |r| r.totals.planned),
        complete: count(|r| r.totals.complete),
        failed: told("failed", |r| r.totals.failed),
        cancelled: told("cancelled", |r| r.totals.cancelled),
        skipped: told("skipped", |r| r.totals.skipped),
        prompt_tokens: sum(|r| r.totals.prompt_tokens),
        planned_prompt_tokens: sum(|r| r.totals.planned_prompt_tokens),
        hit_rate: HitRate {
            value: mean_of(valid, |r| r.metrics.cache_hit_rate.value),
            coverage: mean_of(valid, |r| r.metrics.cache_hit_rate.coverage),
        },
        ideal_reuse: mean_of(valid, |r| r.workload.oracle.ideal_reuse),
        round_robin_reuse: mean_of(valid, |r| Some(r.workload.oracle.round_robin.as_ref()?.reuse)),
        expected_reuse: mean_of(valid, |r| Some(r.workload.oracle.observed.as_ref()?.reuse)),
        attribution: Attribution {
            known: valid.iter().map(|r| r.affinity.attribution.known).sum(),
            turns: valid.iter().map(|r| r.affinity.attribution.turns).sum(),
            source: valid.iter().find_map(|r| r.affinity.attribution.source),
            reason: valid.iter().find_map(|r| r.affinity.attribution.reason.clone()),
        },
        stickiness: mean_of(valid, |r| r.affinity.stickiness),
        load_max_over_mean: mean_of(valid, |r| r.affinity.load_max_over_mean),
        server_ttft_ms: by_own_clock(valid, HistogramRole::Ttft),
        server_queue_ms: by_own_clock(valid, HistogramRole::QueueTime),
        with_failures: with_failures(valid),
        ranks: rows(valid),
        unfinished_rounds: all
            .iter()
            .filter(|(_, report)| report.state != State::Complete)
            .map(|(round, _)| *round)
            .collect(),
        void_rounds: all.iter().filter(|(_, report)| is_void(report)).map(|(round, _)| *round).collect(),
        voids: found(|r| &r.validity.voids),
        warnings: found(|r| &r.validity.warnings),
    }
}

/// The mean over the requests of all reports of which the server tells it.
#[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
fn by_own_clock(reports: &[&RunReport], role: HistogramRole) -> Option<f64> {
    let (mut sum, mut requests) = (0.0, 0);
    for clock in reports.iter().filter_map(|report| report.server.own_clock(role)) {
        if let Some(mean) = clock.mean_ms {
            sum += mean * clock.count as f64;
            requests += clock.count;
        }
    }
    (requests > 0).then(|| rounded(sum / requests as f64))
}

/// Of all valid blocks together, where any turn of theirs failed.
fn with_failures(reports: &[&RunReport]) -> BTreeMap<String, WithFailures> {
    let failed: u64 = reports.iter().map(|report| report.totals.failed).sum();
    let pooled = |latency: Latency| {
        let measured = reports
            .iter()
            .filter_map(|report| Some((report.histograms.get(&latency.histogram_key()), latency.of(&report.metrics)?)));
        Some((latency.key().to_owned(), WithFailures::of(&merge(measured)?, failed)))
    };
    [Latency::Ttft, Latency::E2e].into_iter().filter(|_| failed > 0).filter_map(pooled).collect()
}

fn rows(reports: &[&RunReport]) -> Vec<PlaceRow> {
    let mut places: BTreeMap<_, Vec<&PlaceRow>> = BTreeMap::new();
    for row in reports.iter().flat_map(|report| &report.ranks) {
        places.entry(&row.place).or_default().push(row);
    }
    places.into_values().filter_map(|rows| pooled_row(&rows)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "tokens stay below 2^53")]
fn pooled_row(rows: &[&PlaceRow]) -> Option<PlaceRow> {
    let sum = |get: fn(&PlaceRow) -> Option<u64>| rows.iter().filter_map(|row| get(row)).reduce(|a, b| a + b);
    // Σ cached / Σ prompt of the turns that report both: each row gives that sum of prompts back as cached / hit rate.
    let (mut cached, mut covered) = (0.0, 0.0);
    for row in rows {
        if let (Some(tokens), Some(rate)) = (row.cached_tokens, row.hit_rate) {
            cached += tokens as f64;
            covered += if rate > 0.0 { tokens as f64 / rate } else { row.prompt_tokens.unwrap_or(0) as f64 };
        }
    }
    let measured = rows.iter().filter_map(|row| Some((row.ttft_us.as_ref(), row.ttft_ms.as_ref()?)));
    let ttft = merge(measured).filter(|merged| merged.count() > 0);
    Some(PlaceRow {
        place: rows.first()?.place.clone(),
        turns: rows.iter().map(|row| row.turns).sum(),
        prompt_tokens: sum(|row| row.prompt_tokens),
        cached_tokens: sum(|row| row.cached_tokens),
        hit_rate: (covered > 0.0).then(|| rounded(cached / covered)),
        output_tokens: sum(|row| row.output_tokens),
        ttft_ms: ttft.as_ref().and_then(|merged| Some(merged.summary()?.scaled(1e-3))),
        ttft_us: ttft.map(|merged| merged.encode()),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::record::ServerHistogram;
    use crate::report::tests::context;
    use crate::report::{Accumulator, Closing, HistogramDelta};

    /// A run whose server let `count` requests wait for `seconds` together; none tells nothing.
    fn waited(told: Option<(u64, f64)>) -> RunReport {
        let histogram = |(count, seconds)| ServerHistogram {
            name: "queue".into(),
            labels: BTreeMap::new(),
            role: HistogramRole::QueueTime,
            place: None,
            node: None,
            cumulative: Some(vec![(f64::INFINITY, count)]),
            sum: Some(seconds),
        };
        let mut report = Accumulator::new(context(1, 0)).finish(Closing::plain(State::Complete));
        let seen: Vec<_> = told.into_iter().map(histogram).collect();
        report.server.histograms = HistogramDelta::between("http://h", Some(&[]), Some(&seen));
        report
    }

    #[test]
    fn a_mean_by_the_servers_clock_is_that_of_all_requests_and_no_mean_of_means() {
        let rounds = [Some((1, 0.001)), Some((3, 0.015)), None].map(waited);
        let mean = |reports: &[RunReport]| by_own_clock(&reports.iter().collect::<Vec<_>>(), HistogramRole::QueueTime);
        assert_eq!((mean(&rounds), mean(&rounds[2..])), (Some(4.0), None));
    }
}
