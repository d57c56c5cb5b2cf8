//! What `run.json` says under `affinity`. Nothing is computed here.

use serde::{Deserialize, Serialize};

use super::carried::KeptConnections;
use crate::profile::KeyScope;
use crate::record::{Place, PlaceSource};
use crate::stats::Summary;

/// What the places of complete turns say about affinity. Null where places, or keys, are unknown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Affinity {
    pub key_by: KeyScope,
    /// Distinct keys; null where turns carry none, or each its own.
    pub keys: Option<u64>,
    /// Sessions of which a turn completed.
    pub sessions: u64,
    /// Sessions on more than one place; null for single turns.
    pub split_sessions: Option<u64>,
    /// Share of turns k > 1 on the place of turn k − 1, of the pairs where both are known.
    pub stickiness: Option<f64>,
    /// The same of each side of prefill/decode pairs; null where no turn names a pair.
    #[serde(default)]
    pub sides: Option<Sides>,
    /// Turns off their key's preferred rank, where the policy is known; null elsewhere.
    pub spilled: Option<Spilled>,
    /// Turns off the place that served most turns of their key.
    pub off_majority_turns: Option<u64>,
    /// Those of them that each place served, in the order of `ranks`.
    #[serde(default)]
    pub off_majority_per_rank: Vec<u64>,
    /// Prompt tokens of the turns that found at most the slack since they left before the first output of the first turn
    /// of their group at their place, that turn left out. No routing could have given them more. Null where no turn
    /// reports cached tokens, and in reports of earlier versions.
    #[serde(default)]
    pub overlap_tokens: Option<u64>,
    /// Share of turns k > 1 with nothing cached, of those that report it.
    pub zero_hit_share: Option<f64>,
    /// Over the turns of each place, idle ranks included.
    pub load_max_over_mean: Option<f64>,
    pub load_cv: Option<f64>,
    /// Distinct keys that each place served, in the order of `ranks`.
    pub keys_per_rank: Vec<u64>,
    /// The keys of most turns, where groups share keys.
    #[serde(default)]
    pub hot_keys: Vec<HotKey>,
    /// Whether each connection had a place of its own. Null where no turn went over a kept one, or no place is known, and in
    /// reports of earlier versions.
    #[serde(default)]
    pub kept_connections: Option<KeptConnections>,
    pub attribution: Attribution,
    /// The first few sessions that moved, with their places.
    pub split_examples: Vec<SplitSession>,
    /// By the turn's number in its session; empty for single turns.
    #[serde(default)]
    pub by_turn: Vec<Band>,
    /// By what was found in the cache.
    #[serde(default)]
    pub by_cached: Vec<CachedBand>,
    /// By the popularity of the turn's group; empty where all are equally popular.
    #[serde(default)]
    pub by_popularity: Vec<Band>,
}

/// Where later turns went, seen from each node of a pair. A decode node that changes has to be given the session's KV
/// anew, a prefill node that changes has to fetch or compute it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sides {
    pub prefill: Side,
    pub decode: Side,
}

/// One side of the pairs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// Share of turns k > 1 on the node of turn k − 1.
    pub stickiness: Option<f64>,
    /// The others.
    pub moves: u64,
}

/// Turns that did not run where their key belongs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spilled {
    pub turns: u64,
    /// Who knows the preferred rank.
    pub from: String,
    /// By the place that took them.
    #[serde(default)]
    pub by_place: Vec<SpilledAt>,
}

/// Spilled turns that one place took.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpilledAt {
    pub place: Place,
    pub turns: u64,
}

/// For how many of the complete turns the place is known, and from what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    pub known: u64,
    pub turns: u64,
    /// The most frequent source.
    pub source: Option<PlaceSource>,
    /// Why places are unknown.
    pub reason: Option<String>,
}

/// A session that moved: the places of its first turns, null where one is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitSession {
    pub session: String,
    pub places: Vec<Option<Place>>,
}

/// A key of many turns, and where they went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HotKey {
    pub key: String,
    pub turns: u64,
    /// Of all turns.
    pub share: f64,
    /// How many places served it.
    pub places: u64,
    /// The one that served most of its turns.
    pub main_place: Option<Place>,
    pub off_majority_turns: u64,
}

/// Complete turns of one band of numbers, both ends included: turns of a session, or groups from the most popular one,
/// each counted from 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Band {
    pub from: u32,
    pub to: u32,
    pub turns: u64,
    /// Of all complete turns.
    pub share: f64,
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub hit_rate: Option<f64>,
    pub ttft_ms: Option<Summary>,
}

/// Complete turns that found as much in the cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CachedBand {
    pub cached: Cached,
    pub turns: u64,
    /// Of all complete turns.
    pub share: f64,
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub hit_rate: Option<f64>,
    pub ttft_ms: Option<Summary>,
}

/// What a turn found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cached {
    /// No more than the slack: a page, or 64 tokens, which templates give to all groups alike.
    Cold,
    Warm,
    /// Its reply does not say.
    Untold,
}
