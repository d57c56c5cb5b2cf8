//! The windows of a run: the whole of it, up to the last success, and the steady one.
//!
//! The end of the steady window is not known before it comes, and turns are added as they end. That is no problem: a turn
//! that ends while the end is still unknown was sent, and ended, before it. So the marks known at `add` decide, and nothing
//! is kept a turn.

use std::collections::BTreeMap;

use super::span::Span;
use crate::profile::{LoadSpec, Pacing};
use crate::record::{EndedBy, Gap, Marks, Outcome, TurnRecord};
use crate::report::latency::Latencies;
use crate::report::shape::{Drain, Totals, Window};
use crate::report::{add, per_second, sum};
use crate::stats::rounded;
use crate::units::{Micros, grouped, plural};

/// Width of the bins that count tokens by their arrival.
const BIN_US: u64 = 100_000;
/// Least length of the window, as a share of the run.
const LEAST_SHARE: f64 = 0.2;
/// Least turns sent in it, for each turn that may be in flight.
const LEAST_TURNS: u64 = 2;

/// Output tokens by the bin of their arrival.
type Bins = BTreeMap<u64, u64>;

/// Mergeable state behind `windows.steady` and `windows.to_last_success`.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::report) struct WindowTally {
    marks: Marks,
    /// When the last of the complete turns ended.
    last_success: Option<Micros>,
    /// Output tokens of complete and of cut turns; of the whole run.
    tokens: Bins,
    /// Those of the cut turns alone.
    cut_tokens: Bins,
    /// Complete turns that were sent inside.
    sent: u64,
    /// Complete turns that were done inside, and their prompt tokens.
    done: u64,
    prompt_tokens: Option<u64>,
    /// Latencies of the complete turns that were sent inside.
    latencies: Latencies,
}

impl WindowTally {
    /// Learns when the load was full, and from when nothing more started.
    pub(in crate::report) fn mark(&mut self, marks: Marks) {
        self.marks = join(self.marks, marks);
    }

    /// Adds a turn that was sent. Gives it back its latencies to be filled, when it was sent inside.
    pub(super) fn add(&mut self, turn: &TurnRecord) -> Option<&mut Latencies> {
        self.add_tokens(turn);
        if turn.outcome != Outcome::Complete {
            return None;
        }
        self.last_success = self.last_success.max(Span::of(turn).map(|span| span.to));
        if turn.done_us.is_some_and(|done| self.holds_end(done)) {
            self.done += 1;
            add(&mut self.prompt_tokens, turn.prompt_tokens);
        }
        let is_inside = turn.sent_us.is_some_and(|sent| self.holds_start(sent));
        self.sent += u64::from(is_inside);
        is_inside.then_some(&mut self.latencies)
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self { marks, last_success, tokens, cut_tokens, sent, done, prompt_tokens, latencies } = other;
        self.marks = join(self.marks, marks);
        self.last_success = self.last_success.max(last_success);
        count(&mut self.tokens, tokens);
        count(&mut self.cut_tokens, cut_tokens);
        self.sent += sent;
        self.done += done;
        self.prompt_tokens = sum(self.prompt_tokens, prompt_tokens);
        self.latencies.merge(&latencies);
    }

    pub(super) fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// Turns are inside from the first instant to before the last.
    fn holds_start(&self, at: Micros) -> bool {
        self.marks.full.is_some_and(|full| full <= at) && self.marks.last_start.is_none_or(|last| at < last)
    }

    /// Ends are inside from after the first instant to the last: an end makes room for the start that closes the window.
    fn holds_end(&self, at: Micros) -> bool {
        self.marks.full.is_some_and(|full| full < at) && self.marks.last_start.is_none_or(|last| at <= last)
    }

    fn add_tokens(&mut self, turn: &TurnRecord) {
        let tokens = match turn.outcome {
            Outcome::Complete => turn.output_tokens.unwrap_or(0),
            Outcome::Cancelled => turn.output_tokens.unwrap_or(turn.frames),
            Outcome::Skipped | Outcome::Failed(_) => return,
        };
        let bins = arrivals(turn, tokens, BIN_US);
        if turn.outcome == Outcome::Cancelled {
            count(&mut self.cut_tokens, bins.iter().copied());
        }
        count(&mut self.tokens, bins);
    }

