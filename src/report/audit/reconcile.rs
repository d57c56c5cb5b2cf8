//! Client and server must tell the same story: what the replies say in sum against how the server's counters moved.

use std::collections::BTreeSet;

use super::finding::{FindingKind, Judged, Limits, Verdict, finding, percent};
use crate::record::{CounterRole, Place};
use crate::report::server::{Cut, Unread, When};
use crate::report::shape::RunReport;
use crate::units::{grouped, grouped_float, plural};

/// Relative difference of cached tokens between client and server.
const HIT: Limits = Limits { void: 0.05, warning: 0.005 };
/// Relative surplus of prompt tokens, or of requests, that the server counted.
const TRAFFIC: Limits = Limits { void: f64::INFINITY, warning: 0.005 };

/// Relative difference of prompt tokens from those that the tokenizer in use gives. The server's chat template adds its own.
const PROMPT: Limits = Limits { void: f64::INFINITY, warning: 0.01 };

/// No prompt holds more cached tokens than tokens.
pub(super) fn possible(report: &RunReport) -> Option<Judged> {
    let turns = report.totals.cached_above_prompt_turns;
    (turns > 0).then(|| {
        let finding = finding(
            FindingKind::Hit,
            format!("the replies of {} report more cached tokens than their prompt had", plural(turns, "turn")),
            Some("none".into()),
            "the server's count of cached tokens, or of prompt tokens, is wrong: no hit rate is given",
            "compare `cached_tokens` and `prompt_tokens` in requests.jsonl with the server's counters, and tell its makers",
        );
        (finding, Verdict::Void)
    })
}

/// Counters that could not be read at an end of the run have no growth.
pub(super) fn unread(unread: &Unread) -> Judged {
    let when = match unread.when {
        When::Before => "before the run",
        When::After => "after the run",
        When::Both => "before or after the run",
    };
    let why = unread.why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
    let finding = finding(
        FindingKind::Scrape,
        format!("the counters of {} could not be read {when}{why}", unread.source),
        None,
        "what they say of this run is unknown, and it was not set against the replies",
        "see that its /metrics answers all the time; one that only --metrics-url names can be left out there",
    );
    (finding, Verdict::Valid)
}

/// What is missing of a page of counters changes no figure.
pub(super) fn cut(cut: &Cut) -> Judged {
    let series = cut.summed_series.map(|series| {
        format!(
            "{} series of known counters, which are kept as sums of each counter and place, without their labels",
            grouped(series)
        )
    });
    let histograms = cut
        .left_out_histograms
        .map(|series| format!("{} series of latency histograms, of which none is read", grouped(series)));
    let bytes = Some(cut.left_out_bytes).filter(|bytes| *bytes > 0);
    let bytes = bytes.map(|bytes| format!("{} of other series, which are not in metrics.prom", plural(bytes, "byte")));
    let parts: Vec<_> = series.into_iter().chain(histograms).chain(bytes).collect();
    let finding = finding(
        FindingKind::Scrape,
        format!("the page of counters of {} is too large to be kept whole: {}", cut.source, parts.join("; ")),
        None,
        "no figure of the turns: what was left out is missing from the server's own clock, or for those who look into the files",
        "see which label of its /metrics has so many values",
    );
    (finding, Verdict::Valid)
}

/// Cached tokens of the whole server.
pub(super) fn hit(report: &RunReport) -> Option<Judged> {
    let client = reported_cached(report)?;
    let of = |role| report.server.growth_of_prompts(role);
    let server = of(CounterRole::CachedTokensFinished).or_else(|| of(CounterRole::CachedTokens))?;
    let difference = relative(client, server);
    let verdict = HIT.judge(difference - unheard_share(report))?;
    if counts_twice(report).is_some() {
        return None;
    }
    let seen = format!(
        "replies say {client:.0} cached tokens, {} moved by {server:.0}: {} apart",
        whose(report),
        percent(difference)
    );
    let of_decode = |role| report.server.growth_at_decode(role);
    let decode = of_decode(CounterRole::CachedTokensFinished).or_else(|| of_decode(CounterRole::CachedTokens));
    match decode.filter(|decode| HIT.judge(relative(client, *decode) - unheard_share(report)).is_none()) {
        Some(_) => Some((decodes_own(seen), Verdict::Valid)),
        None => Some((mismatch(seen), verdict)),
    }
}

/// A decode node that counts what it was sent as cached, and says so in its replies, is right by its own lights.
fn decodes_own(seen: String) -> super::finding::Finding {
    finding(
        FindingKind::Hit,
        format!("{seen}; the decode nodes' counters moved by what the replies say"),
        HIT.words(),
        "the hit rate is that of the decode nodes, where KV that was sent to them may count: it is not the prefill's",
        "compare arms by the growth of the prefill nodes' counters in run.json",
    )
}

