//! The threads that carry streams. Each lane is a thread with a single-threaded runtime of its own: a stream, the connection
//! under it and the timers beside it never leave it, so that no event wakes another thread. (On a runtime whose threads
//! take each other's work, two threads cost a burst two to three times the CPU of one.)

mod pace;

use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pace::Pace;
use tokio::runtime::{Builder, Handle};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Most lanes.
const MOST: usize = 8;
/// Streams that one lane is enough for.
const STREAMS: usize = 256;

/// Tasks that run before a lane that has work left looks at its sockets again: two for each stream, its own and that of its
/// connection, so that what one wait found is served before more is found. [`woke_at`] rests on it.
const BETWEEN_LOOKS: u32 = 512;
/// How long a stream that always finds something may keep its lane from looking at its sockets and timers: 512 tasks that
/// each read much are tens of milliseconds, by which every other stream of the lane would be late.
const LONGEST: Duration = Duration::from_millis(1);

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
    /// When the last wait for the sockets ended.
    static WOKE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// When the sockets were last looked at: as [`WOKE`], or later where a stream gave way and there was nothing to wait for.
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
    static PACE: Cell<Option<Pace>> = const { Cell::new(None) };
}

/// Where tasks run: on lanes, or, without any, on the caller's runtime. Clones share the lanes, which end with the last.
#[derive(Debug, Clone, Default)]
pub struct Lanes(Arc<[Lane]>);

#[derive(Debug)]
struct Lane {
    runtime: Handle,
    _end: DropGuard,
}

/// The lane on whose thread this runs; 0 also on threads that are none.
#[must_use]
pub fn current() -> usize {
    CURRENT.get()
}

/// When this lane's last wait for its sockets ended: whatever it found had arrived by then, though it is served one after
/// the other. None on threads that are no lane.
#[must_use]
pub fn woke_at() -> Option<Instant> {
    WOKE.get()
}

/// Counts a chunk that a stream of this lane has read.
pub fn count_chunk() {
    PACE.set(PACE.get().map(Pace::chunk));
}

/// Lets this lane look at its sockets and timers, if it has not for a millisecond. For a stream that has just read `now` and
/// `before`: only one that reads on and on without a look of its lane keeps others from theirs, and only it gives way.
pub async fn give_way(before: Instant, now: Instant) {
    let Some(looked) = LOOKED.get().filter(|looked| *looked < before) else { return };
    if now.saturating_duration_since(looked) < LONGEST {
        return;
    }
    // Who yields runs again after the lane has looked, unless something wakes it before. Its connection may do so once, with
    // a piece at hand: the first yield may be lost to that, the second is not.
    for _ in 0..2 {
        tokio::task::yield_now().await;
    }
    // A look without a wait calls no hook.
    if LOOKED.get() == Some(looked) {
        LOOKED.set(Some(Instant::now()));
    }
}

impl Lanes {
    /// As many lanes as this host can spare and this many streams need: half the cores, but two to eight, since the
    /// recorder, and often the server, need cores too; and one for 256 streams, since one carries some hundred thousand
    /// events a second and streams that share it need fewer wakes. Without a known number all that can be spared.
    ///
    /// # Errors
    /// When the operating system refuses a thread or a runtime.
    pub fn for_streams(streams: Option<usize>) -> std::io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let spare = (cores / 2).clamp(2, MOST);
        Self::threads(streams.map_or(spare, |streams| streams.div_ceil(STREAMS).clamp(1, spare)))
    }

    /// This many lanes.
    ///
    /// # Errors
    /// As [`Self::for_streams`].
    pub fn threads(lanes: usize) -> std::io::Result<Self> {
        (0..lanes).map(Lane::start).collect::<Result<Vec<_>, _>>().map(|lanes| Self(lanes.into()))
    }

    /// How many there are; the caller's runtime counts as one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len().max(1)
    }

    /// Runs a task on a lane; their numbers go round.
    pub fn spawn<T: Send + 'static>(
        &self,
        lane: usize,
        tasks: &mut JoinSet<T>,
        task: impl Future<Output = T> + Send + 'static,
    ) -> AbortHandle {
        match self.0.get(lane % self.count()) {
            Some(lane) => tasks.spawn_on(task, &lane.runtime),
            None => tasks.spawn(task),
        }
    }
}

