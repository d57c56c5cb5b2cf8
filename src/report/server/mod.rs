//! The part of `run.json` that speaks of the server: what it told of itself, and how its counters and gauges moved.

mod believed;
mod counters;
mod histograms;
mod load;
mod told;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::cold::ColdEvidence;
use crate::record::{CounterRole, Place, PlaceLoad};
use crate::units::NodeRole;

pub use histograms::{Between, HistogramDelta, ServerClock, TimeBucket};
pub use load::{Level, LoadRow, loads};
pub use told::{Fact, FlushBy, FlushFacts, FlushProof, Untold};

/// The system under test, as it described itself and as its counters moved.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerFacts {
    /// The base URL that the turns went to.
    #[serde(default)]
    pub address: Option<String>,
    /// Further ones among which the client itself spread them.
    #[serde(default)]
    pub other_addresses: Vec<String>,
    /// Host names among these addresses, each with what its one look-up before the run gave. Connections try them in this
    /// order.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resolved: BTreeMap<String, Vec<IpAddr>>,
    pub kind: Option<String>,
    pub version: Option<String>,
    pub model: Option<String>,
    pub ranks: Option<u32>,
    pub load_balance_method: Option<String>,
    pub kv_tokens_per_rank: Option<u64>,
    pub kv_tokens_total: Option<u64>,
    /// Tokens of a cache page: cached tokens come in multiples of it.
    #[serde(default)]
    pub page_tokens: Option<u32>,
    /// How the cache was emptied before the run, and what shows that it was.
    #[serde(default)]
    pub flush: Option<FlushFacts>,
    /// Addresses whose process started again during the run, by its start time.
    #[serde(default)]
    pub restarted: Vec<String>,
    /// What the first turns of all groups say of the cache at the start.
    #[serde(default)]
    pub cold: Option<ColdEvidence>,
    /// What it does not tell, with what would make it.
    #[serde(default)]
    pub untold: Vec<Untold>,
    /// The server's own description, raw.
    pub info: Option<serde_json::Value>,
    pub key_seen: KeySeen,
    pub counters: Vec<CounterDelta>,
    /// Its own latency histograms.
    #[serde(default)]
    pub histograms: Vec<HistogramDelta>,
    /// Addresses whose counters could not be read before the run, after it, or both.
    #[serde(default)]
    pub unread: Vec<Unread>,
    /// Addresses whose pages of counters were too large to be kept whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<Cut>,
    /// Gauges of each place over time, once a second at first; a place has less than 3,600 samples, since every second one
    /// goes when there are more. Empty where the server tells none.
    pub series: Vec<PlaceLoad>,
}

/// Whether the server's own metrics show that routing keys arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeySeen {
    Yes,
    No,
    #[default]
    Unknown,
}

/// One counter before and after the run. Some servers show a counter only once it has moved: then `before` is null.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CounterDelta {
    /// The address that was scraped.
    pub source: String,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// What it counts, in words that all servers share.
    #[serde(default)]
    pub role: Option<CounterRole>,
    /// The rank or node that it speaks of; absent for the whole server.
    #[serde(default)]
    pub place: Option<Place>,
    /// What its node does, where prefill and decode are apart and someone says so: the caller, the counter's labels, or the
    /// server's description of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeRole>,
    pub before: Option<f64>,
    pub after: Option<f64>,
    pub delta: Option<f64>,
}

/// An address whose counters could not be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    pub source: String,
    pub when: When,
    /// What was wrong, where that is known.
    #[serde(default)]
    pub why: Option<String>,
}

/// A page of counters that was too large to be kept whole, before the run or after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    pub source: String,
    /// Series of known counters, if they were so many that those of one place are one here; null where each is kept.
    pub summed_series: Option<u64>,
    /// Series of latency histograms, if they were so many that none is read.
    #[serde(default)]
    pub left_out_histograms: Option<u64>,
    /// Bytes of other series that are not in `metrics.prom`.
    pub left_out_bytes: u64,
}

/// At which end of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    Before,
    After,
    Both,
}
