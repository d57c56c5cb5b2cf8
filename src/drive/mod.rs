//! The one load loop: a plan's turns are sent when they are due. When (pacing), how many (limits), where and how (the
//! `send` closure) and until when (cancellation) are values; there is no second loop.
//!
//! One task a session; its turns are sequential, so history needs no lock. Bodies of first turns are made while the loop
//! waits, at most two limits ahead.

mod session;

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::record::{Outcome, TurnId, TurnRecord};
use crate::units::Micros;
use crate::workload::{Prompt, Prompter};

/// Sessions prepared ahead when nothing limits how many may run.
const UNLIMITED_LOOKAHEAD: usize = 64;

/// How many at once, and how long users think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub sessions: Option<usize>,
    pub turns: Option<usize>,
    /// Pause between the end of a turn and the next turn of its session.
    pub think: Duration,
}

/// What is sent, under which limits, on whose clock.
#[derive(Debug, Clone)]
pub struct Load {
    /// Prefix of every turn's id: two runs against one server share none.
    pub run_id: String,
    pub prompter: Arc<Prompter>,
    pub limits: Limits,
    pub clock: Clock,
    /// Ends the run: nothing more is sent, what is under way is cut.
    pub cancel: CancellationToken,
    /// Turns under way, for whoever watches.
    pub in_flight: Arc<AtomicUsize>,
}

/// What the loop saw of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Driven {
    pub started: Micros,
    pub ended: Micros,
    /// Most turns under way at once.
    pub max_in_flight: usize,
    pub interrupted: bool,
    /// Sessions whose task panicked: a fault of this program, whose turns are missing from the records.
    pub lost_sessions: usize,
}

/// State that all sessions of a run share.
struct Shared<P, S> {
    load: Load,
    turns: Option<Semaphore>,
    max_in_flight: AtomicUsize,
    records: mpsc::Sender<TurnRecord>,
    prepare: P,
    send: S,
}

/// Sends every turn of the plan; each ends as exactly one record in `records`.
///
/// `prepare` makes a turn's body ahead of its time; `send` sends it and reads the reply, and gives the record back with the
/// answer's text.
pub async fn drive<P, S, F>(load: Load, prepare: P, send: S, records: mpsc::Sender<TurnRecord>) -> Driven
where
    P: Fn(&TurnRecord, &Prompt) -> Bytes + Send + Sync + 'static,
    S: Fn(TurnRecord, Bytes) -> F + Send + Sync + 'static,
    F: Future<Output = (TurnRecord, String)> + Send,
{
    let clock = load.clock.clone();
    let started = clock.now();
    let shared = Arc::new(Shared {
        turns: load.limits.turns.map(Semaphore::new),
        max_in_flight: AtomicUsize::new(0),
        records,
        prepare,
        send,
        load,
    });
    let (interrupted, lost_sessions) = shared.run_sessions(started).await;
    Driven {
        started: started.into(),
        ended: clock.now().into(),
        max_in_flight: shared.max_in_flight.load(Ordering::Relaxed),
        interrupted,
        lost_sessions,
    }
}

