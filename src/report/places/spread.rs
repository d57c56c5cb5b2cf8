//! At which places the turns of one key, group or connection were served.

use std::collections::BTreeMap;

use crate::record::Place;

/// Turns at each place.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Spread(BTreeMap<Place, u64>);

impl Spread {
    pub(super) fn add(&mut self, place: &Place) {
        // A place is new once and serves many times.
        match self.0.get_mut(place) {
            Some(turns) => *turns += 1,
            None => *self.0.entry(place.clone()).or_default() += 1,
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self(places) = other;
        for (place, turns) in places {
            *self.0.entry(place).or_default() += turns;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The place of most turns; of several, the first.
    pub(super) fn main(&self) -> Option<&Place> {
        let most = self.0.values().max()?;
        self.0.iter().find(|(_, turns)| *turns == most).map(|(place, _)| place)
    }

    /// The turns at all other places.
    pub(super) fn off_majority(&self) -> impl Iterator<Item = (&Place, u64)> {
        let main = self.main();
        self.0.iter().filter(move |(place, _)| Some(*place) != main).map(|(place, turns)| (place, *turns))
    }

    pub(super) fn off_majority_turns(&self) -> u64 {
        self.off_majority().map(|(_, turns)| turns).sum()
    }

    pub(super) fn turns(&self) -> u64 {
        self.0.values().sum()
    }

    pub(super) fn turns_at(&self, place: &Place) -> u64 {
        self.0.get(place).copied().unwrap_or(0)
    }

    pub(super) fn places(&self) -> impl Iterator<Item = &Place> {
        self.0.keys()
    }

    pub(super) fn into_places(self) -> impl Iterator<Item = Place> {
        self.0.into_keys()
    }
}
