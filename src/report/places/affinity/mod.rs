//! Where sessions and keys went: stickiness, splits, spread, balance, and what turns found there.
//!
//! Turns come in any order and may be merged from shards. State grows with the sessions under way, the keys that groups
//! share and the places, never with turns.

mod bands;
mod carried;
mod keys;
mod shape;
mod trail;

use std::collections::BTreeMap;

pub use carried::KeptConnections;
pub use shape::{
    Affinity, Attribution, Band, Cached, CachedBand, HotKey, Side, Sides, Spilled, SpilledAt, SplitSession,
};

use crate::profile::{Api, KeyScope, PlaceField};
use crate::record::{Place, PlaceSource, TurnRecord};
use crate::report::ratio;
use crate::stats::{mean, rounded, variation};

use bands::Bands;
use carried::Carried;
use keys::SharedKeys;
use trail::{Trail, Whole};

/// What is worth following, given the workload: single turns have no trail, and a key a session is that of its trail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Follow {
    pub(super) key_by: KeyScope,
    pub(super) api: Api,
    /// Turns of each session.
    pub(super) turns: u32,
    pub(super) place_field: Option<PlaceField>,
    /// Cached tokens that a cold turn may report.
    pub(super) slack: u32,
    /// Whether some groups are asked more often than others.
    pub(super) is_skewed: bool,
}

/// Mergeable state behind [`Affinity`].
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AffinityTally {
    follow: Follow,
    turns: u64,
    known: u64,
    sources: BTreeMap<PlaceSource, u64>,
    /// Sessions of several turns that still lack one.
    sessions: BTreeMap<(u32, u32), Trail>,
    /// The others.
    whole: Whole,
    keys: SharedKeys,
    /// Turns k > 1 that say how much was cached, and those of them where it was nothing.
    later_reported: u64,
    later_cold: u64,
    bands: Bands,
    carried: Carried,
}

impl AffinityTally {
    pub(super) fn new(follow: Follow) -> Self {
        Self {
            follow,
            turns: 0,
            known: 0,
            sources: BTreeMap::new(),
            sessions: BTreeMap::new(),
            whole: Whole::default(),
            keys: SharedKeys::default(),
            later_reported: 0,
            later_cold: 0,
            bands: Bands::default(),
            carried: Carried::default(),
        }
    }

    /// Adds one complete turn.
    pub(super) fn add(&mut self, turn: &TurnRecord) {
        self.turns += 1;
        self.known += u64::from(turn.place.is_some());
        if let (Some(_), Some(source)) = (&turn.place, turn.place_source) {
            *self.sources.entry(source).or_default() += 1;
        }
        if turn.turn > 0
            && let Some(cached) = turn.cached_tokens
        {
            self.later_reported += 1;
            self.later_cold += u64::from(cached == 0);
        }
        if self.follow.turns > 1 {
            self.add_trail((turn.group, turn.session), Trail::of(turn.turn, turn.place.as_ref()));
        }
        if let Some(key) = turn.key.as_ref().filter(|_| self.follow.key_by == KeyScope::Group) {
            self.keys.add(key, turn.place.as_ref());
        }
        self.bands.add(turn, self.follow);
        self.carried.add(turn);
    }

    fn add_trail(&mut self, session: (u32, u32), trail: Trail) {
        let known = self.sessions.entry(session).or_default();
        known.merge(trail);
        if known.is_whole(self.follow.turns)
            && let Some(trail) = self.sessions.remove(&session)
        {
            self.whole.add(session, trail);
        }
    }

