//! What ends a turn from outside: a deadline that moves with every chunk, and the run's own end.
//!
//! Both are looked at only when they call. A stream has a chunk far more often than it has a silence: a select over the
//! chunk, the timer and the token would ask all three at every chunk, and take the locks of the last two. Even whether they
//! have called is asked of one number for all streams: a word of its own for each of thousands of streams is in no cache.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

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
    /// What the timer is set to, here since the timer itself lies apart.
    timer_at: Instant,
    /// Set again only when it fires before the deadline has come or when the deadline comes nearer.
    timer: Pin<Box<Sleep>>,
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    bell: Arc<Bell>,
    rings: Arc<Rings>,
    listening: Option<Listening>,
}

/// A turn that waits, as the bell knows it.
struct Listening {
    turn: Waker,
    /// The rings of all bells before the bell was looked at and had not rung. While there are no more, it still has not.
    rings: u64,
}

/// Rung by the timer or the token, and then wakes the turn, which stays known: a waker that the ringing takes along would
/// leave a turn that was told of no further ring without one.
struct Bell {
    has_rung: AtomicBool,
    turn: Mutex<Option<Waker>>,
    rings: Arc<Rings>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.has_rung.store(true, Ordering::Release);
        self.rings.0.fetch_add(1, Ordering::Release);
        let turn = self.turn().clone();
        if let Some(turn) = turn {
            turn.wake();
        }
    }
}

impl Bell {
    fn turn(&self) -> MutexGuard<'_, Option<Waker>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ending {
    pub(super) fn new(at: Instant, token: CancellationToken, rings: Arc<Rings>) -> Self {
        // Rung at the start: neither has been asked to call yet.
        let (has_rung, turn) = (AtomicBool::new(true), Mutex::default());
        let bell = Arc::new(Bell { has_rung, turn, rings: Arc::clone(&rings) });
        let (timer, cancelled) = (Box::pin(sleep_until(at)), Box::pin(token.cancelled_owned()));
        Self { at, timer_at: at, timer, cancelled, bell, rings, listening: None }
    }

    /// Moves the deadline.
    pub(super) fn set(&mut self, at: Instant) {
        self.at = at;
        if at < self.timer_at {
            self.arm();
        }
    }

    /// Sets the timer to the deadline.
    fn arm(&mut self) {
        self.timer_at = self.at;
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
        let rings = self.rings.0.load(Ordering::Acquire);
        let is_known = |known: &Listening| known.rings == rings && known.turn.will_wake(cx.waker());
        if self.listening.as_ref().is_some_and(is_known) {
            return Poll::Pending;
        }
        // Before the look at the bell, or a ring between the two would wake nobody.
        *self.bell.turn() = Some(cx.waker().clone());
        if self.bell.has_rung.load(Ordering::Acquire) {
            // Who ended a turn once must be asked again by the next wait: it does not call twice.
            if let Poll::Ready(ended) = self.ask() {
                self.bell.has_rung.store(true, Ordering::Release);
                self.listening = None;
                return Poll::Ready(ended);
            }
        }
        self.listening = Some(Listening { turn: cx.waker().clone(), rings });
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
            if self.timer_at >= self.at {
                return Poll::Ready(Ended::Deadline);
            }
            self.arm();
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

    /// Every step of a ring, with a look of the turn before it, between its count and its waking, and after it.
    #[test]
    fn a_ring_that_a_turn_looked_through_leaves_it_to_be_woken_by_the_next() {
        struct Calls(AtomicU64);
        impl Wake for Calls {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _inside = runtime.enter();
        let (mut ending, _token) = ending(Instant::now() + 60 * SECOND);
        let calls = Arc::new(Calls(AtomicU64::new(0)));
        let waker = Waker::from(Arc::clone(&calls));
        let look = |ending: &mut Ending| assert!(ending.poll(&mut Context::from_waker(&waker)).is_pending());
        look(&mut ending);
        let bell = Arc::clone(&ending.bell);
        bell.has_rung.store(true, Ordering::Release);
        bell.rings.0.fetch_add(1, Ordering::Release);
        look(&mut ending);
        bell.turn().clone().unwrap().wake();
        look(&mut ending);
        bell.wake_by_ref();
        assert_eq!(calls.0.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn of_turns_that_share_their_rings_each_ends_at_its_own_time() {
        let start = Instant::now();
        let rings = Arc::<Rings>::default();
        let (token, cut) = (CancellationToken::new(), CancellationToken::new());
        let mut turns = tokio::task::JoinSet::new();
        for seconds in [3, 1, 2] {
            let mut ending = Ending::new(start + seconds * SECOND, token.clone(), Arc::clone(&rings));
            turns.spawn(async move { (ending.bound(pending::<()>()).await, start.elapsed()) });
        }
        let mut ending = Ending::new(start + 60 * SECOND, cut.clone(), rings);
        turns.spawn(async move { (ending.bound(pending::<()>()).await, start.elapsed()) });
        let mut ended = vec![];
        while let Some(turn) = turns.join_next().await {
            ended.push(turn.unwrap());
            if ended.len() == 2 {
                cut.cancel();
            }
        }
        let deadline = |seconds| (Err(Ended::Deadline), seconds * SECOND);
        assert_eq!(ended, [deadline(1), deadline(2), (Err(Ended::Cancelled), 2 * SECOND), deadline(3)]);
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
