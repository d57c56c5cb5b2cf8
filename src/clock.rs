//! Time as a value: the wall, or a virtual clock that jumps from event to event.
//!
//! `drive`, `target` and `sim` know no other time. Virtual time is exact to the nanosecond: a heap of sleepers is advanced
//! when the single-threaded runtime would park, which is the instant at which nothing else can happen. (tokio's paused
//! clock steps by whole milliseconds, which is the length of what we measure.) On the wall the same heap is watched by a
//! thread of its own, since tokio's timer wheel wakes a millisecond late and a schedule of thousands a second would leave
//! in bursts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Wall or virtual time, counted from the clock's own start. Clones share one time.
#[derive(Debug, Clone)]
pub struct Clock(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Wall(Arc<Wall>),
    Virtual(Arc<Mutex<Virtual>>),
}

#[derive(Debug)]
struct Wall {
    start: Instant,
    /// Started by the first sleeper; none when the system gave no thread.
    alarm: OnceLock<Option<Arc<Alarm>>>,
}

/// What the thread of a wall clock watches.
#[derive(Debug, Default)]
struct Alarm {
    state: Mutex<AlarmState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct AlarmState {
    sleepers: Sleepers,
    /// The last clone of the clock is gone.
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Virtual {
    now: Duration,
    sleepers: Sleepers,
}

/// In order of due time, then of arrival, so that equal times wake in a stable order.
#[derive(Debug, Default)]
struct Sleepers {
    heap: BinaryHeap<Reverse<Sleeper>>,
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
        Self(Kind::Wall(Arc::new(Wall { start: Instant::now(), alarm: OnceLock::new() })))
    }

    /// The time since the clock's start.
    #[must_use]
    pub fn now(&self) -> Duration {
        match &self.0 {
            Kind::Wall(wall) => wall.start.elapsed(),
            Kind::Virtual(shared) => lock(shared).now,
        }
    }

    /// Where an instant of the wall clock lies on this clock; virtual clocks have no wall and give their own now.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Duration {
        match &self.0 {
            Kind::Wall(wall) => instant.saturating_duration_since(wall.start),
            Kind::Virtual(shared) => lock(shared).now,
        }
    }

    /// Sleeps until `due`; at once when that has passed. The wall wakes some 0.1 ms late, so callers keep absolute due
    /// times and lateness never adds up.
    pub async fn sleep_until(&self, due: Duration) {
        match &self.0 {
            Kind::Wall(wall) => match wall.alarm() {
                Some(alarm) => WallSleep { wall, alarm, due, registered: None }.await,
                None => match wall.start.checked_add(due) {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                },
            },
            Kind::Virtual(shared) => VirtualSleep { shared, due, registered: None }.await,
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
    let Some(Reverse(next)) = time.sleepers.heap.pop() else { return };
    time.now = time.now.max(next.due);
    drop(time);
    next.waker.wake();
}

/// A poisoned lock still holds a valid time: a panicking test must not turn into a second panic.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wall {
    fn alarm(&self) -> Option<&Arc<Alarm>> {
        let start = self.start;
        let alarm = self.alarm.get_or_init(|| {
            let alarm = Arc::new(Alarm::default());
            let watched = Arc::clone(&alarm);
            let thread = std::thread::Builder::new().name("clock".to_owned()).spawn(move || watched.watch(start));
            thread.is_ok().then_some(alarm)
        });
        alarm.as_ref()
    }
}

impl Drop for Wall {
    fn drop(&mut self) {
        if let Some(Some(alarm)) = self.alarm.get() {
            lock(&alarm.state).is_closed = true;
            alarm.changed.notify_one();
        }
    }
}

impl Alarm {
    /// Wakes each sleeper when it is due, until the clock is gone.
    fn watch(&self, start: Instant) {
        let mut state = lock(&self.state);
        while !state.is_closed {
            let due = state.sleepers.heap.peek().map(|Reverse(next)| next.due);
            let wait = due.map(|due| due.saturating_sub(start.elapsed()));
            state = match wait {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    let next = state.sleepers.heap.pop();
                    drop(state);
                    if let Some(Reverse(next)) = next {
                        next.waker.wake();
                    }
                    lock(&self.state)
                }
                Some(wait) => self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}

impl Sleepers {
    /// Adds a sleeper unless `registered` is its waker already; whether it is now the first to be woken.
    fn register(&mut self, due: Duration, registered: &mut Option<Waker>, waker: &Waker) -> bool {
        if registered.as_ref().is_some_and(|known| known.will_wake(waker)) {
            return false;
        }
        *registered = Some(waker.clone());
        let is_first = self.heap.peek().is_none_or(|Reverse(first)| due < first.due);
        self.arrivals += 1;
        self.heap.push(Reverse(Sleeper { due, arrival: self.arrivals, waker: waker.clone() }));
        is_first
    }
}

struct WallSleep<'a> {
    wall: &'a Wall,
    alarm: &'a Alarm,
    due: Duration,
    registered: Option<Waker>,
}

impl Future for WallSleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.wall.start.elapsed() >= self.due {
            return Poll::Ready(());
        }
        let Self { alarm, due, registered, .. } = &mut *self;
        if lock(&alarm.state).sleepers.register(*due, registered, context.waker()) {
            alarm.changed.notify_one();
        }
        Poll::Pending
    }
}

