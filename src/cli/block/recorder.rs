//! The one recorder of a run: it owns the histograms, the log and the bar. It has a thread of its own, so that writing a
//! line, or drawing the bar, holds up no stream and no schedule.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio::time::MissedTickBehavior;

use super::progress::Progress;
use crate::drive::{Stop, Watch};
use crate::record::{Place, TurnRecord};
use crate::report::Accumulator;
use crate::store::{RequestLog, StoreError};
use crate::workload::Observing;

/// How often it is asked whether a bar or line is due.
const TICK: Duration = Duration::from_millis(100);

/// What a run leaves behind.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub accumulator: Accumulator,
    /// Where complete turns were served, as far as that is known.
    pub observing: Observing<Place>,
}

/// Takes records as they come.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub recorded: Recorded,
    pub log: RequestLog,
    pub progress: Progress,
    /// Ends the run when a line cannot be written: what it measures would be lost.
    pub stop: Stop,
    pub watch: Arc<Watch>,
}

impl Recorder {
    /// Records on a thread of its own until the load loop is done; gives the progress back, for what comes after.
    ///
    /// # Errors
    /// When a line cannot be written.
    pub(crate) async fn run(self, records: Receiver<TurnRecord>) -> anyhow::Result<(Recorded, Progress)> {
        let runtime = tokio::runtime::Handle::current();
        let recording = tokio::task::spawn_blocking(move || runtime.block_on(self.record(records)));
        Ok(recording.await??)
    }

    async fn record(mut self, mut records: Receiver<TurnRecord>) -> Result<(Recorded, Progress), StoreError> {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failure = None;
        loop {
            tokio::select! {
                record = records.recv() => match record {
                    Some(record) => if let Err(why) = self.add(&record) {
                        self.stop.now();
                        failure.get_or_insert(why);
                    },
                    None => break,
                },
                _ = ticks.tick() => if self.progress.is_due() {
                    self.progress.show(&self.recorded.accumulator.live(), self.watch.in_flight());
                },
            }
        }
        self.recorded.accumulator.mark(self.watch.marks());
        failure.map_or(Ok((self.recorded, self.progress)), Err)
    }

    fn add(&mut self, record: &TurnRecord) -> Result<(), StoreError> {
        let Recorded { accumulator, observing } = &mut self.recorded;
        accumulator.mark(self.watch.marks());
        accumulator.add(record);
        let TurnRecord { group, session, turn, .. } = *record;
        if record.outcome.is_complete() {
            let prompt = record.planned_prompt_tokens.map_or(0, u64::from);
            observing.add((group, session, turn), prompt, record.planned_output_tokens, record.place.clone());
        } else {
            observing.end(group, session);
        }
        self.log.append(record)
    }
}
