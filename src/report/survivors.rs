//! The full load of a run that was killed, from the turns that it had on file.
//!
//! A turn that was under way at the kill is on no line. In a closed loop it leaves a gap all the same: its slot is never
//! full again. So up to the last instant at which as many turns of the file were under way as the limit allows, all turns
//! that were sent are on file, the long ones too. An open loop has no such sign.

use crate::profile::{Pacing, RunSpec};
use crate::record::{Marks, TurnRecord};
use crate::units::Micros;

/// Starts and ends of the turns on file.
#[derive(Debug, Clone)]
pub struct Survivors {
    /// Turns that fill the load; none where the file cannot tell.
    limit: Option<usize>,
    think: Micros,
    turns: u32,
    starts: Vec<Micros>,
    ends: Vec<Micros>,
    sessions: u64,
    last_session: Micros,
}

impl Survivors {
    #[must_use]
    pub fn new(spec: &RunSpec) -> Self {
        let load = &spec.load;
        let limit = match load.pacing {
            Pacing::Closed { sessions } if load.think.is_zero() => {
                Some(load.max_turns_in_flight.map_or(sessions, |turns| turns.min(sessions)))
            }
            // Who thinks holds a slot of the sessions, and none of the turns.
            Pacing::Closed { sessions } => Some(sessions).filter(|_| load.max_turns_in_flight.is_none()),
            Pacing::Open { .. } => None,
        };
        Self {
            limit: limit.map(|limit| limit.get() as usize),
            think: Micros::from(load.think),
            turns: spec.workload.turns.get(),
            starts: vec![],
            ends: vec![],
            sessions: 0,
            last_session: Micros(0),
        }
    }

    /// Notes a turn, in any order.
    pub fn add(&mut self, turn: &TurnRecord) {
        let (Some(_), Some(done)) = (turn.sent_us, turn.done_us) else { return };
        if turn.turn == 0 {
            self.sessions += 1;
            self.last_session = self.last_session.max(turn.due_us);
        }
        let goes_on = turn.turn + 1 < self.turns && turn.outcome.is_complete();
        self.starts.push(turn.due_us);
        self.ends.push(Micros(done.0 + if goes_on { self.think.0 } else { 0 }));
    }

    /// From when to when the load was full; `planned` is the number of sessions of the plan.
    #[must_use]
    pub fn marks(mut self, planned: u64) -> Marks {
        let Some(limit) = self.limit else { return Marks::default() };
        self.starts.sort_unstable();
        self.ends.sort_unstable();
        let (mut full, mut last_start) = (None, None);
        let mut ends = self.ends.into_iter().peekable();
        let mut under_way = 0;
        for start in self.starts {
            while ends.next_if(|end| *end <= start).is_some() {
                under_way = usize::saturating_sub(under_way, 1);
            }
            under_way += 1;
            if under_way >= limit {
                full = full.or(Some(start));
                // It stays full until the next one ends.
                last_start = ends.peek().copied();
            }
        }
        let was_last = |end: Micros| if self.sessions == planned { end.min(self.last_session) } else { end };
        Marks { full, last_start: last_start.map(was_last) }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::profile::sample::spec;
    use crate::record::Outcome;
    use crate::report::tests::served;

    /// Two slots; `of` are due and end of turns of one session each, in ms.
    fn marks(of: &[(u64, u64)], planned: u64, edit: impl FnOnce(&mut RunSpec)) -> (Option<u64>, Option<u64>) {
        let mut spec = spec(1, 9, 1, 8, 4, 2);
        spec.load.pacing = Pacing::Closed { sessions: NonZeroU32::new(2).unwrap() };
        edit(&mut spec);
        let mut survivors = Survivors::new(&spec);
        for (session, (due, done)) in of.iter().rev().enumerate() {
            let us = |ms: u64| Micros(ms * 1_000);
            survivors.add(&TurnRecord {
                due_us: us(*due),
                done_us: Some(us(*done)),
                ..served(u32::try_from(session).unwrap(), *due, 0, 0)
            });
        }
        let Marks { full, last_start } = survivors.marks(planned);
        (full.map(|at| at.0 / 1_000), last_start.map(|at| at.0 / 1_000))
    }

    #[test]
    fn the_window_ends_where_the_first_turn_that_was_lost_began() {
        // The second slot's third turn, from 20 ms, was killed; the first slot went on until 50 ms.
        let known = [(0, 10), (0, 9), (10, 30), (9, 20), (30, 50)];
        assert_eq!(marks(&known, 9, |_| ()), (Some(0), Some(20)));
        // Slots that open one after the other.
        assert_eq!(marks(&[(0, 10), (5, 12), (10, 30)], 9, |_| ()), (Some(5), Some(12)));
    }

    #[test]
    fn a_run_that_was_killed_in_its_drain_ends_with_its_last_start() {
        let known = [(0, 10), (0, 9), (10, 30), (9, 20)];
        assert_eq!(marks(&known, 4, |_| ()), (Some(0), Some(10)));
        assert_eq!(marks(&known, 5, |_| ()), (Some(0), Some(20)));
    }

    #[test]
    fn a_load_that_was_never_full_and_an_open_loop_have_no_marks() {
        assert_eq!(marks(&[(0, 10), (10, 20)], 9, |_| ()), (None, None));
        let open = |spec: &mut RunSpec| {
            spec.load.pacing = Pacing::Open { per_second: 1.0, gaps: crate::profile::Gaps::Even, sessions: None };
        };
        assert_eq!(marks(&[(0, 10), (0, 9), (10, 30)], 9, open), (None, None));
    }

    #[test]
    fn who_thinks_holds_its_slot_unless_its_session_is_over() {
        let two_turns = |spec: &mut RunSpec| {
            spec.workload.turns = NonZeroU32::new(2).unwrap();
            spec.load.think = std::time::Duration::from_millis(5);
        };
        assert_eq!(marks(&[(0, 10), (0, 9), (10, 30)], 9, two_turns), (Some(0), Some(14)));
        let mut survivors = Survivors::new(&{
            let mut spec = spec(1, 9, 2, 8, 4, 2);
            two_turns(&mut spec);
            spec
        });
        survivors.add(&TurnRecord { outcome: Outcome::Failed(crate::record::Failure::Reset), ..served(0, 0, 0, 0) });
        assert_eq!(survivors.ends, [served(0, 0, 0, 0).done_us.unwrap()]);
    }
}
