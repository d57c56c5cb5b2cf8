//! AIPerf's `profile_export.jsonl`: a record a request.

use serde_json::Value;

use super::blank;
use super::fields::{count, keep, number, word};
use crate::report::{Foreign, Latency, RunReport, RunSpec};

/// Whether the document is one of these records.
pub(super) fn is_record(document: &Value) -> bool {
    document.get("metadata").is_some_and(Value::is_object) && document.get("metrics").is_some_and(Value::is_object)
}

/// The run that the records make up. Warm-up is left out.
pub(super) fn run(records: &[Value], spec: &RunSpec) -> RunReport {
    let foreign = Foreign {
        tool: "aiperf".to_owned(),
        load: None,
        backend: None,
        uncounted: ["planned", "skipped"].map(str::to_owned).to_vec(),
        unchecked: [
            "the workload's digest and keys",
            "the load",
            "the state of the cache before the run",
            "the client's own delays",
        ]
        .map(str::to_owned)
        .to_vec(),
    };
    let mut report = blank(foreign, spec);
    let measured = |record: &&Value| meta(record, "benchmark_phase").is_none_or(|phase| phase == "profiling");
    let measured: Vec<_> = records.iter().filter(measured).collect();
    let is_cut = |record: &Value| record["metadata"]["was_cancelled"].as_bool() == Some(true);
    let complete: Vec<&Value> = measured
        .iter()
        .copied()
        .filter(|record| record.get("error").is_none_or(Value::is_null) && !is_cut(record))
        .collect();
    let cancelled = measured.iter().filter(|record| is_cut(record)).count();
    let totals = &mut report.totals;
    totals.complete = long(complete.len());
    totals.cancelled = long(cancelled);
    totals.failed = long(measured.len() - complete.len() - cancelled);
    totals.planned = long(measured.len());
    totals.prompt_tokens = tokens(&complete, "input_sequence_length");
    totals.output_tokens = tokens(&complete, "output_sequence_length");
    fill_rates(&mut report, &complete);
    let ttft = latency(&mut report, &complete, Latency::Ttft, "time_to_first_token");
    let e2e = latency(&mut report, &complete, Latency::E2e, "request_latency");
    // One figure a request, (latency − TTFT) / (n − 1): what others call TPOT.
    let tpot = latency(&mut report, &complete, Latency::Tpot, "inter_token_latency");
    (report.metrics.ttft_ms, report.metrics.e2e_ms, report.metrics.tpot_ms) = (ttft, e2e, tpot);
    report
}

/// From the first request's start to the last one's end.
#[expect(clippy::cast_precision_loss, reason = "turns and tokens stay below 2^53")]
fn fill_rates(report: &mut RunReport, complete: &[&Value]) {
    let instants = |key: &'static str| complete.iter().filter_map(move |record| count(record.get("metadata")?, key));
    let (Some(from), Some(to)) = (instants("request_start_ns").min(), instants("request_end_ns").max()) else { return };
    let seconds = to.saturating_sub(from) as f64 / 1e9;
    if seconds <= 0.0 {
        return;
    }
    let rate = |amount: u64| amount as f64 / seconds;
    let (metrics, totals) = (&mut report.metrics, &report.totals);
    metrics.duration_s = Some(seconds);
    metrics.request_throughput = Some(rate(totals.complete));
    metrics.input_throughput = totals.prompt_tokens.map(rate);
    metrics.output_throughput = totals.output_tokens.map(rate);
    metrics.total_throughput =
        totals.prompt_tokens.zip(totals.output_tokens).map(|(input, output)| rate(input + output));
}

fn latency(report: &mut RunReport, complete: &[&Value], of: Latency, name: &str) -> Option<crate::report::Summary> {
    keep(report, of, complete.iter().filter_map(|record| millis(metric(record, name)?)))
}

/// None of no record, and none when one does not tell: a part of a sum is no sum.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of tokens; casts saturate")]
fn tokens(complete: &[&Value], name: &str) -> Option<u64> {
    let of = |record: &&Value| number(metric(record, name)?, "value").map(|tokens| tokens.round() as u64);
    if complete.is_empty() { None } else { complete.iter().map(of).sum() }
}

fn metric<'a>(record: &'a Value, name: &str) -> Option<&'a Value> {
    record.get("metrics")?.get(name)
}

/// A value with its unit. An unknown unit is an unknown value.
fn millis(metric: &Value) -> Option<f64> {
    let factor = match word(metric, "unit")?.as_str() {
        "ns" => 1e-6,
        "us" => 1e-3,
        "ms" => 1.0,
        "s" | "sec" => 1e3,
        _ => return None,
    };
    Some(number(metric, "value")? * factor)
}

fn meta(record: &Value, key: &str) -> Option<String> {
    word(record.get("metadata")?, key)
}

fn long(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
