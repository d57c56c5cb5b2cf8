//! The tables of a comparison: the few rows that are judged, and all the rest.

use super::number::{ABSENT, change, figure, or_dash, percent, told, whole};
use super::page::{Grid, Mark};
use super::places::marked;
use crate::compare::{Arm, ArmValue, Comparison, Contrast, Interval, MetricRow, Verdict};

/// Rows of the table that goes into a pull request.
const MOST_ROWS: usize = 12;
/// Ratios that fit beside each other.
const ROUNDS_SHOWN: usize = 6;

/// The judged rows and the failures of the arm at `at` after the baseline, filled up with what explains them: 12 rows at most.
pub(super) fn judged(comparison: &Comparison, baseline: &Arm, at: usize, arm: &Arm) -> Grid {
    let mut grid = Grid::new(["metric", &baseline.name, &arm.name, "Δ %", "interval %", "verdict"]);
    let rows = comparison.metrics.iter().filter(|row| row.judged);
    let (primary, others): (Vec<_>, Vec<_>) = rows.partition(|row| row.key == comparison.primary);
    for row in primary.into_iter().chain(others).take(MOST_ROWS - 1) {
        let contrast = &row.contrasts[at];
        let (word, mark) = verdict(contrast);
        let cells = [
            row.label.clone(),
            value(row, &row.arms[0]),
            value(row, &row.arms[at + 1]),
            or_dash(contrast.geometric_mean, change),
            or_dash(contrast.interval, interval),
            word.to_owned(),
        ];
        grid.row_marked(cells, mark);
    }
    let failures = match (baseline.failed, arm.failed) {
        (Some(0), Some(0)) => Mark::Good,
        (Some(_), Some(_)) => Mark::Bad,
        _ => Mark::Neutral,
    };
    let plain = |label: &str, show: &dyn Fn(&Arm) -> String| {
        [label.to_owned(), show(baseline), show(arm), String::new(), String::new(), String::new()]
    };
    grid.row_marked(plain("Failed requests", &|arm| told(arm.failed)), failures);
    for (label, _, show) in context(baseline, arm).into_iter().filter(|(_, is_telling, _)| *is_telling) {
        if grid.rows.len() < MOST_ROWS {
            grid.row(plain(label, &show));
        }
    }
    grid
}

/// Every metric, judged or not, and every count.
pub(super) fn all(comparison: &Comparison, baseline: &Arm, at: usize, arm: &Arm) -> Grid {
    let mut grid = Grid::new(["metric", &baseline.name, &arm.name, "ratio", "interval %"]);
    for row in comparison.metrics.iter().filter(|row| is_shown(comparison, row)) {
        let contrast = &row.contrasts[at];
        grid.row([
            row.label.clone(),
            value(row, &row.arms[0]),
            value(row, &row.arms[at + 1]),
            or_dash(contrast.geometric_mean, ratio),
            or_dash(contrast.interval, interval),
        ]);
    }
    for (label, _, show) in context(baseline, arm) {
        grid.row([label.to_owned(), show(baseline), show(arm), String::new(), String::new()]);
    }
    grid
}

/// The ratio of each round, of the judged metrics.
pub(super) fn rounds(comparison: &Comparison, at: usize) -> Grid {
    let mut grid = Grid::new(["metric", "ratio by round"]);
    for row in comparison.metrics.iter().filter(|row| row.judged) {
        grid.row([row.label.clone(), by_round(&row.contrasts[at])]);
    }
    grid
}

/// A label, whether it belongs beside the judged rows, and the value of an arm.
type Context = (&'static str, bool, fn(&Arm) -> String);

/// Facts beside the metrics, the most telling first; those that neither arm has are left out.
fn context(baseline: &Arm, arm: &Arm) -> Vec<Context> {
    let either = |get: fn(&Arm) -> Option<f64>| get(baseline).or(get(arm)).is_some();
    let capacity_differs = baseline.kv_tokens_total != arm.kv_tokens_total;
    let all: [(bool, Context); 11] = [
        (
            baseline.kv_tokens_total.or(arm.kv_tokens_total).is_some(),
            ("KV cache in all (tokens)", capacity_differs, |arm| or_dash(arm.kv_tokens_total, whole)),
        ),
        (
            either(|arm| arm.expected_reuse),
            ("Expected reuse, places seen (%)", true, |arm| or_dash(arm.expected_reuse, percent)),
        ),
        (
            either(|arm| arm.load_max_over_mean),
            ("Turns per place, max/mean", true, |arm| or_dash(arm.load_max_over_mean, figure)),
        ),
        (true, ("Ideal reuse, endless cache (%)", true, |arm| or_dash(arm.ideal_reuse, percent))),
        (
            either(|arm| arm.round_robin_reuse),
            ("Expected reuse, round robin (%)", true, |arm| or_dash(arm.round_robin_reuse, percent)),
        ),
        (
            either(|arm| arm.server_ttft_ms),
            ("Server's mean TTFT (ms)", false, |arm| or_dash(arm.server_ttft_ms, figure)),
        ),
        (
            either(|arm| arm.server_queue_ms),
            ("Server's mean queue time (ms)", false, |arm| or_dash(arm.server_queue_ms, figure)),
        ),
        (either(|arm| arm.stickiness), ("Stickiness (%)", false, |arm| or_dash(arm.stickiness, percent))),
        (true, ("Prompt tokens planned", false, |arm| or_dash(arm.planned_prompt_tokens, whole))),
        (true, ("Prompt tokens served", false, |arm| or_dash(arm.prompt_tokens, whole))),
        (true, ("Successful requests", false, |arm| format!("{} of {}", whole(arm.complete), told(arm.planned)))),
    ];
    all.into_iter().filter(|(is_known, _)| *is_known).map(|(_, context)| context).collect()
}

fn verdict(contrast: &Contrast) -> (&'static str, Mark) {
    match contrast.verdict {
        Some(Verdict::Better) => ("better", Mark::Good),
        Some(Verdict::Worse) => ("worse", Mark::Bad),
        Some(Verdict::Same) => ("same", Mark::Neutral),
        Some(Verdict::Unclear) => ("unclear", Mark::Neutral),
        None => (ABSENT, Mark::Neutral),
    }
}

/// Latencies from due and the time to answer stand in the files; between frames is shown where tokens are not known.
fn is_shown(comparison: &Comparison, row: &MetricRow) -> bool {
    let has_itl = || comparison.metrics.iter().any(|row| row.key.starts_with("itl_ms."));
    match row.key.split('.').next() {
        Some("ttft_from_due_ms" | "e2e_from_due_ms" | "answer_ms") => row.judged,
        Some("icl_ms") => row.judged || !has_itl(),
        _ => true,
    }
}

pub(super) fn value(row: &MetricRow, value: &ArmValue) -> String {
    let show = |v| if row.unit == "ratio" { percent(v) } else { marked(v, value.samples, row.least_samples) };
    or_dash(value.value, show)
}

fn interval(interval: Interval) -> String {
    format!("{} … {}", change(interval.low), change(interval.high))
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
