//! Where each session went, from turns in any order.
//!
//! A session is kept as its contiguous stretches of turns: two neighbours are compared exactly once, when their stretches
//! meet, and a session seen in order is one stretch. A session of which every turn has been seen is only counted from then
//! on, so that state grows with the sessions under way.

use std::collections::BTreeMap;

use super::super::spread::Spread;
use super::shape::{Side, Sides};
use crate::record::Place;
use crate::report::ratio;

/// How many split sessions a report names, and how many turns of each.
pub(super) const EXAMPLES: usize = 5;
const PATH: u32 = 16;

/// Neighbours on one place, and on two.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) stuck: u64,
    pub(super) moved: u64,
}

/// The steps of whole places, and of each side where both neighbours are pairs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Walk {
    pub(super) places: Steps,
    prefill: Steps,
    decode: Steps,
}

/// Sessions of which every turn has been seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Whole {
    pub(super) sessions: u64,
    pub(super) split: u64,
    pub(super) walk: Walk,
    /// Turns off their session's main place, by the place that served them.
    pub(super) off_majority: BTreeMap<Place, u64>,
    /// Sessions that each place has seen.
    pub(super) seen_at: BTreeMap<Place, u64>,
    /// The first few split ones.
    pub(super) examples: BTreeMap<(u32, u32), Vec<Option<Place>>>,
}

/// One session's places.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Trail {
    /// Ascending, never adjacent.
    pub(super) stretches: Vec<Stretch>,
    places: Spread,
    /// Those of its first turns, where known.
    path: BTreeMap<u32, Place>,
    walk: Walk,
}

/// Turns `first.0 ..= last.0`, with the places at both ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stretch {
    first: (u32, Option<Place>),
    last: (u32, Option<Place>),
}

impl Steps {
    fn add(&mut self, is_same: bool) {
        *(if is_same { &mut self.stuck } else { &mut self.moved }) += 1;
    }

    fn merge(&mut self, other: Self) {
        let Self { stuck, moved } = other;
        self.stuck += stuck;
        self.moved += moved;
    }

    pub(super) fn stickiness(self) -> Option<f64> {
        ratio(self.stuck, self.stuck + self.moved)
    }

    fn side(self) -> Side {
        Side { stickiness: self.stickiness(), moves: self.moved }
    }
}

impl Walk {
    fn step(&mut self, before: &Place, after: &Place) {
        self.places.add(before == after);
        if let (Place::Pair { prefill: p0, decode: d0 }, Place::Pair { prefill: p1, decode: d1 }) = (before, after) {
            self.prefill.add(p0 == p1);
            self.decode.add(d0 == d1);
        }
    }

    fn merge(&mut self, other: Self) {
        let Self { places, prefill, decode } = other;
        self.places.merge(places);
        self.prefill.merge(prefill);
        self.decode.merge(decode);
    }

    pub(super) fn sides(self) -> Option<Sides> {
        (self.prefill != Steps::default()).then(|| Sides { prefill: self.prefill.side(), decode: self.decode.side() })
    }
}

impl Whole {
    pub(super) fn add(&mut self, session: (u32, u32), trail: Trail) {
        let Trail { stretches: _, places, path, walk } = trail;
        self.sessions += 1;
        self.walk.merge(walk);
        for (place, turns) in places.off_majority() {
            *self.off_majority.entry(place.clone()).or_default() += turns;
        }
        if places.len() > 1 {
            self.split += 1;
            let end = path.last_key_value().map_or(0, |(turn, _)| turn + 1);
            self.examples.insert(session, (0..end).map(|turn| path.get(&turn).cloned()).collect());
            self.keep_examples();
        }
        for place in places.into_places() {
            *self.seen_at.entry(place).or_default() += 1;
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self { sessions, split, walk, off_majority, seen_at, examples } = other;
        self.sessions += sessions;
        self.split += split;
        self.walk.merge(walk);
        for (place, turns) in off_majority {
            *self.off_majority.entry(place).or_default() += turns;
        }
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
    /// That of one turn.
    pub(super) fn of(turn: u32, place: Option<&Place>) -> Self {
        let at = (turn, place.cloned());
        let mut trail = Self { stretches: vec![Stretch { first: at.clone(), last: at }], ..Self::default() };
        if let Some(place) = place {
            trail.places.add(place);
            if turn < PATH {
                trail.path.insert(turn, place.clone());
            }
        }
        trail
    }

    pub(super) fn is_whole(&self, turns: u32) -> bool {
        matches!(&self.stretches[..], [all] if all.first.0 == 0 && all.last.0.checked_add(1) == Some(turns))
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self { stretches, places, path, walk } = other;
        self.places.merge(places);
        self.path.extend(path);
        self.walk.merge(walk);
        stretches.into_iter().for_each(|stretch| self.absorb(stretch));
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
            self.walk.step(before, after);
        }
    }
}