    /// From the start of the run to the end of its last success: what failed or was cut after it takes no part. All
    /// complete turns lie in it, so their latencies are those of the whole run. None where nothing completed.
    pub(super) fn to_last_success(&self, totals: &Totals, run: Option<Span>, latencies: &Latencies) -> Option<Window> {
        let run = run?;
        let span = Span { from: run.from, to: self.last_success? };
        Some(over(span, totals, self.cut_tokens_by(span.to, run.to), latencies))
    }

    /// Output tokens of cut turns that had arrived at `at`. Those of the bin that is under way then count as if they had
    /// come evenly until it, or the run, ended.
    fn cut_tokens_by(&self, at: Micros, end: Micros) -> u64 {
        let bin = at.0 / BIN_US;
        let before: u64 = self.cut_tokens.range(..bin).map(|(_, tokens)| tokens).sum();
        let tokens = self.cut_tokens.get(&bin).copied().unwrap_or(0);
        let start = bin * BIN_US;
        let length = (end.0 - start).min(BIN_US);
        // A run that ends with its first instant has the whole of that.
        before + (tokens * (at.0 - start)).checked_div(length).unwrap_or(tokens)
    }

    /// The window, or why there is none.
    pub(in crate::report) fn steady(
        &self,
        load: &LoadSpec,
        run: Option<Span>,
        ended_by: Option<EndedBy>,
    ) -> Result<Window, String> {
        let limit = limit(load);
        let Marks { full: Some(from), last_start: Some(to) } = self.marks else {
            return Err(match (self.marks.full, limit, ended_by) {
                (_, _, None) => {
                    "of a run that did not end it is known only where the turns on file fill a closed loop".to_owned()
                }
                (None, Some(limit), Some(_)) => {
                    format!("never were {} in flight at once", plural(limit.into(), "session"))
                }
                _ => "the load was never full".to_owned(),
            });
        };
        let length = to.since(from).as_secs();
        let whole = run.map_or(0.0, |run| run.length().as_secs());
        if from >= to {
            return Err("the last session started before the load was full".to_owned());
        }
        if length < LEAST_SHARE * whole {
            let (share, least) = (length / whole * 100.0, LEAST_SHARE * 100.0);
            return Err(format!("the load was full for {share:.0} % of the run, and {least:.0} % are needed"));
        }
        let least = LEAST_TURNS * u64::from(limit.unwrap_or(1));
        if self.sent < least {
            let sent = plural(self.sent, "turn");
            return Err(format!("{sent} sent under full load, and {} are needed", grouped(least)));
        }
        Ok(self.window(from, to))
    }

    fn window(&self, from_us: Micros, to_us: Micros) -> Window {
        let span = to_us.since(from_us);
        // Bins that lie in it whole: half of a bin says nothing of its tokens.
        let (first, end) = (from_us.0.div_ceil(BIN_US), to_us.0 / BIN_US);
        let tokens = self.tokens.range(first..end.max(first)).map(|(_, count)| count).sum();
        let output = per_second(tokens, Micros(end.saturating_sub(first) * BIN_US));
        let input = self.prompt_tokens.and_then(|tokens| per_second(tokens, span));
        Window {
            from_us,
            to_us,
            request_throughput: per_second(self.done, span),
            input_throughput: input,
            output_throughput: output,
            total_throughput: output.zip(input).map(|(output, input)| rounded(output + input)),
            latency: self.latencies.summaries(),
        }
    }

    /// From the last start to the end of the run.
    pub(in crate::report) fn drain(&self, run: Option<Span>) -> Option<Drain> {
        let run = run?;
        // Due before it was sent: the run begins with what is sent.
        let from_us = self.marks.last_start?.max(run.from);
        let seconds = run.to.since(from_us).as_secs();
        let whole = run.length().as_secs();
        (whole > 0.0).then(|| Drain { from_us, seconds: rounded(seconds), share: rounded(seconds / whole) })
    }
}

