//! The paths in run.json that a gate may name, so that a wrong word is told before the first request, not after the last.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::profile::{Condition, Gate, KeyScope};
use crate::record::{Failure, PlaceSource};
use crate::report::cold::ColdEvidence;
use crate::report::latency::Latency;
use crate::report::metric::{metric, metrics};
use crate::report::places::affinity::{Affinity, Attribution, KeptConnections, Side, Sides, Spilled};
use crate::report::server::ServerFacts;
use crate::report::shape::{
    Client, Drain, InFlight, Metrics, ObservedOracle, Oracle, RoundRobinOracle, StartRate, Totals, Window, WithFailures,
};
use crate::stats::Summary;

/// Paths that are named beside a wrong one.
const NEAREST: usize = 3;
/// Paths that are named below one that is no number.
const MOST: usize = 12;

/// The server's own description, which may hold anything.
const RAW: &str = "server.info.";

/// Failures by their word; those of HTTP have a number each.
const KINDS: &str = "totals.failed_by_kind.";
const KINDS_MS: &str = "failed_ms.";

/// Whether a gate can be answered at all.
///
/// # Errors
/// Says in words what is wrong, and what there is instead.
pub fn check_gate(gate: &Gate) -> Result<(), String> {
    let path = gate.metric.as_str();
    if metric(path).is_some() {
        return Ok(());
    }
    if matches!(gate.condition, Condition::Worse(_)) {
        let keys = metrics().iter().map(|metric| metric.key.clone()).collect();
        let nearest = nearest(path, keys);
        return Err(format!("`{gate}`: `{path}` is no metric with a better side; nearest to it are {nearest}"));
    }
    let known = known();
    match at(&known, path) {
        Some(Value::Number(_) | Value::Null) => Ok(()),
        Some(Value::Object(_)) => {
            let fields = named(&below(&known, path), MOST);
            Err(format!("`{gate}`: `{path}` is no number; below it are {fields}"))
        }
        Some(_) => Err(format!("`{gate}`: `{path}` is no number; nearest to it are {}", nearest(path, leaves(&known)))),
        None if is_count(path) || is_failed_latency(path) || path.starts_with(RAW) => Ok(()),
        None => Err(format!("`{gate}`: run.json has no `{path}`; nearest to it are {}", nearest(path, leaves(&known)))),
    }
}

/// The value at a path, as gates write it: of metrics without their `metrics.`.
pub(super) fn at<'a>(report: &'a Value, path: &str) -> Option<&'a Value> {
    let pointer = path.replace('.', "/");
    report.pointer(&format!("/metrics/{pointer}")).or_else(|| report.pointer(&format!("/{pointer}")))
}

/// Whether a path names a count of what may never happen, and then stands in no file.
pub(super) fn is_count(path: &str) -> bool {
    let is_kind = path.strip_prefix(KINDS).is_some_and(|kind| kind.parse::<Failure>().is_ok());
    is_kind || at(&json!({ "totals": rare() }), path).is_some_and(Value::is_u64)
}

/// Whether a path names a statistic of the latency of one kind of failure.
fn is_failed_latency(path: &str) -> bool {
    let path = path.strip_prefix("metrics.").unwrap_or(path);
    let kind = path.strip_prefix(KINDS_MS).and_then(|rest| rest.split_once('.'));
    kind.is_some_and(|(kind, stat)| kind.parse::<Failure>().is_ok() && summary().get(stat).is_some())
}

/// Counts that are left out of the file while they are 0.
fn rare() -> Value {
    let oddities = [
        "not_streamed",
        "after_done",
        "invalid_utf8",
        "stray_lines",
        "broken_after_done",
        "compressed",
        "pin_ignored",
        "refusal",
        "came_at_once",
    ];
    let kinds = [
        "connect",
        "tls",
        "client_resource",
        "http_503",
        "in_band_error",
        "aborted",
        "truncated",
        "reset",
        "first_byte_timeout",
        "idle_timeout",
        "no_output",
        "protocol",
    ];
    let counts = |words: &[&str]| words.iter().map(|word| ((*word).to_owned(), json!(0))).collect::<Map<_, _>>();
    json!({ "oddities": counts(&oddities), "failed_by_kind": counts(&kinds), "refused_turns": 0 })
}

