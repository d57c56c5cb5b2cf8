//! What makes a run void, and what its reader must know. A pure function of the report, so a saved one is judged alike.
//!
//! Findings are values: each says what was seen, what it does to the numbers, and what to change.

use serde::{Deserialize, Serialize};

use super::client;
use super::shape::{CounterDelta, RunReport, State};

/// Failed turns, as a share of those that the end of the run did not cut, above which survivors no longer stand for the workload.
const FAILURES: f64 = 0.01;
/// Relative difference of cached tokens between client and server.
const HIT: Limits = Limits { void: 0.05, warning: 0.005 };
/// Relative difference of output length from the plan.
const OUTPUT: Limits = Limits { void: 0.02, warning: 0.005 };
struct Limits {
    void: f64,
    warning: f64,
}

/// Whether the numbers of a run may be used, and with which caveats.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validity {
    pub verdict: Verdict,
    pub voids: Vec<Finding>,
    pub warnings: Vec<Finding>,
}

/// The answer in one word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    #[default]
    Valid,
    Void,
}

/// One reason for doubt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub kind: FindingKind,
    pub seen: String,
    pub limit: Option<String>,
    /// What it does to the numbers.
    pub effect: String,
    /// What to change.
    pub advice: String,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Turns failed.
    Errors,
    /// Client and server disagree on cached tokens.
    Hit,
    /// Replies are not as long as planned.
    OutputLength,
    /// The client was late or short of resources.
    Client,
    /// A cap held turns back under a rate.
    Cap,
    /// Sessions started at another rate than planned.
    Rate,
    /// A counter of the server fell during the run.
    Restart,
    /// The run ended before its plan.
    Interrupted,
    /// Token counts are estimates.
    Estimated,
    /// The program was built without optimisation.
    DebugBuild,
}

/// A finding and whether it voids the run.
pub(super) type Judged = (Finding, Verdict);

/// Judges a report by its other parts.
pub(super) fn judge(report: &RunReport) -> Validity {
    let checks = [restart, errors, hit, output_length];
    let notes = [interrupted, estimated, debug_build];
    let checks = checks.iter().chain(&client::CHECKS).chain(&notes);
    let (voids, warnings): (Vec<Judged>, Vec<Judged>) =
        checks.filter_map(|check| check(report)).partition(|(_, verdict)| *verdict == Verdict::Void);
    let plain = |judged: Vec<Judged>| judged.into_iter().map(|(finding, _)| finding).collect();
    Validity {
        verdict: if voids.is_empty() { Verdict::Valid } else { Verdict::Void },
        voids: plain(voids),
        warnings: plain(warnings),
    }
}

pub(super) fn finding(kind: FindingKind, seen: String, limit: Option<String>, effect: &str, advice: &str) -> Finding {
    Finding { kind, seen, limit, effect: effect.into(), advice: advice.into() }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.3}", share * 100.0).trim_end_matches('0').trim_end_matches('.').to_owned() + " %"
}

impl Limits {
    fn judge(&self, difference: f64) -> Option<Verdict> {
        match difference {
            d if d > self.void => Some(Verdict::Void),
            d if d > self.warning => Some(Verdict::Valid),
            _ => None,
        }
    }

    fn words(&self) -> Option<String> {
        Some(format!("{}, warning above {}", percent(self.void), percent(self.warning)))
    }
}

fn errors(report: &RunReport) -> Option<Judged> {
    let totals = &report.totals;
    let rate = totals.failure_rate().filter(|_| totals.failed > 0)?;
    let kinds: Vec<_> = totals.failed_by_kind.iter().map(|(kind, turns)| format!("{kind} {turns}")).collect();
    let seen =
        format!("{} of {} turns failed ({}): {}", totals.failed, totals.planned, percent(rate), kinds.join(", "));
    let finding = finding(
        FindingKind::Errors,
        seen,
        Some(percent(FAILURES)),
        "latencies are those of the survivors, and later turns of failed sessions were never sent",
        "see `outcome` and `detail` in requests.jsonl; lower the load or mend the server, and run again",
    );
    Some((finding, if rate > FAILURES { Verdict::Void } else { Verdict::Valid }))
}

/// Counters of cached tokens, by name, and how their labels add up.
const CACHED_COUNTERS: [&str; 2] = ["sglang:cached_tokens_total", "vllm:prefix_cache_hits_total"];

