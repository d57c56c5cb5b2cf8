//! What each server calls its counters and gauges, as data. A name that no table holds is kept in the raw scrape only.
//!
//! Names are compared without their `_total` ending, which exporters add once, twice or not at all. A `_created` twin is
//! no counter. Sources: SGLang 0.5.23, vLLM 0.32, llama.cpp, Dynamo 1.6, sglang-router 0.3.2 and SMG, vllm-router 0.1.17,
//! PegaFlow 0.23.

use std::collections::BTreeMap;

use super::latencies;
use crate::record::{CounterRole, Place, ServerCounter};
use crate::units::{NodeRole, Rank};
use crate::wire::{Exposition, Sample, bucket_of};

/// Which server writes such an exposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    Sglang,
    Vllm,
    LlamaCpp,
    Dynamo,
    Smg,
    VllmRouter,
    Pegaflow,
}

/// One counter that is understood.
struct Known {
    /// Without `_total`.
    name: &'static str,
    role: CounterRole,
    /// Only series with this label at one of these values.
    only: Option<(&'static str, &'static [&'static str])>,
    place: PlaceLabel,
}

/// Which label names the place, and what kind of place it is.
#[derive(Clone, Copy)]
pub(super) enum PlaceLabel {
    None,
    Rank(&'static str),
    Node(&'static str),
    /// An id that replies write in decimal digits, and metrics in hexadecimal ones.
    HexNode(&'static str),
}

use CounterRole::{
    AbortedRequests, Attempts, CachedTokens, CachedTokensFinished, ComputedTokens, EvictedTokens, Fetched,
    OutputTokens, PromptTokens, Requests, Spills,
};

const fn known(name: &'static str, role: CounterRole, place: PlaceLabel) -> Known {
    Known { name, role, only: None, place }
}

const fn only(
    name: &'static str,
    role: CounterRole,
    label: (&'static str, &'static [&'static str]),
    place: PlaceLabel,
) -> Known {
    Known { name, role, only: Some(label), place }
}

pub(super) const DP_RANK: PlaceLabel = PlaceLabel::Rank("dp_rank");
pub(super) const ENGINE: PlaceLabel = PlaceLabel::Rank("engine");
const WORKER: PlaceLabel = PlaceLabel::Node("worker");
const WORKER_ID: PlaceLabel = PlaceLabel::HexNode("worker_id");

/// `prefill_effective_tokens` is the per-rank source; retracted work and chunk continuations are in `input` alone.
/// `cached_tokens` counts at the request's end.
const SGLANG: &[Known] = &[
    only(
        "sglang:prefill_effective_tokens",
        CachedTokens,
        ("mode", &["device_hit", "host_hit", "storage_hit"]),
        DP_RANK,
    ),
    only("sglang:prefill_effective_tokens", ComputedTokens, ("mode", &["input"]), DP_RANK),
    only(
        "sglang:cached_tokens",
        CachedTokensFinished,
        ("cache_source", &["device", "host", "storage", "total"]),
        PlaceLabel::None,
    ),
    known("sglang:prompt_tokens", PromptTokens, PlaceLabel::None),
    known("sglang:generation_tokens", OutputTokens, PlaceLabel::None),
    known("sglang:num_requests", Requests, PlaceLabel::None),
    known("sglang:num_aborted_requests", AbortedRequests, PlaceLabel::None),
    // Under plain data parallelism every rank labels this series 0, so its rank is not believed.
    known("sglang:evicted_tokens", EvictedTokens, PlaceLabel::None),
    known("gspbench_sim_spilled", Spills, DP_RANK),
];

const VLLM: &[Known] = &[
    known("vllm:prefix_cache_hits", CachedTokens, ENGINE),
    known("vllm:prompt_tokens_cached", CachedTokensFinished, ENGINE),
    known("vllm:prompt_tokens", PromptTokens, ENGINE),
    only("vllm:prompt_tokens_by_source", ComputedTokens, ("source", &["local_compute"]), ENGINE),
    only("vllm:prompt_tokens_by_source", Fetched, ("source", &["external_kv_transfer"]), ENGINE),
    known("vllm:generation_tokens", OutputTokens, ENGINE),
    known("vllm:request_success", Requests, ENGINE),
];

const LLAMA_CPP: &[Known] = &[
    known("llamacpp:prompt_tokens", ComputedTokens, PlaceLabel::None),
    known("llamacpp:prompt_tokens_cached", CachedTokens, PlaceLabel::None),
    known("llamacpp:tokens_predicted", OutputTokens, PlaceLabel::None),
];

const DYNAMO: &[Known] = &[
    known("dynamo_frontend_cached_tokens_sum", CachedTokensFinished, PlaceLabel::None),
    known("dynamo_frontend_input_sequence_tokens_sum", PromptTokens, PlaceLabel::None),
    known("dynamo_frontend_output_tokens", OutputTokens, PlaceLabel::None),
    only("dynamo_frontend_requests", Requests, ("status", &["success"]), PlaceLabel::None),
    // Each leg at each worker; the page of a worker also has the count of its engine, and the frontend's is that of all.
    only("dynamo_component_requests", Attempts, ("dynamo_endpoint", &["generate"]), WORKER_ID),
];

/// Attempts, not requests: a retried request counts at each worker that it tried.
const SMG: &[Known] = &[known(SMG_SENT, Attempts, WORKER), known(SMG_OUTCOMES, Attempts, WORKER)];
const SMG_SENT: &str = "smg_worker_requests";
const SMG_OUTCOMES: &str = "smg_worker_cb_outcomes";

const VLLM_ROUTER: &[Known] = &[
    known("vllm_router_processed_requests", Attempts, WORKER),
    known("vllm_router_pd_prefill_requests", Attempts, WORKER),
    known("vllm_router_pd_decode_requests", Attempts, WORKER),
];

const PEGAFLOW: &[Known] = &[
    known("pegaflow_rdma_fetch", Fetched, PlaceLabel::None),
    known("pegaflow_rdma_fetch_bytes", Fetched, PlaceLabel::None),
    known("pegaflow_cache_tier_block_requests", Fetched, PlaceLabel::None),
];

const TABLES: [(Dialect, &[&str], &[Known]); 7] = [
    (Dialect::Sglang, &["sglang:", "gspbench_sim_"], SGLANG),
    (Dialect::Vllm, &["vllm:"], VLLM),
    (Dialect::LlamaCpp, &["llamacpp:"], LLAMA_CPP),
    (Dialect::Dynamo, &["dynamo_"], DYNAMO),
    (Dialect::Smg, &["smg_"], SMG),
    (Dialect::VllmRouter, &["vllm_router_"], VLLM_ROUTER),
    (Dialect::Pegaflow, &["pegaflow_"], PEGAFLOW),
];

/// When the process of a server started, whatever it is.
pub(super) const PROCESS_START: &str = "process_start_time_seconds";

/// Whether a sample of this name may tell anything: all that is looked for bears its server's prefix, and of the buckets of
/// histograms only those of known latencies are looked at.
pub(super) fn may_tell(name: &str) -> bool {
    let is_ours = || TABLES.iter().any(|(_, prefixes, _)| prefixes.iter().any(|prefix| name.starts_with(prefix)));
    match bucket_of(name) {
        Some(family) => latencies::is_known(family),
        None => name == PROCESS_START || is_ours(),
    }
}

/// Whether a table of counters holds this name.
pub(super) fn is_known(name: &str) -> bool {
    let name = bare(name);
    TABLES.iter().any(|(_, _, table)| table.iter().any(|known| known.name == name))
}

/// The dialects that an exposition holds: a router may repeat its workers' series beside its own.
#[must_use]
pub fn dialects(exposition: &Exposition) -> Vec<Dialect> {
    let has = |prefixes: &[&str]| {
        exposition.samples.iter().any(|sample| prefixes.iter().any(|prefix| sample.name.starts_with(prefix)))
    };
    TABLES.iter().filter(|(_, prefixes, _)| has(prefixes)).map(|(dialect, _, _)| *dialect).collect()
}

/// The counters that are understood, in the exposition's order.
#[must_use]
pub fn counters(exposition: &Exposition) -> Vec<ServerCounter> {
    let mut counters: Vec<ServerCounter> = exposition.samples.iter().filter_map(counter).collect();
    // SMG 1.13 counts what it sends, and beside it how that ended; earlier ones only the latter.
    if counters.iter().any(|counter| counter.name.starts_with(SMG_SENT)) {
        counters.retain(|counter| !counter.name.starts_with(SMG_OUTCOMES));
    }
    // SGLang's source `total` stands alone or repeats the others.
    let is_total = |counter: &ServerCounter| counter.labels.get("cache_source").is_some_and(|source| source == "total");
    if counters.iter().any(|counter| counter.labels.contains_key("cache_source") && !is_total(counter)) {
        counters.retain(|counter| !is_total(counter));
    }
    counters
}

fn counter(sample: &Sample) -> Option<ServerCounter> {
    if !sample.value.is_finite() {
        return None;
    }
    let name = bare(&sample.name);
    let (_, _, table) =
        TABLES.iter().find(|(_, prefixes, _)| prefixes.iter().any(|prefix| name.starts_with(prefix)))?;
    let known = table.iter().find(|known| known.name == name && known.applies(&sample.labels))?;
    Some(ServerCounter {
        name: sample.name.clone(),
        labels: sample.labels.clone(),
        role: known.role,
        place: known.place.of(&sample.labels),
        node: node(name, &sample.labels),
        value: sample.value,
    })
}

/// SGLang labels all that a node counts with what it does (`unified` where that is both), Dynamo its prefill workers, and
/// vllm-router has a counter for either side. Dynamo's other workers are `backend`, with prefill workers beside them or not.
pub(super) fn node(name: &str, labels: &BTreeMap<String, String>) -> Option<NodeRole> {
    let by_label = || labels.get("engine_type").or_else(|| labels.get("dynamo_component"));
    match name {
        "vllm_router_pd_prefill_requests" => Some(NodeRole::Prefill),
        "vllm_router_pd_decode_requests" => Some(NodeRole::Decode),
        _ => by_label().and_then(|word| NodeRole::named(word)),
    }
}

/// A counter's name without `_total`, once or twice.
fn bare(name: &str) -> &str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    name.strip_suffix("_total").unwrap_or(name)
}

impl Known {
    fn applies(&self, labels: &BTreeMap<String, String>) -> bool {
        self.only.is_none_or(|(label, values)| labels.get(label).is_some_and(|value| values.contains(&value.as_str())))
    }
}

impl PlaceLabel {
    pub(super) fn of(self, labels: &BTreeMap<String, String>) -> Option<Place> {
        match self {
            Self::None => None,
            Self::Rank(label) => labels.get(label)?.parse().ok().map(|rank| Place::Rank(Rank(rank))),
            Self::Node(label) => labels.get(label).map(|name| Place::Node(name.clone())),
            Self::HexNode(label) => {
                u64::from_str_radix(labels.get(label)?, 16).ok().map(|id| Place::Node(id.to_string()))
            }
        }
    }
}

#[cfg(test)]
#[path = "dialect_tests.rs"]
mod tests;
