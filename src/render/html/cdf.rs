//! Which share of samples is at most how slow, an arm a line.

use super::arms::Arm;
use super::figure::{Drawing, Figure, WIDTH, dot, legend, path, x_axis, y_axis};
use super::scale::Scale;
use crate::render::number::{figure as number, or_dash, whole};
use crate::render::page::Grid;
use crate::report::Latency;
use crate::stats::{Distribution, Quantile};

const LEFT: f64 = 38.0;
const RIGHT: f64 = WIDTH - 14.0;
/// Height of the area between the axes.
const AREA: f64 = 150.0;
/// Samples from which a line goes on beyond 99 %.
const TAIL: u64 = 1_000;

/// The plot of the first of these latencies that any arm has measured.
pub(super) fn figure(arms: &[Arm<'_>], latencies: &[Latency]) -> Figure {
    let measured = |latency: &Latency| {
        let lines: Vec<_> = arms.iter().filter_map(|arm| Some((arm, arm.distribution(*latency)?))).collect();
        (!lines.is_empty()).then_some((*latency, lines))
    };
    let name = latencies.first().map_or("latency", |latency| latency.label());
    let Some((latency, lines)) = latencies.iter().find_map(measured) else {
        return Figure {
            title: name.to_owned(),
            says: "Share of samples that took at most so long.".to_owned(),
            drawing: Drawing::Absent(format!("no {name} was measured")),
        };
    };
    let instead = if latency.label() == name { String::new() } else { format!(" {name} is not known here.") };
    Figure {
        title: format!("{} by share of samples", latency.label()),
        says: format!(
            "Share of samples that took at most so long: further left is faster. Dots: median and 99th percentile.{instead}"
        ),
        drawing: drawing(&lines),
    }
}

fn drawing(lines: &[(&Arm<'_>, Distribution)]) -> Drawing {
    let curves: Vec<_> = lines.iter().map(|(arm, samples)| (*arm, curve(samples))).collect();
    let all = || curves.iter().flat_map(|(_, curve)| curve.iter().map(|(ms, _)| *ms)).filter(|ms| *ms > 0.0);
    let bounds = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    let (mut marks, top) = legend(curves.iter().map(|(arm, _)| (arm.colour.to_owned(), arm.name.as_str())), LEFT);
    let top = top + 14.0;
    let x = Scale::log(if bounds.0.is_finite() { bounds } else { (1.0, 10.0) }, (LEFT, RIGHT));
    let y = Scale::linear((0.0, 100.0), (top + AREA, top));
    marks.extend(x_axis(&x, top + AREA, top, "ms"));
    marks.extend(y_axis(&y, LEFT, RIGHT, "%"));
    for (arm, curve) in &curves {
        let points: Vec<_> = curve.iter().map(|(ms, share)| (x.at(*ms), y.at(share * 100.0))).collect();
        marks.extend(path(&points, &format!("curve {}", arm.colour)));
    }
    for (arm, samples) in lines {
        for (word, q) in [("median", Quantile::P50), ("p99", Quantile::P99)] {
            let Some(ms) = samples.quantile(q).map(|us| us / 1e3) else { continue };
            let share = if q == Quantile::P50 { 50.0 } else { 99.0 };
            let says = format!("{}: {word} {} ms", arm.name, number(ms));
            marks.push(dot(x.at(ms), y.at(share), 3.0, &format!("dot {}", arm.colour), says));
        }
    }
    Drawing::Plot { height: top + AREA + 32.0, marks, data: data(lines) }
}

/// (ms, share) from the least to the greatest.
fn curve(samples: &Distribution) -> Vec<(f64, f64)> {
    let tail: &[f64] = if samples.count() >= TAIL { &[0.995, 0.999] } else { &[] };
    let shares = (0..100).map(|per_cent| f64::from(per_cent) / 100.0).chain(tail.iter().copied()).chain([1.0]);
    let point = |share: f64| Some((samples.quantile(Quantile::fraction(share)?)? / 1e3, share));
    shares.filter_map(point).collect()
}

fn data(lines: &[(&Arm<'_>, Distribution)]) -> Grid {
    let mut grid = Grid::new(["ms", "10 %", "25 %", "50 %", "75 %", "90 %", "99 %", "samples"]);
    for (arm, samples) in lines {
        let at = |share| or_dash(Quantile::fraction(share).and_then(|q| samples.quantile(q)), |us| number(us / 1e3));
        let [a, b, c, d, e, f] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.99].map(at);
        grid.row([arm.name.clone(), a, b, c, d, e, f, whole(samples.count())]);
    }
    grid
}