/// The sections of run.json that hold numbers, with everything that can stand there: 0 or null where a number does.
fn known() -> Value {
    let summary = summary();
    let latencies = |of: &[Latency]| of.iter().map(|of| (of.key().to_owned(), summary.clone())).collect::<Map<_, _>>();
    let with_failures = WithFailures { count: 0, failed: 0, p50: None, p90: None, p95: None, p99: None };
    let mut metrics = json!(Metrics::default());
    merge(&mut metrics, latencies(&Latency::ALL).into());
    merge(&mut metrics, json!({ "with_failures": { "ttft_ms": with_failures, "e2e_ms": with_failures } }));
    let mut totals = json!(Totals::default());
    merge(&mut totals, rare());
    let mut window = json!(Window::default());
    merge(&mut window, json!({ "latency": latencies(&Latency::ALL) }));
    let split = json!({
        "turns": 0, "intake_ms": summary, "queue_ms": summary, "prefill_ms": summary, "return_ms": summary,
        "outside_ms": summary,
    });
    json!({
        "metrics": metrics, "totals": totals, "client": client(&summary), "server": server(), "ttft_split": split,
        "affinity": affinity(), "workload": workload(),
        "windows": { "whole": window, "to_last_success": window, "steady": window, "drain": Drain::default() },
    })
}

fn summary() -> Value {
    json!(Summary { count: 0, mean: 0.0, std: 0.0, min: 0.0, p50: 0.0, p90: 0.0, p95: 0.0, p99: 0.0, max: 0.0 })
}

fn client(summary: &Value) -> Value {
    let mut client = json!(Client { in_flight: InFlight::default(), ..Client::default() });
    let rate = StartRate { asked: 0.0, planned: None, achieved: None };
    merge(
        &mut client,
        json!({
            "send_lag_ms": summary, "own_lag_ms": summary, "runtime_lag_ms": summary, "cap_wait_ms": summary,
            "connect_ms": summary,
            "rate": rate,
        }),
    );
    client
}

fn server() -> Value {
    let text = || Some(String::new());
    json!(ServerFacts {
        address: text(),
        kind: text(),
        version: text(),
        model: text(),
        load_balance_method: text(),
        cold: Some(ColdEvidence { cold_groups: 0, warm_groups: 0, silent_groups: 0 }),
        ..ServerFacts::default()
    })
}

/// Written out, so that a field that is new has to be looked at here.
fn affinity() -> Value {
    let side = Side { stickiness: None, moves: 0 };
    let text = || Some(String::new());
    json!(Affinity {
        key_by: KeyScope::None,
        keys: None,
        sessions: 0,
        split_sessions: None,
        stickiness: None,
        sides: Some(Sides { prefill: side, decode: side }),
        spilled: Some(Spilled { turns: 0, from: String::new(), by_place: vec![] }),
        off_majority_turns: None,
        off_majority_per_rank: vec![],
        zero_hit_share: None,
        overlap_tokens: None,
        load_max_over_mean: None,
        load_cv: None,
        keys_per_rank: vec![],
        hot_keys: vec![],
        kept_connections: Some(KeptConnections::default()),
        attribution: Attribution { known: 0, turns: 0, source: Some(PlaceSource::Pin), reason: text() },
        split_examples: vec![],
        by_turn: vec![],
        by_cached: vec![],
        by_popularity: vec![],
    })
}

fn workload() -> Value {
    let round_robin = RoundRobinOracle { ranks: 0, reuse: 0.0, cold_pairs: 0.0, split_share: None };
    let observed = ObservedOracle { reuse: 0.0, cold_pairs: 0 };
    let oracle = Oracle { round_robin: Some(round_robin), observed: Some(observed), ..Oracle::default() };
    json!({
        "groups": 0, "sessions": 0, "turns": 0, "prompt_tokens": 0, "output_tokens": 0, "distinct_prompts": 0,
        "oracle": oracle,
    })
}

