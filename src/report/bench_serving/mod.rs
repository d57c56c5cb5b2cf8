//! One run as a line of SGLang's bench_serving: its keys, its units, its definitions where they differ from ours.
//!
//! They differ in this: E2E runs to the end of the stream and not to the last output; TPOT is (E2E − TTFT) / (n − 1);
//! ITL is per token on `/generate` and per frame elsewhere; percentiles are interpolated, as numpy does it. What it would
//! fill from the wish (a reply's length without usage) or leave at 0 (input tokens of several turns) is what was counted.

mod goodput;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::audit::Validity;
use super::latency::Latency;
use super::places::affinity::Affinity;
use super::shape::{Client, Metrics, PlaceRow, RunReport, State, Totals, WorkloadFacts};
use super::tally::windows::arrivals;
use crate::profile::{Api, KeyScope, Pacing};
use crate::record::{Outcome, TurnRecord};
use crate::stats::{Summary, mean, rounded};
use crate::units::Micros;

use goodput::Good;

const SECOND: u64 = 1_000_000;

/// Whether a line has the arrays of `--output-details`, a member a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrays {
    With,
    Without,
}

/// Gathers the turns of one run. It keeps three numbers a turn, and all of them with arrays: exact percentiles need that.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchServing {
    api: Api,
    ttft_ms: Vec<f64>,
    e2e_ms: Vec<f64>,
    tpot_ms: Vec<f64>,
    /// Turns that touch each second of the run.
    concurrent: BTreeMap<u64, u64>,
    /// Output that arrived in each second; none once a turn came without its gaps.
    arrived: Option<BTreeMap<u64, u64>>,
    arrays: Option<Details>,
    /// Only with limits.
    goodput: Option<Good>,
}

/// Seconds, as bench_serving stores them; failed turns have zeros and an error.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Details {
    input_lens: Vec<u32>,
    output_lens: Vec<u32>,
    ttfts: Vec<f64>,
    itls: Vec<Vec<f64>>,
    errors: Vec<String>,
    cached_tokens: Vec<Option<u32>>,
}

/// What bench_serving has no key for.
#[derive(Serialize)]
struct Ours<'a> {
    schema: u32,
    version: &'a str,
    arm: &'a Option<String>,
    round: Option<u32>,
    started_utc: &'a str,
    debug_build: bool,
    state: State,
    seed: u64,
    key_by: KeyScope,
    key_salt: u64,
    workload: &'a WorkloadFacts,
    totals: &'a Totals,
    metrics: &'a Metrics,
    ranks: Vec<PlaceRow>,
    affinity: &'a Affinity,
    client: &'a Client,
    validity: &'a Validity,
}

impl BenchServing {
    #[must_use]
    pub fn new(report: &RunReport, arrays: Arrays) -> Self {
        Self {
            api: report.manifest.spec.request.api,
            ttft_ms: vec![],
            e2e_ms: vec![],
            tpot_ms: vec![],
            concurrent: BTreeMap::new(),
            arrived: Some(BTreeMap::new()),
            arrays: (arrays == Arrays::With).then(Details::default),
            goodput: report.manifest.spec.slo.map(Good::new),
        }
    }

    /// Adds a turn of the run.
    pub fn add(&mut self, turn: &TurnRecord) {
        match turn.outcome {
            Outcome::Complete => self.add_complete(turn),
            Outcome::Failed(_) => {}
            // Never sent, or cut: bench_serving knows no such turns.
            Outcome::Skipped | Outcome::Cancelled => return,
        }
        if let Some(goodput) = &mut self.goodput {
            goodput.add(turn);
        }
        let itl = self.itl(turn);
        if let Some(details) = &mut self.arrays {
            details.add(turn, itl);
        }
    }

    fn add_complete(&mut self, turn: &TurnRecord) {
        let e2e = turn.done_us.or(turn.last_us).zip(turn.sent_us).map(|(done, sent)| done.since(sent).as_ms());
        let ttft = turn.ttft().map(Micros::as_ms);
        self.ttft_ms.extend(ttft);
        self.e2e_ms.extend(e2e);
        if let (Some(e2e), Some(ttft), Some(tokens)) = (e2e, ttft, turn.output_tokens.filter(|tokens| *tokens > 1)) {
            self.tpot_ms.push((e2e - ttft) / f64::from(tokens - 1));
        }
        if let (Some(sent), Some(done)) = (turn.sent_us, turn.done_us) {
            for second in sent.0 / SECOND..=done.0 / SECOND {
                *self.concurrent.entry(second).or_default() += 1;
            }
        }
        self.add_arrivals(turn);
    }

