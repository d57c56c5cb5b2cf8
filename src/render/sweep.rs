//! A sweep as a page, and as comma-separated values.

use super::csv::quoted;
use super::number::{figure, or_dash, percent, plural, whole, word};
use super::page::{Grid, Mark, Page, Section, kinds};
use super::setting::{self, First};
use crate::experiment::{Curve, Curves, Point, Stop};
use crate::report::Stat;

/// What was measured, the figures of every step, and of each arm the highest load that holds.
#[must_use]
pub fn sweep(curves: &Curves) -> Page {
    let steps = curves.arms.iter().flat_map(|curve| &curve.points).map(|point| point.step).max().unwrap_or(0);
    let title = format!("gspbench sweep · {} · {}", curves.axis.unit(), plural(steps.into(), "step"));
    let claims = curves.arms.iter().map(|curve| [claim(curves, curve), rest(curve)]).collect();
    let mut sections = vec![Section::Claims(claims)];
    let first = curves.setting_step.map_or(First::Only, First::Step);
    sections.extend(curves.setting.as_ref().map(|about| Section::Lead(setting::lines(about, first))));
    sections.extend([Section::Table(rates(curves)), Section::Table(latencies(curves))]);
    if let (Some(slo), Some(share)) = (curves.slo, curves.attainment) {
        sections.push(Section::Lines(vec![format!(
            "A step holds when {} % of its turns meet {slo} (ms). The highest load that holds has no step below it that does not",
            percent(share)
        )]));
    }
    let summary = "How to run it again".to_owned();
    sections.extend(curves.command.as_ref().map(|command| Section::Code { summary, lines: vec![command.clone()] }));
    sections.extend(voids(curves));
    Page { title, sections }
}

fn claim(curves: &Curves, curve: &Curve) -> String {
    let (arm, load) = (&curve.arm, |level| curves.axis.load(level));
    let Some(slo) = curves.slo else {
        let usable = curve.points.iter().filter(|point| point.is_usable());
        let best = usable.filter_map(|point| Some((point.request_throughput?, point.level)));
        return best.max_by(|a, b| a.0.total_cmp(&b.0)).map_or_else(
            || format!("{arm}: no step was measured"),
            |(rate, level)| format!("{arm} serves {} req/s at most, with {}", figure(rate), load(level)),
        );
    };
    match (curve.holds, curve.points.first()) {
        (Some(held), _) => {
            let goodput = or_dash(held.goodput, figure);
            format!("{arm} holds {slo} up to {}, with a goodput of {goodput} req/s", load(held.level))
        }
        (None, Some(point)) if point.holds.is_none() => {
            format!("{arm}: nothing is known of {}, the lowest load", load(point.level))
        }
        (None, Some(point)) => format!("{arm} does not hold {slo} at {}, the lowest load", load(point.level)),
        (None, None) => format!("{arm}: no step was measured"),
    }
}

fn rest(curve: &Curve) -> String {
    match curve.stopped {
        Some(Stop::SloMissed) => "It climbed no further: the last step missed the objectives.",
        Some(Stop::Saturated) => "It climbed no further: twice the load brought less than 5 % more throughput.",
        Some(Stop::Unusable) => "It climbed no further: the last step gave no numbers, nor did its repetition.",
        Some(Stop::Top) => "Every load of the sweep was run.",
        None => "The sweep ended before this arm had climbed as far as it was to.",
    }
    .to_owned()
}

/// Every point with its arm, step by step.
fn points(curves: &Curves) -> Vec<(&Curve, &Point)> {
    let of = |curve| move |point| (curve, point);
    let mut all: Vec<_> = curves.arms.iter().flat_map(|curve| curve.points.iter().map(of(curve))).collect();
    all.sort_by_key(|(_, point)| point.step);
    all
}

