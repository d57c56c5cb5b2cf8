//! What makes a run void, and what its reader must know. A pure function of the report, so a saved one is judged alike.
//!
//! Findings are values: each says what was seen, what it does to the numbers, and what to change.

mod client;
mod eviction;
mod premises;
mod reconcile;
mod served;
mod skew;

use serde::{Deserialize, Serialize};

use super::shape::{RunReport, State};
use crate::record::Oddity;

/// Failed turns, as a share of those that the end of the run did not cut, above which survivors no longer stand for the
/// workload.
const FAILURES: f64 = 0.01;
/// Relative difference of output length from the plan.
const OUTPUT: Limits = Limits { void: 0.02, warning: 0.005 };
/// Bounds of a relative difference.
pub(super) struct Limits {
    pub(super) void: f64,
    pub(super) warning: f64,
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
    /// The server served others too.
    Traffic,
    /// Prompts are not as long as planned.
    PromptLength,
    /// Replies are not as long as planned.
    OutputLength,
    /// The client was late or short of resources.
    Client,
    /// The cache held prompts of this run before it began.
    Warm,
    /// Nothing shows that the cache was empty at the start.
    ColdUnproven,
    /// A cap held turns back under a rate.
    Cap,
    /// Sessions started at another rate than planned.
    Rate,
    /// The server started again during the run.
    Restart,
    /// Routing keys do not reach the server.
    Key,
    /// Counters of an address could not be read.
    Scrape,
    /// Counters count prompts more than once, and who tells which of them to compare is missing.
    Unreconciled,
    /// The run ended before its plan.
    Interrupted,
    /// Token counts are estimates.
    Estimated,
    /// Replies bent the protocol in ways that cost numbers or hint at something in between.
    Oddities,
    /// Far less was cached than the places served before.
    Eviction,
    /// Turns were served by a rank that the server does not have.
    Rank,
    /// Turns were served elsewhere than this program placed them.
    Pin,
    /// Connections were placed, and not turns, and the places have unlike shares.
    Skew,
    /// Round robin may keep step with the sessions.
    Aliasing,
    /// A router that takes its key from the prompt does not see the sessions.
    RouterKey,
    /// The program was built without optimisation.
    DebugBuild,
    /// Another program wrote the result, and not all that a comparison needs.
    Foreign,
}

/// A finding and whether it voids the run.
pub(super) type Judged = (Finding, Verdict);

/// Judges a report by its other parts.
pub(super) fn judge(report: &RunReport) -> Validity {
    let checks = [
        served::restart,
        served::flush,
        cold,
        served::key,
        served::pin,
        errors,
        reconcile::possible,
        reconcile::unreconciled,
        reconcile::hit,
        reconcile::hit_by_place,
        reconcile::traffic,
        reconcile::traffic_at_decode,
        eviction::eviction,
        reconcile::prompt_length,
        output_length,
    ];
    let notes = [
        premises::rank,
        skew::skew,
        premises::aliasing,
        premises::router_key,
        interrupted,
        estimated,
        oddities,
        debug_build,
    ];
    let checks = checks.iter().chain(&client::CHECKS).chain(&notes);
    let found = checks.filter_map(|check| check(report)).chain(report.server.unread.iter().map(reconcile::unread));
    let found = found.chain(report.server.cut.iter().map(reconcile::cut));
    let (voids, warnings): (Vec<Judged>, Vec<Judged>) = found.partition(|(_, verdict)| *verdict == Verdict::Void);
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
    pub(super) fn judge(&self, difference: f64) -> Option<Verdict> {
        match difference {
            d if d > self.void => Some(Verdict::Void),
            d if d > self.warning => Some(Verdict::Valid),
            _ => None,
        }
    }

    pub(super) fn words(&self) -> Option<String> {
        Some(format!("{}, warning above {}", percent(self.void), percent(self.warning)))
    }
}

/// A warm start voids a run that was to begin cold; one that was told to leave the cache alone is only warned of it.
fn cold(report: &RunReport) -> Option<Judged> {
    let evidence = report.server.cold?;
    let wants_cold = report.manifest.spec.server.begins_cold();
    if evidence.warm_groups > 0 {
        let groups = evidence.cold_groups + evidence.warm_groups + evidence.silent_groups;
        let finding = finding(
            FindingKind::Warm,
            format!(
                "{} of {groups} groups found their prompt cached before this run can have put it there",
                evidence.warm_groups
            ),
            Some("none".into()),
            "reuse and TTFT are better than a cold start gives",
            "flush every rank before the run (a 200 from one flush proves nothing), or use another seed",
        );
        return Some((finding, if wants_cold { Verdict::Void } else { Verdict::Valid }));
    }
    (evidence.silent_groups > 0 && wants_cold && !served::is_proven_cold(report)).then(|| {
        let finding = finding(
            FindingKind::ColdUnproven,
            format!("the first turns of {} groups do not say what was cached", evidence.silent_groups),
            None,
            "a cache left warm by earlier requests would not be noticed",
            "let the server report cached tokens (SGLang: --enable-cache-report, vLLM: --enable-prompt-tokens-details)",
        );
        (finding, Verdict::Valid)
    })
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

fn oddities(report: &RunReport) -> Option<Judged> {
    let totals = &report.totals;
    // Which rank served a reply bends no protocol: see `served::pin`.
    let bent = totals.oddities.iter().filter(|(kind, _)| **kind != Oddity::PinIgnored.to_string());
    let kinds: Vec<_> = bent.map(|(kind, turns)| format!("{kind} {turns}")).collect();
    (!kinds.is_empty()).then(|| {
        let finding = finding(
            FindingKind::Oddities,
            format!("replies of {} complete turns were not plain streams: {}", totals.complete, kinds.join(", ")),
            None,
            "a reply that was not streamed has no TTFT; one that came at once or compressed has a TTFT close to its E2E",
            "look for a proxy or a compressor in between, and for a server that ignores `stream`",
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

#[cfg(test)]
mod reconcile_tests;
#[cfg(test)]
mod tests;