/// Whose counters prompts are compared with.
fn whose(report: &RunReport) -> &'static str {
    if !report.server.told_nodes().is_empty() { "the prefill nodes' counters" } else { "the server's counter" }
}

/// Where prefill and decode are apart each prompt is counted at two addresses, and who does not know which is which can
/// compare neither side.
pub(super) fn unreconciled(report: &RunReport) -> Option<Judged> {
    let (sources, why) = counts_twice(report)?;
    let sources: Vec<_> = sources.into_iter().collect();
    let finding = finding(
        FindingKind::Unreconciled,
        format!("the counters of {} were not set against the replies: {why}", sources.join(", ")),
        None,
        "where prefill and decode are apart every prompt counts at both: cached tokens and other traffic were not checked",
        "say what each node does: --metrics-url prefill=URL --metrics-url decode=URL; if they are not apart, others used \
         the servers",
    );
    Some((finding, Verdict::Valid))
}

/// The addresses whose sum counts prompts twice as far as can be told, and what shows it.
fn counts_twice(report: &RunReport) -> Option<(BTreeSet<&str>, String)> {
    let roles = [CounterRole::PromptTokens, CounterRole::CachedTokensFinished, CounterRole::CachedTokens];
    let sources = roles.map(|role| report.server.nodes_without_role(role));
    let sources = sources.into_iter().find(|sources| !sources.is_empty()).filter(|sources| sources.len() > 1)?;
    if report.ranks.iter().any(|row| matches!(row.place, Place::Pair { .. })) {
        return Some((sources, "each turn was served by two nodes, and none of them tells which it is".to_owned()));
    }
    let (client, server) = (as_f64(report.totals.prompt_tokens?), prompt_tokens(report)?);
    (client > 0.0 && server >= 2.0 * client * (1.0 - TRAFFIC.warning)).then(|| {
        let (server, client) = (grouped_float(server), grouped_float(client));
        let why = format!("together they counted {server} prompt tokens, our turns had {client}, at most half of it");
        (sources, why)
    })
}

/// Prompt tokens as the server counted them, each prompt once. llama.cpp counts apart what it computed and what it had.
fn prompt_tokens(report: &RunReport) -> Option<f64> {
    let grown = |role| report.server.growth_of_prompts(role);
    let parts = || Some(grown(CounterRole::ComputedTokens)? + grown(CounterRole::CachedTokens)?);
    grown(CounterRole::PromptTokens).or_else(parts)
}

/// Cached tokens of each place; the worst one is named. Where the sums agree, a place that does not is wrong attribution.
pub(super) fn hit_by_place(report: &RunReport) -> Option<Judged> {
    reported_cached(report)?;
    // Replies of a decode node name its rank; that of the prefill node has the same number.
    if !report.server.told_nodes().is_empty() || counts_twice(report).is_some() {
        return None;
    }
    let differences = report.ranks.iter().filter_map(|row| {
        let server = report.server.growth_at(CounterRole::CachedTokens, &row.place)?;
        let client = as_f64(row.cached_tokens.unwrap_or(0));
        Some((relative(client, server), &row.place, client, server))
    });
    let (difference, place, client, server) = differences.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let verdict = HIT.judge(difference - unheard_share(report))?;
    let seen = format!(
        "{place}: replies say {client:.0} cached tokens, its counter moved by {server:.0}: {} apart",
        percent(difference)
    );
    Some((mismatch(seen), verdict))
}

/// Prompts as the tokenizer of the run counts them and as the server did; without one their lengths are words, and no claim.
pub(super) fn prompt_length(report: &RunReport) -> Option<Judged> {
    let totals = &report.totals;
    report.manifest.spec.request.tokenizer.as_ref()?;
    let (planned, served) = (as_f64(totals.planned_prompt_tokens?), as_f64(totals.prompt_tokens?));
    let difference = relative(planned, served);
    let verdict = PROMPT.judge(difference)?;
    let turns = as_f64(totals.complete.max(1));
    let finding = finding(
        FindingKind::PromptLength,
        format!("mean prompt {:.1} tokens by the server, {:.1} by the tokenizer", served / turns, planned / turns),
        Some(percent(PROMPT.warning)),
        "prefill work and reuse differ from the plan, and so do the oracle's figures",
        "see that --tokenizer is the server's, and that no template or second BOS is added to what holds one already",
    );
    Some((finding, verdict))
}

/// Requests of others: the server counted more than our turns can explain, with all that was sent and not heard of.
pub(super) fn traffic(report: &RunReport) -> Option<Judged> {
    if counts_twice(report).is_some() {
        return None;
    }
    let server = report.server.growth_of_prompts(CounterRole::Requests);
    let found = [requests(report, server), tokens(report)];
    surplus(whose(report), &found, "others used the server, its cache and its queues during the run")
}

