//! The server's own latency histograms over a run: what the simulated server counted, and what a scripted page says (B109).

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::end_to_end::{Sim, gspbench, json as read};
use crate::scripted::Answer;
use crate::traps_metrics::run_with;

/// A stamp of ours may lie this much before the reading of the socket that it belongs to (README, "stamp"), in ms.
const STAMP: f64 = 1.0;

/// Runs 32 turns on four ranks; `run.json` and what was printed.
fn on_four_ranks(dir: &Path, out: &str, api: &str) -> (Value, String) {
    let sim = Sim::start(&["--ranks=4", "--load-balance-method=round_robin"]);
    let gsp = ["--gsp-num-groups=4", "--gsp-prompts-per-group=8", "--gsp-system-prompt-len=256", "--gsp-output-len=6"];
    let more = ["--gsp-question-len=32", "--max-concurrency=8", "--seed=5", "--api", api, "--out", out];
    let printed = gspbench(&[&["run", "--target", &sim.url], &gsp[..], &more].concat(), dir);
    sim.stop();
    (read(&dir.join(out).join("run.json")), printed)
}

fn of<'a>(run: &'a Value, role: &'a str) -> impl Iterator<Item = &'a Value> {
    run["server"]["histograms"].as_array().unwrap().iter().filter(move |of| of["role"] == role)
}

fn sum(run: &Value, role: &str, field: &str) -> f64 {
    of(run, role).filter_map(|of| of[field].as_f64()).sum()
}

#[test]
fn the_servers_histograms_count_the_turns_of_the_run_and_no_time_of_its_own_is_longer_than_the_clients() {
    for api in ["chat", "generate"] {
        let dir = tempfile::tempdir().unwrap();
        let (run, printed) = on_four_ranks(dir.path(), "out", api);
        let complete = run["totals"]["complete"].as_f64().unwrap();
        assert_eq!(complete, 32.0);
        for role in ["ttft", "queue_time", "e2e"] {
            assert_eq!(sum(&run, role, "count"), complete, "{api}: {role}");
        }
        let tokens = run["totals"]["output_tokens"].as_f64().unwrap();
        assert!(
            sum(&run, "itl", "count") <= tokens - complete,
            "a token after the first is in a gap, or in the first frame"
        );
        // Every rank's queue let in the turns that say they were served there.
        if api == "generate" {
            let by_rank: BTreeMap<_, _> =
                of(&run, "queue_time").map(|of| (of["place"].to_string(), of["count"].clone())).collect();
            let served = run["ranks"].as_array().unwrap().iter();
            assert_eq!(by_rank, served.map(|row| (row["place"].to_string(), row["turns"].clone())).collect());
        }
        // The request is sent before it is received, and its first token is written before it arrives. The queue lies inside.
        let (ttft, queued) = (sum(&run, "ttft", "sum_ms") / complete, sum(&run, "queue_time", "sum_ms") / complete);
        let client = run["metrics"]["ttft_ms"]["mean"].as_f64().unwrap();
        assert!(0.0 < ttft && ttft <= client + STAMP, "{api}: {ttft} by the server, {client} by the client");
        assert!(queued <= ttft + 1e-6, "{api}: {queued} ms of {ttft} in the queue");
        for histogram in run["server"]["histograms"].as_array().unwrap().iter().filter(|of| of["count"] != 0) {
            let buckets = histogram["buckets"].as_array().unwrap();
            let counts: u64 = buckets.iter().map(|bucket| bucket["count"].as_u64().unwrap()).sum();
            assert_eq!(histogram["count"], counts, "{histogram}");
            let (mean, last) = (histogram["mean_ms"].as_f64().unwrap(), &buckets[buckets.len() - 1]["to_ms"]);
            let within = buckets[0]["from_ms"].as_f64().unwrap() <= mean && last.as_f64().is_none_or(|to| mean <= to);
            assert!(within, "{histogram}");
        }
        for word in ["Server's own clock", "Queue time", "client's mean"] {
            assert!(printed.contains(word), "`{word}`: {printed}");
        }
        let again = gspbench(&["report", "out"], dir.path());
        assert!(again.contains("Server's own clock"), "a saved run tells it again: {again}");
    }
}

