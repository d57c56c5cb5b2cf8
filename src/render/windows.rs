//! The windows beside the whole run, the drain, and what the client says of itself.

use super::number::{figure, or_dash, percent, plural, whole};
use super::page::Grid;
use super::places::statistic;
use crate::report::{EndedBy, Latency, RunReport, Stat, Summary, Window};

/// Smallest share by which rates differ that are shown beside each other.
const LEAST_STRETCH: f64 = 0.01;

/// What bounded the run, in one line.
pub(super) fn line(report: &RunReport) -> String {
    let windows = &report.windows;
    let length = windows.whole.to_us.since(windows.whole.from_us).as_secs();
    let mut parts = vec![match (&windows.steady, &windows.steady_reason) {
        (Some(Window { from_us, to_us, .. }), _) => {
            let share = percent(to_us.since(*from_us).as_secs() / length);
            format!("steady from {} to {} s ({share} % of the run)", figure(from_us.as_secs()), figure(to_us.as_secs()))
        }
        (None, reason) => format!("no steady window: {}", reason.as_deref().unwrap_or("unknown")),
    }];
    parts.extend(windows.drain.map(|drain| {
        format!("{} s from the last start to the end ({} %)", figure(drain.seconds), percent(drain.share))
    }));
    parts.extend(match report.ended_by {
        Some(EndedBy::Duration) => {
            Some(format!("ended by its duration: {} cut or never sent", plural(report.totals.cancelled, "turn")))
        }
        Some(EndedBy::Interrupt) => {
            Some(format!("ended by a signal: {} cut or never sent", plural(report.totals.cancelled, "turn")))
        }
        Some(EndedBy::Plan) | None => None,
    });
    format!("windows: {}", parts.join(" · "))
}

/// The output rate of complete turns alone beside that of all tokens, where turns that were cut brought some.
pub(super) fn finished_only(report: &RunReport) -> Option<String> {
    let (all, finished) = (report.metrics.output_throughput?, report.metrics.finished_output_throughput?);
    (all > finished).then(|| {
        let [all, finished] = [all, finished].map(figure);
        format!(
            "finished-only: {finished} output tok/s of complete turns · with the tokens of turns that were cut: {all}"
        )
    })
}

/// The rates up to the last success beside those of the whole run, where they differ by more than 1 %: what failed or was
/// cut after it stretched the run.
pub(super) fn to_last_success(report: &RunReport) -> Option<String> {
    let (whole, short) = (&report.windows.whole, report.windows.to_last_success.as_ref()?);
    let rates = |window: &Window| {
        let rate = |rate, unit| format!("{} {unit}", or_dash(rate, figure));
        [rate(window.request_throughput, "req/s"), rate(window.output_throughput, "output tok/s")].join(", ")
    };
    let bounds =
        |window: &Window| format!("{} to {} s", figure(window.from_us.as_secs()), figure(window.to_us.as_secs()));
    let pairs =
        [(whole.request_throughput, short.request_throughput), (whole.output_throughput, short.output_throughput)];
    pairs.into_iter().any(is_stretched).then(|| {
        let (to_success, to_end) = (bounds(short), bounds(whole));
        let (stretched, short_rates) = (rates(whole), rates(short));
        format!("to the last success, from {to_success}: {short_rates} · whole run, from {to_end}: {stretched}")
    })
}

/// Whether a rate of the whole run and that up to the last success differ by more than a reader would overlook.
fn is_stretched((whole, short): (Option<f64>, Option<f64>)) -> bool {
    match (whole, short) {
        (Some(whole), Some(short)) => (short - whole).abs() > LEAST_STRETCH * whole,
        (whole, short) => whole.is_some() != short.is_some(),
    }
}

/// The rate of the steady window that a metric of this key has; a dash for what is not one of its rates.
pub(super) fn rate(window: &Window, key: &str) -> String {
    let rate = match key {
        "request_throughput" => window.request_throughput,
        "input_throughput" => window.input_throughput.or_else(|| input(window)),
        "output_throughput" => window.output_throughput,
        "total_throughput" => window.total_throughput,
        _ => None,
    };
    or_dash(rate, figure)
}

/// Of a report that has no field for it: by definition, what is in the total and no output.
fn input(window: &Window) -> Option<f64> {
    window.total_throughput.zip(window.output_throughput).map(|(total, output)| total - output)
}

/// A row of latencies.
pub(super) fn latency(grid: &mut Grid, name: String, summary: Option<&Summary>) {
    let [mean, p50, p90, p95, p99] = Stat::ALL.map(|stat| or_dash(summary, |summary| statistic(summary, stat)));
    grid.row([name, mean, p50, p90, p95, p99, whole(summary.map_or(0, |summary| summary.count))]);
}