    fn add_arrivals(&mut self, turn: &TurnRecord) {
        if turn.frames > 1 && turn.gaps.is_empty() {
            self.arrived = None;
        }
        let Some(arrived) = &mut self.arrived else { return };
        for (second, tokens) in arrivals(turn, turn.output_tokens.unwrap_or(turn.frames), SECOND) {
            *arrived.entry(second).or_default() += tokens;
        }
    }

    /// In seconds: per token where the route tells the tokens of a frame, else per frame.
    fn itl(&self, turn: &TurnRecord) -> Vec<f64> {
        let seconds = |us: u64| Micros(us).as_secs();
        if self.api != Api::Generate {
            return turn.gaps.iter().map(|gap| seconds(gap.us.into())).collect();
        }
        let (mut carried, mut itl) = (0, vec![]);
        for gap in &turn.gaps {
            carried += u64::from(gap.us);
            if let Some(tokens) = gap.tokens().filter(|tokens| *tokens > 0) {
                let each = seconds(std::mem::take(&mut carried)) / f64::from(tokens);
                itl.extend(std::iter::repeat_n(each, tokens as usize));
            }
        }
        itl
    }

    /// The line as a JSON object. Null is what this run does not know.
    #[must_use]
    pub fn line(mut self, report: &RunReport, tag: Option<&str>) -> Value {
        let mut line = facts(report, tag);
        let itl = if self.api == Api::Generate { Latency::Itl } else { Latency::Icl };
        self.ttft_ms.sort_by(f64::total_cmp);
        self.e2e_ms.sort_by(f64::total_cmp);
        self.tpot_ms.sort_by(f64::total_cmp);
        insert_exact(&mut line, "e2e_latency", &self.e2e_ms);
        insert_exact(&mut line, "ttft", &self.ttft_ms);
        insert_exact(&mut line, "tpot", &self.tpot_ms);
        insert_summary(&mut line, "itl", itl.of(&report.metrics));
        let busy_s = self.e2e_ms.iter().sum::<f64>() / 1e3;
        let duration = report.metrics.duration_s.filter(|duration| *duration > 0.0);
        if let Some(goodput) = self.goodput {
            goodput.push_to(&mut line, duration);
        }
        line.insert("concurrency".into(), json!(duration.map(|duration| rounded(busy_s / duration))));
        line.insert("max_concurrent_requests".into(), json!(self.concurrent.values().max()));
        line.insert(
            "max_output_tokens_per_s".into(),
            json!(self.arrived.as_ref().and_then(|arrived| arrived.values().max())),
        );
        if let Some(Value::Object(arrays)) = self.arrays.map(|arrays| json!(arrays)) {
            line.extend(arrays);
        }
        line.insert("x_gspbench".into(), json!(ours(report)));
        Value::Object(line)
    }
}

impl Details {
    fn add(&mut self, turn: &TurnRecord, itl: Vec<f64>) {
        let Self { input_lens, output_lens, ttfts, itls, errors, cached_tokens } = self;
        let is_complete = turn.outcome.is_complete();
        let error = || turn.detail.clone().unwrap_or_else(|| turn.outcome.to_string());
        input_lens.push(turn.prompt_tokens.or(turn.planned_prompt_tokens).unwrap_or(0));
        output_lens.push(turn.output_tokens.filter(|_| is_complete).unwrap_or(0));
        ttfts.push(turn.ttft().filter(|_| is_complete).map_or(0.0, Micros::as_secs));
        itls.push(if is_complete { itl } else { vec![] });
        errors.push(if is_complete { String::new() } else { error() });
        cached_tokens.push(turn.cached_tokens);
    }
}