    fn follows_keys(&self) -> bool {
        match self.follow.key_by {
            KeyScope::Group | KeyScope::Session => true,
            KeyScope::Turn | KeyScope::None => false,
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self {
            follow: _,
            turns,
            known,
            sources,
            sessions,
            whole,
            keys,
            later_reported,
            later_cold,
            bands,
            carried,
        } = other;
        self.turns += turns;
        self.known += known;
        self.later_reported += later_reported;
        self.later_cold += later_cold;
        for (source, turns) in sources {
            *self.sources.entry(source).or_default() += turns;
        }
        for (session, trail) in sessions {
            self.add_trail(session, trail);
        }
        self.whole.merge(whole);
        self.keys.merge(keys);
        self.bands.merge(bands);
        self.carried.merge(carried);
    }

    /// `loads`: the turns of each place, in the order of the report's rows.
    pub(super) fn finish(&self, loads: &[(Place, u64)]) -> Affinity {
        let many_turns = self.follow.turns > 1;
        let mut seen = self.whole.clone();
        self.sessions.iter().for_each(|(session, trail)| seen.add(*session, trail.clone()));
        let keys = self.keys(&seen, loads);
        let per_place = |at: &BTreeMap<Place, u64>| {
            loads.iter().map(|(place, _)| at.get(place).copied().unwrap_or(0)).collect::<Vec<_>>()
        };
        let placed = self.known > 0;
        Affinity {
            key_by: self.follow.key_by,
            keys: keys.as_ref().map(|keys| keys.count),
            sessions: if many_turns { seen.sessions } else { self.turns },
            split_sessions: (placed && many_turns).then_some(seen.split),
            stickiness: seen.walk.places.stickiness(),
            sides: seen.walk.sides(),
            spilled: None,
            overlap_tokens: None,
            off_majority_turns: keys.as_ref().filter(|_| placed).map(|keys| keys.off_majority.values().sum()),
            off_majority_per_rank: keys.as_ref().map_or(vec![], |keys| per_place(&keys.off_majority)),
            zero_hit_share: ratio(self.later_cold, self.later_reported),
            load_max_over_mean: max_over_mean(loads),
            load_cv: variation(&as_floats(loads)).map(rounded),
            keys_per_rank: keys.as_ref().map_or(vec![], |keys| per_place(&keys.seen_at)),
            hot_keys: self.keys.hottest(self.turns),
            kept_connections: self.carried.finish(),
            attribution: self.attribution(),
            split_examples: seen.examples.into_iter().map(example).collect(),
            by_turn: self.bands.by_turn(self.turns),
            by_cached: self.bands.by_cached(self.turns),
            by_popularity: self.bands.by_popularity(self.turns),
        }
    }

    /// A key a session is where its session was; one of a single turn is where that turn was, and nowhere else. None where
    /// turns carry no key that others share.
    fn keys(&self, seen: &Whole, loads: &[(Place, u64)]) -> Option<Keys> {
        let keys = match (self.follow.key_by, self.follow.turns) {
            (KeyScope::Session, 1) => {
                Keys { count: self.turns, off_majority: BTreeMap::new(), seen_at: loads.iter().cloned().collect() }
            }
            (KeyScope::Session, _) => {
                Keys { count: seen.sessions, off_majority: seen.off_majority.clone(), seen_at: seen.seen_at.clone() }
            }
            (KeyScope::Group | KeyScope::Turn | KeyScope::None, _) => {
                Keys { count: self.keys.len(), off_majority: self.keys.off_majority(), seen_at: self.keys.seen_at() }
            }
        };
        self.follows_keys().then_some(keys)
    }

    fn attribution(&self) -> Attribution {
        let reason = match (self.follow.api, self.follow.place_field) {
            _ if self.known == self.turns => None,
            (_, Some(PlaceField::Model)) => Some("these replies name no model, which --place-field reads"),
            (Api::Chat | Api::Completions, None) => Some(
                "replies of this route name neither rank nor worker. On SGLang `--api generate` does, or `gspbench report \
                 --export-file` joins the server's own log; where each worker serves under a name of its own, \
                 `--place-field model`",
            ),
            (Api::Generate, None) => {
                Some("the reply's meta_info names no rank: one rank, or a server without DP attention")
            }
        };
        let source = self.sources.iter().max_by_key(|(_, turns)| **turns).map(|(source, _)| *source);
        Attribution { known: self.known, turns: self.turns, source, reason: reason.map(str::to_owned) }
    }
}

/// What is said of keys.
struct Keys {
    count: u64,
    off_majority: BTreeMap<Place, u64>,
    seen_at: BTreeMap<Place, u64>,
}

fn example(((group, session), places): ((u32, u32), Vec<Option<Place>>)) -> SplitSession {
    SplitSession { session: format!("g{group}-s{session}"), places }
}

fn max_over_mean(loads: &[(Place, u64)]) -> Option<f64> {
    let loads = as_floats(loads);
    let mean = mean(&loads).filter(|mean| *mean > 0.0)?;
    Some(rounded(loads.iter().copied().fold(0.0, f64::max) / mean))
}

#[expect(clippy::cast_precision_loss, reason = "turns stay below 2^53")]
fn as_floats(loads: &[(Place, u64)]) -> Vec<f64> {
    loads.iter().map(|(_, turns)| *turns as f64).collect()
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
