//! Where sessions and keys went: stickiness, splits, spread, balance.
//!
//! Turns come in any order and may be merged from shards. A session is therefore kept as its contiguous stretches of turns:
//! two neighbours are compared exactly once, when their stretches meet, and a session seen in order is one stretch. A
//! session of which every turn has been seen is only counted from then on, so that state grows with the sessions under way.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ratio;
use crate::profile::{Api, KeyScope};
use crate::record::{Place, PlaceSource, TurnRecord};
use crate::stats::{mean, rounded, variation};

/// How many split sessions a report names.
const EXAMPLES: usize = 5;

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
    /// Turns off their key's preferred rank, where the policy is known; null elsewhere.
    pub spilled: Option<Spilled>,
    /// Turns off the place that served most turns of their key.
    pub off_majority_turns: Option<u64>,
    /// Share of turns k > 1 with nothing cached, of those that report it.
    pub zero_hit_share: Option<f64>,
    /// Over the turns of each place, idle ranks included.
    pub load_max_over_mean: Option<f64>,
    pub load_cv: Option<f64>,
    /// Distinct keys that each place served, in the order of `ranks`.
    pub keys_per_rank: Vec<u64>,
    pub attribution: Attribution,
    pub split_examples: Vec<SplitSession>,
}

/// Turns that did not run where their key belongs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spilled {
    pub turns: u64,
    /// Who knows the preferred rank.
    pub from: String,
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

/// A session that moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitSession {
    pub session: String,
    pub places: Vec<Place>,
}

/// What is worth following, given the workload: single turns have no trail, and a key a session is that of its trail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Follow {
    pub(super) key_by: KeyScope,
    pub(super) api: Api,
    /// Turns of each session.
    pub(super) turns: u32,
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
    /// Turns at each place, of the keys that groups share.
    keys: BTreeMap<String, BTreeMap<Place, u64>>,
    /// Turns k > 1 that say how much was cached, and those of them where it was nothing.
    later_reported: u64,
    later_cold: u64,
}

/// Sessions of which every turn has been seen.
#[derive(Debug, Clone, Default, PartialEq)]
struct Whole {
    sessions: u64,
    split: u64,
    stuck: u64,
    moved: u64,
    off_majority: u64,
    /// Sessions that each place has seen.
    seen_at: BTreeMap<Place, u64>,
    /// The first few split ones.
    examples: BTreeMap<(u32, u32), Vec<Place>>,
}

/// One session's places.
#[derive(Debug, Clone, Default, PartialEq)]
struct Trail {
    /// Ascending, never adjacent.
    stretches: Vec<Stretch>,
    /// Turns at each place.
    places: BTreeMap<Place, u64>,
    stuck: u64,
    moved: u64,
}

/// Turns `first.0 ..= last.0`, with the places at both ends.
#[derive(Debug, Clone, PartialEq)]
struct Stretch {
    first: (u32, Option<Place>),
    last: (u32, Option<Place>),
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
            keys: BTreeMap::new(),
            later_reported: 0,
            later_cold: 0,
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
            let at = (turn.turn, turn.place.clone());
            let places = turn.place.iter().map(|place| (place.clone(), 1)).collect();
            let trail = Trail { stretches: vec![Stretch { first: at.clone(), last: at }], places, stuck: 0, moved: 0 };
            self.add_trail((turn.group, turn.session), trail);
        }
        if let Some(key) = turn.key.as_ref().filter(|_| self.follow.key_by == KeyScope::Group) {
            let places = self.keys.entry(key.clone()).or_default();
            if let Some(place) = &turn.place {
                *places.entry(place.clone()).or_default() += 1;
            }
        }
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
        let Self { follow: _, turns, known, sources, sessions, whole, keys, later_reported, later_cold } = other;
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
        for (key, places) in keys {
            let mine = self.keys.entry(key).or_default();
            for (place, turns) in places {
                *mine.entry(place).or_default() += turns;
            }
        }
    }

    /// `loads`: the turns of each place, in the order of the report's rows.
    pub(super) fn finish(&self, loads: &[(Place, u64)]) -> Affinity {
        let follows_keys = self.follows_keys();
        let many_turns = self.follow.turns > 1;
        let mut seen = self.whole.clone();
        self.sessions.iter().for_each(|(session, trail)| seen.add(*session, trail.clone()));
        let keys = self.keys(&seen, loads);
        let placed = self.known > 0;
        Affinity {
            key_by: self.follow.key_by,
            keys: follows_keys.then_some(keys.count),
            sessions: if many_turns { seen.sessions } else { self.turns },
            split_sessions: (placed && many_turns).then_some(seen.split),
            stickiness: ratio(seen.stuck, seen.stuck + seen.moved),
            spilled: None,
            off_majority_turns: (placed && follows_keys).then_some(keys.off_majority),
            zero_hit_share: ratio(self.later_cold, self.later_reported),
            load_max_over_mean: max_over_mean(loads),
            load_cv: variation(&as_floats(loads)).map(rounded),
            keys_per_rank: if follows_keys { keys.per_place } else { vec![] },
            attribution: self.attribution(),
            split_examples: seen
                .examples
                .into_iter()
                .map(|((group, session), places)| SplitSession { session: format!("g{group}-s{session}"), places })
                .collect(),
        }
    }

    /// A key a session is where its session was; one of a single turn is where that turn was, and nowhere else.
    fn keys(&self, seen: &Whole, loads: &[(Place, u64)]) -> Keys {
        let per_place =
            |at: &dyn Fn(&Place, u64) -> u64| loads.iter().map(|(place, turns)| at(place, *turns)).collect();
        match (self.follow.key_by, self.follow.turns) {
            (KeyScope::Session, 1) => {
                Keys { count: self.turns, off_majority: 0, per_place: per_place(&|_, turns| turns) }
            }
            (KeyScope::Session, _) => Keys {
                count: seen.sessions,
                off_majority: seen.off_majority,
                per_place: per_place(&|place, _| seen.seen_at.get(place).copied().unwrap_or(0)),
            },
            (KeyScope::Group | KeyScope::Turn | KeyScope::None, _) => Keys {
                count: count(self.keys.len()),
                off_majority: self.keys.values().map(off_majority).sum(),
                per_place: per_place(&|place, _| {
                    count(self.keys.values().filter(|places| places.contains_key(place)).count())
                }),
            },
        }
    }

    fn attribution(&self) -> Attribution {
        let reason = match self.follow.api {
            _ if self.known == self.turns => None,
            Api::Chat | Api::Completions => {
                Some("replies of this route name no rank; `--api generate` does, on SGLang")
            }
            Api::Generate => Some("the reply's meta_info names no rank: one rank, or a server without DP attention"),
        };
        let source = self.sources.iter().max_by_key(|(_, turns)| **turns).map(|(source, _)| *source);
        Attribution { known: self.known, turns: self.turns, source, reason: reason.map(str::to_owned) }
    }
}

