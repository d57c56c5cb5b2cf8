//! One run as a page.

use std::net::IpAddr;

use super::audit;
use super::number::{figure, or_dash, percent, plural, whole, word};
use super::page::{Grid, Page, Section, finding};
use super::places::{self, TILDE};
use super::{clock, setting, windows};
use crate::report::{
    Fact, KeySeen, Latency, Metric, RequestSpec, RunReport, ServerFacts, Source, Spilled, Stat, Untold, Verdict,
    metrics,
};

/// The page of one run: throughput, reuse and failures, latencies, ranks, affinity, warnings last.
#[must_use]
pub fn run(report: &RunReport) -> Page {
    let mut sections =
        vec![Section::Lead(origin(report)), Section::Table(totals(report)), Section::Table(latencies(report))];
    if !report.metrics.failed_ms.is_empty() {
        sections.push(Section::Table(failures(report)));
    }
    sections.extend(audit::ttft(report));
    sections.extend(clock::section(report));
    if !report.ranks.is_empty() {
        sections.push(Section::Details { summary: "Per rank".into(), tables: vec![places::grid(&report.ranks)] });
    }
    let loads = crate::report::loads(&report.server.series, report.server.kv_tokens_per_rank);
    if !loads.is_empty() {
        let summary = "Load of the server, as sampled while turns ran".into();
        sections.push(Section::Details { summary, tables: vec![places::load_grid(&loads)] });
    }
    if let Some(window) = &report.windows.steady {
        let tables = vec![windows::steady_latencies(window)];
        sections.push(Section::Details { summary: "Turns sent in the steady window".into(), tables });
    }
    sections.extend(audit::tables(report));
    sections.push(Section::Lines(affinity(report)));
    let summary = "How to run it again".to_owned();
    sections.extend(report.command().map(|command| Section::Code { summary, lines: vec![command] }));
    let untold: Vec<_> = report.server.untold.iter().map(untold).collect();
    if !untold.is_empty() {
        sections.push(Section::Lines(untold));
    }
    let findings = findings(report);
    if !findings.is_empty() {
        sections.push(Section::Lines(findings));
    }
    Page { title: title(report), sections }
}

fn title(report: &RunReport) -> String {
    let manifest = &report.manifest;
    let arm = manifest.arm.as_ref().map_or(String::new(), |arm| format!(" · arm {arm}"));
    let round = manifest.round.map_or(String::new(), |round| format!(" · round {round}"));
    let verdict = match report.validity.verdict {
        Verdict::Valid => "",
        Verdict::Void => " · VOID",
    };
    format!("gspbench run · {}{arm}{round} · {}{verdict}", manifest.spec.name, word(&report.state))
}

fn origin(report: &RunReport) -> Vec<String> {
    let (workload, server, manifest) = (&report.workload, &report.server, &report.manifest);
    let server: Vec<String> = [
        server
            .kind
            .clone()
            .map(|kind| server.version.as_ref().map_or(kind.clone(), |version| format!("{kind} {version}"))),
        server.model.clone(),
        server.ranks.map(|ranks| plural(ranks.into(), "rank")),
        server.load_balance_method.clone(),
        kv_cache(server),
        match server.key_seen {
            KeySeen::Yes => Some("routing keys arrive".into()),
            KeySeen::No => Some("routing keys do not arrive".into()),
            KeySeen::Unknown => None,
        },
    ]
    .into_iter()
    .flatten()
    .collect();
    let load = manifest.load();
    // Of another program's prompts nothing is known.
    let distinct =
        report.foreign.is_none().then(|| format!(" with {}", plural(workload.distinct_prompts, "distinct prompt")));
    let mut lines = vec![format!("server: {}", if server.is_empty() { "unknown".into() } else { server.join(" · ") })];
    lines.extend(report.simulated().as_ref().map(|simulated| format!("server is {}", setting::how(simulated))));
    lines.extend([
        format!(
            "workload: {}, {}, {}{} · {} prompt + {} planned · {} · seed {} · digest {}",
            plural(workload.groups.into(), "group"),
            plural(workload.sessions, "session"),
            plural(workload.turns, "turn"),
            distinct.unwrap_or_default(),
            whole(workload.prompt_tokens),
            plural(workload.output_tokens, "output token"),
            load,
            manifest.spec.workload.seed,
            workload.digest,
        ),
        windows::line(report),
    ]);
    lines.extend(resolved(&report.server));
    lines.extend(trust(&manifest.spec.request));
    lines.extend(windows::to_last_success(report));
    lines.extend(windows::finished_only(report));
    lines
}

