//! The server's own latency histograms beside the client's: what lies between the two is network, HTTP front and router.

use super::number::{figure, or_dash, whole};
use super::page::{Grid, Section};
use crate::report::{Between, HistogramRole, Latency, RunReport, ServerClock};

/// A row for each time that the server tells; none where it tells none.
pub(super) fn section(report: &RunReport) -> Option<Section> {
    let mut grid = Grid::new(["time (ms)", "server's mean", "its median in", "its p99 in", "samples", "client's mean"]);
    for ServerClock { role, node, count, mean_ms, p50_ms, p99_ms } in report.server.clocks() {
        let node = node.map_or(String::new(), |node| format!(", {} nodes", node.name()));
        let (label, client) = beside(role);
        let client = client.and_then(|latency| latency.of(&report.metrics)).map(|summary| summary.mean);
        grid.row([
            format!("{label}{node}"),
            or_dash(mean_ms, figure),
            or_dash(p50_ms, between),
            or_dash(p99_ms, between),
            whole(count),
            or_dash(client, figure),
        ]);
    }
    let summary = "Server's own clock".to_owned();
    (!grid.rows.is_empty()).then(|| Section::Details { summary, tables: vec![grid] })
}

/// Its name, and what the client measures of it.
fn beside(role: HistogramRole) -> (&'static str, Option<Latency>) {
    match role {
        HistogramRole::Ttft => ("TTFT", Some(Latency::Ttft)),
        HistogramRole::QueueTime => ("Queue time", None),
        HistogramRole::PrefillTime => ("Prefill time", None),
        HistogramRole::Itl => ("ITL", Some(Latency::Itl)),
        HistogramRole::E2e => ("E2E Latency", Some(Latency::E2e)),
    }
}

/// The bounds of a bucket: where in between a quantile lies nobody knows.
fn between(Between { from, to }: Between) -> String {
    match to {
        Some(to) if from == 0.0 => format!("≤ {}", bound(to)),
        Some(to) => format!("{} – {}", bound(from), bound(to)),
        None => format!("> {}", bound(from)),
    }
}

/// As round as its server has it.
fn bound(ms: f64) -> String {
    if ms < 1_000.0 { ms.to_string() } else { figure(ms) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::report;
    use super::super::{markdown, run, terminal};
    use super::*;
    use crate::record::ServerHistogram;
    use crate::report::HistogramDelta;
    use crate::units::NodeRole;

    fn told(role: HistogramRole, node: Option<NodeRole>, counts: &[(f64, u64)], sum: f64) -> Vec<HistogramDelta> {
        let (name, labels) = (format!("{role:?} {node:?}"), BTreeMap::new());
        let cumulative = Some(counts.to_vec());
        let one = ServerHistogram { name, labels, role, place: None, node, cumulative, sum: Some(sum) };
        HistogramDelta::between("http://h", Some(&[]), Some(&[one]))
    }

    #[test]
    fn the_servers_clock_stands_beside_the_clients_and_a_quantile_is_a_bucket() {
        let (mut report, inf) = (report(), f64::INFINITY);
        report.server.address = Some("http://h".into());
        report.server.histograms = [
            told(HistogramRole::E2e, None, &[(1.0, 2_000), (inf, 2_047)], 1_900.0),
            told(HistogramRole::QueueTime, None, &[(0.0, 0), (0.001, 2_000), (inf, 2_047)], 14.5),
            told(HistogramRole::Ttft, None, &[(0.1, 10), (0.2, 2_047), (inf, 2_047)], 371.2),
            told(HistogramRole::PrefillTime, Some(NodeRole::Prefill), &[(0.1, 2), (inf, 2)], 0.1),
        ]
        .concat();
        let text = terminal(&run(&report));
        let start = text.find("Server's own clock").unwrap();
        let table = text[start..].split_inclusive('┘').next().unwrap();
        insta::assert_snapshot!(table, @r"
        Server's own clock
        ┌───────────────────────────────────────────────────────────────────────────────────────────────┐
        │ time (ms)                    server's mean  its median in  its p99 in  samples  client's mean │
        ╞═══════════════════════════════════════════════════════════════════════════════════════════════╡
        │ TTFT                                 181.3      100 – 200   100 – 200    2,047          182.4 │
        │ Queue time                            7.08            ≤ 1         > 1    2,047              – │
        │ Prefill time, prefill nodes          50.00          ≤ 100       ≤ 100        2              – │
        │ E2E Latency                          928.2        ≤ 1,000     > 1,000    2,047          960.1 │
        └───────────────────────────────────────────────────────────────────────────────────────────────┘
        ");
        let markdown = markdown(&run(&report));
        assert!(markdown.contains("<details><summary>Server's own clock</summary>"), "{markdown}");
        report.server.histograms.clear();
        assert!(!terminal(&run(&report)).contains("own clock"));
    }
}
