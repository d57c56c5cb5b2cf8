//! Per-rank rows and tail marks, which runs and comparisons share.

use super::number::{figure, or_dash, percent, whole};
use super::page::Grid;
use crate::report::{Level, LoadRow, PlaceRow, Stat, Summary};

/// One row a place.
pub(super) fn grid(rows: &[PlaceRow]) -> Grid {
    let header =
        ["place", "turns", "prompt tok", "cached tok", "hit %", "output tok", "TTFT p50 (ms)", "TTFT p99 (ms)"];
    let mut grid = Grid::new(header);
    for row in rows {
        let ttft = |stat| or_dash(row.ttft_ms.as_ref(), |summary| statistic(summary, stat));
        grid.row([
            row.place.to_string(),
            whole(row.turns),
            or_dash(row.prompt_tokens, whole),
            or_dash(row.cached_tokens, whole),
            or_dash(row.hit_rate, percent),
            or_dash(row.output_tokens, whole),
            ttft(Stat::P50),
            ttft(Stat::P99),
        ]);
    }
    grid
}

/// The server's load, one row a place: mean and largest of the samples.
pub(super) fn load_grid(rows: &[LoadRow]) -> Grid {
    let header = ["place", "samples", "running", "max", "queued", "max", "KV use %", "max", "last batch hit %", "max"];
    let mut grid = Grid::new(header);
    let requests = |count: f64| format!("{count:.0}");
    for LoadRow { place, samples, running, queued, kv_usage, hit_rate } in rows {
        let mean = |level: &Option<Level>, show: fn(f64) -> String| or_dash(level.map(|level| level.mean), show);
        let max = |level: &Option<Level>, show: fn(f64) -> String| or_dash(level.map(|level| level.max), show);
        grid.row([
            place.to_string(),
            whole(*samples),
            mean(running, figure),
            max(running, requests),
            mean(queued, figure),
            max(queued, requests),
            mean(kv_usage, percent),
            max(kv_usage, percent),
            mean(hit_rate, percent),
            max(hit_rate, percent),
        ]);
    }
    grid
}

/// A statistic, with `~` in front when too few samples stand behind it.
pub(super) fn statistic(summary: &Summary, stat: Stat) -> String {
    marked(stat.of(summary), summary.count, stat.least_samples())
}

/// The explanation of `~`, when `text` has one.
pub(super) const TILDE: &str = "~: from fewer than 1,000 samples, so a matter of luck";

/// A value, with `~` in front when it has too few samples.
pub(super) fn marked(value: f64, samples: u64, least: u64) -> String {
    format!("{}{}", if samples < least { "~" } else { "" }, figure(value))
}
