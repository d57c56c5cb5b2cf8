//! Curves of a sweep: latency against throughput, and rates against load; an arm a line. Void steps are in no curve.

use super::arms::colour;
use super::figure::{Drawing, Figure, WIDTH, dot, legend, path, x_axis, y_axis};
use super::scale::Scale;
use crate::experiment::{Axis, Curve, Curves, Point};
use crate::render::number::{figure as number, or_dash};
use crate::render::page::Grid;

const LEFT: f64 = 44.0;
const RIGHT: f64 = WIDTH - 14.0;
const AREA: f64 = 150.0;

type Get = fn(&Point) -> Option<f64>;

/// A plot before it is drawn.
struct Plot<'a> {
    title: &'static str,
    says: &'static str,
    x: Get,
    /// The unit, and what a head of its column says.
    x_unit: &'static str,
    x_is_log: bool,
    /// Solid, then faint.
    y: &'a [(&'static str, Get)],
    y_unit: &'static str,
    y_is_log: bool,
}

pub(super) fn figures(curves: &Curves) -> Vec<Figure> {
    let throughput: Get = |point| point.request_throughput;
    let level: Get = |point| Some(point.level);
    let load = match curves.axis {
        Axis::Concurrency => "sessions in flight",
        Axis::Rate => "sessions a second",
    };
    let by_throughput = |title, y| Plot {
        title,
        says: "Latency at the throughput of each step, a dot each. Solid: median; faint: 99th percentile.",
        x: throughput,
        x_unit: "req/s",
        x_is_log: false,
        y,
        y_unit: "ms",
        y_is_log: true,
    };
    let by_load = |title, says, y| Plot {
        title,
        says,
        x: level,
        x_unit: load,
        x_is_log: true,
        y,
        y_unit: "req/s",
        y_is_log: false,
    };
    [
        by_throughput("TTFT by throughput", &[("median", |p| p.ttft_p50_ms), ("p99", |p| p.ttft_p99_ms)]),
        by_throughput("TPOT by throughput", &[("median", |p| p.tpot_p50_ms), ("p99", |p| p.tpot_p99_ms)]),
        by_load("Goodput by load", "Good turns a second: those that met every limit.", &[("goodput", |p| p.goodput)]),
        by_load("Throughput by load", "Complete turns a second.", &[("throughput", |p| p.request_throughput)]),
    ]
    .map(|plot: Plot<'_>| plot.figure(curves))
    .into()
}

impl Plot<'_> {
    fn figure(&self, curves: &Curves) -> Figure {
        let all = |get: Get| curves.arms.iter().flat_map(usable).filter_map(get).filter(|value| *value > 0.0);
        let ys = || self.y.iter().flat_map(|(_, get)| all(*get));
        let (title, says) = (self.title.to_owned(), self.says.to_owned());
        if ys().next().is_none() {
            let why = if curves.slo.is_none() { "no limits were given with --goodput" } else { "no step has a value" };
            let why = if self.title.starts_with("Goodput") { why } else { "no step has a value" };
            return Figure { title, says, drawing: Drawing::Absent(why.to_owned()) };
        }
        let arms = curves.arms.iter().enumerate();
        let (mut marks, top) = legend(arms.map(|(at, curve)| (colour(at).to_owned(), curve.arm.as_str())), LEFT);
        let top = top + 14.0;
        let x = scale(self.x_is_log, bounds(all(self.x)), (LEFT, RIGHT));
        let y = scale(self.y_is_log, bounds(ys()), (top + AREA, top));
        marks.extend(x_axis(&x, top + AREA, top, self.x_unit));
        marks.extend(y_axis(&y, LEFT, RIGHT, self.y_unit));
        for (at, curve) in curves.arms.iter().enumerate() {
            for ((name, get), class) in self.y.iter().zip(["curve", "faint"]) {
                let points: Vec<_> =
                    usable(curve).filter_map(|point| Some((point, (self.x)(point)?, get(point)?))).collect();
                let line: Vec<_> = points.iter().map(|(_, across, up)| (x.at(*across), y.at(*up))).collect();
                marks.extend(path(&line, &format!("{class} {}", colour(at))));
                marks.extend(points.iter().map(|(point, across, up)| {
                    let says = format!("{}, {}: {name} {} {}", curve.arm, point.level, number(*up), self.y_unit);
                    dot(x.at(*across), y.at(*up), 2.5, &format!("dot {}", colour(at)), says)
                }));
            }
        }
        Figure { title, says, drawing: Drawing::Plot { height: top + AREA + 32.0, marks, data: self.data(curves) } }
    }

    fn data(&self, curves: &Curves) -> Grid {
        let second = self.y.get(1).map_or("", |(name, _)| *name);
        let mut grid = Grid::new(["arm", "load", self.x_unit, self.y.first().map_or("", |(name, _)| *name), second]);
        for curve in &curves.arms {
            for point in usable(curve) {
                let value = |at: usize| or_dash(self.y.get(at).and_then(|(_, get)| get(point)), number);
                let across = or_dash((self.x)(point), number);
                grid.row([curve.arm.clone(), point.level.to_string(), across, value(0), value(1)]);
            }
        }
        if second.is_empty() {
            grid.drop_last_column();
        }
        grid
    }
}

fn usable(curve: &Curve) -> impl Iterator<Item = &Point> {
    curve.points.iter().filter(|point| point.is_usable())
}

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(least, most), value| (least.min(value), most.max(value)))
}

/// Rates begin at nothing; what spans orders of magnitude has equal distances for equal ratios.
fn scale(is_log: bool, bounds: (f64, f64), positions: (f64, f64)) -> Scale {
    if is_log { Scale::log(bounds, positions) } else { Scale::linear((0.0, bounds.1), positions) }
}