/// Sets the fields of `more`, at any depth.
fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            more.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, more) => *into = more,
    }
}

/// Every path at which a number can stand, of metrics without their `metrics.`.
fn leaves(known: &Value) -> Vec<String> {
    let mut found = vec![];
    collect("", known, &mut found);
    found.into_iter().map(|path| path.strip_prefix("metrics.").map_or(path.clone(), str::to_owned)).collect()
}

fn below(known: &Value, path: &str) -> Vec<String> {
    let mut found = vec![];
    at(known, path).into_iter().for_each(|value| collect(path, value, &mut found));
    found
}

fn collect(path: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect(&path, value, found);
            }
        }
        Value::Number(_) | Value::Null => found.push(path.to_owned()),
        Value::String(_) | Value::Bool(_) | Value::Array(_) => {}
    }
}

/// The few of `paths` that have most of the words of `path`, in whatever order, and are written most like it.
fn nearest(path: &str, paths: Vec<String>) -> String {
    let path = path.to_lowercase();
    let mut by_missing: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for known in paths {
        let missing = words(&path).filter(|word| words(&known).all(|other| other != *word)).count();
        by_missing.entry(missing).or_default().push(known);
    }
    let sorted = |mut alike: Vec<String>| {
        alike.sort_by_cached_key(|known| (edits(&path, known), known.clone()));
        alike
    };
    let nearest: Vec<String> = by_missing.into_values().flat_map(sorted).take(NEAREST).collect();
    named(&nearest, NEAREST)
}

/// `send`, `lag`, `ms`, `p99`.
fn words(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '_', '-']).filter(|word| !word.is_empty())
}

fn named(paths: &[String], most: usize) -> String {
    let shown: Vec<_> = paths.iter().take(most).map(|path| format!("`{path}`")).collect();
    let more = if paths.len() > most { ", …" } else { "" };
    shown.join(", ") + more
}

