//! Gates on one run: a path in run.json against a limit.

mod path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::shape::RunReport;
use crate::profile::{Condition, Gate};

pub use path::check_gate;

use path::{at, is_count};

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

/// The value of a path: under `metrics` first, as the registry names it.
fn value_of(report: &Value, path: &str) -> Option<f64> {
    match at(report, path) {
        None if is_count(path) => Some(0.0),
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
    use crate::report::check_gate;
    use crate::report::shape::Metrics;
    use crate::report::tests::{self, answered_after, failed};

    fn report() -> RunReport {
        tests::report(&[answered_after(0, 100), answered_after(1, 100), failed(2)])
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
            ("totals.refused_turns > 0", true),
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
}