impl Lane {
    fn start(number: usize) -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .event_interval(BETWEEN_LOOKS)
            .on_thread_park(rest)
            .on_thread_unpark(woke)
            .build()?;
        let handle = runtime.handle().clone();
        let end = CancellationToken::new();
        let ended = end.clone();
        thread::Builder::new().name(format!("lane-{number}")).spawn(move || {
            CURRENT.set(number);
            // The first tasks may be there before the first wait.
            LOOKED.set(Some(Instant::now()));
            runtime.block_on(ended.cancelled());
            // What still runs here lost its last observer; a thread of the blocking pool must not be waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, _end: end.drop_guard() })
    }
}

/// After this lane has waited for its sockets.
fn woke() {
    let now = Some(Instant::now());
    WOKE.set(now);
    LOOKED.set(now);
}

/// Before this lane waits for its sockets.
fn rest() {
    let (pace, rest) = PACE.get().unwrap_or_else(|| Pace::new(Instant::now())).before_wait(Instant::now);
    PACE.set(Some(pace));
    if let Some(rest) = rest {
        thread::sleep(rest);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[tokio::test]
    async fn a_task_runs_on_the_lane_that_it_was_given_and_stays_there() {
        let lanes = Lanes::threads(3).unwrap();
        let mut tasks = JoinSet::new();
        for lane in 0..12 {
            lanes.spawn(lane, &mut tasks, async move {
                let before = (current(), thread::current().id());
                tokio::task::yield_now().await;
                assert_eq!(before, (current(), thread::current().id()));
                (lane % 3, before.0, before.1)
            });
        }
        let ran = tasks.join_all().await;
        assert!(ran.iter().all(|(asked, ran, _)| asked == ran));
        let threads: BTreeSet<String> = ran.iter().map(|(_, _, thread)| format!("{thread:?}")).collect();
        assert_eq!(threads.len(), 3);
    }

    #[tokio::test]
    async fn a_lane_knows_when_it_last_woke() {
        let lanes = Lanes::threads(1).unwrap();
        let mut tasks = JoinSet::new();
        lanes.spawn(0, &mut tasks, async {
            let before = Instant::now();
            // Only a wait of the lane ends it.
            tokio::time::sleep(Duration::from_millis(1)).await;
            (before, woke_at(), Instant::now())
        });
        let (before, woke, after) = tasks.join_next().await.unwrap().unwrap();
        assert!(woke.is_some_and(|woke| before < woke && woke <= after));
        assert_eq!(woke_at(), None, "this thread is no lane");
    }

    /// The stream's every read takes a tenth of a millisecond, and its next one is there before it is asked for.
    #[tokio::test]
    async fn a_stream_that_never_waits_lets_its_lane_look_at_the_timers_of_others() {
        const READ: Duration = Duration::from_micros(100);
        let lanes = Lanes::threads(1).unwrap();
        let mut tasks = JoinSet::new();
        let over = CancellationToken::new();
        let ended = over.clone();
        lanes.spawn(0, &mut tasks, async move {
            let (mut before, mut reads) = (Instant::now(), 0);
            while !ended.is_cancelled() {
                let now = loop {
                    let now = Instant::now();
                    if now.duration_since(before) >= READ {
                        break now;
                    }
                };
                give_way(before, now).await;
                (before, reads) = (now, reads + 1);
                woken_again().await;
            }
            reads
        });
        let mut timers = JoinSet::new();
        lanes.spawn(0, &mut timers, async move {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            over.cancel();
        });
        timers.join_all().await;
        let reads = tasks.join_next().await.unwrap().unwrap();
        assert!(reads < BETWEEN_LOOKS, "{reads} reads in the time of 5 timers");
    }

    /// Lets other tasks run as a stream does whose connection wakes it: it stands in the queue at once.
    async fn woken_again() {
        let mut has_waited = false;
        std::future::poll_fn(|cx| {
            if has_waited {
                return std::task::Poll::Ready(());
            }
            has_waited = true;
            cx.waker().wake_by_ref();
            std::task::Poll::Pending
        })
        .await;
    }

    #[tokio::test]
    async fn without_lanes_tasks_run_where_the_caller_is() {
        let lanes = Lanes::default();
        let mut tasks = JoinSet::new();
        lanes.spawn(5, &mut tasks, async { (current(), thread::current().id()) });
        assert_eq!(tasks.join_all().await, [(0, thread::current().id())]);
    }

    #[test]
    fn the_last_clone_ends_the_threads_and_drops_what_ran_there() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let lanes = Lanes::threads(1).unwrap();
        let (held, mut dropped) = tokio::sync::oneshot::channel::<()>();
        let mut tasks = JoinSet::new();
        lanes.spawn(0, &mut tasks, async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        let other = lanes.clone();
        drop(lanes);
        assert!(dropped.try_recv().is_err());
        drop(other);
        assert!(runtime.block_on(dropped).is_err(), "the task's value is dropped with its lane");
    }
}