/// Letters to insert, drop or change to make one word of the other (Levenshtein).
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (done, letter) in from.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], done + 1);
        for at in 0..to.len() {
            let changed = corner + usize::from(to[at] != letter);
            corner = row[at + 1];
            row[at + 1] = changed.min(corner + 1).min(row[at] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::report::RunReport;
    use crate::report::places::TtftSplit;
    use crate::report::tests::{self, answered_after, failed};

    fn report() -> RunReport {
        tests::report(&[answered_after(0, 100), answered_after(1, 100), failed(2)])
    }

    fn said(path: &str) -> Option<String> {
        check_gate(&format!("{path} > 1").parse().unwrap()).err()
    }

    #[test]
    fn a_path_that_no_report_has_is_named_with_those_that_are_written_alike() {
        for (gate, way_out) in [
            ("e2e_ms.p999 > 5", "`e2e_ms.p99`"),
            ("total.failed > 0", "`totals.failed`"),
            ("totals.fail > 0", "`totals.failed`"),
            ("totals.failed.x > 0", "`totals.failed`"),
            ("totals.failed_by_kind.rest > 0", "`totals.failed_by_kind.reset`"),
            ("totals.oddities.compresed > 0", "`totals.oddities.compressed`"),
            ("client.send_lag_ms.p98 > 1", "`client.send_lag_ms.p99`"),
            ("windows.steady.latency.ttft_ms.p9 > 1", "`windows.steady.latency.ttft_ms.p99`"),
            ("ttft_ms > 1", "`ttft_ms.p99`"),
            ("failed > 0", "`totals.failed`"),
            ("hit_rate < 0.5", "`cache_hit_rate.value`"),
            ("p99_ttft_ms > 1", "`ttft_ms.p99`"),
            ("TTFT-P99 > 1", "`ttft_ms.p99`"),
            ("ideal_reuse < 0.5", "`workload.oracle.ideal_reuse`"),
            ("mean_ttft_ms worse 5%", "`ttft_ms.mean`"),
            ("totals > 1", "`totals."),
            ("server.kind == 3", "no number"),
            ("affinity.attribution.reason == 3", "no number"),
            ("ttft_ms.p98 worse 5%", "`ttft_ms.p99`"),
            ("client.cpu_cores worse 5%", "no metric with a better side"),
            ("nonsense > 1", "nearest"),
        ] {
            let said = check_gate(&gate.parse().unwrap()).unwrap_err();
            assert!(said.contains(&format!("`{gate}`")) && said.contains(way_out), "{gate}: {said}");
        }
    }

    #[test]
    fn every_number_of_a_report_can_be_named_and_no_typo_of_it() {
        let report = json!(report());
        let sections = known().as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        let mut found = vec![];
        for section in sections {
            collect(&section, &report[&section], &mut found);
        }
        // What is absent here may be text in another report, or a list that no path leads into.
        let is_number = |path: &String| at(&report, path).is_some_and(Value::is_number);
        let numbers: Vec<_> = found.into_iter().filter(is_number).collect();
        assert!(numbers.len() > 100, "{numbers:?}");
        for path in numbers {
            assert_eq!(said(&path), None);
            let typo = format!("{path}x");
            assert!(said(&typo).is_some_and(|why| why.contains(path.trim_start_matches("metrics."))), "{typo}");
        }
    }

    #[test]
    fn a_path_without_its_section_is_told_one_that_has_all_of_its_words() {
        let known = leaves(&known());
        // The windows repeat every latency.
        let sections = known.iter().filter(|path| !path.starts_with("windows."));
        let bare = sections.filter_map(|path| Some(path.split_once('.')?.1)).filter(|bare| said(bare).is_some());
        let bare: Vec<&str> = bare.collect();
        assert!(bare.contains(&"send_lag_ms.p99") && bare.len() > 50, "{bare:?}");
        for bare in bare {
            let nearest = nearest(bare, known.clone());
            let first = nearest.split('`').nth(1).unwrap();
            assert!(words(bare).all(|word| words(first).any(|other| other == word)), "{bare}: {nearest}");
        }
    }

    #[test]
    fn what_a_report_leaves_out_while_it_is_zero_is_zero() {
        assert_eq!(said("server.info.max_running_requests"), None, "a server may tell anything");
        for path in ["totals.refused_turns", "totals.oddities.came_at_once", "totals.failed_by_kind.http_404"] {
            assert_eq!((said(path), is_count(path)), (None, true), "{path}");
        }
        let of_kind = ["failed_ms.http_404.p99", "metrics.failed_ms.reset.max", "failed_ms.idle_timeout.count"];
        assert_eq!(of_kind.map(|path| (said(path), is_count(path))), [(None, false), (None, false), (None, false)]);
        assert!(said("failed_ms.reset.p999").is_some() && said("failed_ms.resett.p99").is_some());
        let rare = rare();
        let kinds = rare["failed_by_kind"].as_object().unwrap();
        assert!(kinds.keys().all(|kind| kind.parse::<Failure>().is_ok()));
        let oddity = |word: &String| {
            word == "came_at_once" || serde_json::from_value::<crate::record::Oddity>(json!(word)).is_ok()
        };
        assert!(rare["oddities"].as_object().unwrap().keys().all(oddity));
        let split: TtftSplit = serde_json::from_value(known()["ttft_split"].clone()).unwrap();
        assert!(split.outside_ms.is_some());
    }

    proptest! {
        #[test]
        fn edits_are_a_distance(a in "[ab.]{0,6}", b in "[ab.]{0,6}", c in "[ab.]{0,6}") {
            prop_assert_eq!(edits(&a, &b) == 0, a == b);
            prop_assert_eq!(edits(&a, &b), edits(&b, &a));
            prop_assert!(edits(&a, &c) <= edits(&a, &b) + edits(&b, &c));
            prop_assert!(edits(&a, &b) <= a.len().max(b.len()));
        }
    }
}
