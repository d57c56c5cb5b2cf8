//! Whether two blocks of a round ran the same work.

use super::shape::Difference;
use crate::report::{RunReport, State};

/// Relative difference of the mean output length.
const OUTPUT_LENGTH: f64 = 0.02;
/// Difference of failure rates, in points.
const FAILURE_RATE: f64 = 0.01;

/// Every way in which `other` differs from the `baseline` of its round.
pub(super) fn differences(round: u32, arm: &str, baseline: &RunReport, other: &RunReport) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut differ = |field: &str, baseline: String, other: String| {
        found.push(Difference { round, arm: arm.to_owned(), field: field.to_owned(), baseline, other });
    };
    let mut equal = |field: &str, a: &str, b: &str| {
        if a != b {
            differ(field, a.to_owned(), b.to_owned());
        }
    };
    equal("state", state(baseline), state(other));
    equal("digest", &baseline.workload.digest, &other.workload.digest);
    equal("client version", &baseline.manifest.version, &other.manifest.version);
    equal("debug build", yes_no(baseline.manifest.debug_build), yes_no(other.manifest.debug_build));
    equal("api", &api(baseline), &api(other));
    equal("load", &baseline.manifest.load(), &other.manifest.load());
    equal("warm-up sessions", &warm_up(baseline), &warm_up(other));
    if has_history(baseline) || has_history(other) {
        equal("history", &history(baseline), &history(other));
    }
    if let (Some(a), Some(b)) = (&baseline.server.model, &other.server.model) {
        equal("model", a, b);
    }
    if let (Some(a), Some(b)) = (output_length(baseline), output_length(other))
        && (a - b).abs() > OUTPUT_LENGTH * a
    {
        differ("mean output length", format!("{a:.1}"), format!("{b:.1}"));
    }
    if let (Some(a), Some(b)) = (baseline.totals.failure_rate(), other.totals.failure_rate())
        && (a - b).abs() > FAILURE_RATE
    {
        differ("failure rate", format!("{:.1} %", a * 100.0), format!("{:.1} %", b * 100.0));
    }
    found
}

fn state(report: &RunReport) -> &'static str {
    match report.state {
        State::Running => "running",
        State::Complete => "complete",
        State::Interrupted => "interrupted",
    }
}

fn yes_no(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn warm_up(report: &RunReport) -> String {
    report.manifest.spec.load.warmup_sessions.to_string()
}

fn has_history(report: &RunReport) -> bool {
    report.manifest.spec.workload.turns.get() > 1
}

fn history(report: &RunReport) -> String {
    format!("{:?}", report.manifest.spec.workload.history).to_lowercase()
}

fn api(report: &RunReport) -> String {
    format!("{:?}", report.manifest.spec.request.api).to_lowercase()
}

#[expect(clippy::cast_precision_loss, reason = "turns and tokens stay below 2^53")]
fn output_length(report: &RunReport) -> Option<f64> {
    let totals = &report.totals;
    (totals.complete > 0).then_some(totals.output_tokens? as f64 / totals.complete as f64)
}
