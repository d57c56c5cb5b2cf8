//! A glance at the run under way, on standard error: a bar where that is a terminal, redrawn at most ten times a second, and
//! elsewhere, as in the log of a CI job, a plain line when a block begins, every half minute while its server is waited for or
//! its turns are sent, and when it has ended.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tokio::time::Instant;

use crate::cli::form::{Form, REDRAWS};
use crate::cli::say;
use crate::render;
use crate::report::{Live, RunReport};
use crate::units::{grouped, plural};

/// One block as it goes on.
#[derive(Debug)]
pub(crate) struct Progress {
    form: Form,
    name: String,
    turns: u64,
    /// Hidden where none is drawn.
    bar: ProgressBar,
    /// What stands behind the bar. The bar's own message would be drawn once for itself and once more for the position.
    glance: Arc<Mutex<String>>,
    started: Instant,
    shown: Instant,
    /// How often the run was looked at.
    #[cfg(test)]
    pub looks: u64,
}

impl Progress {
    /// A block of `turns` turns begins, with whatever must be waited for before they are sent.
    #[must_use]
    pub(crate) fn begin(form: Form, name: String, turns: u64) -> Self {
        let glance = Arc::default();
        let bar = bar(form, &name, turns, Arc::clone(&glance));
        let now = Instant::now();
        Self {
            form,
            name,
            turns,
            bar,
            glance,
            started: now,
            shown: now,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Says what is being done while no turns are counted.
    pub(crate) fn stage(&self, what: &'static str) {
        self.say(what.to_owned());
        self.bar.tick();
    }

    /// The measured part starts: its server answered, and was warmed up and flushed.
    pub(crate) fn start(&mut self) {
        self.started = Instant::now();
        self.shown = self.started;
        self.bar.reset_elapsed();
        self.line(|| format!("begins, {}", plural(self.turns, "turn")));
    }

    /// Whether enough time has passed to look at the run again.
    #[must_use]
    pub(crate) fn is_due(&self) -> bool {
        self.form.is_due(self.shown.elapsed())
    }

    /// Shows the run as it stands.
    pub(crate) fn show(&mut self, live: &Live, in_flight: usize) {
        self.shown = Instant::now();
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let elapsed = self.started.elapsed();
        self.line(|| under_way(self.turns, live, in_flight, elapsed));
        self.say(message(live, in_flight, elapsed));
        // The one call that draws.
        self.bar.update(|state| state.set_pos(done(live)));
    }

    /// The block has ended: the bar goes, a line stays.
    pub(crate) fn end(self, report: &RunReport) {
        self.bar.finish_and_clear();
        self.line(|| render::line(report));
    }

    fn say(&self, text: String) {
        *self.glance.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn line(&self, text: impl FnOnce() -> String) {
        if self.form == Form::Lines {
            say::note(&format!("{}: {}", self.name, text()));
        }
    }
}

fn bar(form: Form, name: &str, turns: u64, glance: Arc<Mutex<String>>) -> ProgressBar {
    let target = match form {
        Form::Bar => ProgressDrawTarget::stderr_with_hz(REDRAWS),
        Form::Lines | Form::Nothing => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(turns), target);
    let write = move |_: &ProgressState, out: &mut dyn Write| {
        // A bar that cannot be written is no reason to end a run.
        let _ = out.write_str(&glance.lock().unwrap_or_else(PoisonError::into_inner));
    };
    if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:24}] {pos}/{len} {elapsed} {glance}") {
        bar.set_style(style.progress_chars("=> ").with_key("glance", write));
    }
    bar.set_prefix(name.to_owned());
    bar
}

fn done(live: &Live) -> u64 {
    live.complete + live.failed + live.cancelled + live.skipped
}

/// The line of a block of `turns` turns while they are sent.
fn under_way(turns: u64, live: &Live, in_flight: usize, elapsed: Duration) -> String {
    let (done, turns) = (grouped(done(live)), plural(turns, "turn"));
    format!("{done} of {turns} in {} s · {}", elapsed.as_secs(), message(live, in_flight, elapsed))
}

#[expect(clippy::cast_precision_loss, reason = "tokens stay below 2^53")]
fn message(live: &Live, in_flight: usize, elapsed: Duration) -> String {
    let rate = live.output_tokens as f64 / elapsed.as_secs_f64().max(1e-3);
    let hit = live.hit_rate.map_or_else(|| "–".to_owned(), |hit| format!("{:.1} %", hit * 100.0));
    format!(
        "{} in flight · {rate:.0} tok/s · TTFT p50 {} p99 {} ms · hit {hit} · {} failed",
        grouped(in_flight as u64),
        whole(live.ttft_p50_ms),
        whole(live.ttft_p99_ms),
        grouped(live.failed)
    )
}

fn whole(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_what_is_known_and_leaves_open_what_is_not() {
        let live = Live { output_tokens: 500, failed: 1, ..Live::default() };
        let text = message(&live, 3, Duration::from_secs(2));
        assert_eq!(text, "3 in flight · 250 tok/s · TTFT p50 – p99 – ms · hit – · 1 failed");
    }

    #[test]
    fn nothing_is_shown_when_it_is_not_wanted_and_a_line_waits_longer_than_a_bar() {
        let due = |form: Form, after: [u64; 3]| after.map(|ms| form.is_due(Duration::from_millis(ms)));
        assert_eq!(due(Form::Nothing, [0, 1_000, 3_600_000]), [false; 3]);
        assert_eq!(due(Form::Lines, [1_000, 29_999, 30_000]), [false, false, true]);
        assert_eq!(due(Form::Bar, [99, 100, 30_000]), [false, true, true]);
    }

    #[test]
    fn the_line_of_a_block_under_way_has_what_the_bar_has() {
        let live = Live { complete: 5, failed: 1, ..Live::default() };
        let line = under_way(9, &live, 3, Duration::from_millis(31_500));
        assert_eq!(line, format!("6 of 9 turns in 31 s · {}", message(&live, 3, Duration::from_millis(31_500))));
    }
}
