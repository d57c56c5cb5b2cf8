//! Whether two blocks of a round ran the same work.

use super::info;
use super::settings::Settings;
use super::shape::{Difference, InfoDifference};
use crate::report::{Host, KeyScope, KeySpec, RunReport, State, TimeoutSpec};

/// Relative difference of the mean output length.
const OUTPUT_LENGTH: f64 = 0.02;
/// Difference of failure rates, in points.
const FAILURE_RATE: f64 = 0.01;

/// What is unlike between arms and the baseline, over all rounds: the same thing in several rounds once, for its first.
#[derive(Debug, Default)]
pub(super) struct Unlike {
    /// Other work.
    pub(super) differences: Vec<Difference>,
    /// What takes nothing away.
    pub(super) remarks: Vec<Difference>,
    pub(super) server_info: Vec<InfoDifference>,
}

impl Unlike {
    /// Sets an arm beside the baseline of its round. A control arm differs by design: of it all is a remark.
    pub(super) fn add(&mut self, round: u32, arm: &str, baseline: &RunReport, other: &RunReport, settings: &Settings) {
        let info = info::differences(round, arm, baseline, other, &settings.server_info_may_differ);
        let unnamed = info.iter().filter(|difference| !difference.may_differ).map(|difference| Difference {
            round,
            arm: arm.to_owned(),
            field: format!("server_info.{}", difference.field),
            baseline: told(difference.baseline.as_ref()),
            other: told(difference.other.as_ref()),
        });
        let work = differences(round, arm, baseline, other).into_iter().chain(unnamed);
        let (known, remarks) = (&mut self.differences, &mut self.remarks);
        let is_control = settings.is_control(arm);
        work.for_each(|new| add_once(if is_control { &mut *remarks } else { &mut *known }, new));
        surroundings(round, arm, baseline, other).into_iter().for_each(|new| add_once(remarks, new));
        for new in info {
            if !self.server_info.iter().any(|old| (&old.arm, &old.field) == (&new.arm, &new.field)) {
                self.server_info.push(new);
            }
        }
    }
}

fn add_once(known: &mut Vec<Difference>, new: Difference) {
    if !known.iter().any(|old| (&old.arm, &old.field) == (&new.arm, &new.field)) {
        known.push(new);
    }
}

fn told(value: Option<&String>) -> String {
    value.cloned().unwrap_or_else(|| "not told".to_owned())
}

/// Hosts and dates: they explain, and forbid nothing.
fn surroundings(round: u32, arm: &str, baseline: &RunReport, other: &RunReport) -> Vec<Difference> {
    let (a, b) = (&baseline.manifest, &other.manifest);
    let mut found = vec![];
    let mut note = |field: &str, baseline: String, other: String| {
        if baseline != other {
            found.push(Difference { round, arm: arm.to_owned(), field: field.to_owned(), baseline, other });
        }
    };
    note("client host", host(&a.host), host(&b.host));
    note("date", date(&a.started_utc), date(&b.started_utc));
    note("server_info", has_info(baseline), has_info(other));
    found
}

pub(super) fn host(host: &Host) -> String {
    let known = [
        host.cores.map(|cores| format!("{cores} cores")),
        host.memory_bytes.map(|bytes| format!("{} GiB", bytes >> 30)),
        host.kernel.clone(),
    ];
    let known: Vec<_> = known.into_iter().flatten().collect();
    if known.is_empty() { "not told".to_owned() } else { known.join(", ") }
}

fn date(rfc3339: &str) -> String {
    let date: String = rfc3339.chars().take_while(|c| *c != 'T').collect();
    // Other programs' files may have none.
    if date.is_empty() { "not told".to_owned() } else { date }
}

fn has_info(report: &RunReport) -> String {
    if report.server.info.is_some() { "told" } else { "not told, so that it was not compared" }.to_owned()
}

