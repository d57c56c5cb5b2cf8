//! The fleet in time: one task owns it, runs its steps on the clock and sends each request its tokens.
//!
//! Step ends are absolute instants of model time, so that the lateness of a timer never adds up: a late wake-up delays the
//! tokens of its own step and no other. Model time is the clock's time × the time scale.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::clock::Clock;
use crate::policy::{Dispatch, NoRank};

use super::fleet::{Fleet, Submission};
use super::histogram::{Histogram, QUEUE};
use super::job::{Event, JobId};
use super::rank::{Counts, Snapshot};
use super::settings::Settings;

/// What a request hears of its progress. Instants are model time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    Routed { dispatch: Dispatch, at: Duration },
    Refused(NoRank),
    Admitted { cached: u32, queued: Duration, at: Duration },
    Token { index: u32, at: Duration, is_last: bool },
}

/// How a flush ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    Done,
    /// Without a timeout: some rank was busy and kept its cache; the idle ones are empty.
    Busy,
    TimedOut,
    /// Another flush is still waiting.
    InProgress,
}

/// The fleet's counters and gauges at one instant, by rank.
#[derive(Debug, Clone)]
pub struct Report {
    pub counts: Vec<Counts>,
    /// What the controller last heard.
    pub published: Vec<Snapshot>,
    pub spilled: Vec<u64>,
    /// Waits for the first chunk, in seconds of the clock.
    pub queue_seconds: Vec<Histogram>,
    /// Distinct routing keys among running requests.
    pub running_keys: Vec<u64>,
    pub steps: u64,
    /// How late the latest of all step ends was, by the clock.
    pub max_lag: Duration,
}

enum Command {
    Submit { submission: Submission, updates: mpsc::UnboundedSender<Update> },
    Abort(JobId),
    Flush { timeout: Duration, reply: oneshot::Sender<Flushed> },
    Report(oneshot::Sender<Report>),
}

/// Talks to the fleet. Clones share it; the fleet ends when the last of them and of the tickets is gone.
#[derive(Debug, Clone)]
pub struct Handle {
    commands: mpsc::UnboundedSender<Command>,
    next: Arc<AtomicU64>,
}

/// A request in flight. Dropping it before its last token aborts the request.
#[derive(Debug)]
pub struct Ticket {
    id: JobId,
    updates: mpsc::UnboundedReceiver<Update>,
    commands: mpsc::UnboundedSender<Command>,
    is_over: bool,
}

/// The fleet's task is gone; only a shutdown ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the simulated fleet has stopped")]
pub struct Stopped;

impl Handle {
    /// Hands in a request; `submission.id` is replaced by a fresh one.
    #[must_use]
    pub fn submit(&self, mut submission: Submission) -> Ticket {
        let id = JobId(self.next.fetch_add(1, Ordering::Relaxed));
        submission.id = id;
        let (updates, receiver) = mpsc::unbounded_channel();
        // When the fleet has stopped, the ticket's channel is closed, and that is how the caller learns of it.
        self.commands.send(Command::Submit { submission, updates }).ok();
        Ticket { id, updates: receiver, commands: self.commands.clone(), is_over: false }
    }

    /// Empties the caches; waits up to `timeout` of the clock's time for busy ranks.
    ///
    /// # Errors
    /// When the fleet has stopped.
    pub async fn flush(&self, timeout: Duration) -> Result<Flushed, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Flush { timeout, reply }).map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }

    /// The counters and gauges of now.
    ///
    /// # Errors
    /// When the fleet has stopped.
    pub async fn report(&self) -> Result<Report, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Report(reply)).map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }
}

impl Ticket {
    /// The next update; `None` when the fleet has stopped.
    pub async fn next(&mut self) -> Option<Update> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`Self::next`], for streams.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.updates.poll_recv(context).map(|update| update.inspect(|update| self.note(update)))
    }

    /// An update that is here already.
    pub fn try_next(&mut self) -> Option<Update> {
        self.updates.try_recv().ok().inspect(|update| self.note(update))
    }

    fn note(&mut self, update: &Update) {
        self.is_over |= matches!(update, Update::Token { is_last: true, .. } | Update::Refused(_));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.is_over {
            self.commands.send(Command::Abort(self.id)).ok();
        }
    }
}

/// Starts the fleet on this clock: a handle, and the future that runs it until all handles and tickets are gone.
pub fn start(settings: &Settings, clock: Clock) -> (Handle, impl Future<Output = ()> + Send + use<>) {
    let (commands, inbox) = mpsc::unbounded_channel();
    let actor = Actor {
        fleet: Fleet::new(settings),
        clock,
        scale: settings.time_scale,
        requests: HashMap::new(),
        step_end: None,
        flush: None,
        queue_seconds: vec![Histogram::new(QUEUE); usize::from(settings.ranks)],
        events: vec![],
        max_lag: Duration::ZERO,
    };
    (Handle { commands, next: Arc::default() }, actor.run(inbox))
}

struct Actor {
    fleet: Fleet,
    clock: Clock,
    scale: f64,
    requests: HashMap<JobId, Request>,
    /// Model time.
    step_end: Option<Duration>,
    flush: Option<PendingFlush>,
    queue_seconds: Vec<Histogram>,
    events: Vec<Event>,
    max_lag: Duration,
}

struct Request {
    updates: mpsc::UnboundedSender<Update>,
    key: Option<String>,
    rank: u16,
    /// Model time.
    arrived: Duration,
    is_running: bool,
}

