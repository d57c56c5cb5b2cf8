//! The runtime of a command, and what a signal does to it: the first one ends the load and lets the report be written, the
//! second one ends the program at once.

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::exit::{Ended, Exit};

/// Runs `work` to its end, or to the second SIGINT or SIGTERM.
///
/// # Errors
/// Those of `work`; after the second signal, that the program was interrupted.
pub(super) fn block_on<F, T>(work: impl FnOnce(CancellationToken) -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers()).enable_all().build()?;
    runtime.block_on(async {
        let cancel = CancellationToken::new();
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut work = Box::pin(work(cancel.clone()));
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = interrupt.recv() => {},
                _ = terminate.recv() => {},
            }
            if cancel.is_cancelled() {
                return Err(Ended::new(Exit::Interrupted, "interrupted twice: the report was not finished").into());
            }
            cancel.cancel();
        }
    })
}

/// Threads for the streams: one for each two cores, at most eight. One carries some 100,000 events a second. More would take
/// each other's work and wake each other for it (two on two cores cost a burst two to three times the CPU of one), and the
/// recorder, and often the server, need cores too.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).clamp(1, 8))
}