/// Every way in which `other` ran other work than the `baseline` of its round.
fn differences(round: u32, arm: &str, baseline: &RunReport, other: &RunReport) -> Vec<Difference> {
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
    if baseline.foreign.is_some() || other.foreign.is_some() {
        recorded(baseline, other, &mut equal);
    } else {
        specified(baseline, other, &mut equal);
    }
    if let (Some(a), Some(b)) = (&baseline.server.model, &other.server.model) {
        equal("model", a, b);
    }
    if let (Some(a), Some(b)) = (output_length(baseline), output_length(other))
        && (a - b).abs() > OUTPUT_LENGTH * a
    {
        differ("mean output length", format!("{a:.1}"), format!("{b:.1}"));
    }
    if let (Some(a), Some(b)) = (failure_rate(baseline), failure_rate(other))
        && (a - b).abs() > FAILURE_RATE
    {
        differ("failure rate", format!("{:.1} %", a * 100.0), format!("{:.1} %", b * 100.0));
    }
    found
}

/// Of results that this program did not measure: what both programs wrote down. What they did not is a warning of the arm.
fn recorded(baseline: &RunReport, other: &RunReport, equal: &mut impl FnMut(&str, &str, &str)) {
    let tool =
        |report: &RunReport| report.foreign.as_ref().map_or("gspbench".to_owned(), |foreign| foreign.tool.clone());
    equal("client", &tool(baseline), &tool(other));
    let (Some(a), Some(b)) = (&baseline.foreign, &other.foreign) else { return };
    for (field, a, b) in [("load", &a.load, &b.load), ("backend", &a.backend, &b.backend)] {
        if let (Some(a), Some(b)) = (a, b) {
            equal(field, a, b);
        }
    }
}

/// Of our own runs: what was asked for.
fn specified(baseline: &RunReport, other: &RunReport, equal: &mut impl FnMut(&str, &str, &str)) {
    equal("digest", &baseline.workload.digest, &other.workload.digest);
    equal("client version", &baseline.manifest.version, &other.manifest.version);
    equal("debug build", yes_no(baseline.manifest.debug_build), yes_no(other.manifest.debug_build));
    equal("api", &api(baseline), &api(other));
    equal("load", &baseline.manifest.load(), &other.manifest.load());
    equal("warm-up sessions", &warm_up(baseline), &warm_up(other));
    equal("timeouts", &timeouts(baseline), &timeouts(other));
    equal("flush", yes_no(baseline.manifest.spec.server.flush), yes_no(other.manifest.spec.server.flush));
    equal("goodput limits", &limits(baseline), &limits(other));
    equal("routing key", &keys(baseline), &keys(other));
    if has_history(baseline) || has_history(other) {
        equal("history", &history(baseline), &history(other));
    }
}

/// None where failures were not counted.
fn failure_rate(report: &RunReport) -> Option<f64> {
    report.counted("failed", report.totals.failed).and(report.totals.failure_rate())
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

fn timeouts(report: &RunReport) -> String {
    let TimeoutSpec { connect, first_byte, idle } = report.manifest.spec.timeout;
    format!("connect {connect:?}, first byte {first_byte:?}, idle {idle:?}")
}

/// Goodput under other limits is another figure.
fn limits(report: &RunReport) -> String {
    report.manifest.spec.slo.map_or("none".to_owned(), |slo| slo.to_string())
}

/// How turns carry their keys; the keys themselves are in the digest.
fn keys(report: &RunReport) -> String {
    let KeySpec { by, salt: _, headers, body_field } = &report.manifest.spec.key;
    let by = match by {
        KeyScope::None => return "none".to_owned(),
        scope => format!("{scope:?}").to_lowercase(),
    };
    let field = body_field.as_ref().map_or(String::new(), |field| format!(", body field {field}"));
    format!("by {by}, in {}{field}", if headers.is_empty() { "no header".to_owned() } else { headers.join(", ") })
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
