//! This program's eye on itself while it measures: how late its runtime is, how busy its process, and its busiest lane.

use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client::Dials;
use crate::lanes::Lanes;
use crate::profile::Connections;
use crate::report::ClientSide;
use crate::stats::Distribution;

/// How often the runtime is asked to be on time.
const TICK: Duration = Duration::from_millis(10);

/// Watches from its start to its end.
#[derive(Debug)]
pub(crate) struct Witness {
    started: Instant,
    cpu: Duration,
    ended: CancellationToken,
    ticking: JoinSet<Ticked>,
}

/// What it saw.
#[derive(Debug)]
pub(crate) struct Seen {
    /// How late a task that asks to be woken every 10 ms was woken.
    pub runtime_lag: Distribution,
    /// User and system time of this process over wall time; none over no time.
    pub cpu_cores: Option<f64>,
    /// CPU time of the lane that had most of it, over the wall time in which it was watched: 1 is a thread that never
    /// waited. One such lane makes its streams late however idle the process is on other cores.
    pub busiest_lane: Option<f64>,
}

impl Seen {
    /// Beside what the load loop and the connections have counted.
    pub(crate) fn of_client(self, in_flight_max: usize, dials: Dials, connections: Connections) -> ClientSide {
        let Self { runtime_lag, cpu_cores, busiest_lane } = self;
        let Dials { opened, again, connect } = dials;
        ClientSide {
            in_flight_max: u64::try_from(in_flight_max).ok(),
            connections: Some(opened),
            // A connection that is not meant to be used again is in the place of none.
            redials: (connections == Connections::Kept).then_some(again),
            connect,
            runtime_lag,
            cpu_cores,
            busiest_lane,
        }
    }
}

/// What the ticker of one lane saw.
#[derive(Debug, Default)]
struct Ticked {
    lag: Distribution,
    busy: Option<f64>,
}

impl Witness {
    /// Starts on every lane: its tasks are served, or kept waiting, as those of the streams are.
    #[must_use]
    pub(crate) fn start(lanes: &Lanes) -> Self {
        let (ended, mut ticking) = (CancellationToken::new(), JoinSet::new());
        for lane in 0..lanes.count() {
            lanes.spawn(lane, &mut ticking, tick(ended.clone()));
        }
        Self { started: Instant::now(), cpu: process_time(), ended, ticking }
    }

    pub(crate) async fn end(mut self) -> Seen {
        let (wall, cpu) = (self.started.elapsed(), process_time().saturating_sub(self.cpu));
        self.ended.cancel();
        let (mut runtime_lag, mut busiest_lane) = (Distribution::default(), None::<f64>);
        while let Some(seen) = self.ticking.join_next().await {
            let Ticked { lag, busy } = seen.unwrap_or_default();
            runtime_lag.merge(&lag);
            busiest_lane = busiest_lane.into_iter().chain(busy).reduce(f64::max);
        }
        Seen { runtime_lag, cpu_cores: share(cpu, wall), busiest_lane }
    }
}

/// Each tick is due a fixed time after the one before was served, so that one stall is one late tick and not many.
async fn tick(ended: CancellationToken) -> Ticked {
    let (mut lag, lane) = (Distribution::default(), LaneTime::start());
    loop {
        let due = Instant::now() + TICK;
        tokio::select! {
            () = tokio::time::sleep_until(due.into()) => {
                record_late(&mut lag, due.elapsed());
            },
            () = ended.cancelled() => return Ticked { lag, busy: lane.busy() },
        }
    }
}

/// Records a lateness together with those of the looks that it swallowed, each as late as it would have been: one sample for
/// a stop of seconds would be lost among the hundreds of a run (coordinated omission; HdrHistogram's
/// `recordValueWithExpectedInterval`).
fn record_late(lag: &mut Distribution, late: Duration) {
    let mut left = late;
    loop {
        lag.record(u64::try_from(left.as_micros()).unwrap_or(u64::MAX), 1);
        let Some(less) = left.checked_sub(TICK).filter(|less| !less.is_zero()) else { return };
        left = less;
    }
}

