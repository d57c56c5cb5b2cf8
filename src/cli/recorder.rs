//! The one recorder of a run: it owns the histograms, the log and the bar, and nothing on the timed path waits for it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::progress::Progress;
use crate::record::{Place, TurnId, TurnRecord};
use crate::report::Accumulator;
use crate::store::{RequestLog, StoreError};

/// How often the bar is looked at.
const TICK: Duration = Duration::from_millis(100);

/// What a run left behind.
#[derive(Debug)]
pub(super) struct Recorded {
    pub accumulator: Accumulator,
    /// Where each complete turn was served, as far as that is known.
    pub places: BTreeMap<TurnId, Place>,
}

/// Takes records as they come.
#[derive(Debug)]
pub(super) struct Recorder {
    recorded: Recorded,
    log: RequestLog,
    cancel: CancellationToken,
}

impl Recorder {
    #[must_use]
    pub(super) fn new(accumulator: Accumulator, log: RequestLog, cancel: CancellationToken) -> Self {
        Self { recorded: Recorded { accumulator, places: BTreeMap::new() }, log, cancel }
    }

    /// Records until the load loop is done.
    ///
    /// # Errors
    /// When a line cannot be written; the run is then cancelled, since what it measures would be lost.
    pub(super) async fn run(
        &mut self,
        mut records: Receiver<TurnRecord>,
        progress: &mut Progress,
        in_flight: impl Fn() -> usize,
    ) -> Result<(), StoreError> {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failure = None;
        loop {
            tokio::select! {
                record = records.recv() => match record {
                    Some(record) => if let Err(why) = self.add(&record) {
                        self.cancel.cancel();
                        failure.get_or_insert(why);
                    },
                    None => break,
                },
                _ = ticks.tick() => if progress.is_due() {
                    progress.show(&self.recorded.accumulator.live(), in_flight());
                },
            }
        }
        failure.map_or(Ok(()), Err)
    }

    #[must_use]
    pub(super) fn into_recorded(self) -> Recorded {
        self.recorded
    }

    fn add(&mut self, record: &TurnRecord) -> Result<(), StoreError> {
        self.recorded.accumulator.add(record);
        if let Some(place) = record.place.as_ref().filter(|_| record.outcome.is_complete()) {
            self.recorded.places.insert(record.turn_id(), place.clone());
        }
        self.log.append(record)
    }
}
