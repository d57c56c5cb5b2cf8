//! What the server's own side says against a run: it restarted, it was not empty, it never saw the keys, it ignored pins.

use super::finding::{Finding, FindingKind, Judged, Limits, Verdict, finding, percent};
use crate::profile::KeyScope;
use crate::record::Oddity;
use crate::report::ratio;
use crate::report::server::{FlushProof, KeySeen};
use crate::report::shape::RunReport;
use crate::units::{grouped, plural};

/// Share of the turns that were placed of those that were served elsewhere.
const PIN: Limits = Limits { void: 0.01, warning: 0.0 };

/// A counter that fell, another start time, or a connection that was refused after the probe had been answered.
pub(super) fn restart(report: &RunReport) -> Option<Judged> {
    let server = &report.server;
    let fell = server.counters.iter().find(|counter| counter.fell());
    let fell = fell.map(|counter| (format!("{} at {} fell", counter.name, counter.source), "counters only rise"));
    let started = server.restarted.first();
    let started =
        started.map(|source| (format!("the process at {source} started"), "one process serves the whole run"));
    let refused = Some(report.totals.refused_turns).filter(|turns| *turns > 0);
    let refused = refused.map(|turns| {
        (format!("the connections of {} were refused", plural(turns, "turn")), "the server listens throughout")
    });
    let (seen, limit) = fell.or(started).or(refused)?;
    let finding = finding(
        FindingKind::Restart,
        format!("{seen} during the run"),
        Some(limit.into()),
        "the server restarted or went away: its cache was lost, and its counters say nothing",
        "see the server's log, and run again",
    );
    Some((finding, Verdict::Void))
}

/// A warm start voids a run that was to begin cold; one that was told to leave the cache alone is only warned of it.
pub(super) fn cold(report: &RunReport) -> Option<Judged> {
    let evidence = report.server.cold?;
    let wants_cold = report.manifest.spec.server.begins_cold();
    if evidence.warm_groups > 0 {
        let groups = evidence.cold_groups + evidence.warm_groups + evidence.silent_groups;
        let finding = finding(
            FindingKind::Warm,
            format!(
                "{} of {} found their prompt cached before this run can have put it there",
                grouped(evidence.warm_groups),
                plural(groups, "group")
            ),
            Some("none".into()),
            "reuse and TTFT are better than a cold start gives",
            "flush every rank before the run (a 200 from one flush proves nothing), or use another seed",
        );
        return Some((finding, if wants_cold { Verdict::Void } else { Verdict::Valid }));
    }
    (evidence.silent_groups > 0 && wants_cold && !is_proven_cold(report)).then(|| {
        let finding = finding(
            FindingKind::ColdUnproven,
            format!("the first turns of {} do not say what was cached", plural(evidence.silent_groups, "group")),
            None,
            "a cache left warm by earlier requests would not be noticed",
            "let the server report cached tokens (SGLang: --enable-cache-report, vLLM: --enable-prompt-tokens-details)",
        );
        (finding, Verdict::Valid)
    })
}

/// Whether the server itself has shown that every rank was empty at the start.
pub(super) fn is_proven_cold(report: &RunReport) -> bool {
    let flush = report.server.flush.as_ref();
    flush.is_some_and(|flush| {
        flush.warm.is_empty() && matches!(flush.proof, Some(FlushProof::NoEvictableTokens | FlushProof::PinnedProbe))
    })
}

/// Ranks that the flush did not empty.
pub(super) fn flush(report: &RunReport) -> Option<Judged> {
    let flush = report.server.flush.as_ref().filter(|flush| !flush.warm.is_empty())?;
    let places: Vec<String> = flush.warm.iter().map(ToString::to_string).collect();
    let finding = finding(
        FindingKind::Warm,
        format!("after the flush, {} still held what had been computed before it", places.join(", ")),
        Some("none".into()),
        "reuse and TTFT are better than a cold start gives",
        "keep other clients away: a rank that is busy is not emptied, whatever the flush says",
    );
    Some((finding, Verdict::Void))
}

/// Keys that are sent and do not arrive.
pub(super) fn key(report: &RunReport) -> Option<Judged> {
    let sends = report.manifest.spec.key.by != KeyScope::None;
    (sends && report.server.key_seen == KeySeen::No).then(|| (key_lost(), Verdict::Valid))
}

fn key_lost() -> Finding {
    finding(
        FindingKind::Key,
        "a request with a routing key ran, and the server saw none".into(),
        None,
        "a policy that routes by key cannot act: its arm is one without keys",
        "look for a proxy that drops the header (the server's own address, past it, shows the difference), or for a route that \
         reads the key elsewhere: see `[key] headers` and `body_field`",
    )
}

