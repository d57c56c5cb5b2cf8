//! The few figures that a reader looks for first.

use super::element::{Element, el};
use crate::compare::{Comparison, MetricRow};
use crate::experiment::{Curve, Curves};
use crate::render::number::{figure as number, or_dash, percent, told, whole};
use crate::report::{Latency, RunReport};

/// What most people come for.
const METRICS: [&str; 4] = ["output_throughput", "cache_hit_rate.value", "ttft_ms.mean", "e2e_ms.p99"];

pub(super) fn of_run(report: &RunReport) -> Element {
    let (metrics, totals) = (&report.metrics, &report.totals);
    let ttft = Latency::Ttft.of(metrics);
    list(
        "Figures of the whole run.",
        [
            tile("Request throughput", or_dash(metrics.request_throughput, number), "requests a second".into()),
            tile("Output throughput", or_dash(metrics.output_throughput, number), "tokens a second".into()),
            tile(
                "Mean TTFT",
                or_dash(ttft, |ttft| format!("{} ms", number(ttft.mean))),
                or_dash(ttft, |ttft| format!("p99 {} ms", number(ttft.p99))),
            ),
            tile(
                "Cache hit rate",
                or_dash(metrics.cache_hit_rate.value, |rate| percent(rate) + " %"),
                or_dash(report.workload.oracle.ideal_reuse, |ideal| format!("{} % is the ideal", percent(ideal))),
            ),
            tile("Failed requests", whole(totals.failed), format!("of {}", whole(totals.planned))),
        ],
    )
}

/// Of the first arm after the baseline.
pub(super) fn of_comparison(comparison: &Comparison) -> Element {
    let row = |key: &&str| comparison.metrics.iter().find(|row| row.key == **key);
    let mut tiles: Vec<_> = METRICS.iter().filter_map(row).map(metric).collect();
    let failed: Vec<_> = comparison.arms.iter().map(|arm| told(arm.failed)).collect();
    tiles.push(tile("Failed requests", failed.join(" / "), "in the order of the arms".into()));
    let arm = comparison.arms.get(1).map_or("no arm", |arm| &arm.name);
    let says = format!(
        "{arm} against {}. Large: the ratio, geometric mean of the rounds; below it the values of all rounds together, the \
         baseline's first.",
        comparison.baseline
    );
    list(&says, tiles)
}

/// Of each arm the highest load that holds, or without objectives the most throughput.
pub(super) fn of_sweep(curves: &Curves) -> Element {
    let says = match curves.attainment {
        Some(_) => "The highest load at which each arm holds the limits, with its highest throughput at any load.",
        None => "The highest throughput of each arm at any load.",
    };
    let of_arm = |curve: &Curve| {
        let usable = curve.points.iter().filter(|point| point.is_usable());
        let most = usable.filter_map(|point| point.request_throughput).reduce(f64::max);
        let throughput = or_dash(most, |most| format!("{} req/s at most", number(most)));
        match curves.attainment {
            Some(_) => tile(
                &format!("{} holds up to", curve.arm),
                curve.holds.map_or("no step".to_owned(), |held| held.level.to_string()),
                format!("{}; {throughput}", curves.axis.unit()),
            ),
            None => tile(&curve.arm, or_dash(most, number), "requests a second at most".to_owned()),
        }
    };
    list(says, curves.arms.iter().map(of_arm))
}

fn metric(row: &MetricRow) -> Element {
    let show = |value: f64| if row.unit == "ratio" { percent(value) } else { number(value) };
    let values: Vec<_> = row.arms.iter().take(2).map(|value| or_dash(value.value, show)).collect();
    let ratio = row.contrasts.first().and_then(|contrast| contrast.geometric_mean);
    let unit = if row.unit == "ratio" { "%" } else { &row.unit };
    tile(row.name(), or_dash(ratio, |ratio| format!("{}×", number(ratio))), {
        format!("{} {unit}", values.join(" → "))
    })
}

/// Tiles, and below them what they show.
fn list(says: &str, tiles: impl IntoIterator<Item = Element>) -> Element {
    let tiles = el("dl").with("class", "tiles").all(tiles);
    el("section").child(tiles).child(el("p").with("class", "caption").text(says))
}

fn tile(name: &str, value: String, note: String) -> Element {
    let value = el("dd").child(el("strong").text(value)).child(el("span").text(note));
    el("div").child(el("dt").text(name)).child(value)
}
