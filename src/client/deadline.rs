//! A deadline that moves with every chunk. The timer behind it does not: the runtime's timers share a lock, and a stream has
//! a chunk far more often than it has a silence.

use std::future::Future;
use std::pin::Pin;

use tokio::time::{Instant, Sleep, sleep_until};

/// One timer, set again only when it fires before the deadline has come or when the deadline comes nearer.
#[derive(Debug)]
pub(super) struct Deadline {
    at: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Deadline {
    pub(super) fn at(at: Instant) -> Self {
        Self { at, timer: Box::pin(sleep_until(at)) }
    }

    pub(super) fn set(&mut self, at: Instant) {
        self.at = at;
        if at < self.timer.deadline() {
            self.timer.as_mut().reset(at);
        }
    }

    /// What `work` gives, or `None` when the deadline comes first. Work that is ready wins.
    pub(super) async fn bound<F: Future>(&mut self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.passed() => None,
        }
    }

    async fn passed(&mut self) {
        loop {
            self.timer.as_mut().await;
            if self.timer.deadline() >= self.at {
                return;
            }
            self.timer.as_mut().reset(self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_last_deadline_set_is_the_one_that_counts() {
        let start = Instant::now();
        let mut deadline = Deadline::at(start + 10 * SECOND);
        for seconds in [30, 20, 5] {
            deadline.set(start + seconds * SECOND);
        }
        assert_eq!(deadline.bound(pending::<()>()).await, None);
        assert_eq!(start.elapsed(), 5 * SECOND);
        deadline.set(start + 60 * SECOND);
        assert_eq!(deadline.bound(pending::<()>()).await, None);
        assert_eq!(start.elapsed(), 60 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_ready_beats_a_deadline_that_has_passed() {
        let mut deadline = Deadline::at(Instant::now());
        tokio::time::advance(SECOND).await;
        assert_eq!(deadline.bound(ready(7)).await, Some(7));
    }
}
