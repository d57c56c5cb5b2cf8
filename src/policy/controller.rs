//! The DP controller as a state machine: SGLang's budget around the choices of a [`Chooser`]. Time comes in as an argument.
//!
//! The subtle thing is the budget. Each dispatch adds a guess (+1 request, + the prompt's length); a newer snapshot of a
//! rank overwrites the guess, also for requests that the rank had not seen when the snapshot was taken. A burst can thus be
//! forgotten; that is SGLang's behaviour and is kept.

use std::time::Duration;

use crate::policy::{Affinity, Arrival, Chooser, Dispatch, Load, Method};
use crate::units::Rank;

/// Snapshots are read at most this often, so that a burst is spread by the guesses and not by stale reports.
pub const REFRESH_INTERVAL: Duration = Duration::from_millis(20);

/// What a rank last published about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    pub rank: Rank,
    /// When it was published; a snapshot with the time of the last one is not news.
    pub taken: Duration,
    pub running: u32,
    pub waiting: u32,
    pub tokens: u64,
}

/// No rank can take the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRank {
    #[error("DP rank {0} is not active")]
    NotActive(Rank),
    #[error("no DP rank is active")]
    AllOff,
}

/// Chooses a rank for one request after the other.
#[derive(Debug, Clone)]
pub struct Controller {
    chooser: Chooser,
    /// All ranks, live or not; the position is the id.
    ranks: Vec<Rank>,
    slots: Vec<Slot>,
    refreshed: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    is_live: bool,
    load: Load,
    taken: Option<Duration>,
}

impl Controller {
    /// A controller of ranks 0 to `ranks` − 1, all live and idle.
    #[must_use]
    pub fn new(method: Method, affinity: Affinity, ranks: u16) -> Self {
        let idle = Slot { is_live: true, load: Load::default(), taken: None };
        Self {
            chooser: Chooser::new(method, affinity),
            ranks: (0..ranks).map(Rank).collect(),
            slots: vec![idle; usize::from(ranks)],
            refreshed: None,
        }
    }

    /// Puts a rank into the live set or takes it out; an unknown rank changes nothing.
    ///
    /// SGLang 0.5.23 keeps sending to dead ranks under `total_requests` and `total_tokens`; here no method does.
    pub fn set_live(&mut self, rank: Rank, is_live: bool) {
        if let Some(slot) = self.slots.get_mut(usize::from(rank.0)) {
            slot.is_live = is_live;
        }
    }

    /// Whether [`Self::refresh`] would read snapshots now; saves the caller from collecting them.
    #[must_use]
    pub fn refresh_due(&self, now: Duration) -> bool {
        self.chooser.method().reads_loads()
            && self.refreshed.is_none_or(|last| now.saturating_sub(last) >= REFRESH_INTERVAL)
    }

    /// Takes over the ranks' own numbers where their snapshot is a new one. To be called before each dispatch, pinned ones
    /// too, and once for a batch; does nothing within 20 ms of the last time.
    pub fn refresh(&mut self, now: Duration, snapshots: &[Snapshot]) {
        if !self.refresh_due(now) {
            return;
        }
        self.refreshed = Some(now);
        for snapshot in snapshots {
            let Some(slot) = self.slots.get_mut(usize::from(snapshot.rank.0)) else { continue };
            if slot.taken != Some(snapshot.taken) {
                slot.taken = Some(snapshot.taken);
                slot.load =
                    Load { requests: snapshot.running.saturating_add(snapshot.waiting), tokens: snapshot.tokens };
            }
        }
    }

    /// Chooses the rank of one request and charges it to the budget. A pinned one passes by budget and counter.
    ///
    /// # Errors
    /// When the pinned rank does not exist or is off, or when all ranks are.
    pub fn dispatch(&mut self, arrival: &Arrival<'_>) -> Result<Dispatch, NoRank> {
        if let Some(rank) = arrival.pin {
            let is_live = self.slots.get(usize::from(rank.0)).is_some_and(|slot| slot.is_live);
            return if is_live { Ok(Dispatch { rank, preferred: None }) } else { Err(NoRank::NotActive(rank)) };
        }
        let Self { chooser, ranks, slots, .. } = self;
        let slot = |rank: Rank| slots[usize::from(rank.0)];
        let chosen = chooser.choose(arrival, ranks, |rank| slot(rank).is_live, |rank| slot(rank).load);
        let chosen = chosen.ok_or(NoRank::AllOff)?;
        if self.chooser.method().reads_loads() {
            let load = &mut self.slots[usize::from(chosen.rank.0)].load;
            load.requests = load.requests.saturating_add(1);
            load.tokens = load.tokens.saturating_add(arrival.prompt.len() as u64);
        }
        Ok(chosen)
    }

    /// What the controller believes of a rank: the last snapshot, and its own guesses since.
    #[must_use]
    pub fn load(&self, rank: Rank) -> Option<Load> {
        self.slots.get(usize::from(rank.0)).map(|slot| slot.load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(controller: &mut Controller, now_ms: u64, taken_ms: u64, running: u32) -> u32 {
        let taken = Duration::from_millis(taken_ms);
        let snapshot = Snapshot { rank: Rank(0), taken, running, waiting: 1, tokens: 0 };
        controller.refresh(Duration::from_millis(now_ms), &[snapshot]);
        controller.load(Rank(0)).unwrap().requests
    }

    #[test]
    fn snapshots_are_read_once_in_20_ms_and_only_when_they_are_new() {
        let mut controller = Controller::new(Method::TotalRequests, Affinity::default(), 1);
        assert_eq!(told(&mut controller, 5, 1, 10), 11, "the first is read at once");
        assert_eq!(told(&mut controller, 24, 24, 20), 11, "19 ms later none is");
        assert_eq!(told(&mut controller, 25, 24, 20), 21, "20 ms later it is");
        controller.dispatch(&Arrival::default()).unwrap();
        assert_eq!(told(&mut controller, 60, 24, 20), 22, "the old report leaves the guess in place");
        assert_eq!(told(&mut controller, 90, 61, 20), 21, "the same numbers of a later time replace it");
    }

    #[test]
    fn methods_that_read_no_loads_never_ask_for_snapshots() {
        let asks =
            Method::ALL.map(|method| Controller::new(method, Affinity::default(), 2).refresh_due(Duration::ZERO));
        assert_eq!(asks, [false, true, true, false, true]);
    }
}