impl<P, S, F> Shared<P, S>
where
    P: Fn(&TurnRecord, &Prompt) -> Bytes + Send + Sync + 'static,
    S: Fn(TurnRecord, Bytes) -> F + Send + Sync + 'static,
    F: Future<Output = (TurnRecord, String)> + Send,
{
    /// Starts sessions in the plan's order, each when it is due and a slot is free, and waits for all.
    async fn run_sessions(self: &Arc<Self>, started: Duration) -> (bool, usize) {
        let plan = Arc::clone(self.load.prompter.plan());
        let slots = self.load.limits.sessions.map(|limit| Arc::new(Semaphore::new(limit)));
        let mut ahead = Lookahead::new(self.load.limits.sessions, plan.sessions.len());
        let mut tasks = JoinSet::new();
        let (mut interrupted, mut lost) = (false, 0);
        for (at, session) in plan.sessions.iter().enumerate() {
            let granted = tokio::select! {
                biased;
                () = self.load.cancel.cancelled() => None,
                granted = self.wait(session.arrival.map(|offset| started + offset), slots.as_ref(), &mut ahead) => Some(granted),
            };
            let Some((due, slot)) = granted else {
                interrupted = true;
                self.give_up(at, 0, Outcome::Cancelled).await;
                continue;
            };
            let body = ahead.take(at, |at| self.first_body(at));
            let shared = Arc::clone(self);
            tasks.spawn(async move {
                shared.session(at, due, body).await;
                drop(slot);
            });
            while let Some(ended) = tasks.try_join_next() {
                lost += usize::from(ended.is_err());
            }
        }
        while let Some(ended) = tasks.join_next().await {
            lost += usize::from(ended.is_err());
        }
        (interrupted || self.load.cancel.is_cancelled(), lost)
    }

    /// Waits for a session's arrival and slot, making bodies meanwhile; gives its due time and the slot.
    async fn wait(
        &self,
        arrival: Option<Duration>,
        slots: Option<&Arc<Semaphore>>,
        ahead: &mut Lookahead,
    ) -> (Duration, Option<OwnedSemaphorePermit>) {
        let clock = &self.load.clock;
        if let Some(due) = arrival {
            while clock.now() < due && ahead.fill_one(|at| self.first_body(at)) {
                tokio::task::yield_now().await;
            }
            clock.sleep_until(due).await;
        }
        let slot = match slots {
            None => None,
            Some(slots) => Some(self.slot(slots, ahead).await),
        };
        // A cap never moves the due time of an arrival; in a closed loop the free slot is the arrival.
        (arrival.unwrap_or_else(|| clock.now()), slot)
    }

    async fn slot(&self, slots: &Arc<Semaphore>, ahead: &mut Lookahead) -> OwnedSemaphorePermit {
        loop {
            if let Ok(slot) = Arc::clone(slots).try_acquire_owned() {
                return slot;
            }
            if !ahead.fill_one(|at| self.first_body(at)) {
                return Arc::clone(slots).acquire_owned().await.expect("the slots are never closed");
            }
            tokio::task::yield_now().await;
        }
    }

    fn first_body(&self, at: usize) -> Bytes {
        (self.prepare)(&self.planned(at, 0), &self.load.prompter.prompt(at, 0, &[]))
    }

    /// The record of a turn of which nothing has happened yet.
    fn planned(&self, at: usize, turn: u32) -> TurnRecord {
        let plan = self.load.prompter.plan();
        let session = &plan.sessions[at];
        let id = TurnId { group: session.group, session: session.session, turn };
        let output_tokens = session.turns[turn as usize].output_tokens;
        let key = plan.key(id.group, id.session, turn);
        let name = format!("{}-{id}", self.load.run_id);
        let mut record = TurnRecord::planned(name, id, key, Micros(0), output_tokens);
        record.planned_prompt_tokens = self.load.prompter.prompt_tokens(at, turn);
        record
    }

    /// Ends the turns of a session from `turn` on without sending them.
    async fn give_up(&self, at: usize, turn: u32, outcome: Outcome) {
        let turns = self.load.prompter.plan().sessions[at].turns.len();
        for turn in turn..u32::try_from(turns).unwrap_or(u32::MAX) {
            let now = self.load.clock.now().into();
            self.hand_over(TurnRecord { outcome, due_us: now, ..self.planned(at, turn) }).await;
        }
    }

    /// A recorder that is gone has lost interest in the rest; the run itself ends through `cancel`.
    async fn hand_over(&self, record: TurnRecord) {
        let _ = self.records.send(record).await;
    }
}

/// Bodies of the sessions that come next, in the plan's order.
struct Lookahead {
    bodies: VecDeque<Bytes>,
    /// The plan index of the first body.
    from: usize,
    limit: usize,
    sessions: usize,
}

impl Lookahead {
    fn new(slots: Option<usize>, sessions: usize) -> Self {
        let limit = slots.map_or(UNLIMITED_LOOKAHEAD, |slots| 2 * slots);
        Self { bodies: VecDeque::new(), from: 0, limit, sessions }
    }

    /// Makes one more body; false when enough are ready.
    fn fill_one(&mut self, make: impl FnOnce(usize) -> Bytes) -> bool {
        let next = self.from + self.bodies.len();
        let has_room = self.bodies.len() < self.limit && next < self.sessions;
        if has_room {
            self.bodies.push_back(make(next));
        }
        has_room
    }

    /// The body of session `at`, which is the next one.
    fn take(&mut self, at: usize, make: impl FnOnce(usize) -> Bytes) -> Bytes {
        self.from = at + 1;
        self.bodies.pop_front().unwrap_or_else(|| make(at))
    }
}

#[cfg(test)]
mod tests;