struct VirtualSleep<'a> {
    shared: &'a Mutex<Virtual>,
    due: Duration,
    registered: Option<Waker>,
}

impl Future for VirtualSleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { shared, due, registered } = &mut *self;
        let mut time = lock(shared);
        if time.now >= *due {
            return Poll::Ready(());
        }
        time.sleepers.register(*due, registered, context.waker());
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

    #[test]
    fn the_wall_never_wakes_early_and_wakes_in_order() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let clock = Clock::wall();
        let woke = runtime.block_on(async {
            // A later sleeper first: the thread must turn to the earlier one.
            let tasks = [9_u64, 3, 6, 0].map(|ms| {
                let clock = clock.clone();
                tokio::spawn(async move {
                    clock.sleep_until(Duration::from_millis(ms)).await;
                    (Duration::from_millis(ms), clock.now())
                })
            });
            futures::future::join_all(tasks).await
        });
        assert!(woke.into_iter().map(Result::unwrap).all(|(due, at)| at >= due));
        let Kind::Wall(wall) = &clock.0 else { panic!("a wall") };
        let alarm = Arc::downgrade(wall.alarm().unwrap());
        assert!(lock(&wall.alarm().unwrap().state).sleepers.heap.is_empty());
        drop(clock);
        while alarm.strong_count() > 0 {
            // The thread ends with its clock.
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_sleeps_for_ever_stops_nobody() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let clock = Clock::wall();
        runtime.block_on(async {
            for due in
                [Duration::MAX, Duration::from_secs(u64::MAX / 2), Duration::from_secs(10_000_000_000_000_000_000)]
            {
                let mut sleep = Box::pin(clock.sleep_until(due));
                assert!(futures::poll!(&mut sleep).is_pending());
                clock.sleep_until(clock.now() + Duration::from_millis(2)).await;
                assert!(futures::poll!(&mut sleep).is_pending());
            }
        });
    }

    #[test]
    fn a_sleep_that_moves_to_another_task_wakes_that_one() {
        let at = run_virtual(|clock| async move {
            let sleeping = clock.clone();
            let mut sleep = Box::pin(async move { sleeping.sleep_until(Duration::from_millis(5)).await });
            assert!(futures::poll!(&mut sleep).is_pending());
            tokio::spawn(sleep).await.unwrap();
            clock.now()
        })
        .unwrap();
        assert_eq!(at, Duration::from_millis(5));
    }
}
