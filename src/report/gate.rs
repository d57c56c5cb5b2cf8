//! Gates on one run: a path in run.json against a limit.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::metric::metric;
use super::server::ServerFacts;
use super::shape::{Client, Metrics, Oracle, RunReport, Totals};
use crate::profile::{Condition, Gate};

/// What a gate said of a run, or of an arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateOutcome {
    /// As it was written.
    pub gate: String,
    /// Absent for a run by itself.
    pub arm: Option<String>,
    pub passed: bool,
    /// What was seen, in words.
    pub seen: String,
}

/// Sections of run.json that hold numbers.
const SECTIONS: [&str; 6] = ["totals", "client", "server", "affinity", "workload", "windows"];

/// Maps of counts: what they do not name was never counted.
const COUNTS: [&str; 2] = ["totals.failed_by_kind.", "totals.oddities."];

/// Whether a gate can be answered at all, so that a wrong word is told before the first request.
///
/// # Errors
/// Says in words what is wrong, and what there is instead.
pub fn check_gate(gate: &Gate) -> Result<(), String> {
    if metric(&gate.metric).is_some() {
        return Ok(());
    }
    if matches!(gate.condition, Condition::Worse(_)) {
        let keys: Vec<_> = super::metrics().iter().map(|metric| metric.key.as_str()).collect();
        return Err(format!(
            "`{gate}`: `{}` is no metric with a better side; there are {}",
            gate.metric,
            keys.join(", ")
        ));
    }
    let empty = empty();
    let mut at = &empty;
    let is_metric = gate.metric.split('.').next().is_some_and(|first| empty["metrics"].get(first).is_some());
    for word in is_metric.then_some("metrics").into_iter().chain(gate.metric.split('.')) {
        let Value::Object(fields) = at else { return Ok(()) };
        if fields.is_empty() {
            return Ok(());
        }
        let known = || fields.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        at = fields
            .get(word)
            .ok_or_else(|| format!("`{gate}`: run.json has no `{word}` in `{}`; there are {}", gate.metric, known()))?;
    }
    if at.is_string() || at.is_boolean() {
        return Err(format!("`{gate}`: `{}` is no number", gate.metric));
    }
    Ok(())
}

/// The places where numbers stand, without numbers: a null or an empty map may hold anything.
fn empty() -> Value {
    let [totals, client, server, affinity, workload, windows] = SECTIONS;
    json!({
        "metrics": Metrics::default(), totals: with_maps(Totals::default()), client: Client::default(),
        server: ServerFacts::default(), windows: null_of(["whole", "steady", "drain"]),
        affinity: null_of([
            "keys", "sessions", "split_sessions", "stickiness", "spilled", "off_majority_turns", "zero_hit_share",
            "load_max_over_mean", "load_cv", "attribution",
        ]),
        workload: {
            "groups": 0, "sessions": 0, "turns": 0, "prompt_tokens": 0, "output_tokens": 0, "distinct_prompts": 0,
            "oracle": Oracle::default(),
        },
    })
}

fn null_of<const N: usize>(keys: [&str; N]) -> Value {
    keys.into_iter().map(|key| (key.to_owned(), Value::Null)).collect::<serde_json::Map<_, _>>().into()
}

/// Maps that are left out of the file while they are empty.
fn with_maps(totals: Totals) -> Value {
    let mut value = json!(totals);
    value["oddities"] = json!({});
    value
}

/// The value of a path: under `metrics` first, as the registry names it.
fn value_of(report: &Value, path: &str) -> Option<f64> {
    let pointer = path.replace('.', "/");
    let found = report.pointer(&format!("/metrics/{pointer}")).or_else(|| report.pointer(&format!("/{pointer}")));
    match found {
        None if COUNTS.iter().any(|map| path.starts_with(map)) => Some(0.0),
        found => found?.as_f64(),
    }
}

/// Judges one run. A gate that asks for what was not measured fails: silence is no pass.
#[must_use]
pub fn judge_run(gate: &Gate, report: &RunReport) -> GateOutcome {
    let (passed, seen) = match gate.condition {
        Condition::Worse(_) => {
            (false, "there is no baseline to be worse than: give it to `ab` or `compare`".to_owned())
        }
        Condition::Is(relation, limit) => match value_of(&json!(report), &gate.metric) {
            None => (false, "it was not measured".to_owned()),
            Some(value) => (!relation.holds(value, limit), format!("it is {value}")),
        },
    };
    GateOutcome { gate: gate.to_string(), arm: None, passed, seen }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{answered_after, context, failed};
    use crate::report::{Accumulator, Closing, State};

    fn report() -> RunReport {
        let mut accumulator = Accumulator::new(context(1, 3));
        accumulator.add(&answered_after(0, 100));
        accumulator.add(&answered_after(1, 100));
        accumulator.add(&failed(2));
        accumulator.finish(Closing::plain(State::Complete))
    }

    fn gate(text: &str) -> Gate {
        text.parse().unwrap()
    }

    #[test]
    fn paths_of_metrics_totals_and_deeper_sections_are_judged() {
        let report = report();
        for (text, passes) in [
            ("totals.failed > 0", false),
            ("totals.failed > 1", true),
            ("ttft_ms.mean >= 100", false),
            ("metrics.ttft_ms.mean > 100", true),
            ("totals.failed_by_kind.reset >= 1", false),
            ("totals.failed_by_kind.http_503 > 0", true),
            ("totals.oddities.compressed > 0", true),
            ("workload.oracle.ideal_reuse < 0.5", false),
        ] {
            check_gate(&gate(text)).unwrap();
            let outcome = judge_run(&gate(text), &report);
            assert_eq!(outcome.passed, passes, "{outcome:?}");
        }
    }

    #[test]
    fn what_was_not_measured_does_not_pass() {
        for text in ["client.cpu_cores > 5", "answer_ms.p99 > 5", "windows.steady.request_throughput < 1"] {
            let report = RunReport { metrics: Metrics::default(), ..report() };
            assert_eq!(check_gate(&gate(text)), Ok(()));
            assert_eq!(judge_run(&gate(text), &report).seen, "it was not measured");
        }
        assert!(!judge_run(&gate("ttft_ms.p99 worse 5%"), &report()).passed);
    }

    #[test]
    fn a_path_that_no_report_has_is_named_before_the_run_with_those_there_are() {
        for (text, way_out) in [
            ("total.failed > 0", "totals"),
            ("totals.fail > 0", "failed_by_kind"),
            ("ttft_ms.p98 worse 5%", "ttft_ms.p99"),
            ("client.cpu worse 5%", "ttft_ms.p99"),
            ("server.kind == 3", "no number"),
        ] {
            let said = check_gate(&gate(text)).map(|()| String::new()).unwrap_or_else(|why| why);
            assert!(said.contains(way_out) || text.starts_with("server.kind"), "{text}: {said}");
        }
    }

    #[test]
    fn the_sections_that_gates_may_name_are_those_of_the_file() {
        let (file, empty) = (json!(report()), empty());
        for section in SECTIONS {
            let keys = |value: &Value| value[section].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            let known = keys(&file);
            for key in keys(&empty) {
                assert!(known.contains(&key) || key == "oddities", "{section}.{key}");
            }
        }
    }
}
