//! Where two servers describe themselves differently.
//!
//! A policy is compared by changing it and nothing else, so every other field of `/server_info` must be equal. Fields that
//! differ between any two servers, or from one second to the next, say nothing; they are shown with the others and do not count.

use std::collections::BTreeMap;

use serde_json::Value;

use super::shape::InfoDifference;
use crate::report::{RunReport, Target};

/// Addresses, processes and draws of one launch.
const OF_A_LAUNCH: [&str; 10] = [
    "host",
    "random_seed",
    "launch_command",
    "scheduler_pids",
    "base_gpu_id",
    "dist_init_addr",
    "numa_node",
    "forward_pass_metrics_ipc_name",
    "crash_dump_folder",
    "max_step_lag_us",
];
/// The routing policy of a simulated server with its settings: what two of them are started to differ in.
const SIMULATED_POLICY: [&str; 3] = ["load_balance_method", "prefix_affinity_*", "gspbench_sim.guard"];
/// States of the moment, and the arguments once more for every rank: left out altogether.
const NOT_COMPARED: [&str; 4] = ["internal_states", "startup_time", "steps", "status"];
/// Capacities that two launches measure a little differently.
const MEASURED: [&str; 2] = ["max_total_num_tokens", "max_req_input_len"];
const MEASURED_TOLERANCE: f64 = 0.01;

/// Every field in which the servers of two blocks differ. None where one of them does not describe itself.
pub(super) fn differences(
    round: u32,
    arm: &str,
    baseline: &RunReport,
    other: &RunReport,
    named: &[String],
) -> Vec<InfoDifference> {
    let (Some(a), Some(b)) = (&baseline.server.info, &other.server.info) else { return vec![] };
    let is_simulated = |report: &RunReport| matches!(report.manifest.target, Some(Target::Sim { .. }));
    let are_simulated = is_simulated(baseline) && is_simulated(other);
    let mut named = named.to_vec();
    named.extend(SIMULATED_POLICY.iter().filter(|_| are_simulated).map(|&name| name.to_owned()));
    let (a, b) = (fields(a), fields(b));
    let paths = a.keys().chain(b.keys().filter(|path| !a.contains_key(*path)));
    let differing = paths.filter(|path| a.get(*path) != b.get(*path));
    differing
        .map(|path| InfoDifference {
            round,
            arm: arm.to_owned(),
            field: path.clone(),
            baseline: a.get(path).map(ToString::to_string),
            other: b.get(path).map(ToString::to_string),
            may_differ: is_named(path, &named)
                || is_of_a_launch(path)
                || is_measured_alike(path, a.get(path).copied(), b.get(path).copied()),
        })
        .collect()
}

/// Leaves by their path, such as `cuda_graph_config.decode.max_bs`; lists are leaves.
fn fields(info: &Value) -> BTreeMap<String, &Value> {
    let mut found = BTreeMap::new();
    collect("", info, &mut found);
    found
}

fn collect<'a>(path: &str, value: &'a Value, found: &mut BTreeMap<String, &'a Value>) {
    let Value::Object(inner) = value else {
        found.insert(path.to_owned(), value);
        return;
    };
    for (name, value) in inner.iter().filter(|(name, _)| !NOT_COMPARED.contains(&name.as_str())) {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        collect(&path, value, found);
    }
}

/// By its whole path or its last word; `prefix_affinity_*` names all that begin so.
fn is_named(path: &str, named: &[String]) -> bool {
    let last = last(path);
    let matches = |name: &String| match name.strip_suffix('*') {
        Some(start) => path.starts_with(start) || last.starts_with(start),
        None => path == name || last == name,
    };
    named.iter().any(matches)
}

fn is_of_a_launch(path: &str) -> bool {
    let last = last(path);
    last.ends_with("port") || last.ends_with("ports") || OF_A_LAUNCH.contains(&last)
}

fn is_measured_alike(path: &str, a: Option<&Value>, b: Option<&Value>) -> bool {
    let number = |value: Option<&Value>| value?.as_f64();
    let (Some(a), Some(b)) = (number(a), number(b)) else { return false };
    MEASURED.contains(&last(path)) && (a - b).abs() <= MEASURED_TOLERANCE * a.max(b)
}

fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::tests::context;
    use crate::report::{Accumulator, Closing, State};

    fn told(info: Value) -> RunReport {
        let mut report = Accumulator::new(context(1, 0)).finish(Closing::plain(State::Complete));
        report.server.info = Some(info);
        report
    }

    fn found(a: Value, b: Value, named: &[&str]) -> Vec<(String, bool)> {
        let named: Vec<String> = named.iter().map(|&name| name.to_owned()).collect();
        let found = differences(1, "b", &told(a), &told(b), &named);
        found.into_iter().map(|difference| (difference.field, difference.may_differ)).collect()
    }

    #[test]
    fn only_what_is_named_or_differs_anyway_may_differ_and_all_of_it_is_listed() {
        let a = json!({
            "load_balance_method": "round_robin", "port": 30000, "nccl_port": 1, "tp_size": 8, "chunked_prefill_size": 4096,
            "max_total_num_tokens": 100_000, "random_seed": 1, "deep": {"a": 1, "steps": 4}, "internal_states": [1],
            "prefix_affinity_max_load_skew": 1.5,
        });
        let b = json!({
            "load_balance_method": "prefix_affinity", "port": 30001, "nccl_port": 2, "tp_size": 8,
            "chunked_prefill_size": 8192, "max_total_num_tokens": 100_900, "random_seed": 2, "deep": {"a": 2, "steps": 5},
            "internal_states": [2], "more": true,
        });
        let want = |named: &[&str]| {
            let may = |field: &str| {
                let last = last(field);
                matches!(last, "port" | "nccl_port" | "random_seed" | "max_total_num_tokens") || named.contains(&field)
            };
            let fields = [
                "chunked_prefill_size",
                "deep.a",
                "load_balance_method",
                "max_total_num_tokens",
                "nccl_port",
                "port",
                "prefix_affinity_max_load_skew",
                "random_seed",
                "more",
            ];
            fields.map(|field| (field.to_owned(), may(field))).to_vec()
        };
        assert_eq!(found(a.clone(), b.clone(), &["load_balance_method"]), want(&["load_balance_method"]));
        assert_eq!(
            found(a, b, &["chunked_prefill_size", "prefix_affinity_*", "a"]),
            want(&["chunked_prefill_size", "prefix_affinity_max_load_skew", "deep.a"])
        );
    }

    #[test]
    fn a_capacity_that_is_off_by_more_than_a_launch_measures_is_another_server() {
        let capacity = |tokens: u64| json!({"max_total_num_tokens": tokens});
        assert_eq!(found(capacity(100_000), capacity(102_000), &[]), [("max_total_num_tokens".to_owned(), false)]);
        assert_eq!(found(capacity(100_000), capacity(100_000), &[]), []);
    }

    #[test]
    fn a_server_that_tells_nothing_differs_in_nothing() {
        let mut silent = told(Value::Null);
        silent.server.info = None;
        assert_eq!(differences(1, "b", &told(json!({"a": 1})), &silent, &[]), []);
    }

    #[test]
    fn two_simulated_servers_may_differ_in_their_policy_and_in_nothing_else_that_shapes_their_figures() {
        let policy = json!({
            "load_balance_method": "prefix_affinity", "prefix_affinity_max_load_skew": 2.0, "port": 2,
            "gspbench_sim": {"guard": "none", "max_step_lag_us": 9, "steps": [7]},
        });
        let model = json!({
            "attn_dp_size": 4, "tp_size": 4, "max_total_num_tokens": 50_000, "page_size": 16, "chunked_prefill_size": 1,
            "gspbench_sim": {"preset": "x", "time_scale": 3.0, "decode_base_us": 1, "offline_ranks": [1]},
        });
        let simulated = |info: &Value| {
            let mut report = told(info.clone());
            report.manifest.target = Some("sim:round_robin".parse().unwrap());
            report
        };
        for (other, may_differ) in [(policy, true), (model, false)] {
            let found = differences(1, "b", &simulated(&json!({})), &simulated(&other), &[]);
            assert!(found.len() >= 5 - usize::from(may_differ), "{found:?}");
            assert!(found.iter().all(|difference| difference.may_differ == may_differ), "{found:?}");
        }
    }
}
