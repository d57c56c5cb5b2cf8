//! One session: its turns in order, each due when the one before has ended and its user has thought.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::SemaphorePermit;

use super::Shared;
use crate::record::{Outcome, TurnRecord};
use crate::workload::Prompt;

impl<P, S, F> Shared<P, S>
where
    P: Fn(&TurnRecord, &Prompt) -> Bytes + Send + Sync + 'static,
    S: Fn(TurnRecord, Bytes) -> F + Send + Sync + 'static,
    F: Future<Output = (TurnRecord, String)> + Send,
{
    /// Sends the turns of the session at plan index `at`, the first of which is due at `due`.
    ///
    /// A turn that fails ends the session: the rest is skipped, since a conversation with a hole is another conversation.
    pub(super) async fn session(&self, at: usize, mut due: Duration, first_body: Bytes) {
        let plan = self.load.prompter.plan();
        let turns = u32::try_from(plan.sessions[at].turns.len()).unwrap_or(u32::MAX);
        let mut first_body = Some(first_body);
        let mut replies = Vec::new();
        for turn in 0..turns {
            let mut record = self.planned(at, turn);
            let body = first_body
                .take()
                .unwrap_or_else(|| (self.prepare)(&record, &self.load.prompter.prompt(at, turn, &replies)));
            let is_open = plan.sessions[at].arrival.is_some();
            let Some((due_at, permit)) = self.turn_slot(due, is_open).await else {
                return self.give_up(at, turn, Outcome::Cancelled).await;
            };
            record.due_us = due_at.into();
            let (record, reply) = self.send_counted(record, body).await;
            drop(permit);
            let (outcome, done) = (record.outcome, record.done_us);
            self.hand_over(record).await;
            match outcome {
                Outcome::Complete => replies.push(reply),
                Outcome::Cancelled => return self.give_up(at, turn + 1, Outcome::Cancelled).await,
                Outcome::Failed(_) | Outcome::Skipped => {
                    return self.give_up(at, turn + 1, Outcome::Skipped).await;
                }
            }
            due = done.map_or_else(|| self.load.clock.now(), Duration::from) + self.load.limits.think;
        }
    }

    /// Waits until the turn is due and may be under way; `None` when the run is over.
    ///
    /// Without a rate a turn is not due before its permit; with one, a cap never moves the due time.
    async fn turn_slot(&self, due: Duration, is_open: bool) -> Option<(Duration, Option<SemaphorePermit<'_>>)> {
        let clock = &self.load.clock;
        let waiting = async {
            if clock.now() < due {
                clock.sleep_until(due).await;
            }
            match &self.turns {
                None => (due, None),
                Some(turns) => {
                    let permit = turns.acquire().await.expect("the permits are never closed");
                    (if is_open { due } else { due.max(clock.now()) }, Some(permit))
                }
            }
        };
        tokio::select! {
            biased;
            () = self.load.cancel.cancelled() => None,
            granted = waiting => Some(granted),
        }
    }

    async fn send_counted(&self, record: TurnRecord, body: Bytes) -> (TurnRecord, String) {
        let now = self.load.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.max_in_flight.fetch_max(now, Ordering::Relaxed);
        let sent = (self.send)(record, body).await;
        self.load.in_flight.fetch_sub(1, Ordering::Relaxed);
        sent
    }
}
