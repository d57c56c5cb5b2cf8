//! `pin:` targets: this program places the turns, the server only obeys.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::bad_input::gspbench;
use crate::end_to_end::{Sim, json, lines};
use crate::scripted::{Answer, Scripted};
use crate::small_runs::kinds;

const WORKLOAD: [&str; 6] = [
    "--gsp-num-groups=8",
    "--gsp-system-prompt-len=256",
    "--gsp-question-len=32",
    "--gsp-output-len=6",
    "--warmup-requests=2",
    "--api=generate",
];

/// Runs one block and gives its directory's report.
fn run(target: &str, out: &str, more: &[&str], dir: &Path) -> serde_json::Value {
    let args = [&["run", "--target", target, "--out", out], &WORKLOAD[..], more].concat();
    let (code, _, stderr) = gspbench(&args, dir);
    assert_eq!(code, 0, "{target}: {stderr}");
    json(&dir.join(out).join("run.json"))
}

fn assert_all_pinned(report: &serde_json::Value) {
    let attribution = &report["affinity"]["attribution"];
    assert_eq!(attribution["known"], attribution["turns"]);
    assert_eq!(attribution["turns"], report["totals"]["planned"]);
    assert_eq!(attribution["source"], "pin");
}

/// Place of each turn that was served.
fn places(dir: &Path) -> std::collections::BTreeMap<(u64, u64), String> {
    let turns = lines(&dir.join("requests.jsonl"));
    let id = |turn: &serde_json::Value| (turn["group"].as_u64().unwrap(), turn["session"].as_u64().unwrap());
    turns.iter().map(|turn| (id(turn), turn["place"].to_string())).collect()
}

#[test]
fn a_pinned_policy_without_a_guard_places_and_reuses_as_the_server_that_has_it() {
    let home = tempfile::tempdir().unwrap();
    for seed in ["1", "2", "3"] {
        // One turn at a time: no two turns of a group are prefilled at once, so that reuse has one value.
        let more = ["--gsp-prompts-per-group=6", "--max-concurrency=1", "--seed", seed];
        let sim = Sim::at_speed(20, &["--ranks=4", "--load-balance-method=round_robin"]);
        let pin = format!("pin:prefix_affinity,guard=none@{}", sim.url);
        let pinned = run(&pin, &format!("pin{seed}"), &more, home.path());
        let native = "sim:prefix_affinity,guard=none,ranks=4,time-scale=20";
        let native = run(native, &format!("native{seed}"), &more, home.path());
        sim.stop();
        assert_all_pinned(&pinned);
        assert_eq!(pinned["affinity"]["spilled"], serde_json::json!({"turns": 0, "from": "pin", "by_place": []}));
        assert_eq!(native["affinity"]["attribution"]["source"], "meta_info");
        let dir = |kind: &str| home.path().join(format!("{kind}{seed}"));
        assert_eq!(places(&dir("pin")), places(&dir("native")));
        assert_eq!(pinned["totals"]["cached_tokens"], native["totals"]["cached_tokens"]);
        assert!(pinned["totals"]["cached_tokens"].as_u64().unwrap() > 0);
    }
}

#[test]
fn a_pinned_policy_with_its_guard_reuses_as_the_server_that_has_it_within_two_points() {
    let home = tempfile::tempdir().unwrap();
    let mut differences = vec![];
    for seed in ["1", "2", "3"] {
        let more = ["--gsp-prompts-per-group=40", "--max-concurrency=16", "--seed", seed];
        let sim = Sim::at_speed(4, &["--ranks=4", "--load-balance-method=round_robin"]);
        let pinned = run(&format!("pin:prefix_affinity@{}", sim.url), &format!("pin{seed}"), &more, home.path());
        let native = "sim:prefix_affinity,ranks=4,time-scale=4";
        let native = run(native, &format!("native{seed}"), &more, home.path());
        sim.stop();
        assert_all_pinned(&pinned);
        assert!(pinned["affinity"]["spilled"]["turns"].as_u64().unwrap() > 0, "the guard has something to do");
        let reuse = |report: &serde_json::Value| report["metrics"]["cache_hit_rate"]["value"].as_f64().unwrap();
        differences.push(reuse(&pinned) - reuse(&native));
    }
    let mean = differences.iter().sum::<f64>() / 3.0;
    assert!(mean.abs() < 0.02, "{differences:?}");
}

#[test]
fn the_oracle_reuses_all_that_can_be_reused_over_ranks_and_over_servers() {
    let home = tempfile::tempdir().unwrap();
    let more = ["--gsp-prompts-per-group=4", "--max-concurrency=1", "--seed=4"];
    let (one, two) = (Sim::at_speed(20, &["--ranks=4"]), Sim::at_speed(20, &["--ranks=1"]));
    let three = Sim::at_speed(20, &["--ranks=1"]);
    let targets = [format!("pin:oracle@{}", one.url), format!("pin:oracle@{},{}", two.url, three.url)];
    for (target, out) in targets.iter().zip(["ranks", "nodes"]) {
        let report = run(target, out, &more, home.path());
        assert_all_pinned(&report);
        assert_eq!(report["totals"]["cached_tokens"], 8 * 3 * 256, "each prefix is read once");
        assert_eq!(report["validity"]["voids"], serde_json::json!([]));
    }
    let seen: std::collections::BTreeSet<String> = places(&home.path().join("nodes")).into_values().collect();
    let nodes = [&two.url, &three.url].map(|url| serde_json::json!({"node": url}).to_string());
    assert_eq!(seen, nodes.into());
    [one, two, three].into_iter().for_each(Sim::stop);
}