/// Where the turns went, where the target was given by name.
fn resolved(server: &ServerFacts) -> Option<String> {
    let of = |(name, found): (&String, &Vec<IpAddr>)| {
        let found: Vec<_> = found.iter().map(IpAddr::to_string).collect();
        format!("{name} → {}", found.join(", "))
    };
    let names: Vec<_> = server.resolved.iter().map(of).collect();
    (!names.is_empty()).then(|| format!("looked up once, before the run: {}", names.join(" · ")))
}

/// Whose certificates were believed, where it is not those of this host's store.
fn trust(request: &RequestSpec) -> Option<String> {
    match &request.ca_file {
        _ if request.insecure => Some("TLS: any certificate is trusted (--insecure)".to_owned()),
        Some(file) => Some(format!("TLS: certificates of {} (--ca-file)", file.display())),
        None => None,
    }
}

fn kv_cache(server: &ServerFacts) -> Option<String> {
    let rank = whole(server.kv_tokens_per_rank?);
    let total =
        server.kv_tokens_total.filter(|_| server.ranks != Some(1)).map(|total| format!(", {} in all", whole(total)));
    Some(format!("KV cache of {rank} tokens a rank{}", total.unwrap_or_default()))
}

fn totals(report: &RunReport) -> Grid {
    let (totals, metrics_) = (&report.totals, &report.metrics);
    let steady = report.windows.steady.as_ref();
    let mut grid = Grid::new(["metric", "whole run", "steady"]);
    let mut row = |label: &str, value: String| grid.row([label.to_owned(), value, String::new()]);
    row("Successful requests", format!("{} of {}", whole(totals.complete), whole(totals.planned)));
    let kinds: Vec<_> = totals.failed_by_kind.iter().map(|(kind, turns)| format!("{kind} {turns}")).collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    row("Failed requests", format!("{}{kinds}", whole(totals.failed)));
    if totals.cancelled + totals.skipped > 0 {
        row("Cancelled / skipped", format!("{} / {}", whole(totals.cancelled), whole(totals.skipped)));
    }
    let length = steady.map(|window| window.to_us.since(window.from_us).as_secs());
    let duration = or_dash(metrics_.duration_s, figure);
    grid.row(["Benchmark duration (s)".to_owned(), duration, or_dash(length, figure)]);
    // Rates that every window has too; goodput is of the whole run.
    let is_rate = |m: &&Metric| matches!((m.source, m.unit), (Source::Figure(_), unit) if unit != "ratio");
    for metric in metrics().iter().filter(is_rate).filter(|metric| metric.key != "goodput") {
        let in_window = or_dash(steady, |window| windows::rate(window, &metric.key));
        grid.row([metric.label.clone(), or_dash(metric.value(report), figure), in_window]);
    }
    let mut row = |label: &str, value: String| grid.row([label.to_owned(), value, String::new()]);
    if let Some(slo) = report.manifest.spec.slo {
        row(&format!("Goodput under {slo} ms (req/s)"), or_dash(metrics_.goodput, figure));
        row("SLO attainment (%)", or_dash(metrics_.slo_attainment, percent));
    }
    // Of turns that were never sent, the plan knows the prompts.
    let planned = totals.planned_prompt_tokens.or((report.foreign.is_none()).then_some(report.workload.prompt_tokens));
    row("Prompt tokens planned / served", pair(planned, totals.prompt_tokens));
    let short =
        (totals.short_output_turns > 0).then(|| format!(" ({} short)", plural(totals.short_output_turns, "turn")));
    let output = pair(Some(totals.planned_output_tokens), totals.output_tokens);
    row("Output tokens planned / served", output + &short.unwrap_or_default());
    let coverage = metrics_.cache_hit_rate.coverage.filter(|coverage| *coverage < 1.0);
    let coverage = coverage.map_or(String::new(), |share| format!(" (told by {} % of turns)", percent(share)));
    row("Cache hit rate (%)", or_dash(metrics_.cache_hit_rate.value, percent) + &coverage);
    let oracle = &report.workload.oracle;
    row("Ideal reuse, endless cache (%)", or_dash(oracle.ideal_reuse, percent));
    row("Expected reuse, places seen (%)", or_dash(oracle.observed.as_ref().map(|o| o.reuse), percent));
    if let Some(spread) = &oracle.round_robin {
        // What the server does not tell was given, or is the profile's default.
        let by = if report.server.ranks.is_some() { "" } else { ", as server.ranks says" };
        row(&format!("Expected reuse, round robin over {}{by} (%)", spread.ranks), percent(spread.reuse));
    }
    if steady.is_none() {
        grid.drop_last_column();
    }
    grid
}

