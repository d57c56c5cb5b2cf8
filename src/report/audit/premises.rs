//! What the workload lets a router do by accident: keep step with the sessions, or take all of them for one.

use super::finding::{FindingKind, Judged, Verdict, finding, percent};
use crate::profile::Target;
use crate::record::Place;
use crate::report::ratio;
use crate::report::shape::RunReport;
use crate::units::plural;
use crate::workload::Aliasing;

/// Servers that route, if at all, by load, key or rank, and not by the head of a prompt.
const NO_ROUTER: [&str; 6] = ["sglang", "gspbench sim", "vllm", "llama.cpp", "llamacpp", "transformers"];

/// Replies name a rank beyond the server's own count of them.
pub(super) fn rank(report: &RunReport) -> Option<Judged> {
    let ranks = report.server.ranks?;
    let is_beyond = |place: &Place| matches!(place, Place::Rank(rank) if u32::from(rank.0) >= ranks);
    let beyond: Vec<_> = report.ranks.iter().filter(|row| row.turns > 0 && is_beyond(&row.place)).collect();
    let (first, turns) = (beyond.first()?, beyond.iter().map(|row| row.turns).sum::<u64>());
    let more = if beyond.len() > 1 { format!(" and {} more", beyond.len() - 1) } else { String::new() };
    let finding = finding(
        FindingKind::Rank,
        format!(
            "{} came back from {}{more}, and the server has {ranks} of them, numbered from 0",
            plural(turns, "turn"),
            first.place
        ),
        None,
        "the number of ranks is wrong, or the replies are: the reuse of round robin, the balance of the places and the KV \
         capacity in all are those of another number",
        "look at `dp_size` and `attn_dp_size` in /server_info, and for several servers behind one address",
    );
    Some((finding, Verdict::Valid))
}

/// Round robin may return sessions to their rank, or to another one, by the rhythm of their arrival.
pub(super) fn aliasing(report: &RunReport) -> Option<Judged> {
    let cycles = &report.workload.oracle.aliasing;
    let expected = report.workload.oracle.round_robin.as_ref()?;
    let names_rank = |name: &String| name.eq_ignore_ascii_case("x-data-parallel-rank");
    if report.manifest.spec.request.headers.keys().any(names_rank) {
        return None;
    }
    let goes_round = match method(report) {
        // SGLang's `auto` is round robin unless it is a prefill node.
        Some(method) => matches!(method, "round_robin" | "auto"),
        None => looks_dealt(report, expected.ranks),
    };
    if cycles.is_empty() || !goes_round {
        return None;
    }
    let multiple = |cycle: &Aliasing| match cycle {
        Aliasing::Concurrency(sessions) => format!("{} in flight", plural(u64::from(*sessions), "session")),
        Aliasing::Sessions(sessions) => format!("{} in all", plural(u64::from(*sessions), "session")),
    };
    let cycles = cycles.iter().map(multiple).collect::<Vec<_>>().join(" and ");
    let split = report.affinity.split_sessions.and_then(|split| ratio(split, report.affinity.sessions));
    let seen = match (split, expected.split_share) {
        (Some(split), Some(chance)) => {
            format!("; {} of sessions moved, by chance {} would", percent(split), percent(chance))
        }
        _ => String::new(),
    };
    let finding = finding(
        FindingKind::Aliasing,
        format!("{cycles}: multiples of {}{seen}", plural(expected.ranks.into(), "rank")),
        None,
        "round robin may keep step with the sessions: its reuse is then not that of chance",
        "take numbers that the ranks do not divide, or compare the share of sessions that moved with that of chance",
    );
    Some((finding, Verdict::Valid))
}

/// What places turns, if that is known: the client's own policy where it pins them, whatever the server's is; else what the
/// server says, or where this program started it, what it was started with.
fn method(report: &RunReport) -> Option<&str> {
    match &report.manifest.target {
        Some(Target::Pin { policy, .. }) => Some(policy),
        target => report.server.load_balance_method.as_deref().or(match target {
            Some(Target::Sim { policy, .. }) => Some(policy),
            Some(Target::Pin { .. } | Target::Url(_)) | None => None,
        }),
    }
}

/// Whether each of the places was given as many turns as any other, but for one: what dealing in turn leaves, and hardly
/// anything else. Turns whose place is not known may have been anywhere.
fn looks_dealt(report: &RunReport, places: u32) -> bool {
    let turns = report.ranks.iter().map(|row| row.turns);
    let (most, least) = (turns.clone().max().unwrap_or(0), turns.clone().min().unwrap_or(0));
    let placed: u64 = turns.sum();
    let unplaced = (report.totals.complete + report.totals.unheard_requests).saturating_sub(placed);
    u64::from(places) == report.ranks.len() as u64 && least > 0 && most - least <= 1 + unplaced
}

/// A router that takes its key from the prompt's head sees one session, or one a turn.
pub(super) fn router_key(report: &RunReport) -> Option<Judged> {
    let key = report.workload.router_key?;
    if report.server.kind.as_deref().is_some_and(|kind| NO_ROUTER.contains(&kind)) {
        return None;
    }
    let (seen, effect, advice) = match (key.collapses(), key.is_stable) {
        (true, _) => (
            format!("{} is the same in all {}", key.rule, plural(key.sessions, "session")),
            "a router that takes it for its key sends all of them to one worker",
            "take several groups, or a router that reads a key header",
        ),
        (false, false) => (
            format!("the first prompts are shorter than {}, which later turns fill", key.rule),
            "a router that takes it for its key sees another key in each turn",
            "take longer system prompts, or a router that reads a key header",
        ),
        (false, true) => return None,
    };
    Some((finding(FindingKind::RouterKey, seen, None, effect, advice), Verdict::Valid))
}
