//! Arms side by side as a page.

use super::number::{ABSENT, figure, or_dash, percent, plural, whole};
use super::page::{Grid, Page, Section, finding};
use super::places::{self, TILDE, marked};
use crate::compare::{Arm, ArmValue, Comparison, Contrast, MetricRow};
use crate::report::{Attribution, Stat};

/// Ratios that fit beside each other.
const ROUNDS_SHOWN: usize = 6;

/// Said under every table until intervals are computed.
const NO_CLAIM: &str = "ratio: arm over the baseline of the same round; over rounds, the geometric mean. Nothing is \
                        claimed: this version computes no interval and gives no verdict.";

/// The page of a comparison: one table per arm against the baseline, then ranks, then doubts.
#[must_use]
pub fn comparison(comparison: &Comparison) -> Page {
    let [baseline, others @ ..] = comparison.arms.as_slice() else {
        return Page { title: "gspbench compare · no arm".into(), sections: vec![] };
    };
    let mut sections = vec![];
    if !comparison.comparable {
        sections.push(Section::Lines(differences(comparison)));
    }
    let tables = others.iter().enumerate().map(|(at, arm)| Section::Table(contrast(comparison, baseline, at, arm)));
    sections.extend(tables);
    sections.push(Section::Lines(notes(comparison)));
    for arm in comparison.arms.iter().filter(|arm| !arm.ranks.is_empty()) {
        let summary = format!("Per rank: {}", arm.name);
        sections.push(Section::Details { summary, tables: vec![places::grid(&arm.ranks)] });
    }
    let findings = findings(&comparison.arms);
    if !findings.is_empty() {
        sections.push(Section::Lines(findings));
    }
    Page { title: title(comparison, baseline, others), sections }
}

fn title(comparison: &Comparison, baseline: &Arm, others: &[Arm]) -> String {
    let names: Vec<_> =
        others.iter().map(|arm| format!("{}{}", arm.name, if arm.control { " (control)" } else { "" })).collect();
    let rounds = u64::try_from(comparison.rounds.len()).unwrap_or(u64::MAX);
    format!("gspbench compare · {} against baseline {} · {}", names.join(", "), baseline.name, plural(rounds, "round"))
}

fn differences(comparison: &Comparison) -> Vec<String> {
    let difference = |d: &crate::compare::Difference| {
        format!(
            "NOT COMPARABLE: {} of {} is {}, of the baseline {} (round {})",
            d.field, d.arm, d.other, d.baseline, d.round
        )
    };
    comparison.differences.iter().map(difference).collect()
}

/// The arm at `at` after the baseline.
fn contrast(comparison: &Comparison, baseline: &Arm, at: usize, arm: &Arm) -> Grid {
    let mut grid = Grid::new(["metric", &baseline.name, &arm.name, "ratio", "by round"]);
    for row in comparison.metrics.iter().filter(|row| is_shown(comparison, row)) {
        let show = |value: &ArmValue| or_dash(value.value, |v| metric_value(row, v, value.samples));
        let contrast = &row.contrasts[at];
        let mean = or_dash(contrast.geometric_mean, ratio);
        grid.row([row.label.clone(), show(&row.arms[0]), show(&row.arms[at + 1]), mean, by_round(contrast)]);
    }
    let mut plain = |label: &str, show: &dyn Fn(&Arm) -> String| {
        grid.row([label.to_owned(), show(baseline), show(arm), String::new(), String::new()]);
    };
    plain("Ideal reuse, one endless cache (%)", &|arm| or_dash(arm.ideal_reuse, percent));
    let mut where_known = |label: &str, get: fn(&Arm) -> Option<f64>, show: fn(f64) -> String| {
        if get(baseline).or(get(arm)).is_some() {
            plain(label, &|arm| or_dash(get(arm), show));
        }
    };
    where_known("Expected reuse, round robin (%)", |arm| arm.round_robin_reuse, percent);
    where_known("Expected reuse at the places seen (%)", |arm| arm.expected_reuse, percent);
    where_known("Stickiness (%)", |arm| arm.stickiness, percent);
    where_known("Turns per place, max/mean", |arm| arm.load_max_over_mean, figure);
    plain("Prompt tokens planned", &|arm| or_dash(arm.planned_prompt_tokens, whole));
    plain("Prompt tokens served", &|arm| or_dash(arm.prompt_tokens, whole));
    plain("Successful requests", &|arm| format!("{} of {}", whole(arm.complete), whole(arm.planned)));
    plain("Failed requests", &|arm| whole(arm.failed));
    grid
}

/// Latencies from due and the time to answer stand in the files; between frames is shown where tokens are not known.
fn is_shown(comparison: &Comparison, row: &MetricRow) -> bool {
    let has_itl = || comparison.metrics.iter().any(|row| row.key.starts_with("itl_ms."));
    match row.key.split('.').next() {
        Some("ttft_from_due_ms" | "e2e_from_due_ms" | "answer_ms") => false,
        Some("icl_ms") => !has_itl(),
        _ => true,
    }
}

fn metric_value(row: &MetricRow, value: f64, samples: u64) -> String {
    if row.unit == "ratio" { percent(value) } else { marked(value, samples, row.least_samples) }
}

/// Each round's ratio; of more rounds than fit on a line, the range.
fn by_round(contrast: &Contrast) -> String {
    if contrast.ratios.len() <= ROUNDS_SHOWN {
        return contrast.ratios.iter().map(|round| or_dash(round.ratio, ratio)).collect::<Vec<_>>().join(" ");
    }
    let known = || contrast.ratios.iter().filter_map(|round| round.ratio);
    match (known().reduce(f64::min), known().reduce(f64::max)) {
        (Some(low), Some(high)) => format!("{low:.3} … {high:.3}"),
        _ => ABSENT.to_owned(),
    }
}

fn ratio(ratio: f64) -> String {
    format!("{ratio:.3}")
}

fn notes(comparison: &Comparison) -> Vec<String> {
    let is_thin = |row: &&MetricRow| {
        row.key.ends_with(Stat::P99.key())
            && row.arms.iter().any(|arm| arm.value.is_some() && arm.samples < row.least_samples)
    };
    let tilde = comparison.metrics.iter().find(is_thin).map(|_| TILDE.to_owned());
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
    tilde.into_iter().chain([NO_CLAIM.to_owned()]).chain(unplaced).collect()
}

fn rounds_of(rounds: &[String]) -> String {
    format!("round{} {}", if rounds.len() == 1 { "" } else { "s" }, rounds.join(", "))
}

/// The same finding in several rounds is said once, with its first words and all its rounds.
fn findings(arms: &[Arm]) -> Vec<String> {
    let mut lines = vec![];
    for arm in arms {
        for (mark, found) in [("VOID", &arm.voids), ("warning", &arm.warnings)] {
            let mut kinds: Vec<_> = found.iter().map(|(_, finding)| finding.kind).collect();
            kinds.sort_unstable();
            kinds.dedup();
            for kind in kinds {
                let same: Vec<_> = found.iter().filter(|(_, finding)| finding.kind == kind).collect();
                let rounds: Vec<_> = same.iter().map(|(round, _)| round.to_string()).collect();
                let first = same.first().map_or(ABSENT.to_owned(), |(_, first)| finding(mark, first));
                lines.push(format!("{}, {}: {first}", arm.name, rounds_of(&rounds)));
            }
        }
    }
    lines
}