/// Complete turns, and the tokens of these and of cut ones, as rates over a span.
pub(super) fn over(span: Span, totals: &Totals, cut_tokens: u64, latencies: &Latencies) -> Window {
    let length = span.length();
    let output = totals.output_tokens.map(|tokens| tokens + cut_tokens);
    let both = output.zip(totals.prompt_tokens).map(|(output, input)| output + input);
    Window {
        from_us: span.from,
        to_us: span.to,
        request_throughput: per_second(totals.complete, length),
        input_throughput: totals.prompt_tokens.and_then(|tokens| per_second(tokens, length)),
        output_throughput: output.and_then(|tokens| per_second(tokens, length)),
        total_throughput: both.and_then(|tokens| per_second(tokens, length)),
        latency: latencies.summaries(),
    }
}

fn count(bins: &mut Bins, more: impl IntoIterator<Item = (u64, u64)>) {
    for (bin, tokens) in more {
        *bins.entry(bin).or_default() += tokens;
    }
}

/// Most sessions in flight, or in an open loop its cap.
fn limit(load: &LoadSpec) -> Option<u32> {
    match load.pacing {
        Pacing::Closed { sessions } => Some(sessions.get()),
        Pacing::Open { sessions, .. } => sessions.map(std::num::NonZeroU32::get),
    }
}

fn join(a: Marks, b: Marks) -> Marks {
    Marks {
        full: a.full.max(b.full),
        last_start: match (a.last_start, b.last_start) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        },
    }
}

/// When the `tokens` of a turn arrived: (bin, tokens), in bins of so many µs. A record from a file has no gaps: its frames are
/// spread evenly from the first to the last. Frames weigh what the server says of them, or where it does not say it of all, the
/// same; the sum is exact.
pub(in crate::report) fn arrivals(turn: &TurnRecord, tokens: u32, bin_us: u64) -> Vec<(u64, u64)> {
    let Some(first) = turn.first_us else { return vec![] };
    let even = even_gaps(turn);
    let gaps = if turn.gaps.is_empty() { &even } else { &turn.gaps };
    let frames = || std::iter::once((0, turn.first_frame_tokens)).chain(gaps.iter().map(|gap| (gap.us, gap.tokens())));
    let told: Option<u64> = frames().map(|(_, tokens)| tokens.map(u64::from)).sum();
    let told = told.filter(|sum| *sum > 0);
    let weights = told.unwrap_or_else(|| frames().map(|_| 1).sum());
    let (mut at, mut weight, mut counted) = (first.0, 0, 0);
    let mut bins: Vec<(u64, u64)> = vec![];
    for (gap, frame) in frames() {
        at += u64::from(gap);
        weight += if told.is_some() { u64::from(frame.unwrap_or(0)) } else { 1 };
        let so_far = u64::from(tokens) * weight / weights;
        let new = so_far - counted;
        counted = so_far;
        match bins.last_mut() {
            Some((bin, count)) if *bin == at / bin_us => *count += new,
            _ => bins.push((at / bin_us, new)),
        }
    }
    bins.retain(|(_, count)| *count > 0);
    bins
}

/// As many gaps as the frames of a turn have between them, if they are no longer known.
fn even_gaps(turn: &TurnRecord) -> Vec<Gap> {
    let (Some(first), Some(last), true) = (turn.first_us, turn.last_us, turn.gaps.is_empty()) else { return vec![] };
    let gaps = u64::from(turn.frames.saturating_sub(1));
    let span = last.since(first).0;
    // Differences of rounded instants, so that the gaps add up to the span.
    (0..gaps)
        .map(|gap| span * (gap + 1) / gaps - span * gap / gaps)
        .map(|us| Gap::new(u32::try_from(us).unwrap_or(u32::MAX), None))
        .collect()
}

#[cfg(test)]
#[path = "windows_tests.rs"]
mod tests;
