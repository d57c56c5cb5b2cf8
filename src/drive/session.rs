//! One session: its turns in order, each due when the one before has ended and its user has thought.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::SemaphorePermit;

use super::{Shared, Start};
use crate::record::{Outcome, TurnRecord};
use crate::workload::Prompt;

/// A turn may be under way until this is dropped.
struct Granted<'a> {
    due: Duration,
    /// How long the cap on turns held it back under a rate.
    cap_wait: Option<Duration>,
    _permit: Option<SemaphorePermit<'a>>,
}

impl<P, B, L, A, S, F> Shared<P, L, S>
where
    P: Fn(&TurnRecord, &Prompt) -> B + Send + Sync + 'static,
    B: Send + 'static,
    L: Fn(&TurnRecord, &B) -> A + Send + Sync + 'static,
    S: Fn(TurnRecord, B, A) -> F + Send + Sync + 'static,
    F: Future<Output = (TurnRecord, String)> + Send,
{
    /// Sends the turns of the session at plan index `at`.
    ///
    /// A turn that fails ends the session: the rest is skipped, since a conversation with a hole is another conversation.
    ///
    /// A block in a function, since an `async fn` would hold its arguments twice, and a session lasts.
    pub(super) fn session(
        self: Arc<Self>,
        at: usize,
        start: Start,
        first_body: B,
    ) -> impl Future<Output = ()> + Send + 'static {
        let Start { mut due, is_open, mut cap_wait, slot } = start;
        let mut first_body = Some(first_body);
        async move {
            let turns = self.load.prompter.plan().sessions[at].turns.len();
            let turns = u32::try_from(turns).unwrap_or(u32::MAX);
            let mut replies = Vec::new();
            for turn in 0..turns {
                let body = first_body.take().unwrap_or_else(|| {
                    (self.prepare)(&self.planned(at, turn), &self.load.prompter.prompt(at, turn, &replies))
                });
                let Some(granted) = Box::pin(self.turn_slot(due, is_open)).await else {
                    return Box::pin(self.give_up(at, turn, Outcome::Cancelled)).await;
                };
                let under_way = self.load.watch.turn();
                let cap_wait = cap_wait.take().max(granted.cap_wait);
                let (record, reply) = self.sent(self.due(at, turn, granted.due, cap_wait), body).await;
                drop((under_way, granted));
                let outcome = record.outcome;
                let done = record.done_us.map_or_else(|| self.load.clock.now(), Duration::from);
                self.hand_over(record).await;
                match outcome {
                    Outcome::Complete => replies.push(reply),
                    Outcome::Cancelled => return Box::pin(self.give_up(at, turn + 1, Outcome::Cancelled)).await,
                    Outcome::Failed(_) | Outcome::Skipped => {
                        Box::pin(self.give_up(at, turn + 1, Outcome::Skipped)).await;
                        due = done;
                        break;
                    }
                }
                due = done + if turn + 1 == turns { Duration::ZERO } else { self.load.limits.think };
            }
            if let Some(slot) = slot {
                slot.free_as_of(due);
            }
        }
    }

    /// The record of a turn that leaves now.
    fn due(&self, at: usize, turn: u32, due: Duration, cap_wait: Option<Duration>) -> TurnRecord {
        TurnRecord { due_us: due.into(), cap_wait_us: cap_wait.map(Into::into), ..self.planned(at, turn) }
    }

    /// The turn under way, in the session's own memory: what each event of thousands of streams touches shall lie together.
    fn sent(&self, record: TurnRecord, body: B) -> F {
        let place = (self.place)(&record, &body);
        (self.send)(record, body, place)
    }

    /// Waits until the turn is due and may be under way; `None` when the run is over.
    ///
    /// Without a rate a turn is not due before its permit; with one, a cap never moves the due time.
    async fn turn_slot(&self, due: Duration, is_open: bool) -> Option<Granted<'_>> {
        let clock = &self.load.clock;
        let waiting = async {
            if clock.now() < due {
                clock.sleep_until(due).await;
            }
            let Some(turns) = &self.turns else { return Granted { due, cap_wait: None, _permit: None } };
            let (permit, free) = match turns.try_acquire() {
                Ok(permit) => (permit, due),
                Err(_) => (turns.acquire().await.expect("the permits are never closed"), clock.now().max(due)),
            };
            let (due, cap_wait) = if is_open { (due, Some(free.saturating_sub(due))) } else { (free, None) };
            Granted { due, cap_wait, _permit: Some(permit) }
        };
        tokio::select! {
            biased;
            () = self.load.stop.sending.cancelled() => None,
            granted = waiting => Some(granted),
        }
    }
}
