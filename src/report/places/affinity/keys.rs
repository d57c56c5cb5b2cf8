//! Where the turns of keys went: spread, main places, hot keys.

use std::collections::BTreeMap;

use super::super::spread::Spread;
use super::shape::HotKey;
use crate::record::Place;
use crate::report::ratio;

/// How many keys a report names.
const HOT: usize = 5;

/// The keys that groups share: as many as there are groups.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SharedKeys(BTreeMap<String, KeyTurns>);

/// One key's turns, with and without a known place.
#[derive(Debug, Clone, Default, PartialEq)]
struct KeyTurns {
    turns: u64,
    places: Spread,
}

impl SharedKeys {
    pub(super) fn add(&mut self, key: &str, place: Option<&Place>) {
        // A key is new once and asked for many times.
        if !self.0.contains_key(key) {
            self.0.insert(key.to_owned(), KeyTurns::default());
        }
        let Some(known) = self.0.get_mut(key) else { return };
        known.turns += 1;
        place.into_iter().for_each(|place| known.places.add(place));
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self(keys) = other;
        for (key, KeyTurns { turns, places }) in keys {
            let mine = self.0.entry(key).or_default();
            mine.turns += turns;
            mine.places.merge(places);
        }
    }

    pub(super) fn len(&self) -> u64 {
        super::count(self.0.len())
    }

    /// Turns off their key's main place, by the place that served them.
    pub(super) fn off_majority(&self) -> BTreeMap<Place, u64> {
        let mut off = BTreeMap::new();
        for (place, turns) in self.0.values().flat_map(|key| key.places.off_majority()) {
            *off.entry(place.clone()).or_default() += turns;
        }
        off
    }

    /// Keys that each place has seen.
    pub(super) fn seen_at(&self) -> BTreeMap<Place, u64> {
        let mut seen = BTreeMap::new();
        for place in self.0.values().flat_map(|key| key.places.places()) {
            *seen.entry(place.clone()).or_default() += 1;
        }
        seen
    }

    pub(super) fn hottest(&self, all: u64) -> Vec<HotKey> {
        let mut keys: Vec<_> = self.0.iter().collect();
        keys.sort_by_key(|(key, at)| (std::cmp::Reverse(at.turns), (*key).clone()));
        let hot = |(key, KeyTurns { turns, places }): (&String, &KeyTurns)| HotKey {
            key: key.clone(),
            turns: *turns,
            share: ratio(*turns, all).unwrap_or_default(),
            places: super::count(places.len()),
            main_place: places.main().cloned(),
            off_majority_turns: places.off_majority_turns(),
        };
        keys.into_iter().take(HOT).map(hot).collect()
    }
}