struct PendingFlush {
    busy: BTreeSet<u16>,
    /// The clock's time.
    deadline: Duration,
    reply: oneshot::Sender<Flushed>,
}

impl Actor {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Command>) {
        loop {
            let step = self.step_end.map(|end| self.on_clock(end));
            let flush = self.flush.as_ref().map(|flush| flush.deadline);
            tokio::select! {
                // Arrivals first: a fleet that is late has a step due at any time, and would never listen. They carry their
                // own instants, so a late step takes no request that came after its begin.
                biased;
                command = inbox.recv() => match command {
                    Some(command) => self.obey(command),
                    None => return,
                },
                () = sleep(&self.clock, step) => self.end_step(),
                () = sleep(&self.clock, flush) => self.give_up_flush(),
            }
        }
    }

    /// Model time of the clock's now.
    fn now(&self) -> Duration {
        self.clock.now().mul_f64(self.scale)
    }

    fn on_clock(&self, model: Duration) -> Duration {
        model.div_f64(self.scale)
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit { submission, updates } => self.submit(submission, updates),
            Command::Abort(id) => {
                self.fleet.abort(id);
                self.requests.remove(&id);
                self.continue_flush();
            }
            Command::Flush { timeout, reply } => self.begin_flush(timeout, reply),
            // The asker may be gone; nobody else wants the answer.
            Command::Report(reply) => drop(reply.send(self.report())),
        }
    }

    fn submit(&mut self, submission: Submission, updates: mpsc::UnboundedSender<Update>) {
        let at = self.now();
        let dispatch = match self.fleet.submit(at, &submission) {
            Ok(dispatch) => dispatch,
            Err(refusal) => {
                updates.send(Update::Refused(refusal)).ok();
                return;
            }
        };
        updates.send(Update::Routed { dispatch, at }).ok();
        let Submission { id, key, .. } = submission;
        self.requests.insert(id, Request { updates, key, rank: dispatch.rank.0, arrived: at, is_running: false });
        if self.step_end.is_none() {
            self.begin_step(at);
        }
    }

    fn begin_step(&mut self, now: Duration) {
        self.step_end = self.fleet.begin(now, &mut self.events);
        self.deliver(now);
    }

    fn end_step(&mut self) {
        let Some(end) = self.step_end.take() else { return };
        self.max_lag = self.max_lag.max(self.clock.now().saturating_sub(self.on_clock(end)));
        self.fleet.commit(end, &mut self.events);
        self.deliver(end);
        self.begin_step(end);
        self.continue_flush();
    }

    /// Sends out what happened at `at`. A receiver that is gone has its abort underway.
    fn deliver(&mut self, at: Duration) {
        for event in std::mem::take(&mut self.events) {
            match event {
                Event::Admitted { job, rank, cached, queued } => {
                    let seconds = self.on_clock(queued).as_secs_f64();
                    self.queue_seconds[usize::from(rank)].observe(seconds, 1);
                    if let Some(request) = self.requests.get_mut(&job) {
                        request.is_running = true;
                        // A step that waited for this arrival began with it, after the end of the one before.
                        let at = request.arrived + queued;
                        request.updates.send(Update::Admitted { cached, queued, at }).ok();
                    }
                }
                Event::Token { job, index, is_last } => {
                    if let Some(request) = self.requests.get(&job) {
                        request.updates.send(Update::Token { index, at, is_last }).ok();
                    }
                    if is_last {
                        self.requests.remove(&job);
                    }
                }
            }
        }
    }

    fn begin_flush(&mut self, timeout: Duration, reply: oneshot::Sender<Flushed>) {
        if self.flush.is_some() {
            reply.send(Flushed::InProgress).ok();
            return;
        }
        let mut busy = (0..self.queue_seconds.len()).filter_map(|rank| u16::try_from(rank).ok()).collect();
        self.fleet.flush(&mut busy);
        if busy.is_empty() {
            reply.send(Flushed::Done).ok();
        } else if timeout.is_zero() {
            reply.send(Flushed::Busy).ok();
        } else {
            self.flush = Some(PendingFlush { busy, deadline: self.clock.now().saturating_add(timeout), reply });
        }
    }

    fn continue_flush(&mut self) {
        let Some(flush) = &mut self.flush else { return };
        self.fleet.flush(&mut flush.busy);
        if flush.busy.is_empty() {
            self.end_flush(Flushed::Done);
        }
    }

    fn give_up_flush(&mut self) {
        self.end_flush(Flushed::TimedOut);
    }

    fn end_flush(&mut self, how: Flushed) {
        if let Some(flush) = self.flush.take() {
            flush.reply.send(how).ok();
        }
    }

    fn report(&self) -> Report {
        let mut keys: Vec<BTreeSet<&str>> = vec![BTreeSet::new(); self.queue_seconds.len()];
        for request in self.requests.values().filter(|request| request.is_running) {
            keys[usize::from(request.rank)].extend(request.key.as_deref());
        }
        Report {
            counts: self.fleet.counts(),
            published: self.fleet.published(),
            spilled: self.fleet.spilled().to_vec(),
            queue_seconds: self.queue_seconds.clone(),
            running_keys: keys.iter().map(|keys| keys.len() as u64).collect(),
            steps: self.fleet.steps(),
            max_lag: self.max_lag,
        }
    }
}

/// Sleeps until then, or for ever.
async fn sleep(clock: &Clock, due: Option<Duration>) {
    match due {
        Some(due) => clock.sleep_until(due).await,
        None => std::future::pending().await,
    }
}