/// Everything but latencies.
fn facts(report: &RunReport, tag: Option<&str>) -> Map<String, Value> {
    let (totals, metrics, spec) = (&report.totals, &report.metrics, &report.manifest.spec);
    let (rate, concurrency) = match spec.load.pacing {
        // As a word: JSON has no infinity.
        Pacing::Closed { sessions } => (json!("inf"), Some(sessions)),
        Pacing::Open { per_second, sessions, .. } => (json!(per_second), sessions),
    };
    let cache = (totals.cached_reported_turns > 0).then(|| {
        json!({
            "total_prompt_tokens": totals.prompt_tokens,
            "total_cached_tokens": totals.cached_tokens,
            "cache_hit_rate_pct": metrics.cache_hit_rate.value.map(|rate| rounded(rate * 100.0)),
            "device_cached_tokens": null, "host_cached_tokens": null, "storage_cached_tokens": null,
            "storage_backend": null,
        })
    });
    let facts = json!({
        "tag": tag, "backend": backend(report), "dataset_name": "generated-shared-prefix",
        "request_rate": rate, "max_concurrency": concurrency,
        "sharegpt_output_len": null, "random_input_len": null, "random_output_len": null, "random_range_ratio": null,
        "server_info": report.server.info,
        "duration": metrics.duration_s, "completed": totals.complete, "failed": totals.failed,
        "total_input_tokens": totals.prompt_tokens, "total_input_text_tokens": totals.prompt_tokens,
        "total_input_vision_tokens": 0,
        "total_output_tokens": totals.output_tokens, "total_output_tokens_retokenized": null,
        "request_throughput": metrics.request_throughput, "input_throughput": metrics.input_throughput,
        "output_throughput": metrics.output_throughput, "total_throughput": metrics.total_throughput,
        "accept_length": null, "cache_report": cache,
    });
    match facts {
        Value::Object(facts) => facts,
        _ => Map::new(),
    }
}

/// bench_serving's name of the route.
fn backend(report: &RunReport) -> &'static str {
    let is_vllm = report.server.kind.as_ref().is_some_and(|kind| kind.to_lowercase().contains("vllm"));
    match (report.manifest.spec.request.api, is_vllm) {
        (Api::Generate, _) => "sglang",
        (Api::Completions, false) => "sglang-oai",
        (Api::Completions, true) => "vllm",
        (Api::Chat, false) => "sglang-oai-chat",
        (Api::Chat, true) => "vllm-chat",
    }
}

fn ours(report: &RunReport) -> Ours<'_> {
    let RunReport { schema, state, manifest, workload, totals, metrics, ranks, affinity, client, validity, .. } =
        report;
    Ours {
        schema: *schema,
        version: &manifest.version,
        arm: &manifest.arm,
        round: manifest.round,
        started_utc: &manifest.started_utc,
        debug_build: manifest.debug_build,
        state: *state,
        seed: manifest.spec.workload.seed,
        key_by: manifest.spec.key.by,
        key_salt: manifest.spec.key.salt,
        workload,
        totals,
        metrics,
        ranks: ranks.iter().map(|row| PlaceRow { ttft_us: None, ..row.clone() }).collect(),
        affinity,
        client,
        validity,
    }
}

/// `sorted` in milliseconds.
fn insert_exact(line: &mut Map<String, Value>, name: &str, sorted: &[f64]) {
    let centre = mean(sorted);
    let squares = |centre: f64| sorted.iter().map(|ms| (ms - centre).powi(2)).collect::<Vec<_>>();
    let variance = centre.and_then(|centre| mean(&squares(centre)));
    let at = |q| interpolated(sorted, q);
    let stats = [centre, at(0.5), variance.map(f64::sqrt), at(0.9), at(0.95), at(0.99)];
    insert(line, name, stats);
}

fn insert_summary(line: &mut Map<String, Value>, name: &str, summary: Option<&Summary>) {
    let get = |of: fn(&Summary) -> f64| summary.map(of);
    insert(
        line,
        name,
        [get(|s| s.mean), get(|s| s.p50), get(|s| s.std), get(|s| s.p90), get(|s| s.p95), get(|s| s.p99)],
    );
}

fn insert(line: &mut Map<String, Value>, name: &str, stats: [Option<f64>; 6]) {
    for (stat, value) in ["mean", "median", "std", "p90", "p95", "p99"].into_iter().zip(stats) {
        line.insert(format!("{stat}_{name}_ms"), json!(value.map(rounded)));
    }
}

