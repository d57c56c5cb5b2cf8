//! Places over time as a field of cells: who was busy when, and who found the prompt in its cache.

use std::collections::BTreeMap;

use super::arms::{Arm, Run};
use super::element::{Element, el};
use super::figure::{Drawing, Figure, WIDTH, as_float, label, short, x_axis};
use super::scale::Scale;
use crate::render::number::{figure as number, or_dash, percent};
use crate::render::page::Grid;
use crate::report::RunReport;

const LEFT: f64 = 62.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 30.0;
/// Columns at most: each is then as wide as a finger on a phone is not, but an eye still is.
const COLUMNS: usize = 60;
/// Cells that may each carry words of their own; more would make the page heavy.
const WORDED: usize = 1_000;

/// What a field is made of: a row a place.
struct Field {
    rows: Vec<(String, Vec<Option<f64>>)>,
    column_s: f64,
    /// What the darkest cell stands for.
    full: f64,
    show: fn(f64) -> String,
}

/// Load and hit rate of the first run of each arm.
pub(super) fn figures(arms: &[Arm<'_>]) -> Vec<Figure> {
    let first = arms.iter().filter_map(|arm| Some((arm, arm.runs.first()?)));
    first.flat_map(|(arm, run)| [load(arm, run), hits(arm, run)]).collect()
}

fn load(arm: &Arm<'_>, run: &Run<'_>) -> Figure {
    let of = run.of(arm);
    if let Some(field) = sampled_load(run.report) {
        let says = format!("Requests running and waiting, as the server said while {of} ran.");
        return figure(format!("Load of each place: {}", arm.name), says, Some(field));
    }
    let says = format!("Turns by the time at which they were sent, {of}. The server's own gauges are not in the file.");
    figure(format!("Turns sent to each place: {}", arm.name), says, sent_turns(run.report))
}

fn hits(arm: &Arm<'_>, run: &Run<'_>) -> Figure {
    let says =
        format!("Share of prompt tokens found in the cache, by the time at which turns were sent, {}.", run.of(arm));
    figure(format!("Hit rate of each place: {}", arm.name), says, hit_rates(run.report))
}

fn figure(title: String, says: String, field: Option<Field>) -> Figure {
    let drawing = match field {
        Some(field) => drawing(&field),
        None => {
            Drawing::Absent("no turn names its place, there are too many places, or cached tokens are not told".into())
        }
    };
    Figure { title, says, drawing }
}

/// Running and waiting requests, averaged over the samples of each column.
fn sampled_load(report: &RunReport) -> Option<Field> {
    let series = &report.server.series;
    let end = series.iter().map(|sample| sample.t_us).max()?.as_secs();
    let column_s = (end / as_float(COLUMNS)).max(0.1);
    let mut rows: BTreeMap<_, Vec<(f64, u32)>> = BTreeMap::new();
    for sample in series {
        let Some(requests) = sample.running.map(|running| running + sample.waiting.unwrap_or(0)) else { continue };
        let row = rows.entry(sample.place.clone()).or_insert_with(|| vec![(0.0, 0); COLUMNS + 1]);
        let (sum, samples) = &mut row[column(sample.t_us.as_secs() / column_s)];
        *sum += as_f64(requests);
        *samples += 1;
    }
    let mean = |(sum, samples): (f64, u32)| (samples > 0).then(|| sum / f64::from(samples));
    let rows: Vec<_> =
        rows.into_iter().map(|(place, row)| (place.to_string(), row.into_iter().map(mean).collect())).collect();
    full_field(rows, column_s, number)
}

fn sent_turns(report: &RunReport) -> Option<Field> {
    let (merge, column_s) = columns(report);
    let sums = |turns: &[u64]| turns.chunks(merge).map(|few| Some(as_f64(few.iter().sum()))).collect();
    let rows: Vec<(String, Vec<Option<f64>>)> =
        report.timeline.places.iter().map(|row| (row.place.to_string(), sums(&row.turns))).collect();
    full_field(rows, column_s, |turns| format!("{turns:.0}"))
}

fn hit_rates(report: &RunReport) -> Option<Field> {
    let (merge, column_s) = columns(report);
    let rows: Vec<(String, Vec<Option<f64>>)> = report
        .timeline
        .places
        .iter()
        .map(|row| {
            let pairs: Vec<_> = row.turns.iter().copied().zip(row.hit_rate.iter().copied()).collect();
            (row.place.to_string(), pairs.chunks(merge).map(weighted).collect())
        })
        .collect();
    let told = rows.iter().flat_map(|(_, row)| row).any(Option::is_some);
    told.then_some(Field { rows, column_s, full: 1.0, show: |share| percent(share) + " %" })
}

/// The hit rate of several slices, each weighing as many turns as it has.
fn weighted(slices: &[(u64, Option<f64>)]) -> Option<f64> {
    let told = || slices.iter().filter_map(|(turns, rate)| Some((as_f64(*turns), (*rate)?)));
    let turns: f64 = told().map(|(turns, _)| turns).sum();
    (turns > 0.0).then(|| told().map(|(turns, rate)| turns * rate).sum::<f64>() / turns)
}

/// Slices of the timeline in each column, and its width in seconds.
fn columns(report: &RunReport) -> (usize, f64) {
    let timeline = &report.timeline;
    let merge = timeline.slices.len().div_ceil(COLUMNS).max(1);
    (merge, timeline.slice_us.as_secs() * as_float(merge))
}

/// A field whose darkest cell is its highest.
fn full_field(rows: Vec<(String, Vec<Option<f64>>)>, column_s: f64, show: fn(f64) -> String) -> Option<Field> {
    let full = rows.iter().flat_map(|(_, row)| row).flatten().copied().fold(0.0, f64::max);
    (full > 0.0).then_some(Field { rows, column_s, full, show })
}

fn drawing(field: &Field) -> Drawing {
    let Field { rows, column_s, full, show } = field;
    let columns = rows.iter().map(|(_, row)| row.len()).max().unwrap_or(1);
    let height = (160.0 / as_float(rows.len())).clamp(5.0, 16.0);
    let width = (RIGHT - LEFT) / as_float(columns);
    let bottom = TOP + height * as_float(rows.len());
    let x = Scale::linear((0.0, as_float(columns) * column_s), (LEFT, RIGHT));
    let mut marks = key(&show(*full));
    marks.extend(x_axis(&x, bottom, bottom, "seconds from the start"));
    let worded = rows.len() * columns <= WORDED;
    for (at, (name, row)) in rows.iter().enumerate() {
        let top = TOP + height * as_float(at);
        if height >= 9.0 || at % 4 == 0 {
            marks.push(label(LEFT - 5.0, top + height / 2.0 + 3.5, "tick end", short(name, 10)));
        }
        for (column, value) in row.iter().enumerate() {
            let Some(value) = value else { continue };
            let cell = cell(LEFT + width * as_float(column), top, (width, height), value / full);
            let says = || format!("{name}, {} s: {}", number(as_float(column) * column_s), show(*value));
            marks.push(if worded { cell.child(el("title").text(says())) } else { cell });
        }
    }
    Drawing::Plot { height: bottom + 32.0, marks, data: data(field) }
}

/// A cell as dark as its share of the highest. One of nothing is still seen to be there.
pub(super) fn cell(x: f64, y: f64, (width, height): (f64, f64), share: f64) -> Element {
    el("rect")
        .with("x", format!("{x:.2}"))
        .with("y", format!("{y:.2}"))
        .with("width", format!("{:.2}", width.max(0.5)))
        .with("height", format!("{:.2}", height - 1.0))
        .with("class", "cell")
        .with("fill-opacity", format!("{:.2}", 0.06 + 0.94 * share.clamp(0.0, 1.0)))
}

/// What light and dark mean.
pub(super) fn key(full: &str) -> Vec<Element> {
    let mut marks = vec![label(LEFT, 12.0, "tick", "0")];
    let steps = [0.0, 0.25, 0.5, 0.75, 1.0];
    let swatch = |(at, share): (usize, &f64)| cell(LEFT + 12.0 + 18.0 * as_float(at), 4.0, (18.0, 10.0), *share);
    marks.extend(steps.iter().enumerate().map(swatch));
    marks.push(label(LEFT + 12.0 + 18.0 * 5.0 + 6.0, 12.0, "tick", full));
    marks
}

/// As many columns as a table can have: several of the drawing in one.
fn data(field: &Field) -> Grid {
    let columns = field.rows.iter().map(|(_, row)| row.len()).max().unwrap_or(1);
    let merge = columns.div_ceil(10).max(1);
    let heads = (0..columns).step_by(merge).map(|at| format!("{} s", number(as_float(at) * field.column_s)));
    let mean = |few: &[Option<f64>]| {
        let told: Vec<f64> = few.iter().flatten().copied().collect();
        or_dash(crate::stats::mean(&told), field.show)
    };
    Grid {
        header: std::iter::once("place, from".to_owned()).chain(heads).collect(),
        rows: field
            .rows
            .iter()
            .map(|(name, row)| std::iter::once(name.clone()).chain(row.chunks(merge).map(mean)).collect())
            .collect(),
        marks: vec![],
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number; casts saturate")]
fn column(at: f64) -> usize {
    (at as usize).min(COLUMNS)
}

#[expect(clippy::cast_precision_loss, reason = "requests stay below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
}
