//! The whole program against the simulated server, both as processes: what the client reports, what the server counted and
//! what the server's own log says must be the same.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

const GSPBENCH: &str = env!("CARGO_BIN_EXE_gspbench");

/// A simulated server as a child; it ends when its standard input closes, at the latest with this process.
pub(crate) struct Sim {
    child: Child,
    pub(crate) url: String,
}

impl Sim {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::at_speed(20, args)
    }

    /// So many times faster than real time.
    pub(crate) fn at_speed(scale: u32, args: &[&str]) -> Self {
        let mut child = Command::new(GSPBENCH)
            .args(["sim", "--port", "0", "--exit-with-stdin", "--time-scale", &scale.to_string()])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().rsplit(' ').next().unwrap().to_owned();
        assert!(url.starts_with("http://127.0.0.1:"), "{line}");
        Self { child, url }
    }

    /// Closes its standard input and waits until it has ended and its log is whole.
    pub(crate) fn stop(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

/// Runs gspbench, which must end well, and gives its standard output.
pub(crate) fn gspbench(args: &[&str], dir: &Path) -> String {
    let output = Command::new(GSPBENCH).args(args).current_dir(dir).stdin(Stdio::null()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub(crate) fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Growth of a counter over the run, summed over the series whose labels hold these.
fn counter(run: &Value, name: &str, labels: &[(&str, &str)]) -> f64 {
    let rows = run["server"]["counters"].as_array().unwrap().iter();
    let of = rows.filter(|row| row["name"] == name && labels.iter().all(|(key, value)| row["labels"][*key] == *value));
    of.map(|row| row["delta"].as_f64().unwrap()).sum()
}

const GSP: [&str; 7] = [
    "--gsp-num-groups=4",
    "--gsp-prompts-per-group=8",
    "--gsp-system-prompt-len=256",
    "--gsp-question-len=32",
    "--gsp-output-len=6",
    "--max-concurrency=8",
    "--seed=5",
];

/// Runs 8 groups of 16 sessions, one after the other, on eight ranks: nothing is still being read when it is asked for again.
fn on_eight_ranks(method: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::at_speed(200, &["--ranks=8", "--load-balance-method", method]);
    let gsp = ["--gsp-num-groups=8", "--gsp-prompts-per-group=16", "--gsp-system-prompt-len=512", "--gsp-output-len=2"];
    let more = ["--gsp-question-len=16", "--max-concurrency=1", "--seed=7", "--api=generate", "--warmup-requests=0"];
    gspbench(&[&["run", "--target", &sim.url, "--out", "out"], &gsp[..], &more].concat(), dir.path());
    json(&dir.path().join("out/run.json"))
}

#[test]
fn the_served_fleet_of_eight_ranks_reuses_what_the_closed_forms_say() {
    let near = |value: &Value, want: f64, within: f64, what: &str| {
        let value = value.as_f64().unwrap();
        assert!((value - want).abs() <= within, "{what}: {value} is not {want} ± {within}");
    };
    // A rank gets 16 of the 128 sessions; it sees none of a group with the chance that all of them miss the group's 16.
    let never: f64 = (0..16).map(|n| f64::from(112 - n) / f64::from(128 - n)).product();
    let pairs = 64.0 * (1.0 - never);
    let reuse = |pairs: f64| (128.0 - pairs) * 512.0 / (128.0 * 528.0);

    let round_robin = on_eight_ranks("round_robin");
    let oracle = &round_robin["workload"]["oracle"];
    near(&oracle["round_robin"]["cold_pairs"], pairs, 1e-3, "expected pairs");
    near(&oracle["round_robin"]["reuse"], reuse(pairs), 1e-5, "expected reuse");
    let seen = oracle["observed"]["cold_pairs"].as_f64().unwrap();
    near(&oracle["observed"]["reuse"], reuse(seen), 1e-5, "reuse given the pairs of this shuffle");
    near(&round_robin["metrics"]["cache_hit_rate"]["value"], reuse(seen), 0.002, "measured under round robin");
    assert!((seen - pairs).abs() < 8.0, "{seen} pairs, by chance {pairs}");

    let affinity = on_eight_ranks("prefix_affinity");
    near(&affinity["metrics"]["cache_hit_rate"]["value"], reuse(8.0), 0.002, "measured under affinity");
    near(&affinity["workload"]["oracle"]["ideal_reuse"], reuse(8.0), 1e-5, "the ideal");
    let places = |run: &Value| {
        run["affinity"]["keys_per_rank"].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>()
    };
    assert_eq!((places(&affinity), affinity["affinity"]["off_majority_turns"].as_u64()), (8, Some(0)));
    near(&Value::from(places(&round_robin)), seen, 0.0, "a key is a group: its pairs are its places");
}

#[test]
fn client_counters_and_the_servers_own_log_agree_on_every_api() {
    for api in ["chat", "completions", "generate"] {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("truth.jsonl");
        let sim = Sim::start(&["--ranks=4", "--log", log.to_str().unwrap()]);
        gspbench(&[&["run", "--target", &sim.url, "--api", api, "--out", "out"], &GSP[..]].concat(), dir.path());
        sim.stop();
        let run = json(&dir.path().join("out/run.json"));
        assert_eq!((&run["totals"]["planned"], &run["totals"]["complete"]), (&32.into(), &32.into()), "{api}");
        assert_eq!(run["totals"]["prompt_tokens"], 32 * 288, "{api}");
        assert_eq!(run["totals"]["output_tokens"], 32 * 6, "{api}");
        let cached = run["totals"]["cached_tokens"].as_f64().unwrap();
        assert!(cached > 0.0, "{api}: some prefix is always met again");
        assert!((cached - counter(&run, "sglang:cached_tokens_total", &[])).abs() < 0.5, "{api}");
        let hits = counter(&run, "sglang:prefill_effective_tokens_total", &[("mode", "device_hit")]);
        assert!((cached - hits).abs() < 0.5, "{api}");

        let truth: BTreeMap<String, Value> = lines(&log)
            .into_iter()
            .filter_map(|row| Some((row["request_id"].as_str()?.to_owned(), row.clone())))
            .collect();
        for turn in lines(&dir.path().join("out/requests.jsonl")) {
            let served = &truth[turn["id"].as_str().unwrap()];
            for count in ["prompt_tokens", "cached_tokens", "output_tokens"] {
                assert_eq!(turn[count], served[count], "{api}: {count} of {}", turn["id"]);
            }
            assert_eq!(turn["key"], served["routing_key"], "{api}: the key must arrive");
            if api == "generate" {
                assert_eq!(turn["place"]["rank"], served["rank"]);
                assert_eq!(turn["request_id"], served["rid"]);
            }
        }
    }
}

#[test]
fn affinity_without_a_guard_reads_each_prefix_once_and_keeps_a_key_on_its_rank() {
    let dir = tempfile::tempdir().unwrap();
    let target = "sim:prefix_affinity,guard=none,ranks=4,time-scale=20";
    // One turn at a time, so that no two turns of a group are prefilled at once: reuse is exactly G(P−1)s.
    let more = ["--target", target, "--api=generate", "--max-concurrency=1", "--out", "out"];
    gspbench(&[&["run"], &GSP[..], &more].concat(), dir.path());
    let run = json(&dir.path().join("out/run.json"));
    assert_eq!(run["totals"]["cached_tokens"], 4 * 7 * 256);
    assert_eq!(run["affinity"]["off_majority_turns"], 0);
    let ideal = run["workload"]["oracle"]["ideal_reuse"].as_f64().unwrap();
    assert!((run["metrics"]["cache_hit_rate"]["value"].as_f64().unwrap() - ideal).abs() < 1e-6);
}

#[test]
fn later_turns_carry_the_servers_own_replies() {
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "run",
        "--target",
        "sim:prefix_affinity,guard=none,ranks=2,time-scale=20",
        "--gsp-num-turns=3",
        "--out=out",
        "--gsp-num-groups=2",
        "--gsp-prompts-per-group=2",
        "--gsp-system-prompt-len=64",
        "--gsp-question-len=16",
        "--gsp-output-len=5",
        "--seed=9",
        "--api=generate",
    ];
    gspbench(&args, dir.path());
    for turn in lines(&dir.path().join("out/requests.jsonl")) {
        let k = turn["turn"].as_u64().unwrap();
        assert_eq!(turn["prompt_tokens"], 64 + 16 + k * (16 + 5), "turn {k} holds all before it");
        // The last output token of a turn has no KV yet, so a follow-up finds all but that one.
        let before = 64 + 16 + k.saturating_sub(1) * 21 + 5 - 1;
        assert!(k == 0 || turn["cached_tokens"] == before, "{turn}");
    }
    let run = json(&dir.path().join("out/run.json"));
    assert_eq!(run["affinity"]["stickiness"], 1.0);
    assert_eq!(run["affinity"]["key_by"], "session");
}

#[test]
fn an_experiment_shows_both_arms_with_equal_workloads_and_can_be_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let arms = ["--arm", "rr=sim:round_robin,time-scale=20", "--arm", "pa=sim:prefix_affinity,time-scale=20"];
    let table = gspbench(
        &[
            &["ab", "--rounds=2", "--api=generate", "--out=out", "--output-file=lines.jsonl", "--tag=t"],
            &GSP[..],
            &arms,
        ]
        .concat(),
        dir.path(),
    );
    for word in
        ["rr", "pa", "Mean TTFT", "P99 ITL", "Mean TPOT", "P95 E2E", "Cache hit rate", "Failed requests", "rank 7"]
    {
        assert!(table.contains(word), "`{word}` is not in:\n{table}");
    }
    let blocks = json(&dir.path().join("out/ab.json"))["blocks"].clone();
    let order: Vec<_> =
        blocks.as_array().unwrap().iter().map(|block| block["arm"].as_str().unwrap().to_owned()).collect();
    assert_eq!(order, ["rr", "pa", "pa", "rr"]);
    let digest = |path: &str| json(&dir.path().join(path))["workload"]["digest"].clone();
    assert_eq!(digest("out/round-01/rr/run.json"), digest("out/round-01/pa/run.json"));
    assert_ne!(digest("out/round-01/rr/run.json"), digest("out/round-02/rr/run.json"));
    assert_eq!(gspbench(&["compare", "out"], dir.path()), table);
    assert_eq!(gspbench(&["report", "out"], dir.path()), table);
    assert!(gspbench(&["report", "out/round-01/rr"], dir.path()).contains("Request throughput"));
    let pages = ["out/report.html", "out/round-01/rr/report.html"];
    assert_eq!(
        pages.map(|page| std::fs::read_to_string(dir.path().join(page)).unwrap().matches("<svg").count()),
        [12, 7]
    );
    let lines = lines(&dir.path().join("lines.jsonl"));
    assert_eq!(lines.iter().map(|line| &line["x_gspbench"]["arm"]).collect::<Vec<_>>(), ["rr", "pa", "pa", "rr"]);
    assert!(
        lines.iter().all(|line| line["tag"] == "t" && line["completed"] == line["x_gspbench"]["totals"]["planned"])
    );
}