/// Between the two nearest of ascending values, in proportion: numpy's default.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index of a list in memory, and a fraction of it"
)]
fn interpolated(sorted: &[f64], q: f64) -> Option<f64> {
    let at = q * sorted.len().checked_sub(1)? as f64;
    let (low, share) = (at.floor() as usize, at.fract());
    let high = sorted.get(low + 1).unwrap_or(&sorted[low]);
    Some(sorted[low] + (high - sorted[low]) * share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Gap;
    use crate::report::tests::{failed, report, served};

    fn line(turns: &[TurnRecord], arrays: Arrays) -> Value {
        let report = report(turns);
        let mut gathered = BenchServing::new(&report, arrays);
        turns.iter().for_each(|turn| gathered.add(turn));
        gathered.line(&report, Some("t"))
    }

    #[test]
    fn figures_follow_the_definitions_of_bench_serving_and_ours_stand_apart() {
        let line = line(&[served(0, 0, 0, 0), served(1, 869, 1, 90)], Arrays::Without);
        // To the end of the stream, a millisecond after the last token.
        assert_eq!((&line["mean_e2e_latency_ms"], &line["mean_ttft_ms"]), (&json!(131.0), &json!(100.0)));
        assert_eq!(line["median_tpot_ms"], json!(rounded(31.0 / 3.0)));
        assert_eq!((&line["mean_itl_ms"], &line["std_ttft_ms"]), (&json!(10.0), &json!(0.0)));
        assert_eq!(
            (&line["completed"], &line["duration"], &line["concurrency"]),
            (&json!(2), &json!(1.0), &json!(0.262))
        );
        assert_eq!((&line["max_concurrent_requests"], &line["max_output_tokens_per_s"]), (&json!(2), &json!(8)));
        assert_eq!(
            (&line["backend"], &line["request_rate"], &line["tag"]),
            (&json!("sglang"), &json!("inf"), &json!("t"))
        );
        assert_eq!(line["cache_report"]["cache_hit_rate_pct"], json!(45.0));
        assert_eq!(line["x_gspbench"]["metrics"]["e2e_ms"]["mean"], json!(130.0), "ours ends at the last token");
        assert!(line.get("ttfts").is_none());
    }

    #[test]
    fn arrays_have_a_member_a_turn_and_failed_turns_are_as_bench_serving_has_them() {
        let skipped = TurnRecord { outcome: Outcome::Skipped, ..served(2, 0, 0, 0) };
        let line = line(&[served(0, 0, 0, 0), failed(1), skipped], Arrays::With);
        assert_eq!((&line["ttfts"], &line["output_lens"]), (&json!([0.1, 0.0]), &json!([4, 0])));
        assert_eq!((&line["itls"], &line["errors"]), (&json!([[0.01, 0.01, 0.01], []]), &json!(["", "reset"])));
        assert_eq!((&line["failed"], &line["max_concurrent_requests"]), (&json!(1), &json!(1)));
    }

    #[test]
    fn what_needs_gaps_is_null_without_them() {
        let line = line(&[TurnRecord { gaps: vec![], ..served(0, 0, 0, 0) }], Arrays::Without);
        assert_eq!(line["max_output_tokens_per_s"], Value::Null);
    }

    /// Row B16: ten events of four tokens in one second, on a route whose ITL is per frame, whether each tells its tokens or not.
    #[test]
    fn the_peak_of_a_second_counts_tokens_and_not_the_events_that_carry_them() {
        let peak = |tokens: Option<u32>| {
            let turn = TurnRecord {
                output_tokens: Some(40),
                frames: 10,
                first_frame_tokens: tokens,
                gaps: vec![Gap::new(10_000, tokens); 9],
                ..served(0, 0, 0, 0)
            };
            let mut report = report(std::slice::from_ref(&turn));
            report.manifest.spec.request.api = Api::Chat;
            let mut gathered = BenchServing::new(&report, Arrays::Without);
            gathered.add(&turn);
            gathered.line(&report, None)["max_output_tokens_per_s"].clone()
        };
        // Where only the closing usage tells them, they are spread over the frames.
        assert_eq!((peak(Some(4)), peak(None)), (json!(40), json!(40)));
    }

    #[test]
    fn percentiles_lie_between_their_neighbours() {
        assert_eq!(interpolated(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.5));
        assert_eq!(interpolated(&[0.0, 10.0], 0.99), Some(9.9));
        assert_eq!((interpolated(&[7.0], 0.99), interpolated(&[], 0.5)), (Some(7.0), None));
    }
}
