//! The one load loop: a plan's turns are sent when they are due. When (pacing), how many (limits), where (`place`), how
//! (`send`) and until when (duration, [`Stop`]) are values; there is no second loop.
//!
//! One task a session, on the lane of its slot; its turns are sequential, so history needs no lock. Bodies of first turns
//! are made while the loop waits, at most two limits ahead.

mod session;
mod slots;
mod watch;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use slots::{Slot, Slots};
pub use watch::Watch;

use crate::clock::Clock;
use crate::lanes::Lanes;
use crate::record::{EndedBy, Outcome, TurnId, TurnRecord};
use crate::units::Micros;
use crate::workload::{Prompt, Prompter};

/// Sessions prepared ahead when nothing limits how many may run.
const UNLIMITED_LOOKAHEAD: usize = 64;

/// How many at once, how soon, how long, and how long users think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub sessions: Option<usize>,
    pub turns: Option<usize>,
    /// The slots of a closed loop open evenly over it. An open loop has it in its arrivals.
    pub ramp_up: Duration,
    /// Nothing is sent after it, and what is under way is cut.
    pub duration: Option<Duration>,
    /// Pause between the end of a turn and the next turn of its session.
    pub think: Duration,
}

/// How a load ends before its plan. Clones end together.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// Nothing more is sent.
    pub sending: CancellationToken,
    /// What is under way is cut; `send` has to look at it.
    pub cut: CancellationToken,
}

/// What is sent, under which limits, on whose clock.
#[derive(Debug, Clone)]
pub struct Load {
    /// Prefix of every turn's id: two runs against one server share none.
    pub run_id: String,
    pub prompter: Arc<Prompter>,
    pub limits: Limits,
    pub clock: Clock,
    /// Where sessions run.
    pub lanes: Lanes,
    pub stop: Stop,
    /// For whoever watches.
    pub watch: Arc<Watch>,
}

/// What the loop saw of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Driven {
    pub started: Micros,
    pub ended: Micros,
    pub ended_by: EndedBy,
    /// Sessions whose task panicked: a fault of this program, whose turns are missing from the records.
    pub lost_sessions: usize,
}

/// State that all sessions of a run share.
struct Shared<P, L, S> {
    load: Load,
    turns: Option<Semaphore>,
    records: mpsc::Sender<TurnRecord>,
    prepare: P,
    place: L,
    send: S,
}

/// The start of one session.
struct Start {
    due: Duration,
    /// Arrivals have a rate, so that a cap moves no due time.
    is_open: bool,
    /// How long the cap on sessions held it back under a rate.
    cap_wait: Option<Duration>,
    slot: Option<Slot>,
}

impl Stop {
    /// One that ends with this one, and may end before it.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { sending: self.sending.child_token(), cut: self.cut.child_token() }
    }

    /// Ends sending and cuts what is under way.
    pub fn now(&self) {
        self.sending.cancel();
        self.cut.cancel();
    }
}

/// Sends the turns of the plan. Each turn of a session that has started ends as exactly one record in `records`; sessions
/// that the end of the run came before leave none.
///
/// `prepare` makes a turn's body ahead of its time. `place` says where it goes, asked only when it leaves, so that the
/// answer may depend on what is under way. `send` sends it there and reads the reply, and gives the record back with the
/// answer's text; what `place` gave is its own to drop when the turn has ended.
pub async fn drive<P, B, L, A, S, F>(
    load: Load,
    prepare: P,
    place: L,
    send: S,
    records: mpsc::Sender<TurnRecord>,
) -> Driven
where
    P: Fn(&TurnRecord, &Prompt) -> B + Send + Sync + 'static,
    B: Send + 'static,
    L: Fn(&TurnRecord, &B) -> A + Send + Sync + 'static,
    S: Fn(TurnRecord, B, A) -> F + Send + Sync + 'static,
    F: Future<Output = (TurnRecord, String)> + Send,
{
    let clock = load.clock.clone();
    let stop = load.stop.clone();
    let is_over = AtomicBool::new(false);
    let turns = load.limits.turns.map(Semaphore::new);
    let shared = Arc::new(Shared { turns, records, prepare, place, send, load });
    let ahead = shared.first_bodies().await;
    let started = clock.now();
    let deadline = deadline(&clock, shared.load.limits.duration.map(|span| started + span), &stop, &is_over);
    let lost_sessions = tokio::select! {
        lost = shared.run_sessions(started, ahead) => lost,
        never = deadline => match never {},
    };
    let ended_by = match (is_over.into_inner(), stop.sending.is_cancelled()) {
        (true, _) => EndedBy::Duration,
        (false, true) => EndedBy::Interrupt,
        (false, false) => EndedBy::Plan,
    };
    Driven { started: started.into(), ended: clock.now().into(), ended_by, lost_sessions }
}

/// Ends the run when its time is over, unless it is being ended already.
async fn deadline(clock: &Clock, at: Option<Duration>, stop: &Stop, is_over: &AtomicBool) -> Infallible {
    if let Some(at) = at {
        clock.sleep_until(at).await;
        is_over.store(!stop.sending.is_cancelled(), Ordering::Relaxed);
        stop.now();
    }
    std::future::pending().await
}

