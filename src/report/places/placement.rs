//! Which places served which group. Where keys are per group, that is where each key went.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::spread::Spread;
use crate::record::{Place, TurnRecord};

/// Groups that a report lists: the first ones, which under Zipf are the most popular.
const LISTED: usize = 64;

/// Complete turns by group and place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// In the order of their numbers; empty when no turn has a known place.
    pub groups: Vec<GroupPlaces>,
    /// Groups beyond those listed.
    pub more_groups: u64,
    /// Turns off the place that served most turns of their group, of all groups; null when no turn has a known place, and in
    /// reports of earlier versions.
    #[serde(default)]
    pub off_majority_turns: Option<u64>,
}

/// One group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPlaces {
    pub group: u32,
    /// Turns at each place, in the order of `ranks`.
    pub turns: Vec<u64>,
}

/// Mergeable state behind [`Placement`].
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PlacementTally {
    groups: BTreeMap<u32, Spread>,
}

impl PlacementTally {
    /// Adds one complete turn.
    pub(super) fn add(&mut self, turn: &TurnRecord) {
        if let Some(place) = &turn.place {
            self.groups.entry(turn.group).or_default().add(place);
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self { groups } = other;
        for (group, places) in groups {
            self.groups.entry(group).or_default().merge(places);
        }
    }

    /// `places`: the rows of the report, in order.
    pub(super) fn finish<'a>(&self, places: impl Iterator<Item = &'a Place> + Clone) -> Placement {
        let row = |(group, served): (&u32, &Spread)| GroupPlaces {
            group: *group,
            turns: places.clone().map(|place| served.turns_at(place)).collect(),
        };
        let off_majority = || self.groups.values().map(Spread::off_majority_turns).sum();
        Placement {
            off_majority_turns: (!self.groups.is_empty()).then(off_majority),
            groups: self.groups.iter().take(LISTED).map(row).collect(),
            more_groups: self.groups.len().saturating_sub(LISTED).try_into().unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::TurnId;
    use crate::units::{Micros, Rank};

    fn turn(group: u32, rank: u16) -> TurnRecord {
        let id = TurnId { group, session: 0, turn: 0 };
        let place = Some(Place::Rank(Rank(rank)));
        TurnRecord { place, ..TurnRecord::planned("a".into(), id, None, Micros(0), 1) }
    }

    #[test]
    fn every_turn_of_a_listed_group_is_in_one_cell_and_other_groups_are_counted() {
        let (mut tally, mut other) = (PlacementTally::default(), PlacementTally::default());
        (0..70).for_each(|group| tally.add(&turn(group, 1)));
        other.add(&turn(3, 0));
        other.add(&turn(3, 1));
        tally.merge(other);
        let places = [Place::Rank(Rank(0)), Place::Rank(Rank(1))];
        let placement = tally.finish(places.iter());
        assert_eq!((placement.groups.len(), placement.more_groups, placement.off_majority_turns), (64, 6, Some(1)));
        assert_eq!(placement.groups[3], GroupPlaces { group: 3, turns: vec![1, 2] });
    }
}
