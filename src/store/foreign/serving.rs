//! One line of SGLang's bench_serving, or one result of `vllm bench serve`, which descends from the same program.

use serde_json::Value;

use super::blank;
use super::fields::{count, keep, number, summary, word};
use crate::report::{Foreign, HitRate, Latency, RunReport, RunSpec, Summary};

/// Which of the two wrote the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    BenchServing,
    Vllm,
}

/// The run; none when the document is neither's.
pub(super) fn run(document: &Value, spec: &RunSpec) -> Option<RunReport> {
    let completed = count(document, "completed").filter(|_| document.get("mean_ttft_ms").is_some())?;
    let has = |key: &str| document.get(key).is_some();
    let tool = if has("model_id") || has("total_token_throughput") { Tool::Vllm } else { Tool::BenchServing };
    let mut report = blank(foreign(document, tool), spec);
    report.manifest.arm = word(document, "tag").or_else(|| word(document, "label"));
    report.manifest.started_utc = word(document, "date").and_then(|date| utc(&date)).unwrap_or_default();
    fill_server(&mut report, document);
    fill_counts(&mut report, document, completed);
    fill_rates(&mut report, document);
    fill_latencies(&mut report, document, tool, completed);
    Some(report)
}

fn foreign(document: &Value, tool: Tool) -> Foreign {
    let load: Vec<String> = ["request_rate", "max_concurrency"]
        .into_iter()
        .filter_map(|key| Some(format!("{key} {}", word(document, key)?.replace("Infinity", "inf"))))
        .collect();
    let (name, counts): (_, &[_]) = match tool {
        Tool::BenchServing => ("bench_serving", &["planned", "failed", "cancelled", "skipped"]),
        Tool::Vllm => ("vllm bench serve", &["planned", "cancelled", "skipped"]),
    };
    let is_told = |name: &str| match name {
        "failed" | "planned" => failures(document).is_some(),
        _ => false,
    };
    Foreign {
        tool: name.to_owned(),
        load: (!load.is_empty()).then(|| load.join(", ")),
        backend: word(document, "backend"),
        uncounted: counts.iter().filter(|name| !is_told(name)).map(|name| (*name).to_owned()).collect(),
        unchecked: [
            "the workload's digest and keys",
            "the state of the cache before the run",
            "the client's own delays",
        ]
        .map(str::to_owned)
        .to_vec(),
    }
}

/// As counted, or as the details tell them.
fn failures(document: &Value) -> Option<u64> {
    let failed =
        |errors: &Vec<Value>| errors.iter().filter(|error| error.as_str().is_some_and(|e| !e.is_empty())).count();
    let listed = || u64::try_from(failed(document.get("errors")?.as_array()?)).ok();
    count(document, "failed").or_else(listed)
}

/// `20260102-030405`, as Python's strftime is asked for it.
fn utc(date: &str) -> Option<String> {
    let day = date.split('-').next().filter(|day| day.len() == 8 && day.bytes().all(|byte| byte.is_ascii_digit()))?;
    Some(format!("{}-{}-{}", &day[..4], &day[4..6], &day[6..]))
}

fn fill_server(report: &mut RunReport, document: &Value) {
    let info = document.get("server_info").filter(|info| info.is_object());
    let told = |key: &str| info.and_then(|info| word(info, key));
    report.server.model =
        word(document, "model_id").or_else(|| told("served_model_name")).or_else(|| told("model_path"));
    report.server.version = told("version");
    report.server.load_balance_method = told("load_balance_method");
    // As SGLang has them: each of its data-parallel groups may hold attention ranks of its own.
    let ranks =
        info.and_then(|info| count(info, "dp_size")?.checked_mul(count(info, "attn_dp_size").unwrap_or(1).max(1)));
    report.server.ranks = ranks.and_then(|ranks| u32::try_from(ranks).ok());
    report.server.info = info.cloned();
}

fn fill_counts(report: &mut RunReport, document: &Value, completed: u64) {
    let totals = &mut report.totals;
    totals.complete = completed;
    totals.failed = failures(document).unwrap_or(0);
    totals.planned = completed + totals.failed;
    // Of several turns bench_serving writes 0 prompt tokens: it did not count them.
    totals.prompt_tokens = count(document, "total_input_tokens").filter(|tokens| *tokens > 0);
    totals.output_tokens = count(document, "total_output_tokens").filter(|tokens| *tokens > 0);
    let cache = document.get("cache_report").filter(|cache| cache.is_object());
    totals.cached_tokens = cache.and_then(|cache| count(cache, "total_cached_tokens"));
    let rate = cache.and_then(|cache| number(cache, "cache_hit_rate_pct")).map(|percent| percent / 100.0);
    report.metrics.cache_hit_rate = HitRate { value: rate, coverage: None };
}

fn fill_rates(report: &mut RunReport, document: &Value) {
    let counts_prompts = report.totals.prompt_tokens.is_some();
    let metrics = &mut report.metrics;
    metrics.duration_s = number(document, "duration");
    metrics.request_throughput = number(document, "request_throughput");
    metrics.input_throughput = number(document, "input_throughput").filter(|_| counts_prompts);
    metrics.output_throughput = number(document, "output_throughput");
    let total = number(document, "total_throughput").or_else(|| number(document, "total_token_throughput"));
    metrics.total_throughput = total.filter(|_| counts_prompts);
}

/// Their ITL is per token on `/generate` and per frame on every other route.
fn fill_latencies(report: &mut RunReport, document: &Value, tool: Tool, completed: u64) {
    let is_native = tool == Tool::BenchServing
        && word(document, "backend").is_some_and(|name| matches!(name.as_str(), "sglang" | "sglang-native"));
    let between = if is_native { Latency::Itl } else { Latency::Icl };
    let seconds = |key: &str| document.get(key).and_then(Value::as_array);
    // A failed turn has a TTFT of 0 there.
    let ttfts =
        seconds("ttfts").map(|list| list.iter().filter_map(Value::as_f64).filter(|s| *s > 0.0).map(|s| s * 1e3));
    let itls = seconds("itls")
        .map(|list| list.iter().filter_map(Value::as_array).flatten().filter_map(Value::as_f64).map(|s| s * 1e3));
    let ttft = ttfts.and_then(|samples| keep(report, Latency::Ttft, samples));
    let gaps = itls.and_then(|samples| keep(report, between, samples));
    // How many intervals there were is not recorded; as many as tokens beyond the first of each turn, if each has one.
    let intervals = report.totals.output_tokens.map_or(completed, |tokens| tokens.saturating_sub(completed));
    let gaps: Option<Summary> = gaps.or_else(|| summary(document, "itl", intervals));
    let metrics = &mut report.metrics;
    metrics.ttft_ms = ttft.or_else(|| summary(document, "ttft", completed));
    metrics.tpot_ms = summary(document, "tpot", completed);
    metrics.e2e_ms = summary(document, "e2e_latency", completed).or_else(|| summary(document, "e2el", completed));
    match between {
        Latency::Itl => metrics.itl_ms = gaps,
        _ => metrics.icl_ms = gaps,
    }
}
