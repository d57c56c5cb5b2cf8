//! What ends a turn from outside: a deadline that moves with every chunk, and the run's own end.
//!
//! Both are looked at only when they call. A stream has a chunk far more often than it has a silence: a select over the
//! chunk, the timer and the token would ask all three at every chunk, and take the locks of the last two. Even whether they
//! have called is asked of one number for all streams: a word of its own for each of thousands of streams is in no cache.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};

use futures::task::AtomicWaker;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Why work was not waited for any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Deadline,
    Cancelled,
}

/// How often the bells of all turns have rung.
#[derive(Debug, Default)]
pub(super) struct Rings(AtomicU64);

/// A deadline and a token over one turn.
pub(super) struct Ending {
    at: Instant,
    /// What the timer is set to.
    timed: Instant,
    /// Set again only when it fires before the deadline has come or when the deadline comes nearer.
    timer: Pin<Box<Sleep>>,
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    bell: Arc<Bell>,
    rings: Arc<Rings>,
    /// Whom the bell will wake, and the rings of all when it had not rung. While there is no further one, it has not either.
    listening: Option<(Waker, u64)>,
}

/// Rung by the timer or the token, and then wakes the turn.
struct Bell {
    has_rung: AtomicBool,
    turn: AtomicWaker,
    rings: Arc<Rings>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
        self.rings.0.fetch_add(1, Ordering::Release);
        self.turn.wake();
    }
}

impl Ending {
    pub(super) fn new(at: Instant, token: CancellationToken, rings: Arc<Rings>) -> Self {
        // Rung at the start: neither has been asked to call yet.
        let (has_rung, turn) = (AtomicBool::new(true), AtomicWaker::new());
        let bell = Arc::new(Bell { has_rung, turn, rings: Arc::clone(&rings) });
        let (timer, cancelled) = (Box::pin(sleep_until(at)), Box::pin(token.cancelled_owned()));
        Self { at, timed: at, timer, cancelled, bell, rings, listening: None }
    }

    /// Moves the deadline.
    pub(super) fn set(&mut self, at: Instant) {
        self.at = at;
        if at < self.timed {
            self.time();
        }
    }

    /// Sets the timer to the deadline.
    fn time(&mut self) {
        self.timed = self.at;
        self.timer.as_mut().reset(self.at);
    }

    /// What `work` gives, unless the end comes first. Work that is ready wins.
    pub(super) async fn bound<F: Future>(&mut self, work: F) -> Result<F::Output, Ended> {
        let mut work = pin!(work);
        std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => self.poll(cx).map(Err),
        })
        .await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        // Before the look at the bell, or a ring between the two would be taken for an old one.
        let rung = self.rings.0.load(Ordering::Acquire);
        if self.listening.as_ref().is_some_and(|(turn, heard)| *heard == rung && turn.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        // Before the look at the bell, or a ring between the two would wake nobody.
        self.bell.turn.register(cx.waker());
        if self.bell.has_rung.load(Ordering::Acquire) {
            // Who ended a turn once must be asked again by the next wait: it does not call twice.
            if let Poll::Ready(ended) = self.ask() {
                self.bell.has_rung.store(true, Ordering::Release);
                self.listening = None;
                return Poll::Ready(ended);
            }
        }
        self.listening = Some((cx.waker().clone(), rung));
        Poll::Pending
    }

    fn ask(&mut self) -> Poll<Ended> {
        // Before the question, or a ring during it would be forgotten.
        self.bell.has_rung.store(false, Ordering::Release);
        let ringing = Waker::from(Arc::clone(&self.bell));
        let mut calls = Context::from_waker(&ringing);
        if self.cancelled.as_mut().poll(&mut calls).is_ready() {
            return Poll::Ready(Ended::Cancelled);
        }
        loop {
            ready!(self.timer.as_mut().poll(&mut calls));
            if self.timed >= self.at {
                return Poll::Ready(Ended::Deadline);
            }
            self.time();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use tokio::sync::mpsc;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ending(at: Instant) -> (Ending, CancellationToken) {
        let token = CancellationToken::new();
        (Ending::new(at, token.clone(), Arc::default()), token)
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_deadline_set_is_the_one_that_counts() {
        let start = Instant::now();
        let (mut ending, _token) = ending(start + 10 * SECOND);
        for seconds in [30, 20, 5] {
            ending.set(start + seconds * SECOND);
        }
        assert_eq!(ending.bound(pending::<()>()).await, Err(Ended::Deadline));
        assert_eq!(start.elapsed(), 5 * SECOND);
        ending.set(start + 60 * SECOND);
        assert_eq!(ending.bound(pending::<()>()).await, Err(Ended::Deadline));
        assert_eq!(start.elapsed(), 60 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_is_ready_beats_a_deadline_that_has_passed_and_a_token() {
        let (mut ending, token) = ending(Instant::now());
        token.cancel();
        tokio::time::advance(SECOND).await;
        assert_eq!(ending.bound(ready(7)).await, Ok(7));
        assert_eq!(ending.bound(pending::<()>()).await, Err(Ended::Cancelled));
    }

    /// Chunks every 400 ms, each of which moves the deadline a second on, then silence: the timer first fires at 10 s, while
    /// nobody waits for it, and is not lost.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_comes_between_two_chunks_is_not_lost() {
        let start = Instant::now();
        let (mut ending, token) = ending(start + SECOND);
        let (sender, mut chunks) = mpsc::channel(1);
        let writing = async {
            for _ in 0..30 {
                tokio::time::sleep(SECOND * 2 / 5).await;
                sender.send(()).await.unwrap();
            }
            // Keeps the stream open.
            pending::<()>().await;
        };
        let reading = async {
            let mut seen = 0;
            loop {
                match ending.bound(chunks.recv()).await {
                    Ok(chunk) => chunk.unwrap(),
                    Err(ended) => return (seen, ended),
                }
                seen += 1;
                ending.set(Instant::now() + SECOND);
            }
        };
        let seen = tokio::select! { seen = reading => seen, () = writing => unreachable!() };
        assert_eq!((seen, start.elapsed()), ((30, Ended::Deadline), 13 * SECOND));
        drop(token);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_ends_a_turn_that_waits() {
        let start = Instant::now();
        let (mut ending, token) = ending(start + 60 * SECOND);
        let cancelling = async {
            tokio::time::sleep(3 * SECOND).await;
            token.cancel();
            pending::<()>().await;
        };
        let ended =
            tokio::select! { ended = ending.bound(pending::<()>()) => ended, () = cancelling => unreachable!() };
        assert_eq!((ended, start.elapsed()), (Err(Ended::Cancelled), 3 * SECOND));
    }
}