#[test]
fn a_comparison_shows_the_servers_means_of_each_arm_beside_what_is_judged() {
    let dir = tempfile::tempdir().unwrap();
    let (first, _) = on_four_ranks(dir.path(), "a", "generate");
    on_four_ranks(dir.path(), "b", "generate");
    let compare = |format| gspbench(&["compare", "a", "b", "--format", format], dir.path());
    let markdown = compare("markdown");
    let (block, details) = markdown.split_once("<details>").unwrap();
    for row in ["Server's mean TTFT (ms)", "Server's mean queue time (ms)"] {
        assert!(details.contains(row) && !block.contains(row), "`{row}`: {markdown}");
    }
    let comparison: Value = serde_json::from_str(&compare("json")).unwrap();
    let mean = sum(&first, "queue_time", "sum_ms") / 32.0;
    let told = comparison["arms"][0]["server_queue_ms"].as_f64().unwrap();
    assert!((told - mean).abs() < 1e-4, "{told}, not {mean}");
}

/// B109
#[test]
fn a_histogram_of_any_shape_gives_count_sum_mean_and_the_bounds_of_its_median() {
    let family = "vllm:time_to_first_token_seconds";
    let page = move |counts: [u32; 3], sum: f64, tokens: u32| {
        let buckets = ["+Inf", "0.1", "0.5"].into_iter().zip(counts);
        let buckets: String = buckets.map(|(le, n)| format!("{family}_bucket{{a=\"x\",le=\"{le}\"}} {n}\n")).collect();
        let label = "l=\"a \\\"b\\\",\\n}c\"";
        format!(
            "# TYPE {family} histogram\n{buckets}{family}_sum{{a=\"x\"}} {sum}\n{family}_count{{a=\"x\"}} {}\n\
             {family}_created{{a=\"x\"}} 1.7e9\nvllm:num_requests_running NaN\nvllm:prompt_tokens_total{{{label}}} {tokens}\n\
             vllm:prompt_tokens_created 1.7e9\nvllm:generation_tokens{{{label}}} {tokens}\n\
             vllm:request_queue_time_seconds_bucket{{le=\"+Inf\"}} {}\nvllm:request_queue_time_seconds_sum NaN\n# EOF",
            counts[0], counts[0]
        )
    };
    let ran = run_with(move |turn| {
        let text = if turn == 0 { page([7, 3, 3], 60.0, 100) } else { page([17, 7, 12], 63.5, 140) };
        Answer::Whole(200, "application/openmetrics-text", text)
    });
    let report = ran.report();
    let server = &report["server"];
    let histograms = server["histograms"].as_array().unwrap();
    assert_eq!(histograms.len(), 2, "{histograms:?}");
    let ttft = of(&report, "ttft").next().unwrap();
    assert_eq!((&ttft["count"], &ttft["sum_ms"], &ttft["mean_ms"]), (&json!(10), &json!(3500.0), &json!(350.0)));
    assert_eq!(ttft["p50_ms"], json!({"from": 100.0, "to": 500.0}));
    assert_eq!(ttft["p99_ms"], json!({"from": 500.0, "to": null}));
    assert_eq!((&ttft["before"], &ttft["after"], &ttft["labels"]), (&json!(7), &json!(17), &json!({"a": "x"})));
    // A sum that is no number leaves the mean unknown, and nothing else.
    let queue = of(&report, "queue_time").next().unwrap();
    assert_eq!((&queue["count"], &queue["sum_ms"], &queue["mean_ms"]), (&json!(10), &Value::Null, &Value::Null));
    assert_eq!(queue["p50_ms"], json!({"from": 0.0, "to": null}));
    let counters: Vec<_> =
        server["counters"].as_array().unwrap().iter().map(|of| (of["name"].as_str().unwrap(), &of["delta"])).collect();
    assert_eq!(counters, [("vllm:prompt_tokens_total", &json!(40.0)), ("vllm:generation_tokens", &json!(40.0))]);
    assert_eq!(server["counters"][0]["labels"]["l"], "a \"b\",\n}c");
}
