//! A glance at the run under way, on standard error; nothing when that is no terminal. Redrawn at most ten times a second.

use std::fmt::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::report::Live;

/// Redraws a second: more would cost the run time on its own cores.
const REDRAWS: u8 = 10;

/// The bar of one block.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// What stands behind the bar. The bar's own message would be drawn once for itself and once more for the position.
    glance: Arc<Mutex<String>>,
    started: Instant,
    shown: Option<Instant>,
}

impl Progress {
    /// A bar for `turns` turns, named after the block; hidden when it is not wanted.
    #[must_use]
    pub(crate) fn new(name: &str, turns: u64, is_wanted: bool) -> Self {
        let target = if is_wanted { ProgressDrawTarget::stderr_with_hz(REDRAWS) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(turns), target);
        let glance = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&glance);
        let write = move |_: &ProgressState, out: &mut dyn Write| {
            // A bar that cannot be written is no reason to end a run.
            let _ = out.write_str(&shown.lock().unwrap_or_else(PoisonError::into_inner));
        };
        if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:24}] {pos}/{len} {elapsed} {glance}") {
            bar.set_style(style.progress_chars("=> ").with_key("glance", write));
        }
        bar.set_prefix(name.to_owned());
        Self { bar, glance, started: Instant::now(), shown: None }
    }

    /// Says what is being done before turns are counted.
    pub(crate) fn stage(&self, what: &'static str) {
        self.say(what.to_owned());
        self.bar.tick();
    }

    /// The measured part starts.
    pub(crate) fn start(&mut self) {
        self.started = Instant::now();
        self.bar.reset_elapsed();
    }

    /// Whether enough time has passed to look at the run again.
    #[must_use]
    pub(crate) fn is_due(&self) -> bool {
        let pause = Duration::from_millis(1000 / u64::from(REDRAWS));
        !self.bar.is_hidden() && self.shown.is_none_or(|shown| shown.elapsed() >= pause)
    }

    /// Shows the run as it stands.
    pub(crate) fn show(&mut self, live: &Live, in_flight: usize) {
        self.shown = Some(Instant::now());
        self.say(message(live, in_flight, self.started.elapsed()));
        // The one call that draws.
        self.bar.update(|state| state.set_pos(live.complete + live.failed + live.cancelled + live.skipped));
    }

    fn say(&self, text: String) {
        *self.glance.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// Takes the bar away.
    pub(crate) fn end(self) {
        self.bar.finish_and_clear();
    }
}

#[expect(clippy::cast_precision_loss, reason = "tokens stay below 2^53")]
fn message(live: &Live, in_flight: usize, elapsed: Duration) -> String {
    let rate = live.output_tokens as f64 / elapsed.as_secs_f64().max(1e-3);
    let ms = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.0}"));
    let hit = live.hit_rate.map_or_else(|| "–".to_owned(), |hit| format!("{:.1} %", hit * 100.0));
    format!(
        "{in_flight} in flight · {rate:.0} tok/s · TTFT p50 {} p99 {} ms · hit {hit} · {} failed",
        ms(live.ttft_p50_ms),
        ms(live.ttft_p99_ms),
        live.failed
    )
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
    fn nothing_is_drawn_when_it_is_not_wanted() {
        assert!(!Progress::new("a", 3, false).is_due());
    }
}
