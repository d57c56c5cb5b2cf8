//! Comma-separated values after RFC 4180, for spreadsheets and data frames: a row a metric and arm and round, under a head
//! that is the same for runs and comparisons. An absent value is an empty field.

use crate::compare::{BlockResult, Comparison, Contrast, MetricRow};
use crate::report::{RunReport, Totals, metrics};

use super::number::word;

const HEAD: [&str; 12] = [
    "arm",
    "round",
    "metric",
    "unit",
    "value",
    "samples",
    "ratio",
    "interval_low",
    "interval_high",
    "interval_level",
    "verdict",
    "void",
];

/// One row before it is text.
#[derive(Debug, Default)]
struct Row<'a> {
    arm: &'a str,
    /// Absent: of all rounds together.
    round: Option<u32>,
    metric: &'a str,
    unit: &'a str,
    value: Option<f64>,
    samples: Option<u64>,
    ratio: Option<f64>,
    contrast: Option<&'a Contrast>,
    void: Option<bool>,
}

/// The metrics of one run, and how its turns ended.
#[must_use]
pub fn csv_run(report: &RunReport) -> String {
    let arm = report.manifest.arm.as_deref().unwrap_or_default();
    let mut out = head();
    push_report(&mut out, arm, report.manifest.round, report, None);
    out
}

/// Every block, then every arm over all its rounds with interval and verdict. `ratio` is over the baseline: of a block, of
/// the same round; of an arm, the geometric mean over rounds.
#[must_use]
pub fn csv_comparison(comparison: &Comparison, blocks: &[BlockResult]) -> String {
    let mut out = head();
    for BlockResult { round, arm, report, dir: _ } in blocks {
        push_report(&mut out, arm, Some(*round), report, Some(comparison));
    }
    for row in &comparison.metrics {
        for (at, arm) in comparison.arms.iter().enumerate() {
            let contrast = contrast(row, &arm.name);
            push(
                &mut out,
                &Row {
                    arm: &arm.name,
                    metric: &row.key,
                    unit: &row.unit,
                    value: row.arms.get(at).and_then(|value| value.value),
                    samples: row.arms.get(at).map(|value| value.samples),
                    ratio: contrast.and_then(|contrast| contrast.geometric_mean),
                    contrast,
                    ..Row::default()
                },
            );
        }
    }
    out
}

fn push_report(out: &mut String, arm: &str, round: Option<u32>, report: &RunReport, comparison: Option<&Comparison>) {
    let void = Some(report.validity.verdict == crate::report::Verdict::Void);
    for metric in metrics() {
        let row = comparison.and_then(|comparison| comparison.metrics.iter().find(|row| row.key == metric.key));
        let ratios =
            row.and_then(|row| contrast(row, arm)).map(|contrast| contrast.ratios.as_slice()).unwrap_or_default();
        push(
            out,
            &Row {
                arm,
                round,
                metric: &metric.key,
                unit: metric.unit,
                value: metric.value(report),
                samples: Some(metric.samples(report)),
                ratio: ratios.iter().find(|ratio| Some(ratio.round) == round).and_then(|ratio| ratio.ratio),
                void,
                ..Row::default()
            },
        );
    }
    for (metric, turns) in turns(report) {
        push(out, &Row { arm, round, metric, unit: "turns", value: turns, void, ..Row::default() });
    }
}

fn contrast<'a>(row: &'a MetricRow, arm: &str) -> Option<&'a Contrast> {
    row.contrasts.iter().find(|contrast| contrast.arm == arm)
}

#[expect(clippy::cast_precision_loss, reason = "turns stay below 2^53")]
fn turns(report: &RunReport) -> [(&'static str, Option<f64>); 5] {
    let Totals { planned, complete, failed, cancelled, skipped, .. } = &report.totals;
    let told = |name, turns: u64| report.counted(name, turns).map(|turns| turns as f64);
    [
        ("totals.planned", told("planned", *planned)),
        ("totals.complete", told("complete", *complete)),
        ("totals.failed", told("failed", *failed)),
        ("totals.cancelled", told("cancelled", *cancelled)),
        ("totals.skipped", told("skipped", *skipped)),
    ]
}

fn head() -> String {
    HEAD.join(",") + "\r\n"
}

fn push(out: &mut String, row: &Row<'_>) {
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    let interval = row.contrast.and_then(|contrast| contrast.interval);
    let fields: [String; HEAD.len()] = [
        quoted(row.arm),
        row.round.map(|round| round.to_string()).unwrap_or_default(),
        quoted(row.metric),
        quoted(row.unit),
        number(row.value),
        row.samples.map(|samples| samples.to_string()).unwrap_or_default(),
        number(row.ratio),
        number(interval.map(|interval| interval.low)),
        number(interval.map(|interval| interval.high)),
        number(interval.map(|interval| interval.level)),
        row.contrast.and_then(|contrast| contrast.verdict).map(|verdict| word(&verdict)).unwrap_or_default(),
        row.void.map(|void| void.to_string()).unwrap_or_default(),
    ];
    out.push_str(&fields.join(","));
    out.push_str("\r\n");
}

/// A field as it may stand between commas. What a spreadsheet would run as a formula becomes text.
pub(super) fn quoted(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = if formula { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_neither_break_a_row_nor_run_as_a_formula() {
        assert_eq!(quoted("a,\"b\"\n"), "\"a,\"\"b\"\"\n\"");
        assert_eq!(quoted("=1+1"), "'=1+1");
        assert_eq!(quoted("round_robin"), "round_robin");
    }
}