impl<P, B, L, A, S, F> Shared<P, L, S>
where
    P: Fn(&TurnRecord, &Prompt) -> B + Send + Sync + 'static,
    B: Send + 'static,
    L: Fn(&TurnRecord, &B) -> A + Send + Sync + 'static,
    S: Fn(TurnRecord, B, A) -> F + Send + Sync + 'static,
    F: Future<Output = (TurnRecord, String)> + Send,
{
    /// The bodies that are due at the very start, made before it: making them one after the other would be late.
    async fn first_bodies(&self) -> Lookahead<B> {
        let sessions = self.load.prompter.plan().sessions.len();
        let mut ahead = Lookahead::new(self.load.limits.sessions, sessions);
        while ahead.bodies.len() < self.load.limits.sessions.unwrap_or(UNLIMITED_LOOKAHEAD)
            && !self.load.stop.sending.is_cancelled()
            && ahead.fill_one(|at| self.first_body(at))
        {
            tokio::task::yield_now().await;
        }
        ahead
    }

    /// Starts sessions in the plan's order, each when it is due and a slot is free, and waits for all. Gives the number
    /// of sessions that panicked.
    async fn run_sessions(self: &Arc<Self>, started: Duration, mut ahead: Lookahead<B>) -> usize {
        let plan = Arc::clone(self.load.prompter.plan());
        let Load { limits, watch, clock, lanes, .. } = &self.load;
        let last_arrival = plan.sessions.last().and_then(|session| session.arrival);
        // Arrivals know the ramp themselves, so the slots of an open loop are a cap and nothing else.
        let slots_ramp = if last_arrival.is_some() { Duration::ZERO } else { limits.ramp_up };
        let mut slots = limits.sessions.map(|limit| Slots::new(limit, started, slots_ramp, clock.clone()));
        if let Some(last) = last_arrival {
            watch.mark_full((started + limits.ramp_up).into());
            watch.mark_last_start((started + last).into());
        }
        let mut tasks = JoinSet::new();
        let all_ended = CancellationToken::new();
        let running = Arc::new(all_ended.clone().drop_guard());
        let mut lost = 0;
        for (at, session) in plan.sessions.iter().enumerate() {
            let start = tokio::select! {
                biased;
                () = self.load.stop.sending.cancelled() => None,
                start = self.wait(session.arrival.map(|offset| started + offset), slots.as_mut(), &mut ahead) => Some(start),
            };
            let Some(start) = start else {
                watch.mark_last_start(clock.now().into());
                break;
            };
            if !start.is_open {
                if slots.as_ref().is_some_and(Slots::are_all_taken) {
                    watch.mark_full(start.due.into());
                }
                if at + 1 == plan.sessions.len() {
                    watch.mark_last_start(start.due.into());
                }
            }
            let body = ahead.take(at, |at| self.first_body(at));
            // A slot's sessions follow each other on one lane, so that each lane has its share of those in flight.
            let lane = start.slot.as_ref().map_or(at, |slot| slot.number);
            let running = Arc::clone(&running);
            lanes.spawn(lane, &mut tasks, Arc::clone(self).session(at, start, body).map(move |()| drop(running)));
            while let Some(ended) = tasks.try_join_next() {
                lost += usize::from(ended.is_err());
            }
        }
        // Woken by the last session alone: to be woken by each of thousands would cost their lanes a call of the kernel each.
        drop(running);
        all_ended.cancelled().await;
        while let Some(ended) = tasks.join_next().await {
            lost += usize::from(ended.is_err());
        }
        lost
    }

    /// Waits for a session's arrival and slot, making bodies meanwhile.
    async fn wait(&self, arrival: Option<Duration>, slots: Option<&mut Slots>, ahead: &mut Lookahead<B>) -> Start {
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
        let free_since = slot.as_ref().map(|slot| slot.free_since);
        // A cap never moves the due time of an arrival; in a closed loop the free slot is the arrival.
        Start {
            due: arrival.or(free_since).unwrap_or_else(|| clock.now()),
            is_open: arrival.is_some(),
            cap_wait: arrival.zip(free_since).map(|(due, free)| free.saturating_sub(due)),
            slot,
        }
    }

    async fn slot(&self, slots: &mut Slots, ahead: &mut Lookahead<B>) -> Slot {
        loop {
            if let Some(slot) = slots.try_take() {
                return slot;
            }
            if !ahead.fill_one(|at| self.first_body(at)) {
                return slots.take().await;
            }
            tokio::task::yield_now().await;
        }
    }

    fn first_body(&self, at: usize) -> B {
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

    /// A recorder that is gone has lost interest in the rest; the run itself ends through `cancel`. Nearly always there is
    /// room at once, and no session needs a second place for a record that waits.
    fn hand_over(&self, record: TurnRecord) -> impl Future<Output = ()> {
        let waiting = match self.records.try_send(record) {
            Err(TrySendError::Full(record)) => Some(Box::pin(self.records.send(record))),
            Ok(()) | Err(TrySendError::Closed(_)) => None,
        };
        async move {
            if let Some(waiting) = waiting {
                let _ = waiting.await;
            }
        }
    }
}

/// Bodies of the sessions that come next, in the plan's order.
struct Lookahead<B> {
    bodies: VecDeque<B>,
    /// The plan index of the first body.
    from: usize,
    limit: usize,
    sessions: usize,
}

impl<B> Lookahead<B> {
    fn new(slots: Option<usize>, sessions: usize) -> Self {
        let limit = slots.map_or(UNLIMITED_LOOKAHEAD, |slots| 2 * slots);
        Self { bodies: VecDeque::new(), from: 0, limit, sessions }
    }

    /// Makes one more body; false when enough are ready.
    fn fill_one(&mut self, make: impl FnOnce(usize) -> B) -> bool {
        let next = self.from + self.bodies.len();
        let has_room = self.bodies.len() < self.limit && next < self.sessions;
        if has_room {
            self.bodies.push_back(make(next));
        }
        has_room
    }

    /// The body of session `at`, which is the next one.
    fn take(&mut self, at: usize, make: impl FnOnce(usize) -> B) -> B {
        self.from = at + 1;
        self.bodies.pop_front().unwrap_or_else(|| make(at))
    }
}

#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod tests;
