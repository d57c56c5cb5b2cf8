//! The pure step machine: N ranks that begin and end every step together.
//!
//! No clock and no sockets: the caller asks for a step at an instant, lets its duration pass, and commits it. Between the
//! two, requests may arrive and be aborted. Same calls, same events.

use std::time::Duration;

use super::cost::{Costs, Load};
use super::rank::{Counts, Event, Job, JobId, Limits, RankState, Snapshot};

/// N ranks in lock-step.
#[derive(Debug)]
pub struct Engine {
    costs: Costs,
    ranks: Vec<RankState>,
    is_stepping: bool,
    steps: u64,
}

impl Engine {
    #[must_use]
    pub fn new(ranks: u16, limits: Limits, costs: Costs) -> Self {
        let ranks = (0..ranks).map(|id| RankState::new(id, limits)).collect();
        Self { costs, ranks, is_stepping: false, steps: 0 }
    }

    /// Hands a request to a rank; it is seen by the first step that begins at or after its arrival.
    pub fn submit(&mut self, rank: u16, job: Job) {
        debug_assert!(
            !job.prompt.is_empty() && !job.output.is_empty(),
            "the front end refuses empty prompts and replies"
        );
        self.ranks[usize::from(rank)].receive(job);
    }

    /// Plans a step on all ranks and says how long it takes; `None` when there is nothing to do now.
    pub fn begin(&mut self, now: Duration, events: &mut Vec<Event>) -> Option<Duration> {
        debug_assert!(!self.is_stepping, "begin within a step");
        let ranks = u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        let mut load = Load { ranks, ..Load::default() };
        for rank in &mut self.ranks {
            let share = rank.plan(now, events);
            load.prefilling |= share.prefill > 0;
            load.tokens += share.prefill + share.decode;
            load.fullest = load.fullest.max(share.decode);
        }
        if load.tokens == 0 {
            // An idle scheduler publishes all the time, so what the controller reads is never stale.
            self.ranks.iter_mut().for_each(|rank| rank.publish(now));
            return None;
        }
        self.is_stepping = true;
        Some(self.costs.duration(&load))
    }

    /// Ends the step that was begun: tokens come out and computed prompts become visible.
    pub fn commit(&mut self, now: Duration, events: &mut Vec<Event>) {
        debug_assert!(self.is_stepping, "commit without begin");
        self.is_stepping = false;
        self.steps += 1;
        self.ranks.iter_mut().for_each(|rank| rank.commit(now, events));
    }

    /// When the next request arrives that no step has seen yet.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Duration> {
        self.ranks.iter().filter_map(RankState::next_arrival).min()
    }

    /// Drops a request and its locks. Says whether it was still here.
    pub fn abort(&mut self, id: JobId) -> bool {
        self.ranks.iter_mut().any(|rank| rank.abort(id))
    }

    /// Empties the cache of a rank that is idle; says whether it was.
    pub fn flush(&mut self, rank: u16) -> bool {
        self.ranks[usize::from(rank)].flush()
    }

    /// What each rank last told the controller.
    pub fn published(&self) -> impl Iterator<Item = Snapshot> + '_ {
        self.ranks.iter().map(RankState::published)
    }

    /// What each rank counts.
    pub fn counts(&self) -> impl Iterator<Item = Counts> + '_ {
        self.ranks.iter().map(RankState::counts)
    }

    /// Steps committed.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }
}
