//! Everything that generates nothing: model and server info, health, flush, loads.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::super::actor::{Flushed, Report};
use super::App;
use super::error::Refusal;

/// The version whose shapes are imitated.
const VERSION: &str = "0.5.23";

pub(super) fn json(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

pub(super) async fn models(State(app): State<Arc<App>>) -> Response {
    let model = &app.settings.model;
    json(&json!({
        "object": "list",
        "data": [{
            "id": model, "object": "model", "created": app.unix(Duration::ZERO).as_secs(), "owned_by": "sglang",
            "root": model, "parent": null, "max_model_len": app.settings.context_length,
        }],
    }))
}

pub(super) async fn model_info(State(app): State<Arc<App>>) -> Response {
    let model = &app.settings.model;
    json(&json!({
        "model_path": model, "served_model_name": model, "tokenizer_path": model, "is_generation": true,
        "preferred_sampling_params": null, "weight_version": "default", "load_format": "auto",
        "reasoning_parser": null, "tool_call_parser": null, "disaggregation_mode": "null",
        "has_image_understanding": false, "has_audio_understanding": false,
    }))
}

/// As under DP attention: `dp_size` is 1 and the ranks are attention ranks.
pub(super) async fn server_info(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let report = app.report().await?;
    let settings = &app.settings;
    let limits = settings.limits;
    let args = json!({
        "model_path": settings.model, "served_model_name": settings.model, "tokenizer_path": settings.model,
        "context_length": settings.context_length, "page_size": limits.page, "schedule_policy": "fcfs",
        "chunked_prefill_size": limits.chunk, "max_running_requests": limits.max_running,
        "radix_eviction_policy": "lru", "dp_size": 1, "attn_dp_size": settings.ranks, "enable_dp_attention": true,
        "tp_size": settings.ranks, "load_balance_method": settings.method.name(), "stream_interval": 1,
        "enable_cache_report": settings.cache_report, "enable_metrics": true, "incremental_streaming_output": false,
        "load_snapshot_publish_interval": 15, "disaggregation_mode": "null",
        "prefix_affinity_fallback": settings.affinity.fallback.name(),
        "prefix_affinity_max_load_skew": settings.affinity.max_load_skew.get(),
        "prefix_affinity_hash_tokens": settings.affinity.hash_tokens,
        "prefix_affinity_disable_token_fallback": !settings.affinity.token_fallback,
    });
    let state = |_| {
        let own = json!({
            "world_size": settings.ranks, "effective_max_running_requests_per_dp": limits.max_running,
            "last_gen_throughput": 0.0,
            "memory_usage": { "weight": 0.0, "kvcache": 0.0, "token_capacity": limits.kv_tokens, "graph": {} },
        });
        merged(args.clone(), own)
    };
    let states: Vec<Value> = report.counts.iter().map(state).collect();
    let own = json!({
        "status": "ready", "version": VERSION, "frontend": "python",
        "max_total_num_tokens": limits.kv_tokens, "max_req_input_len": settings.longest().saturating_sub(1),
        "kv_events": null, "internal_states": states,
        "gspbench_sim": {
            "version": env!("CARGO_PKG_VERSION"), "preset": settings.preset,
            "guard": settings.affinity.guard.name(), "time_scale": settings.time_scale,
            "offline_ranks": settings.offline, "steps": report.steps,
            "decode_base_us": micros(settings.costs.decode_base),
            "prefill_base_us": micros(settings.costs.prefill_base),
            "per_token_ns": u64::try_from(settings.costs.per_token.as_nanos()).unwrap_or(u64::MAX),
            "max_step_lag_us": micros(report.max_lag),
        },
    });
    Ok(json(&merged(args, own)))
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

fn merged(mut base: Value, more: Value) -> Value {
    if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
        base.extend(more);
    }
    base
}

/// Answers at once and generates nothing, as a live server does with its health generation switched off.
pub(super) async fn health() -> StatusCode {
    StatusCode::OK
}

/// Nobody waits longer for an idle rank.
const LONGEST_FLUSH: Duration = Duration::from_secs(86_400);

/// `?timeout=S` waits that long for each rank to be idle. Idle ranks are emptied even when another is busy; the status tells
/// whether all were (a live server tells of one rank only).
pub(super) async fn flush(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Response {
    let asked = argument(query.as_deref(), "timeout").unwrap_or("0");
    let Some(timeout) = asked.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) else {
        return Refusal::invalid("'query', 'timeout'", "Input should be a valid number", &format!("'{asked}'"))
            .into_response();
    };
    let (status, told) = match app.fleet.flush(timeout.min(LONGEST_FLUSH)).await {
        Ok(Flushed::Done) => (StatusCode::OK, "Cache flushed.\n"),
        Ok(Flushed::Busy) => (StatusCode::BAD_REQUEST, "Cache not flushed: requests are waiting or running.\n"),
        Ok(Flushed::TimedOut) => (StatusCode::BAD_REQUEST, "Timed out waiting for idle state.\n"),
        Ok(Flushed::InProgress) => (StatusCode::BAD_REQUEST, "Another flush_cache is already in progress.\n"),
        Err(_) => return Refusal::stopped().into_response(),
    };
    (status, told).into_response()
}

fn argument<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    query?.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
}

