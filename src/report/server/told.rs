//! What a server has shown of its cache before a run, and what it does not tell: parts of `run.json`, as in [`crate::report::shape`].

use serde::{Deserialize, Serialize};

use crate::record::Place;

/// How a block was to begin cold, and what shows that it did. A status of 200 proves nothing: under data parallelism it is
/// that of whichever rank replied first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushFacts {
    pub by: FlushBy,
    /// What shows that every rank was empty after it; null when nothing does.
    pub proof: Option<FlushProof>,
    /// Places that still held what they had held before it.
    pub warm: Vec<Place>,
}

/// The way in which the cache was emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlushBy {
    /// SGLang's `/flush_cache`.
    FlushCache,
    /// vLLM's `/reset_prefix_cache`, on every address.
    ResetPrefixCache,
    /// A command of the user's.
    Command,
    /// It was not: a fresh `cache_salt` keeps this run's prompts apart from all others.
    CacheSalt,
    /// It was not.
    Nothing,
}

/// What shows that every rank is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlushProof {
    /// Every rank shows 0 cached tokens that no request holds.
    NoEvictableTokens,
    /// A prompt that every rank had computed before was sent to each of them again, and none found it.
    PinnedProbe,
}

/// A fact that a server does not tell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Untold {
    pub fact: Fact,
    /// The flag, route or address that would tell it.
    pub remedy: String,
}

/// What a report would like to know of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    CachedTokens,
    Place,
    Counters,
    Usage,
    Ranks,
    /// Whether routing keys arrive.
    Key,
}
