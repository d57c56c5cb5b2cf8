//! What a server counts and holds, as it says it: samples, nothing derived.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Place;
use crate::units::{Micros, NodeRole};

/// What a counter counts, whatever its server calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CounterRole {
    /// Prompt tokens of all requests.
    PromptTokens,
    /// Prompt tokens that a prefix cache held, counted where and when they are scheduled.
    CachedTokens,
    /// The same, counted when the request has finished.
    CachedTokensFinished,
    /// Prompt tokens that had to be computed.
    ComputedTokens,
    OutputTokens,
    /// Each once, at its end.
    Requests,
    /// What a router sent to its workers: a request that was tried again counts again.
    Attempts,
    AbortedRequests,
    EvictedTokens,
    /// Turns that a policy sent elsewhere than their key prefers.
    Spills,
    /// Prompt tokens, bytes or blocks that came from another node.
    Fetched,
    /// Time spent in prefill, µs.
    PrefillBusyUs,
}

/// One counter of one scrape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerCounter {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub role: CounterRole,
    /// The rank or node that it speaks of; absent for counters of the whole server.
    pub place: Option<Place>,
    /// What its node does, where prefill and decode are apart and the counter itself tells.
    pub node: Option<NodeRole>,
    pub value: f64,
}

/// Which time a histogram of a server's holds, whatever its server calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistogramRole {
    /// From a request's arrival at the server to its first token.
    Ttft,
    /// From a request's entry into the scheduler's queue until it is first scheduled.
    QueueTime,
    /// From there to its first token.
    PrefillTime,
    /// From a request's arrival at the server to its end.
    E2e,
    /// Between tokens, as the server writes them.
    Itl,
}

impl HistogramRole {
    /// In the order in which a request meets them.
    pub const ALL: [Self; 5] = [Self::Ttft, Self::QueueTime, Self::PrefillTime, Self::Itl, Self::E2e];
}

/// One latency histogram of one scrape, in seconds, since its server started.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerHistogram {
    pub name: String,
    /// Without the bounds of its buckets.
    pub labels: BTreeMap<String, String>,
    pub role: HistogramRole,
    /// The rank or node that it speaks of; absent for histograms of the whole server.
    pub place: Option<Place>,
    /// What its node does, where prefill and decode are apart and the histogram itself tells.
    pub node: Option<NodeRole>,
    /// Upper bounds, ascending, the last one infinite, with the samples at or below each. None where it is there and cannot
    /// be read.
    pub cumulative: Option<Vec<(f64, u64)>>,
    /// Of all samples, where it is told.
    pub sum: Option<f64>,
}

/// The load of one place at one instant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlaceLoad {
    /// From the start of the run.
    pub t_us: Micros,
    pub place: Place,
    pub running: Option<u64>,
    pub waiting: Option<u64>,
    /// Tokens of KV cache held by live requests; what could be evicted is not among them.
    pub kv_used: Option<u64>,
    /// The same as a share of the cache, 0…1; some servers tell only this.
    #[serde(default)]
    pub kv_usage: Option<f64>,
    /// As the server says it: SGLang's is that of its last prefill batch.
    pub hit_rate: Option<f64>,
}

impl PlaceLoad {
    /// A place of which nothing is told.
    #[must_use]
    pub fn unknown(t_us: Micros, place: Place) -> Self {
        Self { t_us, place, running: None, waiting: None, kv_used: None, kv_usage: None, hit_rate: None }
    }
}