pub(super) async fn loads(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Response {
    let report = match app.report().await {
        Ok(report) => report,
        Err(refusal) => return refusal.into_response(),
    };
    if argument(query.as_deref(), "format").is_some_and(|format| format != "json") {
        return Refusal::openai("only format=json is supported by the gspbench simulator").into_response();
    }
    let wanted = match argument(query.as_deref(), "dp_rank").map(str::parse::<usize>) {
        Some(Err(_)) => {
            return Refusal::invalid("'query', 'dp_rank'", "Input should be a valid integer", "None").into_response();
        }
        Some(Ok(rank)) => Some(rank),
        None => None,
    };
    let ranks = (0..report.counts.len()).filter(|&rank| wanted.is_none_or(|wanted| wanted == rank));
    let loads: Vec<Value> = ranks.map(|rank| load(&app, &report, rank)).collect();
    json(&json!({
        "timestamp": humantime::format_rfc3339_micros(std::time::UNIX_EPOCH + app.unix(app.clock.now())).to_string(),
        "version": VERSION, "accelerator": null, "num_accelerators": report.counts.len(), "loads": loads,
    }))
}

/// The load as the rank last published it, with the counters of now.
fn load(app: &App, report: &Report, rank: usize) -> Value {
    let (counts, snapshot, limits) = (&report.counts[rank], &report.published[rank], app.settings.limits);
    json!({
        "timestamp": app.unix(app.on_clock(snapshot.at)).as_secs_f64(), "dp_rank": rank,
        "num_running_reqs": snapshot.running, "num_waiting_reqs": snapshot.waiting,
        "num_waiting_uncached_tokens": counts.waiting_tokens,
        "num_used_tokens": snapshot.used_tokens, "num_total_tokens": snapshot.total_tokens,
        "num_active_tokens": snapshot.used_tokens, "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": limits.kv_tokens, "max_running_requests": limits.max_running,
        "token_usage": share(snapshot.used_tokens, limits.kv_tokens), "gen_throughput": 0.0,
        "cache_hit_rate": counts.last_hit_rate, "utilization": 0.0,
        "total_prefill_uncached_tokens": counts.prefill_input, "total_prefill_busy_us": micros(counts.prefill_busy), "decode_moments": null,
        "memory": { "weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": limits.kv_tokens },
        "disaggregation": {
            "mode": "null", "prefill_bootstrap_queue_reqs": 0, "prefill_inflight_queue_reqs": 0,
            "decode_prealloc_queue_reqs": 0, "decode_transfer_queue_reqs": 0, "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0, "kv_transfer_latency_ms": 0.0,
        },
        "queues": { "waiting": snapshot.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0 },
    })
}

#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^53")]
pub(super) fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
