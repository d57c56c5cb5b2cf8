//! Time as a value: the wall, or a virtual clock that jumps from event to event.
//!
//! `drive`, `target` and `sim` know no other time. Virtual time is exact to the nanosecond: a heap of sleepers is advanced
//! when the single-threaded runtime would park, which is the instant at which nothing else can happen. (tokio's paused
//! clock steps by whole milliseconds, which is the length of what we measure.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Wall or virtual time, counted from the clock's own start. Clones share one time.
#[derive(Debug, Clone)]
pub struct Clock(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Wall(Instant),
    Virtual(Arc<Mutex<Virtual>>),
}

#[derive(Debug, Default)]
struct Virtual {
    now: Duration,
    /// Sleepers in order of due time, then of arrival, so that equal times wake in a stable order.
    sleepers: BinaryHeap<Reverse<Sleeper>>,
    arrivals: u64,
}

#[derive(Debug)]
struct Sleeper {
    due: Duration,
    arrival: u64,
    waker: Waker,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn wall() -> Self {
        Self(Kind::Wall(Instant::now()))
    }

    /// The time since the clock's start.
    #[must_use]
    pub fn now(&self) -> Duration {
        match &self.0 {
            Kind::Wall(start) => start.elapsed(),
            Kind::Virtual(shared) => lock(shared).now,
        }
    }

    /// Where an instant of the wall clock lies on this clock; virtual clocks have no wall and give their own now.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Duration {
        match &self.0 {
            Kind::Wall(start) => instant.saturating_duration_since(*start),
            Kind::Virtual(shared) => lock(shared).now,
        }
    }

    /// Sleeps until `due`; at once when that has passed. The wall wakes up to a millisecond late (tokio's timer wheel),
    /// so callers keep absolute due times and lateness never adds up.
    pub async fn sleep_until(&self, due: Duration) {
        match &self.0 {
            Kind::Wall(start) => tokio::time::sleep_until((*start + due).into()).await,
            Kind::Virtual(shared) => VirtualSleep { shared, due, registered: false }.await,
        }
    }
}

/// Runs `body` on a single thread in virtual time: whenever nothing can run, time jumps to the next sleeper.
///
/// # Errors
/// When the operating system refuses a runtime.
pub fn run_virtual<F: Future>(body: impl FnOnce(Clock) -> F) -> std::io::Result<F::Output> {
    let shared = Arc::new(Mutex::new(Virtual::default()));
    let ticking = Arc::clone(&shared);
    let runtime = tokio::runtime::Builder::new_current_thread().on_thread_park(move || advance(&ticking)).build()?;
    Ok(runtime.block_on(body(Clock(Kind::Virtual(shared)))))
}

/// Jumps to the earliest sleeper and wakes it. Nobody else is woken: what it does may come before the next one.
fn advance(shared: &Mutex<Virtual>) {
    let mut time = lock(shared);
    let Some(Reverse(next)) = time.sleepers.pop() else { return };
    time.now = time.now.max(next.due);
    drop(time);
    next.waker.wake();
}

/// A poisoned lock still holds a valid time: a panicking test must not turn into a second panic.
fn lock(shared: &Mutex<Virtual>) -> std::sync::MutexGuard<'_, Virtual> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct VirtualSleep<'a> {
    shared: &'a Mutex<Virtual>,
    due: Duration,
    registered: bool,
}

impl Future for VirtualSleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut time = lock(self.shared);
        if time.now >= self.due {
            return Poll::Ready(());
        }
        if !self.registered {
            time.arrivals += 1;
            let sleeper = Sleeper { due: self.due, arrival: time.arrivals, waker: context.waker().clone() };
            time.sleepers.push(Reverse(sleeper));
            drop(time);
            self.registered = true;
        }
        Poll::Pending
    }
}

impl PartialEq for Sleeper {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.arrival) == (other.due, other.arrival)
    }
}
impl Eq for Sleeper {}
impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Sleeper {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.arrival).cmp(&(other.due, other.arrival))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_time_is_exact_to_the_nanosecond_and_costs_no_wall_time() {
        let woke = run_virtual(|clock| async move {
            let tasks: Vec<_> = [3_600_000_000_007_u64, 5, 1_000_001]
                .into_iter()
                .map(|nanos| {
                    let clock = clock.clone();
                    tokio::spawn(async move {
                        clock.sleep_until(Duration::from_nanos(nanos)).await;
                        (nanos, clock.now())
                    })
                })
                .collect();
            futures::future::join_all(tasks).await
        })
        .unwrap();
        for joined in woke {
            let (nanos, at) = joined.unwrap();
            assert_eq!(at, Duration::from_nanos(nanos));
        }
    }

    #[test]
    fn what_a_sleeper_does_comes_before_the_next_one_wakes() {
        let order = run_virtual(|clock| async move {
            let log = Arc::new(Mutex::new(vec![]));
            let first = tokio::spawn({
                let (clock, log) = (clock.clone(), Arc::clone(&log));
                async move {
                    clock.sleep_until(Duration::from_millis(1)).await;
                    log.lock().unwrap().push("first");
                    clock.sleep_until(Duration::from_millis(2)).await;
                    log.lock().unwrap().push("first again");
                }
            });
            let second = tokio::spawn({
                let (clock, log) = (clock.clone(), Arc::clone(&log));
                async move {
                    clock.sleep_until(Duration::from_millis(3)).await;
                    log.lock().unwrap().push("second");
                }
            });
            first.await.unwrap();
            second.await.unwrap();
            log.lock().unwrap().clone()
        })
        .unwrap();
        assert_eq!(order, ["first", "first again", "second"]);
    }
}