fn pair(planned: Option<u64>, served: Option<u64>) -> String {
    format!("{} / {}", or_dash(planned, whole), or_dash(served, whole))
}

fn latencies(report: &RunReport) -> Grid {
    let mut grid = Grid::new(["latency (ms)", "mean", "p50", "p90", "p95", "p99", "samples"]);
    let reasons = report.totals.reasoning_tokens.is_some_and(|tokens| tokens > 0);
    for latency in Latency::ALL.into_iter().filter(|latency| *latency != Latency::Answer || reasons) {
        windows::latency(&mut grid, latency.label().to_owned(), latency.of(&report.metrics));
    }
    grid
}

/// Failed turns are in no other latency: fast errors would flatter it.
fn failures(report: &RunReport) -> Grid {
    let mut grid = Grid::new(["failed turns, done − sent (ms)", "turns", "p50", "p99", "max"]);
    for (kind, summary) in &report.metrics.failed_ms {
        let [p50, p99] = [Stat::P50, Stat::P99].map(|stat| places::statistic(summary, stat));
        grid.row([kind.clone(), whole(summary.count), p50, p99, figure(summary.max)]);
    }
    grid
}

fn affinity(report: &RunReport) -> Vec<String> {
    let affinity = &report.affinity;
    let keys = affinity.keys.map_or(String::new(), |keys| format!(", {}", plural(keys, "key")));
    let mut parts = vec![format!("key by {}{keys}", word(&affinity.key_by)), plural(affinity.sessions, "session")];
    parts.extend(affinity.split_sessions.map(|split| format!("{} on several places", whole(split))));
    parts.extend(affinity.stickiness.map(|share| format!("stickiness {} %", percent(share))));
    let spilled = |spilled: &Spilled| format!("{} spilled, says the {}", plural(spilled.turns, "turn"), spilled.from);
    parts.extend(affinity.spilled.as_ref().map(spilled));
    parts.extend(
        affinity.off_majority_turns.map(|turns| format!("{} off their key's main place", plural(turns, "turn"))),
    );
    parts.extend(
        affinity.zero_hit_share.map(|share| format!("{} % of later turns with nothing cached", percent(share))),
    );
    let mut lines = vec![format!("affinity: {}", parts.join(" · "))];
    lines.extend(audit::moves(affinity));
    lines.extend(audit::compared(report));
    if let (Some(peak), Some(cv)) = (affinity.load_max_over_mean, affinity.load_cv) {
        let keys: Vec<_> = affinity.keys_per_rank.iter().map(u64::to_string).collect();
        let keys = if keys.is_empty() { String::new() } else { format!(" · keys per place {}", keys.join(" ")) };
        lines.push(format!("balance: turns max/mean {}, coefficient of variation {}{keys}", figure(peak), figure(cv)));
    }
    let attribution = &affinity.attribution;
    let source = attribution.source.map_or(String::new(), |source| format!(" (from {})", word(&source)));
    let reason = attribution.reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    lines.push(format!(
        "places known for {} of {}{source}{reason}",
        whole(attribution.known),
        plural(attribution.turns, "turn")
    ));
    lines.extend(windows::client(report));
    lines
}

fn untold(untold: &Untold) -> String {
    let what = match untold.fact {
        Fact::CachedTokens => "cached tokens of its replies",
        Fact::Place => "where a turn was served",
        Fact::Counters => "counters of its own",
        Fact::Usage => "token counts of its replies",
        Fact::Ranks => "how many ranks it has",
        Fact::Key => "whether routing keys arrive",
    };
    format!("the server does not tell {what}: {}", untold.remedy)
}

fn findings(report: &RunReport) -> Vec<String> {
    let tilde = Latency::ALL
        .iter()
        .filter_map(|latency| latency.of(&report.metrics))
        .chain(report.metrics.failed_ms.values())
        .any(|summary| summary.count < Stat::P99.least_samples());
    let tilde = tilde.then(|| TILDE.to_owned());
    let voids = report.validity.voids.iter().map(|void| finding("VOID", void));
    let warnings = report.validity.warnings.iter().map(|warning| finding("warning", warning));
    tilde.into_iter().chain(voids).chain(warnings).collect()
}
