//! The runtime of a command, and what a signal does to it: the first one ends the sending, lets what is under way end for
//! a grace and then cuts it, and the report is written; the second one ends the program at once.

use std::future::Future;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::exit::{Ended, Exit};
use super::say;
use crate::drive::Stop;

/// `timeout` sends its signal to the program and again to its group, which is one wish; no hand is as fast.
const ECHO: Duration = Duration::from_millis(50);

/// Makes a write beyond the limit of file size (`ulimit -f`) an error like any other, which names its file: unhandled, the
/// signal that comes with it ends the program in the midst of a run. Programs that this one starts get it as ever.
pub(super) fn survive_file_size_limit() {
    let kind = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    // The handler outlives its runtime. Where there is none, the signal ends the program as before.
    if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() {
        let _ = runtime.block_on(async { signal(kind) });
    }
}

/// Runs `work` to its end, or to the second SIGINT or SIGTERM; the echo of the first is none.
///
/// # Errors
/// Those of `work`; after the second signal, that the program was interrupted.
pub(super) fn block_on<F, T>(grace: Duration, work: impl FnOnce(Stop) -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let done = runtime.block_on(async {
        let stop = Stop::default();
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let mut work = Box::pin(work(stop.clone()));
        let mut first: Option<(SignalKind, Instant)> = None;
        loop {
            let grace = async {
                // After the cut there is nothing left to wait for.
                match first.is_some() && !stop.cut.is_cancelled() {
                    true => tokio::time::sleep(grace).await,
                    false => std::future::pending().await,
                }
            };
            let kind = tokio::select! {
                done = &mut work => return done,
                () = grace => {
                    stop.cut.cancel();
                    continue;
                },
                _ = interrupt.recv() => SignalKind::interrupt(),
                _ = terminate.recv() => SignalKind::terminate(),
            };
            match first {
                Some((earlier, at)) if is_echo(earlier, kind, at.elapsed()) => {}
                Some(_) => {
                    return Err(Ended::new(Exit::Interrupted, "interrupted twice: the report was not finished").into());
                }
                None => {
                    first = Some((kind, Instant::now()));
                    stop.sending.cancel();
                    say::note("interrupted: what is under way may end; a second signal stops at once");
                }
            }
        }
    });
    // A second signal must not wait for threads that are busy.
    runtime.shutdown_background();
    done
}

/// Whether a signal that came so long after the first is that one again.
fn is_echo(first: SignalKind, kind: SignalKind, after: Duration) -> bool {
    kind == first && after < ECHO
}

/// `work`, unless a signal comes before it is done.
///
/// # Errors
/// Those of `work`; else that the program was interrupted before anything was measured.
pub(super) async fn unless_stopped<T>(stop: &Stop, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::select! {
        biased;
        () = stop.sending.cancelled() => {
            Err(Ended::new(Exit::Interrupted, "interrupted before anything was measured").into())
        },
        done = work => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_comes_twice_at_once_is_one_and_a_second_press_or_another_signal_is_none_of_it() {
        let (int, term) = (SignalKind::interrupt(), SignalKind::terminate());
        let [at_once, pressed] = [1, 200].map(Duration::from_millis);
        assert!(is_echo(term, term, at_once) && is_echo(int, int, at_once));
        assert!(!is_echo(int, term, at_once));
        assert!(!is_echo(int, int, pressed) && !is_echo(term, term, pressed));
    }
}
