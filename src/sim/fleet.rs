//! The ranks and the DP controller before them, without a clock: requests go in at an instant, events come out of steps.
//!
//! The controller sees only what SGLang's would: load snapshots that ranks publish at prefill results and every 15 decode
//! steps, read at most every 20 ms of model time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::policy::{Arrival, Controller, Dispatch, NoRank, Snapshot};
use crate::units::Rank;

use super::engine::Engine;
use super::job::{Event, Job, JobId};
use super::rank::Counts;
use super::settings::Settings;

/// A request as the front end hands it over.
#[derive(Debug, Clone)]
pub struct Submission {
    pub id: JobId,
    /// The routing key, if the route read one.
    pub key: Option<String>,
    pub prompt: Arc<[u32]>,
    /// The reply, one id per token.
    pub output: Arc<[u32]>,
    /// The rank that the client asks for by number.
    pub pin: Option<Rank>,
    /// Prompts of different salts share nothing in a cache; 0 is that of requests without one.
    pub salt: u32,
}

/// Engine and controller as one.
#[derive(Debug)]
pub struct Fleet {
    engine: Engine,
    controller: Controller,
    spilled: Vec<u64>,
}

impl Fleet {
    /// A fleet at rest. The settings have been checked.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        let mut controller = Controller::new(settings.method, settings.affinity, settings.ranks);
        settings.offline.iter().for_each(|&rank| controller.set_live(rank, false));
        let engine = Engine::new(settings.ranks, settings.limits, settings.costs);
        Self { engine, controller, spilled: vec![0; usize::from(settings.ranks)] }
    }

    /// Chooses a rank for a request that arrives now, and puts it there.
    ///
    /// # Errors
    /// When the rank that it asks for is not live.
    pub fn submit(&mut self, now: Duration, submission: &Submission) -> Result<Dispatch, NoRank> {
        if self.controller.refresh_due(now) {
            let snapshots: Vec<Snapshot> = (0..).map(Rank).zip(self.engine.published()).map(as_seen).collect();
            self.controller.refresh(now, &snapshots);
        }
        let Submission { id, key, prompt, output, pin, salt } = submission;
        let dispatch = self.controller.dispatch(&Arrival { key: key.as_deref(), prompt, pin: *pin })?;
        if dispatch.spilled() {
            self.spilled[usize::from(dispatch.rank.0)] += 1;
        }
        let job = Job { id: *id, prompt: salted(prompt, *salt), output: salted(output, *salt), arrival: now };
        self.engine.submit(dispatch.rank.0, job);
        Ok(dispatch)
    }

    /// Begins a step at `now`; if there is only work that arrives later, at its arrival. Gives the instant of its end.
    pub fn begin(&mut self, now: Duration, events: &mut Vec<Event>) -> Option<Duration> {
        if let Some(took) = self.engine.begin(now, events) {
            return Some(now + took);
        }
        let later = self.engine.next_arrival()?.max(now);
        self.engine.begin(later, events).map(|took| later + took)
    }

    /// Ends the step.
    pub fn commit(&mut self, now: Duration, events: &mut Vec<Event>) {
        self.engine.commit(now, events);
    }

    /// Drops a request and its locks.
    pub fn abort(&mut self, id: JobId) {
        self.engine.abort(id);
    }

    /// Empties the caches of those `ranks` that are idle, and takes them off the list.
    pub fn flush(&mut self, ranks: &mut BTreeSet<u16>) {
        ranks.retain(|&rank| !self.engine.flush(rank));
    }

    /// What each rank counts now.
    #[must_use]
    pub fn counts(&self) -> Vec<Counts> {
        self.engine.counts().collect()
    }

    /// What each rank last told the controller.
    #[must_use]
    pub fn published(&self) -> Vec<super::rank::Snapshot> {
        self.engine.published().collect()
    }

    /// Requests that each rank took because the guard sent them past their preferred one.
    #[must_use]
    pub fn spilled(&self) -> &[u64] {
        &self.spilled
    }

    /// Steps committed.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.engine.steps()
    }
}

/// Ids of a name space of their own: a cache compares ids and nothing else, so no salted prefix is found under another salt
/// but by a chance of 2⁻³² a token.
fn salted(ids: &Arc<[u32]>, salt: u32) -> Arc<[u32]> {
    if salt == 0 { Arc::clone(ids) } else { ids.iter().map(|id| id ^ salt).collect() }
}

fn as_seen((rank, snapshot): (Rank, super::rank::Snapshot)) -> Snapshot {
    let super::rank::Snapshot { at, running, waiting, used_tokens: _, total_tokens } = snapshot;
    Snapshot { rank, taken: at, running, waiting, tokens: total_tokens }
}