/// The latencies of turns that were sent in the steady window, of those that were measured.
pub(super) fn steady_latencies(window: &Window) -> Grid {
    let mut grid = Grid::new(["steady (ms)", "mean", "p50", "p90", "p95", "p99", "samples"]);
    for of in Latency::ALL {
        if let Some(summary) = window.latency.get(of.key()).filter(|_| of != Latency::Answer) {
            latency(&mut grid, of.label().to_owned(), Some(summary));
        }
    }
    grid
}

/// What the client says of itself.
pub(super) fn client(report: &RunReport) -> Vec<String> {
    let client = &report.client;
    let p99 = |lag: &Summary| format!("{} ms", figure(lag.p99));
    let mut parts = vec![format!("send lag p99 {}", or_dash(client.send_lag_ms.as_ref(), p99))];
    parts.extend(client.cap_wait_ms.as_ref().map(|wait| format!("of it cap wait p99 {}", p99(wait))));
    parts.extend(client.runtime_lag_ms.as_ref().map(|lag| format!("runtime lag p99 {}", p99(lag))));
    parts.extend(client.cpu_cores.map(|cores| {
        let usable = report.manifest.host.cores.map_or(String::new(), |usable| format!(" of {usable}"));
        format!("CPU {}{usable} cores", figure(cores))
    }));
    parts.extend(client.busiest_lane.map(|busy| format!("busiest lane {} %", percent(busy))));
    parts.extend(client.in_flight.mean.map(|mean| {
        let max = client.in_flight.max.map_or(String::new(), |max| format!(" (max {})", whole(max)));
        format!("{} turns in flight{max}", figure(mean))
    }));
    parts.extend(client.littles_law_ratio.map(|ratio| {
        let edges = client.littles_law_edges.map_or(String::new(), |edges| format!(" ± {}", figure(edges)));
        format!("Little's law ratio {}{edges}", figure(ratio))
    }));
    parts.extend(client.connections.map(|connections| format!("{} (HTTP/1.1)", plural(connections, "connection"))));
    parts.extend(client.redials.filter(|redials| *redials > 0).map(|redials| {
        let are = if redials == 1 { "a redial" } else { "redials" };
        format!("{} of them {are}", whole(redials))
    }));
    parts.extend(client.connect_ms.as_ref().map(|connect| {
        let [p50, p99, max] = [connect.p50, connect.p99, connect.max].map(figure);
        format!("connect time p50 {p50}, p99 {p99}, max {max} ms")
    }));
    let mut lines = vec![format!("client: {}", parts.join(" · "))];
    lines.extend(client.rate.map(|rate| {
        let [planned, achieved] = [rate.planned, rate.achieved].map(|rate| or_dash(rate, figure));
        format!(
            "rate: {} sessions/s asked for, {planned} as the schedule came out, {achieved} as sent",
            figure(rate.asked)
        )
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::context;
    use crate::report::{Accumulator, Closing, State};

    #[test]
    fn one_redial_is_one() {
        let mut report = Accumulator::new(context(1, 0)).finish(Closing::plain(State::Complete));
        for (redials, words) in [(1, "1 of them a redial"), (2, "2 of them redials")] {
            report.client.redials = Some(redials);
            assert!(client(&report)[0].ends_with(words), "{:?}", client(&report));
        }
    }

    #[test]
    fn rates_that_differ_by_no_more_than_a_hundredth_are_not_shown_twice() {
        let mut report = Accumulator::new(context(1, 0)).finish(Closing::plain(State::Complete));
        let window = |rate| Window { request_throughput: Some(rate), ..Window::default() };
        for (whole, short, is_shown) in [(1.71, 1.72, false), (1.71, 1.73, true), (1.73, 1.71, true), (0.0, 0.0, false)]
        {
            report.windows.whole = window(whole);
            report.windows.to_last_success = Some(window(short));
            assert_eq!(to_last_success(&report).is_some(), is_shown, "{whole} {short}");
        }
    }

    #[test]
    fn a_window_without_its_input_has_what_is_left_of_the_total() {
        let window = Window { total_throughput: Some(50.0), output_throughput: Some(20.0), ..Window::default() };
        assert_eq!(rate(&window, "input_throughput"), "30.00");
        assert_eq!(rate(&Window { input_throughput: Some(7.0), ..window }, "input_throughput"), "7.00");
        assert_eq!(rate(&Window::default(), "input_throughput"), "–");
    }
}