/// What is said of keys.
struct Keys {
    count: u64,
    off_majority: u64,
    per_place: Vec<u64>,
}

impl Whole {
    fn add(&mut self, session: (u32, u32), trail: Trail) {
        let Trail { stretches: _, places, stuck, moved } = trail;
        self.sessions += 1;
        self.stuck += stuck;
        self.moved += moved;
        self.off_majority += off_majority(&places);
        if places.len() > 1 {
            self.split += 1;
            self.examples.insert(session, places.keys().cloned().collect());
            self.keep_examples();
        }
        for place in places.into_keys() {
            *self.seen_at.entry(place).or_default() += 1;
        }
    }

    fn merge(&mut self, other: Self) {
        let Self { sessions, split, stuck, moved, off_majority, seen_at, examples } = other;
        self.sessions += sessions;
        self.split += split;
        self.stuck += stuck;
        self.moved += moved;
        self.off_majority += off_majority;
        for (place, sessions) in seen_at {
            *self.seen_at.entry(place).or_default() += sessions;
        }
        self.examples.extend(examples);
        self.keep_examples();
    }

    fn keep_examples(&mut self) {
        while self.examples.len() > EXAMPLES {
            self.examples.pop_last();
        }
    }
}

impl Trail {
    fn is_whole(&self, turns: u32) -> bool {
        matches!(&self.stretches[..], [all] if all.first.0 == 0 && all.last.0.checked_add(1) == Some(turns))
    }

    /// Adds a stretch, joining it to its neighbours.
    fn absorb(&mut self, mut new: Stretch) {
        let at = self.stretches.partition_point(|old| old.first.0 < new.first.0);
        if at < self.stretches.len() && new.last.0.checked_add(1) == Some(self.stretches[at].first.0) {
            let right = self.stretches.remove(at);
            self.compare(&new.last.1, &right.first.1);
            new.last = right.last;
        }
        if at > 0 && self.stretches[at - 1].last.0.checked_add(1) == Some(new.first.0) {
            let left = self.stretches[at - 1].clone();
            self.compare(&left.last.1, &new.first.1);
            self.stretches[at - 1].last = new.last;
        } else {
            self.stretches.insert(at, new);
        }
    }

    fn compare(&mut self, before: &Option<Place>, after: &Option<Place>) {
        if let (Some(before), Some(after)) = (before, after) {
            *(if before == after { &mut self.stuck } else { &mut self.moved }) += 1;
        }
    }

    fn merge(&mut self, other: Self) {
        let Self { stretches, places, stuck, moved } = other;
        for (place, turns) in places {
            *self.places.entry(place).or_default() += turns;
        }
        self.stuck += stuck;
        self.moved += moved;
        stretches.into_iter().for_each(|stretch| self.absorb(stretch));
    }
}

fn off_majority(places: &BTreeMap<Place, u64>) -> u64 {
    places.values().sum::<u64>() - places.values().max().copied().unwrap_or(0)
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
#[path = "affinity_tests.rs"]
mod tests;