/// The CPU time of the thread that a ticker runs on.
struct LaneTime {
    thread: ThreadId,
    started: Instant,
    cpu: Duration,
}

impl LaneTime {
    fn start() -> Self {
        Self { thread: thread::current().id(), started: Instant::now(), cpu: cpu_time(ClockId::ThreadCPUTime) }
    }

    /// None for a task that moved to another thread, whose clock says nothing of the first.
    fn busy(&self) -> Option<f64> {
        let spent = cpu_time(ClockId::ThreadCPUTime).saturating_sub(self.cpu);
        (thread::current().id() == self.thread).then(|| share(spent, self.started.elapsed()))?
    }
}

/// CPU time over wall time, in thousandths; none over no time.
fn share(cpu: Duration, wall: Duration) -> Option<f64> {
    let share = cpu.as_secs_f64() / wall.as_secs_f64();
    Some((share * 1e3).round() / 1e3).filter(|share| share.is_finite())
}

/// User and system time of all threads of this process.
pub(crate) fn process_time() -> Duration {
    cpu_time(ClockId::ProcessCPUTime)
}

fn cpu_time(of: ClockId) -> Duration {
    let spent = clock_gettime(of);
    let whole = u64::try_from(spent.tv_sec).unwrap_or(0);
    Duration::new(whole, u32::try_from(spent.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_kept_busy_is_late_and_its_process_is_busy() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let seen = runtime.block_on(async {
            let witness = Witness::start(&Lanes::default());
            // The ticker starts, and is due while this thread does not let it run.
            tokio::task::yield_now().await;
            let blocked = Instant::now();
            while blocked.elapsed() < 5 * TICK {
                std::hint::spin_loop();
            }
            // A reply that is there at once lets the ticker run before the end is told.
            tokio::time::sleep(TICK).await;
            witness.end().await
        });
        let lag = seen.runtime_lag.summary().unwrap();
        assert!(lag.max >= 30_000.0, "{lag:?}");
        assert!(seen.cpu_cores.unwrap() > 0.0);
    }
    /// The whole kind: however long a stop is, it has its share of the run's time among the samples.
    #[test]
    fn a_stop_is_as_many_samples_as_looks_fell_into_it() {
        let recorded = |late_ms: u64| {
            let mut lag = Distribution::default();
            (0..700).for_each(|_| record_late(&mut lag, Duration::from_micros(100)));
            record_late(&mut lag, Duration::from_millis(late_ms));
            lag.summary().unwrap()
        };
        let stopped = recorded(5_000);
        assert_eq!((stopped.count, stopped.max), (700 + 500, 5_000_000.0));
        assert!(stopped.p99 > 4_800_000.0 && stopped.p50 < 200.0, "{stopped:?}");
        assert_eq!(
            [recorded(0).count, recorded(10).count, recorded(11).count, recorded(25).count],
            [701, 701, 702, 703]
        );
    }

    /// Works for as much of its own CPU time, so that a busy host changes nothing; lets others run between.
    async fn work(load: Duration) {
        let started = cpu_time(ClockId::ThreadCPUTime);
        while cpu_time(ClockId::ThreadCPUTime).saturating_sub(started) < load {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn the_busiest_lane_is_that_of_the_lanes_and_not_of_other_threads() {
        const LOAD: Duration = Duration::from_millis(200);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        // CPU seconds of the busiest lane, over no less than the time that it was watched.
        let busiest = |is_on_lane: bool| {
            let started = Instant::now();
            let seen = runtime.block_on(async {
                let lanes = Lanes::threads(2).unwrap();
                let witness = Witness::start(&lanes);
                let mut tasks = JoinSet::new();
                if is_on_lane {
                    lanes.spawn(1, &mut tasks, work(LOAD));
                } else {
                    work(LOAD).await;
                }
                tasks.join_all().await;
                witness.end().await
            });
            seen.busiest_lane.unwrap() * started.elapsed().as_secs_f64()
        };
        assert!(busiest(true) > 0.9 * LOAD.as_secs_f64());
        assert!(busiest(false) < 0.5 * LOAD.as_secs_f64());
    }
}
