//! Arms over the baseline, a dot a round: how large the difference is, and how sure.

use super::element::{Element, el};
use super::figure::{Drawing, Figure, WIDTH, dot, label, line};
use super::scale::Scale;
use crate::compare::{Comparison, Contrast, Interval, MetricRow, Verdict};
use crate::render::number::{figure as number, or_dash, percent, word};
use crate::render::page::Grid;
use crate::report::Better;

const LEFT: f64 = 12.0;
const RIGHT: f64 = WIDTH - 12.0;
const TOP: f64 = 22.0;
/// Height of a metric: its name and figures, and below them its dots.
const ROW: f64 = 36.0;
/// What people quote beside the metrics that are judged.
const BESIDE: [&str; 3] = ["ttft_ms.p50", "itl_ms.mean", "e2e_ms.mean"];

/// A plot for every arm after the baseline.
pub(super) fn figures(comparison: &Comparison) -> Vec<Figure> {
    comparison.arms.iter().skip(1).enumerate().map(|(at, arm)| figure(comparison, at, &arm.name)).collect()
}

/// The arm at `at` after the baseline.
fn figure(comparison: &Comparison, at: usize, arm: &str) -> Figure {
    let wanted = comparison.metrics.iter().filter(|row| row.judged || BESIDE.contains(&row.key.as_str()));
    let wanted = wanted.filter_map(|row| Some((row, row.contrasts.get(at)?)));
    let (rows, without): (Vec<_>, Vec<_>) = wanted.partition(|(_, contrast)| contrast.geometric_mean.is_some());
    let bars = if rows.iter().any(|(_, contrast)| contrast.interval.is_some()) { "; bar: its interval" } else { "" };
    let says = format!(
        "{arm} over {} of the same round. Small dot: a round; diamond: geometric mean{bars}. Arrows point to better.{}",
        comparison.baseline,
        left_out(&without)
    );
    let drawing = if rows.is_empty() {
        Drawing::Absent("no round has both arms with valid numbers".into())
    } else {
        drawing(&rows)
    };
    Figure { title: format!("Ratio to {}: {arm}", comparison.baseline), says, drawing }
}

/// The judged rows that have no ratio to draw, and why.
fn left_out(rows: &[(&MetricRow, &Contrast)]) -> String {
    let why = |contrast: &Contrast| {
        if contrast.ratios.iter().any(|round| round.ratio == Some(0.0)) {
            "it is 0 in a round, and a ratio of 0 has no place on this scale"
        } else {
            "no round of both arms has it above 0"
        }
    };
    let judged = rows.iter().filter(|(row, _)| row.judged);
    let named: Vec<_> = judged.map(|(row, contrast)| format!("{} ({})", row.name(), why(contrast))).collect();
    if named.is_empty() { String::new() } else { format!(" Judged, but not drawn: {}.", named.join("; ")) }
}

fn drawing(rows: &[(&MetricRow, &Contrast)]) -> Drawing {
    let values = || rows.iter().flat_map(|(_, contrast)| values(contrast));
    let (least, most) = (values().fold(0.95, f64::min), values().fold(1.05, f64::max));
    let x = Scale::log((least / 1.03, most * 1.03), (LEFT, RIGHT));
    let bottom = rows.iter().fold(TOP, |bottom, _| bottom + ROW) + 4.0;
    let mut marks = vec![];
    for tick in x.ticks() {
        marks.push(label(x.at(tick), TOP - 8.0, "tick middle", format!("{}×", (tick * 1e4).round() / 1e4)));
    }
    let mut top = TOP;
    for (row, contrast) in rows {
        marks.extend(metric(row, contrast, &x, top));
        top += ROW;
    }
    Drawing::Plot { height: bottom + 4.0, marks, data: data(rows) }
}

fn values(contrast: &Contrast) -> impl Iterator<Item = f64> {
    let interval = contrast.interval.iter().flat_map(|interval| [interval.low, interval.high]);
    let rounds = contrast.ratios.iter().filter_map(|round| round.ratio);
    rounds.chain(interval).filter(|ratio| ratio.is_finite() && *ratio > 0.0)
}

fn metric(row: &MetricRow, contrast: &Contrast, x: &Scale, top: f64) -> Vec<Element> {
    let y = top + 25.0;
    let arrow = if row.better == Better::Higher { "→" } else { "←" };
    let class = class(contrast);
    // Lines in the strip of the dots only, so that none goes through letters.
    let mut marks: Vec<_> =
        x.ticks().into_iter().map(|tick| line((x.at(tick), y - 7.0), (x.at(tick), y + 7.0), "grid")).collect();
    marks.push(line((x.at(1.0), y - 9.0), (x.at(1.0), y + 9.0), "axis"));
    marks.extend([
        label(LEFT, top + 13.0, "name", format!("{arrow} {}", row.name())),
        label(RIGHT, top + 13.0, &format!("figure end {class}"), said(contrast)),
    ]);
    if let Some(Interval { low, high, .. }) = contrast.interval {
        marks.push(line((x.at(low), y), (x.at(high), y), &format!("interval {class}")));
    }
    for round in &contrast.ratios {
        let Some(ratio) = round.ratio else { continue };
        marks.push(dot(x.at(ratio), y, 2.2, "round", format!("round {}: {}×", round.round, number(ratio))));
    }
    marks.extend(contrast.geometric_mean.map(|mean| diamond(x.at(mean), y, class)));
    marks
}

/// Colours that judge, where there is a verdict, and nowhere else.
fn class(contrast: &Contrast) -> &'static str {
    match contrast.verdict {
        Some(Verdict::Better) => "better",
        Some(Verdict::Worse) => "worse",
        Some(Verdict::Same | Verdict::Unclear) => "same",
        None => "c1",
    }
}

fn said(contrast: &Contrast) -> String {
    let mean = or_dash(contrast.geometric_mean, |mean| format!("{}×", number(mean)));
    let interval = |Interval { low, high, .. }: &Interval| format!(" [{}, {}]", number(*low), number(*high));
    let interval = contrast.interval.as_ref().map_or(String::new(), interval);
    let verdict = contrast.verdict.map_or(String::new(), |verdict| format!(" {}", word(&verdict)));
    mean + &interval + &verdict
}

fn diamond(x: f64, y: f64, class: &str) -> Element {
    let points = format!("{:.1},{y} {x:.1},{} {:.1},{y} {x:.1},{}", x - 6.0, y - 6.0, x + 6.0, y + 6.0);
    el("polygon").with("points", points).with("class", format!("diamond {class}"))
}

fn data(rows: &[(&MetricRow, &Contrast)]) -> Grid {
    let mut grid = Grid::new(["metric", "ratio", "low", "high", "level (%)", "verdict", "by round"]);
    for (row, contrast) in rows {
        let interval = contrast.interval;
        let rounds: Vec<_> = contrast.ratios.iter().map(|round| or_dash(round.ratio, number)).collect();
        grid.row([
            row.label.clone(),
            or_dash(contrast.geometric_mean, number),
            or_dash(interval, |interval| number(interval.low)),
            or_dash(interval, |interval| number(interval.high)),
            or_dash(interval, |interval| percent(interval.level)),
            or_dash(contrast.verdict, |verdict| word(&verdict)),
            rounds.join(" "),
        ]);
    }
    grid
}
