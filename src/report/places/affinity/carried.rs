//! Where the turns of each kept connection were served: whatever places connections gives each of them one place for all.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::spread::Spread;
use crate::record::TurnRecord;

/// Complete turns with a known place that went over a connection which was open before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptConnections {
    /// Told apart by this host's port.
    pub connections: u64,
    pub turns: u64,
    /// First turns among them: so many sessions began on these connections.
    pub sessions: u64,
    /// Turns off the place that served most turns of their connection.
    pub off_majority_turns: u64,
}

/// Mergeable state behind [`KeptConnections`]. A connection that carries one turn, as all do that are not kept, leaves nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Carried {
    sessions: u64,
    by_port: BTreeMap<u16, Spread>,
}

impl Carried {
    /// Adds one complete turn. The reply of one that was sent again came over a connection of its own.
    pub(super) fn add(&mut self, turn: &TurnRecord) {
        let (Some(true), Some(port), Some(place), 0) =
            (turn.reused_connection, turn.local_port, &turn.place, turn.resends)
        else {
            return;
        };
        self.sessions += u64::from(turn.turn == 0);
        self.by_port.entry(port).or_default().add(place);
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self { sessions, by_port } = other;
        self.sessions += sessions;
        for (port, places) in by_port {
            self.by_port.entry(port).or_default().merge(places);
        }
    }

    pub(super) fn finish(&self) -> Option<KeptConnections> {
        let mut kept = KeptConnections { sessions: self.sessions, ..KeptConnections::default() };
        for places in self.by_port.values() {
            kept.connections += 1;
            kept.turns += places.turns();
            kept.off_majority_turns += places.off_majority_turns();
        }
        (kept.connections > 0).then_some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Place, TurnId};
    use crate::units::{Micros, Rank};

    fn turn(port: u16, rank: u16, turn: u32) -> TurnRecord {
        let id = TurnId { group: 0, session: 0, turn };
        TurnRecord {
            place: Some(Place::Rank(Rank(rank))),
            reused_connection: Some(true),
            local_port: Some(port),
            ..TurnRecord::planned("a".into(), id, None, Micros(0), 1)
        }
    }

    #[test]
    fn turns_off_the_main_place_of_their_connection_are_counted_and_others_are_left_out() {
        let (mut carried, mut other) = (Carried::default(), Carried::default());
        let plain = [turn(1, 0, 0), turn(1, 0, 1), turn(1, 1, 0), turn(2, 1, 0)];
        let out = [
            TurnRecord { reused_connection: Some(false), ..turn(3, 0, 0) },
            TurnRecord { place: None, ..turn(1, 0, 0) },
            TurnRecord { local_port: None, ..turn(1, 0, 0) },
            TurnRecord { resends: 1, ..turn(4, 0, 0) },
        ];
        plain[..2].iter().chain(&out).for_each(|turn| carried.add(turn));
        plain[2..].iter().for_each(|turn| other.add(turn));
        carried.merge(other);
        let kept = KeptConnections { connections: 2, turns: 4, sessions: 3, off_majority_turns: 1 };
        assert_eq!((carried.finish(), Carried::default().finish()), (Some(kept), None));
    }
}
