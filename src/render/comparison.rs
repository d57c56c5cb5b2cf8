//! Arms side by side as a page: the verdict, the judged rows, what to know of them, then everything else.

use std::collections::BTreeMap;

use super::claim::{claims, noise};
use super::number::{change, figure, or_dash, plural, whole};
use super::page::{Grid, Page, Section, finding};
use super::places::{self, TILDE};
use super::setting::First;
use super::{judged, legend, setting};
use crate::compare::{Arm, Comparison, Difference, InfoDifference, Interrupted, MetricRow, Pair};
use crate::report::{Attribution, Finding, FindingKind, GateOutcome, Stat, WithFailures};

/// Differences that are listed; a server of another version may differ in hundreds of fields.
const MOST_DIFFERENCES: usize = 20;
/// Characters of a field of `server_info`.
const LONGEST_VALUE: usize = 40;

/// The page of a comparison.
#[must_use]
pub fn comparison(comparison: &Comparison) -> Page {
    let [baseline, others @ ..] = comparison.arms.as_slice() else {
        return Page { title: "gspbench compare · no arm".into(), sections: vec![] };
    };
    let cut = comparison.interrupted.as_ref().map(|cut| Section::Lead(vec![interrupted(cut)]));
    let mut sections: Vec<_> = cut.into_iter().chain([Section::Claims(claims(comparison))]).collect();
    sections.extend(noise(comparison).map(|line| Section::Lead(vec![line])));
    let first = if comparison.rounds.len() > 1 { First::Round } else { First::Only };
    let about = comparison.setting.as_ref().map(|about| setting::lines(about, first));
    sections.extend(about.map(Section::Lead));
    let mut say = |lines: Vec<String>| sections.extend((!lines.is_empty()).then_some(Section::Lines(lines)));
    say(comparison.gates.iter().map(gate).collect());
    say(limited(&comparison.differences, |d| format!("NOT COMPARABLE: {}", difference(d))));
    for (at, arm) in others.iter().enumerate() {
        sections.push(Section::Table(judged::judged(comparison, baseline, at, arm)));
    }
    sections.push(Section::Lines(notes(comparison)));
    for (at, arm) in others.iter().enumerate() {
        let summary = format!("All metrics: {} against {}", arm.name, baseline.name);
        sections.push(Section::Details {
            summary,
            tables: vec![judged::all(comparison, baseline, at, arm), judged::rounds(comparison, at)],
        });
    }
    sections.extend(with_failures(&comparison.arms));
    for arm in comparison.arms.iter().filter(|arm| !arm.ranks.is_empty()) {
        let summary = format!("Per rank: {}", arm.name);
        sections.push(Section::Details { summary, tables: vec![places::grid(&arm.ranks)] });
    }
    sections.extend(server_info(&comparison.server_info));
    if !comparison.commands.is_empty() {
        let summary = "How to run it again".to_owned();
        sections.push(Section::Code { summary, lines: comparison.commands.clone() });
    }
    let findings = findings(&comparison.arms);
    if !findings.is_empty() {
        sections.push(Section::Lines(findings));
    }
    Page { title: title(comparison, baseline, others), sections }
}

fn interrupted(cut: &Interrupted) -> String {
    let Interrupted { rounds_done, rounds_planned, dir } = cut;
    let rounds = plural((*rounds_planned).into(), "round");
    format!("INTERRUPTED after {rounds_done} of {rounds}: go on with `gspbench ab --resume {dir}`")
}

fn title(comparison: &Comparison, baseline: &Arm, others: &[Arm]) -> String {
    let names: Vec<_> =
        others.iter().map(|arm| format!("{}{}", arm.name, if arm.control { " (control)" } else { "" })).collect();
    let rounds = u64::try_from(comparison.rounds.len()).unwrap_or(u64::MAX);
    format!("gspbench compare · {} against baseline {} · {}", names.join(", "), baseline.name, plural(rounds, "round"))
}

fn gate(outcome: &GateOutcome) -> String {
    let GateOutcome { gate, arm, passed, seen } = outcome;
    let arm = arm.as_ref().map_or(String::new(), |arm| format!(", {arm}"));
    format!("gate {}{arm}: `{gate}`: {seen}", if *passed { "passed" } else { "FAILED" })
}

fn difference(difference: &Difference) -> String {
    let Difference { round, arm, field, baseline, other } = difference;
    let show = |value: &String| if field.starts_with("server_info.") { short(value) } else { value.clone() };
    format!("{field} of {arm} is {}, of the baseline {} (round {round})", show(other), show(baseline))
}

