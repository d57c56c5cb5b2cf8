//! TTFT by the time at which turns were sent: ramps, queues that grow, caches that fill.

use super::arms::{Arm, Run};
use super::element::Element;
use super::figure::{Drawing, Figure, WIDTH, dot, path, rect, x_axis, y_axis};
use super::scale::Scale;
use crate::render::number::{figure as number, or_dash, whole};
use crate::render::page::Grid;
use crate::report::{Slice, Timeline};

const LEFT: f64 = 44.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 24.0;
const AREA: f64 = 140.0;
/// Rounds that can be told from each other in one plot.
const ROUNDS: usize = 6;
/// Turns in a slice, on average, from which their quantiles are drawn as lines.
const DENSE: u64 = 8;
/// Empty slices that a line goes over.
const BRIDGED: u32 = 4;

/// A plot an arm, all on the same scales.
pub(super) fn figures(arms: &[Arm<'_>]) -> Vec<Figure> {
    let shown = || arms.iter().flat_map(shown);
    let latencies =
        || shown().flat_map(|run| &run.report.timeline.slices).flat_map(|slice| [slice.ttft_p50_ms, slice.ttft_p90_ms]);
    let positive = || latencies().flatten().filter(|ms| *ms > 0.0);
    let bounds = (positive().fold(f64::INFINITY, f64::min), positive().fold(0.0, f64::max));
    let seconds = shown().map(|run| run.report.windows.whole.to_us.as_secs()).fold(0.0, f64::max);
    let x = Scale::linear((0.0, seconds), (LEFT, RIGHT));
    let y = Scale::log(if bounds.0.is_finite() { bounds } else { (1.0, 10.0) }, (TOP + AREA, TOP));
    arms.iter().map(|arm| figure(arm, &x, &y)).collect()
}

fn shown<'a, 'b>(arm: &'b Arm<'a>) -> impl Iterator<Item = &'b Run<'a>> {
    arm.runs.iter().take(ROUNDS)
}

fn figure(arm: &Arm<'_>, x: &Scale, y: &Scale) -> Figure {
    let rounds = shown(arm).count();
    let marks = if shown(arm).any(is_dense) {
        "Solid: median; faint: 90th percentile"
    } else {
        "A dot: the median of one moment"
    };
    let of = match arm.runs.len() {
        0 | 1 => String::new(),
        all if all == rounds => format!(", {all} rounds"),
        all => format!(", the first {rounds} of {all} rounds"),
    };
    let first = shown(arm).next().map(|run| &run.report.windows.steady);
    let shaded = match first {
        Some(Some(_)) if rounds > 1 => " Shaded: the steady window of the first.",
        Some(Some(_)) => " Shaded: the steady window.",
        Some(None) | None => "",
    };
    let says = format!("Time to first token, by when the turn was sent{of}. {marks}.{shaded}");
    let title = format!("TTFT over time: {}", arm.name);
    if shown(arm).all(|run| run.report.timeline.slices.iter().all(|slice| slice.ttft_p50_ms.is_none())) {
        let why = "the files hold no TTFT by time: no turn completed, or an older version wrote them".to_owned();
        return Figure { title, says, drawing: Drawing::Absent(why) };
    }
    let mut marks: Vec<Element> = shown(arm).take(1).filter_map(|run| steady(run, x)).collect();
    marks.extend(x_axis(x, TOP + AREA, TOP, "seconds from the start"));
    marks.extend(y_axis(y, LEFT, RIGHT, "ms"));
    marks.extend(shown(arm).flat_map(|run| if is_dense(run) { lines(run, arm, x, y) } else { dots(run, arm, x, y) }));
    Figure { title, says, drawing: Drawing::Plot { height: TOP + AREA + 32.0, marks, data: data(arm) } }
}

fn median(slice: &Slice) -> Option<f64> {
    slice.ttft_p50_ms
}

fn ninety(slice: &Slice) -> Option<f64> {
    slice.ttft_p90_ms
}

fn steady(run: &Run<'_>, x: &Scale) -> Option<Element> {
    let window = run.report.windows.steady.as_ref()?;
    let (from, to) = (x.at(window.from_us.as_secs()), x.at(window.to_us.as_secs()));
    Some(rect(from, TOP, (to - from).max(0.0), AREA, "steady"))
}

/// Runs of near slices that have a value: (middle in seconds, ms). Between them nothing was sent for a while.
fn stretches(timeline: &Timeline, of: impl Fn(&Slice) -> Option<f64>) -> Vec<Vec<(f64, f64)>> {
    let (mut stretches, mut gap) = (vec![vec![]], 0);
    for (at, slice) in (0_u32..).zip(&timeline.slices) {
        match of(slice) {
            Some(ms) => {
                let middle = (f64::from(at) + 0.5) * timeline.slice_us.as_secs();
                stretches.iter_mut().rev().take(1).for_each(|stretch| stretch.push((middle, ms)));
                gap = 0;
            }
            None if gap < BRIDGED => gap += 1,
            None => stretches.push(vec![]),
        }
    }
    stretches
}

/// Whether a slice holds turns enough for quantiles to say more than its turns.
fn is_dense(run: &Run<'_>) -> bool {
    let with_turns = || run.report.timeline.slices.iter().filter(|slice| slice.turns > 0);
    with_turns().map(|slice| slice.turns).sum::<u64>() >= DENSE * with_turns().map(|_| 1).sum::<u64>()
}

fn lines(run: &Run<'_>, arm: &Arm<'_>, x: &Scale, y: &Scale) -> Vec<Element> {
    let line = |of: fn(&Slice) -> Option<f64>, class: &str| {
        let class = format!("{class} {}", arm.colour);
        let points =
            |stretch: &Vec<(f64, f64)>| stretch.iter().map(|(at, ms)| (x.at(*at), y.at(*ms))).collect::<Vec<_>>();
        stretches(&run.report.timeline, of)
            .iter()
            .filter_map(|stretch| path(&points(stretch), &class))
            .collect::<Vec<_>>()
    };
    let lone = stretches(&run.report.timeline, median).into_iter().filter(|stretch| stretch.len() == 1).flatten();
    let lone = lone.map(|point| mark(run, arm, point, x, y));
    line(ninety, "faint").into_iter().chain(line(median, "curve")).chain(lone).collect()
}

fn dots(run: &Run<'_>, arm: &Arm<'_>, x: &Scale, y: &Scale) -> Vec<Element> {
    let points = stretches(&run.report.timeline, median).into_iter().flatten();
    points.map(|point| mark(run, arm, point, x, y)).collect()
}

fn mark(run: &Run<'_>, arm: &Arm<'_>, (at, ms): (f64, f64), x: &Scale, y: &Scale) -> Element {
    let says = format!("{}: median {} ms at {} s", run.name(), number(ms), number(at));
    dot(x.at(at), y.at(ms), 2.0, &format!("dot faded {}", arm.colour), says)
}

fn data(arm: &Arm<'_>) -> Grid {
    let mut grid = Grid::new(["from (s)", "round", "turns sent", "median (ms)", "p90 (ms)", "max (ms)"]);
    for run in shown(arm) {
        let timeline = &run.report.timeline;
        for (at, slice) in (0_u32..).zip(&timeline.slices).filter(|(_, slice)| slice.turns > 0) {
            grid.row([
                number(f64::from(at) * timeline.slice_us.as_secs()),
                or_dash(run.round, |round| round.to_string()),
                whole(slice.turns),
                or_dash(slice.ttft_p50_ms, number),
                or_dash(slice.ttft_p90_ms, number),
                or_dash(slice.ttft_max_ms, number),
            ]);
        }
    }
    grid
}