fn hit(report: &RunReport) -> Option<Judged> {
    let totals = &report.totals;
    let client = totals.cached_tokens.filter(|_| totals.cached_reported_turns == totals.complete)?;
    let (name, server) = server_cached(&report.server.counters)?;
    #[expect(clippy::cast_precision_loss, reason = "tokens stay below 2^53")]
    let client = client as f64;
    let difference = (client - server).abs() / client.max(server).max(1.0);
    // The server also counts turns that failed or were cut after their prefill; they may explain as much as their share.
    let others = super::ratio(totals.failed + totals.cancelled, totals.planned).unwrap_or(0.0);
    let verdict = HIT.judge(difference - others)?;
    let seen =
        format!("replies say {client:.0} cached tokens, {name} moved by {server:.0}: {} apart", percent(difference));
    let finding = finding(
        FindingKind::Hit,
        seen,
        HIT.words(),
        "one of the two hit rates is wrong",
        "look for other traffic on the server, several workers behind one address, or a scrape of the wrong one",
    );
    Some((finding, verdict))
}

/// What the server counted as cached, of the first name that it has. `cache_source="total"` repeats the other sources.
fn server_cached(counters: &[CounterDelta]) -> Option<(&'static str, f64)> {
    CACHED_COUNTERS.into_iter().find_map(|name| {
        let all: Vec<_> = counters.iter().filter(|counter| counter.name == name).collect();
        let is_total = |c: &CounterDelta| c.labels.get("cache_source").is_some_and(|source| source == "total");
        let parts: Vec<_> = all.iter().copied().filter(|counter| !is_total(counter)).collect();
        let counted = if parts.is_empty() { all } else { parts };
        (!counted.is_empty()).then(|| (name, counted.iter().filter_map(|counter| counter.delta).sum()))
    })
}

#[expect(clippy::cast_precision_loss, reason = "tokens stay below 2^53")]
fn output_length(report: &RunReport) -> Option<Judged> {
    let totals = &report.totals;
    if !report.manifest.spec.request.ignore_eos || totals.planned_output_tokens == 0 {
        return None;
    }
    let counted = totals.output_tokens? as f64;
    let planned = totals.planned_output_tokens as f64;
    let difference = (counted - planned).abs() / planned;
    let verdict = OUTPUT.judge(difference)?;
    let turns = totals.complete.max(1) as f64;
    let finding = finding(
        FindingKind::OutputLength,
        format!("mean output {:.1} tokens, planned {:.1}", counted / turns, planned / turns),
        OUTPUT.words(),
        "decode work differs from the plan, so throughput and E2E do not compare",
        "check that the server honours `ignore_eos` and that its context is long enough",
    );
    Some((finding, verdict))
}

fn restart(report: &RunReport) -> Option<Judged> {
    let fell = report.server.counters.iter().find(|counter| counter.delta.is_some_and(|delta| delta < 0.0))?;
    let finding = finding(
        FindingKind::Restart,
        format!("{} at {} fell during the run", fell.name, fell.source),
        Some("counters only rise".into()),
        "the server restarted: its cache was lost, and its counters say nothing",
        "see the server's log, and run again",
    );
    Some((finding, Verdict::Void))
}

fn interrupted(report: &RunReport) -> Option<Judged> {
    let (word, advice) = match report.state {
        State::Complete => return None,
        State::Running => ("still runs, or was killed", "wait for its end; after a kill, run again"),
        State::Interrupted => ("was interrupted", "run again to the end"),
    };
    let ended = report.totals.complete + report.totals.failed;
    let seen = format!("the run {word}: {ended} of {} turns ended", report.totals.planned);
    Some((
        finding(FindingKind::Interrupted, seen, None, "the numbers are those of a part of the plan", advice),
        Verdict::Valid,
    ))
}

fn estimated(report: &RunReport) -> Option<Judged> {
    let turns = report.totals.output_estimated_turns;
    (turns > 0).then(|| {
        let finding = finding(
            FindingKind::Estimated,
            format!("{turns} replies came without usage: their output tokens are estimates"),
            None,
            "token throughput and TPOT are approximate",
            "let the server send usage (`stream_options.include_usage`)",
        );
        (finding, Verdict::Valid)
    })
}

fn debug_build(report: &RunReport) -> Option<Judged> {
    report.manifest.debug_build.then(|| {
        let finding = finding(
            FindingKind::DebugBuild,
            "this is a debug build".into(),
            None,
            "the client is several times slower than it need be",
            "build with `--release` before numbers are published",
        );
        (finding, Verdict::Valid)
    })
}