/// Values of `server_info` may be long.
fn short(value: &str) -> String {
    match value.char_indices().nth(LONGEST_VALUE) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

fn limited<T>(all: &[T], show: impl Fn(&T) -> String) -> Vec<String> {
    let more = all.len().saturating_sub(MOST_DIFFERENCES);
    let tail = (more > 0).then(|| format!("and {more} more, which stand in comparison.json"));
    all.iter().take(MOST_DIFFERENCES).map(show).chain(tail).collect()
}

/// What a reader must know of the table above.
fn notes(comparison: &Comparison) -> Vec<String> {
    let is_thin = |row: &&MetricRow| {
        row.key.ends_with(Stat::P99.key())
            && row.arms.iter().any(|arm| arm.value.is_some() && arm.samples < row.least_samples)
    };
    let tilde = comparison.metrics.iter().find(is_thin).map(|_| format!("{TILDE}, and not judged"));
    let unplaced = comparison.arms.iter().filter_map(|arm| {
        let Attribution { known, turns, source: _, reason } = &arm.attribution;
        let reason = reason.as_ref()?;
        Some(format!(
            "{}: the place of {} of {} is unknown: {reason}",
            arm.name,
            whole(turns - known),
            plural(*turns, "turn")
        ))
    });
    let doubts = comparison.doubts.iter().map(|doubt| format!("doubt: {doubt}"));
    let remarks = limited(&comparison.remarks, |remark| format!("note: {}", difference(remark)));
    tilde
        .into_iter()
        .chain([legend::legend(comparison)])
        .chain(legend::crossing(comparison))
        .chain(costs(comparison))
        .chain(doubts)
        .chain(remarks)
        .chain(unplaced)
        .collect()
}

/// One line an arm, from the servers' own counters.
fn costs(comparison: &Comparison) -> Vec<String> {
    let line = |cost: &crate::compare::Cost| {
        let tokens = cost.computed_tokens.map(|Pair { baseline, other }| {
            let saved = baseline - other;
            let word = if saved < 0.0 { "more" } else { "avoided" };
            let (from, to) = (tokens(baseline), tokens(other));
            format!(
                "prompt tokens computed {from} → {to} ({} %), {} {word}",
                change(other / baseline),
                tokens(saved.abs())
            )
        });
        let busy = cost.prefill_busy_ms.map(|Pair { baseline, other }| {
            let (from, to) = (figure(baseline / 1e3), figure(other / 1e3));
            format!("time in prefill over all ranks {from} → {to} s ({} %)", change(other / baseline))
        });
        let parts: Vec<_> = tokens.into_iter().chain(busy).collect();
        (!parts.is_empty()).then(|| format!("cost by the servers' counters, {}: {}", cost.arm, parts.join("; ")))
    };
    comparison.costs.iter().filter_map(line).collect()
}

/// A sum of counters, which are whole numbers.
fn tokens(tokens: f64) -> String {
    if tokens < 1_000.0 { format!("{tokens:.0}") } else { figure(tokens) }
}

/// Percentiles in which failures count, where there were any.
fn with_failures(arms: &[Arm]) -> Option<Section> {
    let mut grid = Grid::new(["arm", "latency (ms)", "turns", "failed", "p50", "p90", "p95", "p99"]);
    for (arm, latency, with) in
        arms.iter().flat_map(|arm| arm.with_failures.iter().map(move |(of, with)| (arm, of, with)))
    {
        let WithFailures { count, failed, p50, p90, p95, p99 } = *with;
        let show = |value: Option<f64>| value.map_or_else(|| "∞".to_owned(), figure);
        let name = latency.trim_end_matches("_ms").to_uppercase();
        grid.row([arm.name.clone(), name, whole(count), whole(failed), show(p50), show(p90), show(p95), show(p99)]);
    }
    let summary = "Percentiles in which a failed request counts as one that never ended".to_owned();
    (!grid.rows.is_empty()).then(|| Section::Details { summary, tables: vec![grid] })
}

fn server_info(differences: &[InfoDifference]) -> Option<Section> {
    let mut grid = Grid::new(["field", "arm", "baseline", "this arm", "may differ"]);
    for difference in differences {
        let InfoDifference { round: _, arm, field, baseline, other, may_differ } = difference;
        let show = |value: &Option<String>| or_dash(value.as_ref(), |value| short(value));
        let may = if *may_differ { "yes" } else { "NO" };
        grid.row([field.clone(), arm.clone(), show(baseline), show(other), may.to_owned()]);
    }
    let summary = "Where server_info differs".to_owned();
    (!grid.rows.is_empty()).then(|| Section::Details { summary, tables: vec![grid] })
}

fn rounds_of(rounds: &[String]) -> String {
    format!("round{} {}", if rounds.len() == 1 { "" } else { "s" }, rounds.join(", "))
}

/// The same finding in several rounds is said once, with all its rounds and the words of the first of them. What has the
/// same effect is the same finding: figures differ from round to round, and one kind may have several causes.
fn findings(arms: &[Arm]) -> Vec<String> {
    let mut lines = vec![];
    for arm in arms {
        for (mark, found) in [("VOID", &arm.voids), ("warning", &arm.warnings)] {
            let mut same: BTreeMap<(FindingKind, &str), Vec<&(u32, Finding)>> = BTreeMap::new();
            for one in found {
                same.entry((one.1.kind, &one.1.effect)).or_default().push(one);
            }
            for of_one_kind in same.into_values() {
                let mut rounds: Vec<_> = of_one_kind.iter().map(|(round, _)| round.to_string()).collect();
                // One kind may have several causes in one round.
                rounds.dedup();
                let (first, words) = of_one_kind[0];
                let whose = if of_one_kind.len() > 1 { format!(" (figures of round {first})") } else { String::new() };
                lines.push(format!("{}, {}{whose}: {}", arm.name, rounds_of(&rounds), finding(mark, words)));
            }
        }
    }
    lines
}
