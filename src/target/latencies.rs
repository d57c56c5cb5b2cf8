//! What each server calls its latency histograms, as data. All of them are in seconds.
//!
//! Left out, since they hold another time than their name says at first sight, or none that a turn has: SGLang's
//! `per_stage_req_latency` (chunks of a prefill are stages of their own), Dynamo's router and request plane (attempts, and
//! beside the frontend's they would count twice), the request durations of sglang-router and vllm-router (of a stream they may
//! end with the head of the reply). llama.cpp has no histogram. Sources: those of the counters' table.

use super::dialect::{DP_RANK, ENGINE, PlaceLabel, node};
use crate::record::{HistogramRole, ServerHistogram};
use crate::wire::Histogram;

use HistogramRole::{E2e, Itl, PrefillTime, QueueTime, Ttft};

/// Families by name, with the label that names the place. SGLang knows the rank of its schedulers' series alone.
const KNOWN: [(&str, HistogramRole, PlaceLabel); 12] = [
    ("sglang:time_to_first_token_seconds", Ttft, PlaceLabel::None),
    ("sglang:queue_time_seconds", QueueTime, DP_RANK),
    ("sglang:e2e_request_latency_seconds", E2e, PlaceLabel::None),
    ("sglang:inter_token_latency_seconds", Itl, PlaceLabel::None),
    ("vllm:time_to_first_token_seconds", Ttft, ENGINE),
    ("vllm:request_queue_time_seconds", QueueTime, ENGINE),
    ("vllm:request_prefill_time_seconds", PrefillTime, ENGINE),
    ("vllm:e2e_request_latency_seconds", E2e, ENGINE),
    ("vllm:inter_token_latency_seconds", Itl, ENGINE),
    ("dynamo_frontend_time_to_first_token_seconds", Ttft, PlaceLabel::None),
    ("dynamo_frontend_request_duration_seconds", E2e, PlaceLabel::None),
    ("dynamo_frontend_inter_token_latency_seconds", Itl, PlaceLabel::None),
];

/// Whether this family is in the table.
pub(super) fn is_known(family: &str) -> bool {
    KNOWN.iter().any(|(name, ..)| *name == family)
}

/// The histograms that are understood, in their order.
pub(super) fn histograms(read: Vec<Histogram>) -> Vec<ServerHistogram> {
    let known = |Histogram { name, labels, cumulative, sum }: Histogram| {
        let (_, role, place) = KNOWN.iter().find(|(known, ..)| *known == name)?;
        let (place, node) = (place.of(&labels), node(&name, &labels));
        Some(ServerHistogram { name, labels, role: *role, place, node, cumulative, sum })
    };
    read.into_iter().filter_map(known).collect()
}

#[cfg(test)]
#[path = "latencies_tests.rs"]
mod tests;
