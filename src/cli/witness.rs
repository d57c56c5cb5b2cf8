//! This program's eye on itself while it measures: how late its runtime is, and how busy its process.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::lanes::Lanes;
use crate::stats::Distribution;

/// How often the runtime is asked to be on time.
const TICK: Duration = Duration::from_millis(10);

/// Watches from its start to its end.
#[derive(Debug)]
pub(super) struct Witness {
    started: Instant,
    cpu: Duration,
    ended: CancellationToken,
    ticking: JoinSet<Distribution>,
}

/// What it saw.
#[derive(Debug)]
pub(super) struct Seen {
    /// How late a task that asks to be woken every 10 ms was woken.
    pub runtime_lag: Distribution,
    /// User and system time of this process over wall time; none over no time.
    pub cpu_cores: Option<f64>,
}

impl Witness {
    /// Starts on every lane: its tasks are served, or kept waiting, as those of the streams are.
    #[must_use]
    pub(super) fn start(lanes: &Lanes) -> Self {
        let (ended, mut ticking) = (CancellationToken::new(), JoinSet::new());
        for lane in 0..lanes.count() {
            lanes.spawn(lane, &mut ticking, tick(ended.clone()));
        }
        Self { started: Instant::now(), cpu: process_time(), ended, ticking }
    }

    pub(super) async fn end(mut self) -> Seen {
        let (wall, cpu) = (self.started.elapsed(), process_time().saturating_sub(self.cpu));
        self.ended.cancel();
        let mut runtime_lag = Distribution::default();
        while let Some(seen) = self.ticking.join_next().await {
            runtime_lag.merge(&seen.unwrap_or_default());
        }
        let cores = cpu.as_secs_f64() / wall.as_secs_f64();
        Seen { runtime_lag, cpu_cores: Some((cores * 1e3).round() / 1e3).filter(|cores| cores.is_finite()) }
    }
}

/// Each tick is due a fixed time after the one before was served, so that one stall is one late tick and not many.
async fn tick(ended: CancellationToken) -> Distribution {
    let mut lag = Distribution::default();
    loop {
        let due = Instant::now() + TICK;
        tokio::select! {
            () = tokio::time::sleep_until(due.into()) => {
                lag.record(u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX), 1);
            },
            () = ended.cancelled() => return lag,
        }
    }
}

/// User and system time of all threads of this process.
pub(super) fn process_time() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
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
}