/// Turns that this program placed and the server served elsewhere, by its own word.
///
/// Of the complete turns, all of which were placed; one that names no rank is taken to have been served where it was sent.
pub(super) fn pin(report: &RunReport) -> Option<Judged> {
    let totals = &report.totals;
    let turns = totals.oddities.get(&Oddity::PinIgnored.to_string()).copied()?;
    let share = ratio(turns, totals.complete)?;
    let verdict = PIN.judge(share)?;
    let finding = finding(
        FindingKind::Pin,
        format!(
            "{} of {} ({}) were served by another rank than this program asked for",
            grouped(turns),
            plural(totals.complete, "turn"),
            percent(share)
        ),
        Some(format!("{}, warning for any", percent(PIN.void))),
        "where turns were placed was not this arm's policy alone: its reuse and balance are of a mixture; rows and rates are \
         those of the ranks that the server named",
        "see `pin_ignored` among the `oddities` of requests.jsonl; let nothing between this program and the ranks place turns \
         too, or compare servers that place turns themselves",
    );
    Some((finding, verdict))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Validity;
    use super::*;
    use crate::record::{Failure, Outcome, Place, TurnRecord};
    use crate::report::tests::{context, served};
    use crate::report::{Accumulator, Closing, FlushBy, FlushFacts, ServerSide, State};
    use crate::units::Rank;

    /// Verdicts on a run of one turn that told nothing of what was cached.
    fn judged(closing: Closing) -> Validity {
        let mut accumulator = Accumulator::new(context(1, 1));
        accumulator.add(&TurnRecord { cached_tokens: None, ..served(0, 0, 0, 0) });
        accumulator.finish(closing).validity
    }

    fn kinds(findings: &[Finding]) -> Vec<FindingKind> {
        findings.iter().map(|finding| finding.kind).collect()
    }

    fn flushed(proof: Option<FlushProof>, warm: Vec<Place>) -> Closing {
        let flush = Some(FlushFacts { by: FlushBy::FlushCache, proof, warm });
        Closing { server: ServerSide { flush, ..ServerSide::default() }, ..Closing::plain(State::Complete) }
    }

    #[test]
    fn a_flush_that_is_proven_needs_no_word_of_the_replies() {
        assert_eq!(kinds(&judged(flushed(None, vec![])).warnings), [FindingKind::ColdUnproven]);
        for proof in [FlushProof::PinnedProbe, FlushProof::NoEvictableTokens] {
            assert_eq!(judged(flushed(Some(proof), vec![])), Validity::default());
        }
    }

    #[test]
    fn a_rank_that_the_flush_did_not_empty_voids_the_run_and_is_named() {
        let void = judged(flushed(None, vec![Place::Rank(Rank(3))])).voids;
        assert_eq!((kinds(&void), void[0].seen.contains("rank 3")), (vec![FindingKind::Warm], true));
    }

    #[test]
    fn another_start_time_voids_the_run() {
        let mut closing = flushed(Some(FlushProof::PinnedProbe), vec![]);
        closing.server.restarted = vec!["http://h".into()];
        assert_eq!(kinds(&judged(closing).voids), [FindingKind::Restart]);
    }

    #[test]
    fn a_refused_connection_is_a_restart_and_one_that_never_came_is_not() {
        let failed = |detail: &str| {
            let mut accumulator = Accumulator::new(context(1, 2));
            accumulator.add(&served(0, 0, 0, 0));
            let outcome = Outcome::Failed(Failure::Connect);
            accumulator.add(&TurnRecord { outcome, detail: Some(detail.into()), ..served(1, 0, 0, 0) });
            kinds(&accumulator.finish(Closing::plain(State::Complete)).validity.voids)
        };
        assert_eq!(failed("Connection refused (os error 111)"), [FindingKind::Restart, FindingKind::Errors]);
        assert_eq!(failed("no connection in time: deadline has elapsed"), [FindingKind::Errors]);
    }

    #[test]
    fn pins_that_were_ignored_are_a_finding_of_their_own_and_above_one_percent_void_the_run() {
        let of = |ignored: u32| {
            let mut accumulator = Accumulator::new(context(1, 100));
            for session in 0..100 {
                let oddities = if session < ignored { vec![Oddity::PinIgnored] } else { vec![] };
                accumulator.add(&TurnRecord { oddities, ..served(session, 0, 0, 0) });
            }
            let Validity { voids, warnings, .. } = accumulator.finish(Closing::plain(State::Complete)).validity;
            (kinds(&voids), kinds(&warnings))
        };
        assert_eq!(of(0), (vec![], vec![]));
        assert_eq!(of(1), (vec![], vec![FindingKind::Pin]));
        assert_eq!(of(2), (vec![FindingKind::Pin], vec![]));
    }

    #[test]
    fn keys_that_are_sent_and_never_seen_are_warned_of() {
        let of = |key_seen| {
            let mut closing = flushed(Some(FlushProof::PinnedProbe), vec![]);
            closing.server.key_seen = key_seen;
            kinds(&judged(closing).warnings)
        };
        assert_eq!([KeySeen::No, KeySeen::Yes, KeySeen::Unknown].map(of), [vec![FindingKind::Key], vec![], vec![]]);
    }
}