/// The same of the decode nodes, which whoever goes past the prefill side loads alone. Tokens of theirs are what they
/// generated: of a prompt they may count what was sent to them, or not.
pub(super) fn traffic_at_decode(report: &RunReport) -> Option<Judged> {
    let server = report.server.growth_at_decode(CounterRole::Requests);
    let found = [requests(report, server), generated(report)];
    surplus(
        "the decode nodes' counters",
        &found,
        "others used the decode nodes during the run: throughput and gaps between tokens are not of these turns alone",
    )
}

/// A finding where the worst of these is beyond what our turns explain.
fn surplus(whose: &str, found: &[Option<Counted>], effect: &str) -> Option<Judged> {
    let found = || found.iter().flatten();
    let worst = found().map(Counted::surplus).max_by(f64::total_cmp)?;
    let verdict = TRAFFIC.judge(worst)?;
    let said: Vec<_> = found().map(Counted::words).collect();
    let finding = finding(
        FindingKind::Traffic,
        format!("{whose} moved by {}", said.join(", and by ")),
        Some(percent(TRAFFIC.warning)),
        effect,
        "keep other clients away, and run again",
    );
    Some((finding, verdict))
}

/// What the server counted of something, and what of it is ours.
struct Counted {
    what: &'static str,
    server: f64,
    /// Of complete turns.
    ours: f64,
    /// Of requests that did not complete, which the server may have counted or not.
    unheard: f64,
    /// What nobody need explain.
    slack: f64,
}

impl Counted {
    /// Beyond what can be ours, as a share of what is.
    fn surplus(&self) -> f64 {
        let beyond = self.server - self.ours - self.unheard;
        if beyond > self.slack { beyond / self.ours.max(1.0) } else { 0.0 }
    }

    fn words(&self) -> String {
        let unheard = match self.unheard {
            none if none <= 0.0 => String::new(),
            some => format!(" and at most {} in requests without a complete reply", grouped_float(some)),
        };
        format!("{} {}, our turns had {}{unheard}", grouped_float(self.server), self.what, grouped_float(self.ours))
    }
}

/// Requests: whatever their prompts, each counts once at its end. One that ended just before the run may be counted in it.
fn requests(report: &RunReport, server: Option<f64>) -> Option<Counted> {
    let totals = &report.totals;
    let (ours, unheard) = (as_f64(totals.complete), as_f64(totals.unheard_requests));
    Some(Counted { what: "requests", server: server?, ours, unheard, slack: 1.0 })
}

/// Generated tokens, where each reply says how many it has. Requests that were not heard of had what was asked for at most.
fn generated(report: &RunReport) -> Option<Counted> {
    let totals = &report.totals;
    let server = report.server.growth_at_decode(CounterRole::OutputTokens)?;
    let ours = as_f64(totals.output_tokens.filter(|_| totals.output_estimated_turns == 0)?);
    let unheard = match totals.unheard_requests {
        0 => 0.0,
        _ => as_f64(totals.unheard_output_tokens?),
    };
    Some(Counted { what: "generated tokens", server, ours, unheard, slack: 0.0 })
}

/// Prompt tokens; those of requests that were not heard of as the plan has them, with what templates add to a prompt.
fn tokens(report: &RunReport) -> Option<Counted> {
    let totals = &report.totals;
    let (server, ours) = (prompt_tokens(report)?, as_f64(totals.prompt_tokens?));
    let added = totals.planned_prompt_tokens.map_or(1.0, |planned| ours / as_f64(planned).max(1.0)).max(1.0);
    let unheard = match totals.unheard_requests {
        0 => 0.0,
        _ => as_f64(totals.unheard_prompt_tokens?) * added,
    };
    // How much templates and real replies add to a turn that was cut is estimated from those that were not.
    Some(Counted { what: "prompt tokens", server, ours, unheard, slack: unheard / 20.0 })
}

/// Cached tokens in all replies; none unless every complete turn reports them.
fn reported_cached(report: &RunReport) -> Option<f64> {
    let totals = &report.totals;
    totals.cached_tokens.filter(|_| totals.cached_reported_turns == totals.complete).map(as_f64)
}

/// The server also counts turns that failed or were cut after their prefill; they may explain as much as their share.
fn unheard_share(report: &RunReport) -> f64 {
    let totals = &report.totals;
    crate::report::ratio(totals.failed + totals.cancelled, totals.planned).unwrap_or(0.0)
}

fn relative(client: f64, server: f64) -> f64 {
    (client - server).abs() / client.max(server).max(1.0)
}

fn mismatch(seen: String) -> super::finding::Finding {
    finding(
        FindingKind::Hit,
        seen,
        HIT.words(),
        "one of the two hit rates is wrong",
        "look for other traffic on the server, several workers behind one address, or a scrape of the wrong one",
    )
}

#[expect(clippy::cast_precision_loss, reason = "tokens stay below 2^53")]
fn as_f64(tokens: u64) -> f64 {
    tokens as f64
}
