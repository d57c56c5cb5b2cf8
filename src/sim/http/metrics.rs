//! The Prometheus exposition: SGLang's names, labels and number format for what the simulator knows, and nothing made up for
//! what it does not.
//!
//! Series of the scheduler carry the rank; those of the tokenizer do not; the radix cache has labels of its own. Some do not
//! exist before their first event, as on a live server.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::super::actor::Report;
use super::super::histogram::Histogram;
use super::super::rank::Counts;
use super::App;
use super::control::share;
use super::error::Refusal;
use super::front::{Front, Totals};

pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let report = app.report().await?;
    let text = exposition(&app, &report);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=1.0.0; charset=utf-8")], text).into_response())
}

fn exposition(app: &App, report: &Report) -> String {
    let mut page = Page { text: String::with_capacity(32 * 1024), model: super::json_string(&app.settings.model) };
    page.tokenizer(&app.front());
    page.gauges(app, report);
    page.counters(report);
    page.own(app);
    page.text
}

struct Page {
    text: String,
    /// With its quotes.
    model: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        writeln!(self.text, "{name}{braces} {value:?}").ok();
    }

    fn histogram(&mut self, name: &str, labels: &str, histogram: &Histogram) {
        self.sample(&format!("{name}_sum"), labels, histogram.sum());
        for (bound, count) in histogram.cumulative() {
            let bound = if bound.is_finite() { format!("{bound:?}") } else { "+Inf".to_owned() };
            // `le` stands in its place among the sorted labels.
            let labels = match labels.split_once("model_name") {
                Some((before, after)) => format!("{before}le=\"{bound}\",model_name{after}"),
                None => format!("{labels},le=\"{bound}\""),
            };
            self.sample(&format!("{name}_bucket"), &labels, float(count));
        }
        self.sample(&format!("{name}_count"), labels, float(histogram.count()));
    }

    /// Labels of the tokenizer's series.
    fn engine(&self) -> String {
        format!(r#"engine_type="unified",model_name={}"#, self.model)
    }

    fn streaming(&self, is_streaming: bool) -> String {
        format!(r#"engine_type="unified",is_streaming="{is_streaming}",model_name={}"#, self.model)
    }

    /// Labels of a scheduler's series; with DP attention over all GPUs the TP rank is the DP rank.
    fn rank(&self, rank: usize, mode: Option<&str>) -> String {
        let mode = mode.map_or(String::new(), |mode| format!(r#"mode="{mode}","#));
        let model = &self.model;
        format!(
            r#"dp_rank="{rank}",engine_type="unified",{mode}model_name={model},moe_ep_rank="0",pp_rank="0",tp_rank="{rank}""#
        )
    }

    /// Series exist from the first request of their kind on.
    fn by_streaming(&mut self, front: &Front, mut add: impl FnMut(&mut Self, &str, &Totals)) {
        for (is_streaming, totals) in [(false, &front.whole), (true, &front.streamed)] {
            if totals.requests > 0 || totals.ttft.count() > 0 {
                let labels = self.streaming(is_streaming);
                add(self, &labels, totals);
            }
        }
    }

    fn tokenizer(&mut self, front: &Front) {
        let name = "sglang:prompt_tokens_total";
        self.family(name, "counter", "Prompt tokens of ended requests.");
        self.by_streaming(front, |page, labels, totals| page.sample(name, labels, float(totals.prompt_tokens)));
        let name = "sglang:generation_tokens_total";
        self.family(name, "counter", "Output tokens of ended requests.");
        self.by_streaming(front, |page, labels, totals| page.sample(name, labels, float(totals.output_tokens)));
        let name = "sglang:num_requests_total";
        self.family(name, "counter", "Ended requests, aborted ones too.");
        self.by_streaming(front, |page, labels, totals| page.sample(name, labels, float(totals.requests)));
        if front.cached_tokens > 0 {
            let name = "sglang:cached_tokens_total";
            self.family(name, "counter", "Cached prompt tokens of ended requests.");
            let labels = format!(r#"cache_source="device",{}"#, self.engine());
            self.sample(name, &labels, float(front.cached_tokens));
        }
        if front.aborted > 0 {
            let name = "sglang:num_aborted_requests_total";
            self.family(name, "counter", "Aborted requests.");
            self.sample(name, &self.engine(), float(front.aborted));
        }
        let name = "sglang:time_to_first_token_seconds";
        self.family(name, "histogram", "From a request's arrival to its first token.");
        self.by_streaming(front, |page, labels, totals| page.histogram(name, labels, &totals.ttft));
        let name = "sglang:e2e_request_latency_seconds";
        self.family(name, "histogram", "From a request's arrival to its end.");
        self.by_streaming(front, |page, labels, totals| page.histogram(name, labels, &totals.e2e));
        let name = "sglang:request_time_per_output_token_seconds";
        self.family(name, "histogram", "From the first token to the last, over the tokens after the first.");
        self.by_streaming(front, |page, labels, totals| page.histogram(name, labels, &totals.per_output_token));
        let name = "sglang:inter_token_latency_seconds";
        self.family(name, "histogram", "Time between frames over their new tokens.");
        self.histogram(name, &self.engine(), &front.inter_token);
        let name = "sglang:routing_keys_active";
        self.family(name, "gauge", "Distinct routing keys with requests in flight.");
        self.sample(name, "", float(front.active_keys.len() as u64));
    }

    fn gauges(&mut self, app: &App, report: &Report) {
        let capacity = app.settings.limits.kv_tokens;
        type Gauge<'a> = (&'a str, &'a str, Box<dyn Fn(usize, &Counts) -> f64 + 'a>);
        let gauges: [Gauge<'_>; 12] = [
            ("max_total_num_tokens", "Tokens that the KV cache holds.", Box::new(|_, _| float(capacity))),
            ("num_running_reqs", "Running requests.", Box::new(|_, counts| float(counts.running))),
            ("num_queue_reqs", "Waiting requests.", Box::new(|_, counts| float(counts.waiting))),
            ("cache_hit_rate", "Hit rate of the last prefill batch.", Box::new(|_, counts| counts.last_hit_rate)),
            ("token_usage", "Share of slots that live requests hold.", Box::new(|_, c| share(c.used_tokens, capacity))),
            ("full_token_usage", "The same of full attention.", Box::new(|_, c| share(c.used_tokens, capacity))),
            ("num_used_tokens", "Slots that live requests hold.", Box::new(|_, counts| float(counts.used_tokens))),
            ("kv_used_tokens", "Slots that live requests hold.", Box::new(|_, counts| float(counts.used_tokens))),
            ("kv_available_tokens", "Free slots.", Box::new(|_, counts| float(counts.free_tokens))),
            ("kv_evictable_tokens", "Cached, not in use.", Box::new(|_, counts| float(counts.evictable_tokens))),
            ("gen_throughput", "Not measured by the simulator.", Box::new(|_, _| 0.0)),
            (
                "num_unique_running_routing_keys",
                "Distinct routing keys that run.",
                Box::new(|rank, _| float(report.running_keys[rank])),
            ),
        ];
        for (name, help, value) in gauges {
            let name = format!("sglang:{name}");
            self.family(&name, "gauge", help);
            for (rank, counts) in report.counts.iter().enumerate() {
                self.sample(&name, &self.rank(rank, None), value(rank, counts));
            }
        }
    }

    fn counters(&mut self, report: &Report) {
        let name = "sglang:queue_time_seconds";
        self.family(name, "histogram", "Waits for the first chunk.");
        for (rank, histogram) in report.queue_seconds.iter().enumerate() {
            self.histogram(name, &self.rank(rank, None), histogram);
        }
        self.modes(report, "sglang:prefill_effective_tokens_total", |counts| {
            vec![
                ("input", counts.prefill_input),
                ("device_hit", counts.prefill_hit),
                ("host_hit", 0),
                ("storage_hit", 0),
            ]
        });
        self.modes(report, "sglang:realtime_tokens_total", |counts| {
            let Counts { prefill_input, prefill_hit, decoded, .. } = *counts;
            vec![("prefill_compute", prefill_input), ("decode", decoded), ("prefill_cache", prefill_hit)]
        });
        self.evictions(report);
        let name = "gspbench_sim_spilled_total";
        self.family(name, "counter", "Requests that a rank took because the guard sent them past their preferred one.");
        for (rank, &spilled) in report.spilled.iter().enumerate() {
            self.sample(name, &format!(r#"dp_rank="{rank}""#), float(spilled));
        }
        let name = "gspbench_sim_max_step_lag_seconds";
        self.family(name, "gauge", "How late the latest step of all ended, by the server's clock.");
        self.sample(name, "", report.max_lag.as_secs_f64());
    }

    /// What no SGLang shows: whether keys arrive, as a count, and when this server started.
    fn own(&mut self, app: &App) {
        let (keyed, keyless) = {
            let front = app.front();
            (front.keyed, front.keyless)
        };
        let name = "gspbench_sim_keyed_requests_total";
        self.family(name, "counter", "Requests with a routing key where their route reads it.");
        self.sample(name, "", float(keyed));
        let name = "gspbench_sim_keyless_requests_total";
        self.family(name, "counter", "Requests without one.");
        self.sample(name, "", float(keyless));
        let name = "process_start_time_seconds";
        self.family(name, "gauge", "Unix time of this server's start.");
        self.sample(name, "", app.unix(Duration::ZERO).as_secs_f64());
    }

    fn modes(&mut self, report: &Report, name: &str, values: impl Fn(&Counts) -> Vec<(&'static str, u64)>) {
        self.family(name, "counter", "Tokens by how they were come by.");
        for (rank, counts) in report.counts.iter().enumerate() {
            for (mode, tokens) in values(counts) {
                self.sample(name, &self.rank(rank, Some(mode)), float(tokens));
            }
        }
    }

    fn evictions(&mut self, report: &Report) {
        if report.counts.iter().all(|counts| counts.evicted_tokens == 0) {
            return;
        }
        let name = "sglang:evicted_tokens_total";
        self.family(name, "counter", "Tokens evicted from the prefix cache.");
        for (rank, counts) in report.counts.iter().enumerate().filter(|(_, counts)| counts.evicted_tokens > 0) {
            let labels = format!(r#"cache_type="radix",dp_rank="{rank}",pp_rank="0",tp_rank="0""#);
            self.sample(name, &labels, float(counts.evicted_tokens));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}