#[test]
fn openai_routes_are_pinned_by_header_and_the_server_serves_where_it_is_told() {
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("truth.jsonl");
    let sim = Sim::at_speed(20, &["--ranks=4", "--log", log.to_str().unwrap()]);
    let more = ["--gsp-prompts-per-group=2", "--max-concurrency=4", "--api=chat", "--seed=4"];
    let report = run(&format!("pin:total_requests@{}", sim.url), "out", &more, home.path());
    sim.stop();
    assert_all_pinned(&report);
    let served: std::collections::BTreeMap<String, serde_json::Value> = lines(&log)
        .into_iter()
        .filter_map(|row| Some((row["request_id"].as_str()?.to_owned(), row["rank"].clone())))
        .collect();
    for turn in lines(&home.path().join("out/requests.jsonl")) {
        assert_eq!(turn["place"]["rank"], served[turn["id"].as_str().unwrap()], "{turn}");
    }
}

#[test]
fn a_server_without_the_ranks_that_are_asked_for_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let sim = Sim::at_speed(20, &["--ranks=2"]);
    let target = format!("pin:round_robin,ranks=3@{}", sim.url);
    let (code, _, stderr) = gspbench(&[&["run", "--target", &target], &WORKLOAD[..]].concat(), home.path());
    sim.stop();
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("it has 2 ranks") && stderr.contains("ranks=3"), "{stderr}");
}

/// A native server that serves where it is told, but for some of the requests, which `strays` picks by their number.
fn straying(strays: impl Fn(usize) -> bool + Send + Sync + 'static) -> Scripted {
    let requests = AtomicUsize::new(0);
    Scripted::start(move |seen| {
        if seen.path != "/generate" {
            return Answer::Whole(404, "application/json", "{}".to_owned());
        }
        let asked = seen.json()["routed_dp_rank"].as_u64().unwrap_or(0);
        let rank = if strays(requests.fetch_add(1, Ordering::SeqCst)) { 1 - asked } else { asked };
        let event = serde_json::json!({"text": "a b c d e f", "meta_info": {
            "id": "x", "prompt_tokens": 290, "cached_tokens": 0, "completion_tokens": 6, "dp_rank": rank,
            "finish_reason": {"type": "length", "length": 6}}});
        Answer::Whole(200, "text/event-stream", format!("data: {event}\n\ndata: [DONE]\n\n"))
    })
}

#[test]
fn a_rank_that_is_ignored_after_the_probe_voids_the_run_above_one_percent_of_its_turns() {
    let home = tempfile::tempdir().unwrap();
    for (out, strays) in [("heeded", 0), ("once", 1), ("twice", 2)] {
        // Probe and warm-up are over by then.
        let server = straying(move |request| (60..60 + strays).contains(&request));
        let target = format!("pin:round_robin,ranks=2@{}", server.url);
        let more = ["--gsp-prompts-per-group=16", "--max-concurrency=1", "--seed=4"];
        let args = [&["run", "--target", &target, "--out", out], &WORKLOAD[..], &more].concat();
        let (code, stdout, stderr) = gspbench(&args, home.path());
        let report = json(&home.path().join(out).join("run.json"));
        let found = (kinds(&report, "voids"), kinds(&report, "warnings"));
        // A busy host may make it void as well.
        let is_void = report["validity"]["verdict"] == "void";
        assert_eq!(code, if is_void { 4 } else { 0 }, "{stdout}{stderr}");
        let says = |kinds: &[String]| kinds.iter().filter(|kind| *kind == "pin").count();
        assert_eq!((says(&found.0), says(&found.1)), (usize::from(strays > 1), usize::from(strays == 1)), "{out}");
        assert!(!found.1.contains(&"oddities".to_owned()), "{found:?}");
        // The server's word is the place of record.
        let rows = report["ranks"].as_array().unwrap().iter();
        let rows: Vec<u64> = rows.map(|row| row["turns"].as_u64().unwrap()).collect();
        assert_eq!((rows.iter().sum::<u64>(), rows[0].abs_diff(64)), (128, u64::from(strays == 1)), "{rows:?}");
        let turns = lines(&home.path().join(out).join("requests.jsonl"));
        let noted: Vec<_> =
            turns.iter().filter(|turn| turn["oddities"] == serde_json::json!(["pin_ignored"])).collect();
        assert_eq!(noted.len(), strays);
        assert!(noted.iter().all(|turn| turn["place_source"] == "meta_info"), "{noted:?}");
    }
}

#[test]
fn a_server_that_ignores_the_rank_is_found_out_by_the_probe() {
    let server = Scripted::start(|seen| match seen.path.as_str() {
        "/generate" => {
            let meta = "\"meta_info\":{\"id\":\"x\",\"prompt_tokens\":9,\"completion_tokens\":2,\"dp_rank\":0,\"finish_reason\":{\"type\":\"length\",\"length\":2}}";
            Answer::Whole(200, "text/event-stream", format!("data: {{\"text\":\"a b\",{meta}}}\n\ndata: [DONE]\n\n"))
        }
        _ => Answer::Whole(404, "application/json", "{}".to_owned()),
    });
    let home = tempfile::tempdir().unwrap();
    let target = format!("pin:round_robin,ranks=2@{}", server.url);
    let (code, _, stderr) = gspbench(&[&["run", "--target", &target], &WORKLOAD[..]].concat(), home.path());
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("takes no placement"), "{stderr}");
}
