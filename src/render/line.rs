//! A block in a line, as a log wants it: less than its report, enough to see that it went well.

use super::number::{figure, or_dash, plural, whole, word};
use crate::report::{RunReport, State};

/// What came of a run: its turns, how long it took, its TTFT, and what voids it.
#[must_use]
pub fn line(report: &RunReport) -> String {
    let RunReport { totals, metrics, validity, .. } = report;
    let cut = if report.state == State::Interrupted { "interrupted, " } else { "" };
    let turns = format!("{} of {} complete", whole(totals.complete), plural(totals.planned, "turn"));
    let span = metrics.duration_s.map_or_else(String::new, |span| format!(" in {} s", figure(span)));
    let ttft = or_dash(metrics.ttft_ms.map(|ttft| ttft.p50), figure);
    let voids: Vec<String> = validity.voids.iter().map(|void| word(&void.kind)).collect();
    let void = if voids.is_empty() { String::new() } else { format!(" · VOID: {}", voids.join(", ")) };
    format!("{cut}{turns}{span}, {} failed, TTFT p50 {ttft} ms{void}", whole(totals.failed))
}