fn rates(curves: &Curves) -> Grid {
    let load = curves.axis.unit();
    let mut grid = Grid::new([
        "arm",
        load,
        "req/s",
        "output tok/s",
        "hit rate (%)",
        "failed",
        "goodput (req/s)",
        "good turns (%)",
    ]);
    for (curve, point) in points(curves) {
        let cells = [
            curve.arm.clone(),
            point.level.to_string(),
            or_dash(point.request_throughput, figure),
            or_dash(point.output_throughput, figure),
            or_dash(point.cache_hit_rate, percent),
            whole(point.failed),
            or_dash(point.goodput, figure),
            or_dash(point.attainment, percent),
        ];
        match curves.slo {
            Some(_) => grid.row_marked(cells, mark(point)),
            None => grid.row(cells),
        }
    }
    if curves.slo.is_none() {
        grid.drop_last_column();
        grid.drop_last_column();
    }
    grid
}

fn mark(point: &Point) -> Mark {
    match point.holds {
        Some(true) => Mark::Good,
        Some(false) => Mark::Bad,
        None => Mark::Neutral,
    }
}

fn latencies(curves: &Curves) -> Grid {
    let load = curves.axis.unit();
    let mut grid =
        Grid::new(["arm", load, "Median TTFT (ms)", "P99 TTFT (ms)", "Median TPOT (ms)", "P99 TPOT (ms)", "turns"]);
    for (curve, point) in points(curves) {
        let is_thin = point.turns < Stat::P99.least_samples();
        let tail = |value: f64| format!("{}{}", if is_thin { "~" } else { "" }, figure(value));
        grid.row([
            curve.arm.clone(),
            point.level.to_string(),
            or_dash(point.ttft_p50_ms, figure),
            or_dash(point.ttft_p99_ms, tail),
            or_dash(point.tpot_p50_ms, figure),
            or_dash(point.tpot_p99_ms, tail),
            whole(point.turns),
        ]);
    }
    grid
}

fn voids(curves: &Curves) -> Option<Section> {
    let void = |curve: &Curve, point: &Point, more: &str| {
        let kinds = kinds(point.voids.iter().copied());
        format!("VOID({kinds}): {} at {}{more}", curve.arm, curves.axis.load(point.level))
    };
    let again = |curve| move |point| (curve, point, ", and was run again");
    let repeated = curves.arms.iter().flat_map(|curve| curve.repeated.iter().map(again(curve)));
    let left =
        points(curves).into_iter().filter(|(_, point)| !point.is_usable()).map(|(curve, point)| (curve, point, ""));
    let mut all: Vec<_> = repeated.chain(left).collect();
    all.sort_by_key(|(_, point, _)| point.step);
    let lines: Vec<_> = all.into_iter().map(|(curve, point, more)| void(curve, point, more)).collect();
    (!lines.is_empty()).then_some(Section::Lines(lines))
}

const HEAD: [&str; 17] = [
    "arm",
    "step",
    "axis",
    "level",
    "turns",
    "failed",
    "request_throughput",
    "output_throughput",
    "goodput",
    "slo_attainment",
    "holds",
    "ttft_ms.p50",
    "ttft_ms.p99",
    "tpot_ms.p50",
    "tpot_ms.p99",
    "cache_hit_rate.value",
    "void",
];

/// A row a step and arm. An absent value is an empty field.
#[must_use]
pub fn csv_sweep(curves: &Curves) -> String {
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    let mut out = HEAD.join(",") + "\r\n";
    for (curve, point) in points(curves) {
        let fields: [String; HEAD.len()] = [
            quoted(&curve.arm),
            point.step.to_string(),
            word(&curves.axis),
            point.level.to_string(),
            point.turns.to_string(),
            point.failed.to_string(),
            number(point.request_throughput),
            number(point.output_throughput),
            number(point.goodput),
            number(point.attainment),
            point.holds.map(|holds| holds.to_string()).unwrap_or_default(),
            number(point.ttft_p50_ms),
            number(point.ttft_p99_ms),
            number(point.tpot_p50_ms),
            number(point.tpot_p99_ms),
            number(point.cache_hit_rate),
            (!point.is_usable()).to_string(),
        ];
        out.push_str(&fields.join(","));
        out.push_str("\r\n");
    }
    out
}
