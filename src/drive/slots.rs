//! Slots for sessions. A slot says since when it has been free: in a closed loop that is when the next session is due, so
//! that whatever this program takes until it sends is its own lag.

use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::clock::Clock;

/// At most `limit` sessions at once. Over a ramp-up the slots open one by one, evenly.
#[derive(Debug)]
pub(super) struct Slots {
    limit: usize,
    /// Slots that have opened.
    open: usize,
    started: Duration,
    ramp_up: Duration,
    clock: Clock,
    free: UnboundedReceiver<Free>,
    back: UnboundedSender<Free>,
}

/// A slot that nobody has: its number, and since when.
type Free = (usize, Duration);

/// The right to run one session. It goes back when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) number: usize,
    /// Since when it was free.
    pub(super) free_since: Duration,
    freed: Option<Duration>,
    clock: Clock,
    back: UnboundedSender<Free>,
}

impl Slots {
    pub(super) fn new(limit: usize, started: Duration, ramp_up: Duration, clock: Clock) -> Self {
        let (back, free) = unbounded_channel();
        Self { limit, open: 0, started, ramp_up, clock, free, back }
    }

    /// A slot that is free now.
    pub(super) fn try_take(&mut self) -> Option<Slot> {
        self.open_due();
        self.free.try_recv().ok().map(|free| self.slot(free))
    }

    /// The next slot to be free.
    pub(super) async fn take(&mut self) -> Slot {
        loop {
            if let Some(slot) = self.try_take() {
                return slot;
            }
            let next = (self.open < self.limit).then(|| self.opening(self.open));
            let opening = async {
                match next {
                    Some(next) => self.clock.sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                free = self.free.recv() => {
                    let free = free.expect("this holds a sender itself");
                    return self.slot(free);
                },
                () = opening => {},
            }
        }
    }

    /// Whether every slot is taken.
    pub(super) fn are_all_taken(&self) -> bool {
        self.open == self.limit && self.free.is_empty()
    }

    fn open_due(&mut self) {
        while self.open < self.limit && self.opening(self.open) <= self.clock.now() {
            // The receiver is in this struct.
            let _ = self.back.send((self.open, self.opening(self.open)));
            self.open += 1;
        }
    }

    /// When the slot of this number opens.
    fn opening(&self, number: usize) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "slots stay below 2^53")]
        let share = number as f64 / self.limit as f64;
        self.started + self.ramp_up.mul_f64(share)
    }

    fn slot(&self, (number, free_since): Free) -> Slot {
        Slot { number, free_since, freed: None, clock: self.clock.clone(), back: self.back.clone() }
    }
}

impl Slot {
    /// Gives the slot back as of `at`, when its session's last turn was done.
    pub(super) fn free_as_of(mut self, at: Duration) {
        self.freed = Some(at);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // After the last session nobody waits for slots any more.
        let _ = self.back.send((self.number, self.freed.unwrap_or_else(|| self.clock.now())));
    }
}
