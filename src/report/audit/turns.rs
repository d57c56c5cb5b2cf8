//! What the turns, and the run as a whole, say against it.

use super::finding::{FindingKind, Judged, Limits, Verdict, finding, percent};
use crate::record::Oddity;
use crate::report::shape::{RunReport, State};
use crate::units::{grouped, plural};

/// Failed turns, as a share of those that the end of the run did not cut, above which survivors no longer stand for the
/// workload.
const FAILURES: f64 = 0.01;
/// Relative difference of output length from the plan.
const OUTPUT: Limits = Limits { void: 0.02, warning: 0.005 };

pub(super) fn errors(report: &RunReport) -> Option<Judged> {
    let totals = &report.totals;
    let rate = totals.failure_rate().filter(|_| totals.failed > 0)?;
    let kinds: Vec<_> =
        totals.failed_by_kind.iter().map(|(kind, turns)| format!("{kind} {}", grouped(*turns))).collect();
    let (failed, planned) = (grouped(totals.failed), plural(totals.planned, "turn"));
    let seen = format!("{failed} of {planned} failed ({}): {}", percent(rate), kinds.join(", "));
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
pub(super) fn output_length(report: &RunReport) -> Option<Judged> {
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
        format!(
            "mean output {:.1} tokens, planned {:.1}; {} of {} shorter than planned",
            counted / turns,
            planned / turns,
            grouped(totals.short_output_turns),
            plural(totals.complete, "complete turn")
        ),
        OUTPUT.words(),
        "decode work differs from the plan, so throughput and E2E do not compare",
        "check that the server honours `ignore_eos` and that its context is long enough",
    );
    Some((finding, verdict))
}

pub(super) fn interrupted(report: &RunReport) -> Option<Judged> {
    let (word, advice) = match report.state {
        State::Complete => return None,
        State::Running => ("still runs, or was killed", "wait for its end; after a kill, run again"),
        State::Interrupted => ("was interrupted", "run again to the end"),
    };
    let ended = report.totals.complete + report.totals.failed;
    let (ended, planned) = (grouped(ended), plural(report.totals.planned, "turn"));
    let seen = format!("the run {word}: {ended} of {planned} ended");
    Some((
        finding(FindingKind::Interrupted, seen, None, "the numbers are those of a part of the plan", advice),
        Verdict::Valid,
    ))
}

pub(super) fn estimated(report: &RunReport) -> Option<Judged> {
    let turns = report.totals.output_estimated_turns;
    (turns > 0).then(|| {
        let finding = finding(
            FindingKind::Estimated,
            format!("the replies of {} came without usage: their output tokens are estimates", plural(turns, "turn")),
            None,
            "token throughput and TPOT are approximate",
            "let the server send usage (`stream_options.include_usage`)",
        );
        (finding, Verdict::Valid)
    })
}

pub(super) fn oddities(report: &RunReport) -> Option<Judged> {
    let totals = &report.totals;
    // Which rank served a reply bends no protocol: see `served::pin`. Nor does what it says.
    let others = [Oddity::PinIgnored, Oddity::Refusal].map(|oddity| oddity.to_string());
    let bent = totals.oddities.iter().filter(|(kind, _)| !others.contains(kind));
    let kinds: Vec<_> = bent.map(|(kind, turns)| format!("{kind} {}", grouped(*turns))).collect();
    (!kinds.is_empty()).then(|| {
        let finding = finding(
            FindingKind::Oddities,
            format!(
                "replies of {} were not plain streams: {}",
                plural(totals.complete, "complete turn"),
                kinds.join(", ")
            ),
            None,
            "a reply that was not streamed has no TTFT; one that came at once or compressed has a TTFT close to its E2E",
            "look for a proxy or a compressor in between, and for a server that ignores `stream`",
        );
        (finding, Verdict::Valid)
    })
}

pub(super) fn refusals(report: &RunReport) -> Option<Judged> {
    let totals = &report.totals;
    let refusals = *totals.oddities.get(&Oddity::Refusal.to_string())?;
    let (refusals, complete) = (grouped(refusals), plural(totals.complete, "complete turn"));
    let finding = finding(
        FindingKind::Refusals,
        format!("the replies of {refusals} of {complete} are refusals (`refusal` of the delta)"),
        None,
        "they count as output, and are as long as the model declines and not as the plan says",
        "see `refusal` among the `oddities` of requests.jsonl; look for a filter in front of the model",
    );
    Some((finding, Verdict::Valid))
}

pub(super) fn debug_build(report: &RunReport) -> Option<Judged> {
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
