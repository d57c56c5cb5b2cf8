//! Whether the caches held what had been put into them: measured reuse beside that of caches which never evict.

use super::finding::{FindingKind, Judged, Verdict, finding, percent};
use crate::profile::History;
use crate::record::CounterRole;
use crate::report::cold;
use crate::report::shape::{RunReport, State};
use crate::units::grouped_float;

/// Reuse, as a share of prompt tokens, that may be missing for no known reason.
const MISSING: f64 = 0.05;
/// Turns below which a share says little.
const FEWEST: u64 = 20;

/// What was cached is far below what earlier turns at the same places must have left there.
///
/// Taken off before it is judged is what an unbounded cache would miss as well: the slack of each turn (a page that is not
/// full cannot be shared), the prompts of turns that overlap with the first of their group at their place, and of real
/// histories the replies, whose tokens a chat template may write in another way.
pub(super) fn eviction(report: &RunReport) -> Option<Judged> {
    let totals = &report.totals;
    let measured = report.metrics.cache_hit_rate.value?;
    if totals.complete < FEWEST || totals.cached_reported_turns < totals.complete {
        return None;
    }
    let expected = expected(report)?;
    let prompt = totals.prompt_tokens.filter(|tokens| *tokens > 0)?;
    let workload = &report.manifest.spec.workload;
    let rewritten = workload.turns.get() > 1 && workload.history == History::Real;
    let replies = if rewritten { totals.output_tokens? } else { 0 };
    let slack = totals.complete * u64::from(cold::slack(report.server.page_tokens));
    let excused = as_f64(report.affinity.overlap_tokens? + slack + replies) / as_f64(prompt);
    if expected - measured - excused <= MISSING {
        return None;
    }
    let distinct = as_f64(prompt) * (1.0 - expected);
    let finding = finding(
        FindingKind::Eviction,
        format!(
            "{} of prompt tokens were cached, {} had been at the places that served them; {distinct:.0} distinct prompt \
             tokens there, {}{}",
            points(measured),
            points(expected),
            room(report),
            evicted(report),
        ),
        Some(format!(
            "{} below what the places had, beside what page size and overlapping turns cost",
            percent(MISSING)
        )),
        "prompts were lost from the cache (evicted, flushed, or never kept): hit rate and TTFT show its size, not only the \
         routing",
        "give the server more room for KV (SGLang --mem-fraction-static, vLLM --gpu-memory-utilization), or take fewer or \
         shorter groups (`gspbench plan` shows the working set); where there is room enough, look for a flush, or for a \
         prefix cache that is off",
    );
    Some((finding, Verdict::Valid))
}

/// Reuse of unbounded caches: at the places seen, if each turn names its own; of a single rank whose turns all completed,
/// that of the whole plan.
fn expected(report: &RunReport) -> Option<f64> {
    let oracle = &report.workload.oracle;
    let is_placed = report.affinity.attribution.known == report.totals.complete;
    let is_whole = report.state == State::Complete && report.totals.complete == report.totals.planned;
    let observed = oracle.observed.as_ref().filter(|_| is_placed).map(|observed| observed.reuse);
    observed.or_else(|| oracle.ideal_reuse.filter(|_| is_whole && report.server.ranks == Some(1)))
}

fn room(report: &RunReport) -> String {
    let server = &report.server;
    match (server.kv_tokens_total, server.kv_tokens_per_rank) {
        (Some(total), _) => format!("room for {total} in all"),
        (None, Some(rank)) => format!("room for {rank} on a rank"),
        (None, None) => "and the server does not tell its KV capacity".into(),
    }
}

/// SGLang and the simulator count what they evict.
fn evicted(report: &RunReport) -> String {
    let evicted = report.server.growth(CounterRole::EvictedTokens);
    evicted.map_or_else(String::new, |tokens| format!("; it counted {} evicted tokens", grouped_float(tokens)))
}

/// A share to a tenth of a point.
fn points(share: f64) -> String {
    percent((share * 1e3).round() / 1e3)
}

#[expect(clippy::cast_precision_loss, reason = "tokens stay below 2^53")]
fn as_f64(tokens: u64) -> f64 {
    tokens as f64
}
