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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::cli::form::Form;
    use crate::profile::sample;
    use crate::record::{Failure, Outcome};
    use crate::report::tests::{context, ended};
    use crate::store::{Detail, RunDir};
    use crate::text::Vocabulary;
    use crate::workload;

    /// Row B114 of the traps: what a bar costs is bounded by the time that it is shown, and no turn adds to it.
    #[tokio::test(start_paused = true)]
    async fn a_run_is_looked_at_ten_times_a_second_however_many_turns_end() {
        let plan = workload::plan(&sample::spec(1, 1, 1, 8, 4, 2), &Vocabulary::words()).unwrap();
        for (form, turns, looks) in [(Form::Bar, 10, 10), (Form::Bar, 20_000, 10), (Form::Nothing, 20_000, 0)] {
            let home = tempfile::tempdir().unwrap();
            let dir = RunDir::create(Some(&home.path().join("out")), "test").unwrap();
            let accumulator = Accumulator::new(context(1, turns));
            let recorder = Recorder {
                recorded: Recorded { accumulator, observing: Observing::new(&plan) },
                log: dir.request_log(Detail::Plain).unwrap(),
                progress: Progress::begin(form, "test".to_owned(), turns),
                stop: Stop { sending: CancellationToken::new(), cut: CancellationToken::new() },
                watch: Arc::default(),
            };
            let (sender, receiver) = mpsc::channel(64);
            let sending = async move {
                for session in (0..).take(usize::try_from(turns).unwrap()) {
                    sender.send(ended(session, 0, Outcome::Failed(Failure::Reset))).await.unwrap();
                }
                // The clock stands still until nothing is left to do but to wait for it.
                tokio::time::sleep(Duration::from_millis(1_050)).await;
            };
            let (recorded, ()) = tokio::join!(recorder.record(receiver), sending);
            let (recorded, progress) = recorded.unwrap();
            assert_eq!((recorded.accumulator.live().failed, progress.looks), (turns, looks), "{form:?}");
        }
    }
}
