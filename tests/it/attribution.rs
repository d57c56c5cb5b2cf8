//! Facts that only some servers tell, as processes: who served a turn, where its time went, what it found.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use gspbench::client::{Asks, CachedDetails};
use gspbench::record::{Place, PlaceSource};
use gspbench::workload::Api;
use serde_json::Value;

use crate::end_to_end::{Sim, gspbench, json, lines};
use crate::scripted::{Answer, Scripted, Step};
use crate::small_runs::kinds;
use crate::wire_client::Sender;

/// Two groups of three sessions of two turns, one at a time.
const SMALL: [&str; 8] = [
    "--gsp-num-groups=2",
    "--gsp-prompts-per-group=3",
    "--gsp-num-turns=2",
    "--gsp-system-prompt-len=100",
    "--gsp-question-len=20",
    "--gsp-output-len=4",
    "--max-concurrency=1",
    "--seed=3",
];

fn turns(dir: &Path) -> Vec<Value> {
    lines(&dir.join("out/requests.jsonl"))
}

#[test]
fn a_server_without_a_cache_report_still_tells_the_cached_tokens_of_every_turn() {
    for api in ["chat", "completions"] {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("truth.jsonl");
        let sim = Sim::start(&["--ranks=2", "--disable-cache-report", "--log", log.to_str().unwrap()]);
        gspbench(&[&["run", "--target", &sim.url, "--api", api, "--out", "out"], &SMALL[..]].concat(), dir.path());
        sim.stop();
        let truth: HashMap<String, Value> = lines(&log)
            .into_iter()
            .filter_map(|row| Some((row["request_id"].as_str()?.to_owned(), row["cached_tokens"].clone())))
            .collect();
        let turns = turns(dir.path());
        assert!(turns.iter().any(|turn| turn["cached_tokens"] == 0), "{api}: silence is a zero here");
        for turn in turns {
            assert_eq!(turn["cached_tokens"], truth[turn["id"].as_str().unwrap()], "{api}: {}", turn["id"]);
        }
    }
}

#[test]
fn the_native_route_shows_where_the_time_to_the_first_token_went() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::start(&["--ranks=2"]);
    let args = ["run", "--target", &sim.url, "--api=generate", "--out=out"];
    let table = gspbench(&[&args, &SMALL[..]].concat(), dir.path());
    let run = json(&dir.path().join("out/run.json"));
    assert_eq!(run["ttft_split"]["turns"], 12);
    for part in ["intake_ms", "queue_ms", "prefill_ms", "return_ms", "outside_ms"] {
        assert_eq!(run["ttft_split"][part]["count"], 12, "{part}");
    }
    // A turn alone on its rank waits for nobody; its prefill is a step of 42 ms and more, twenty times as fast.
    assert!(run["ttft_split"]["prefill_ms"]["min"].as_f64().unwrap() >= 42.0 / 20.0);
    for turn in turns(dir.path()) {
        let times = turn["server_times"].as_object().unwrap();
        let told: u64 = times.values().map(|us| us.as_u64().unwrap()).sum();
        let ttft = turn["first_us"].as_u64().unwrap() - turn["sent_us"].as_u64().unwrap();
        assert!(times.len() == 4 && told <= ttft + 1_000, "{told} of {ttft}: {turn}");
    }
    assert!(table.contains("TTFT, as its server tells (ms)") && table.contains("prefill"), "{table}");
}

/// A line of the log that SGLang writes, of a request that the simulator served.
fn logged(row: &Value, rank: &Value) -> String {
    let parameters = serde_json::json!({"rid": null}).to_string();
    let line =
        serde_json::json!({"request_parameters": parameters, "id": row["rid"], "dp_rank": rank, "queue_time": 0.5});
    format!("{line}\n")
}

#[test]
fn the_servers_log_of_requests_tells_which_pins_of_an_openai_route_were_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("truth.jsonl");
    let sim = Sim::start(&["--ranks=2", "--log", log.to_str().unwrap()]);
    let target = format!("pin:round_robin@{}", sim.url);
    gspbench(&[&["run", "--target", &target, "--api=chat", "--out=out"], &SMALL[..]].concat(), dir.path());
    sim.stop();
    let rows: Vec<Value> = lines(&log).into_iter().filter(|row| row["rid"].is_string()).collect();
    let turns_on_rank_1 = |run: &Value| run["ranks"][1]["turns"].as_u64().unwrap();
    let before = json(&dir.path().join("out/run.json"));
    assert_eq!(turns_on_rank_1(&before), 6);
    for (name, is_obeyed) in [("obeyed", true), ("ignored", false)] {
        let said = rows.iter().map(|row| logged(row, &if is_obeyed { row["rank"].clone() } else { 0.into() }));
        std::fs::write(dir.path().join(name), said.collect::<String>()).unwrap();
        let (exit, stdout, stderr) = crate::bad_input::gspbench(&["report", "out", "--export-file", name], dir.path());
        let run = json(&dir.path().join("out/run.json"));
        let is_void = kinds(&run, "voids").contains(&"pin".to_owned());
        assert_eq!((exit, is_void), (if is_obeyed { (0, false) } else { (4, true) }), "{stdout}{stderr}");
        assert_eq!(turns_on_rank_1(&run), if is_obeyed { 6 } else { 0 });
        assert_eq!(run["totals"]["oddities"]["pin_ignored"], if is_obeyed { Value::Null } else { 6.into() });
        assert_eq!(
            turns(dir.path()).iter().filter(|turn| turn["place_source"] == "pin").count(),
            if is_obeyed { 12 } else { 6 }
        );
    }
}

#[test]
fn the_servers_log_of_requests_gives_the_ranks_that_an_openai_stream_does_not_tell() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("truth.jsonl");
    let sim = Sim::start(&["--ranks=2", "--log", log.to_str().unwrap()]);
    gspbench(&[&["run", "--target", &sim.url, "--api=chat", "--out=out"], &SMALL[..]].concat(), dir.path());
    sim.stop();
    let before = json(&dir.path().join("out/run.json"));
    assert_eq!(
        (&before["affinity"]["attribution"]["known"], before["ranks"].as_array().unwrap().len()),
        (&0.into(), 0)
    );
    assert!(before["affinity"]["attribution"]["reason"].as_str().unwrap().contains("--export-file"));

    // As SGLang writes it: the reply's meta_info beside the parameters, in one folder, a file an hour; the last line is torn.
    let rows: Vec<Value> = lines(&log).into_iter().filter(|row| row["rid"].is_string()).collect();
    let exported: Vec<String> = rows.iter().map(|row| logged(row, &row["rank"])).collect();
    let (first, second) = exported.split_at(exported.len() / 2);
    let folder = dir.path().join("export");
    std::fs::create_dir(&folder).unwrap();
    // The earlier file was put away, in two members as `gzip >>` makes them.
    let (one, two) = first.split_at(first.len() / 2);
    let packed = [gzip(&one.concat()), gzip(&two.concat())].concat();
    let put_away = folder.join("sglang-request-metrics-20261130_05.log.gz");
    std::fs::write(folder.join("sglang-request-metrics-20261130_06.log"), second.concat() + "{\"id\":\"x").unwrap();
    std::fs::write(folder.join("other.txt"), "no log").unwrap();
    std::fs::write(&put_away, &packed[..packed.len() - 9]).unwrap();
    let cut = Command::new(env!("CARGO_BIN_EXE_gspbench"))
        .args(["report", "out", "--export-file", "export"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&cut.stderr);
    assert!(said.contains("20261130_05.log.gz") && said.contains("cannot be read"), "{said}");
    std::fs::write(&put_away, &packed).unwrap();

    let table = gspbench(&["report", "out", "--export-file", "export"], dir.path());
    assert!(table.contains("(from export_file)") && table.contains("rank 1"), "{table}");

    let after = json(&dir.path().join("out/run.json"));
    assert_eq!(after["affinity"]["attribution"]["known"], 12);
    assert!(after["workload"]["oracle"]["observed"]["cold_pairs"].as_u64().unwrap() >= 2);
    assert_eq!((&after["ttft_split"]["queue_ms"]["p50"], &after["totals"]), (&500.0.into(), &before["totals"]));
    let ranks: HashMap<&str, &Value> = rows.iter().map(|row| (row["rid"].as_str().unwrap(), &row["rank"])).collect();
    for turn in turns(dir.path()) {
        assert_eq!(&turn["place"]["rank"], ranks[turn["request_id"].as_str().unwrap()]);
        assert_eq!(turn["place_source"], "export_file");
    }
    assert_eq!(gspbench(&["report", "out"], dir.path()), table, "what was joined is on file");
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn where_each_worker_has_a_model_name_of_its_own_the_reply_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::start(&["--ranks=2", "--model=worker-a"]);
    let args = ["run", "--target", &sim.url, "--api=chat", "--place-field=model", "--out=out"];
    let table = gspbench(&[&args, &SMALL[..]].concat(), dir.path());
    let run = json(&dir.path().join("out/run.json"));
    assert_eq!((&run["ranks"][0]["place"]["node"], &run["ranks"][0]["turns"]), (&"worker-a".into(), &12.into()));
    assert_eq!(run["affinity"]["attribution"]["source"], "model");
    assert!(table.contains("│ worker-a "), "{table}");
}

/// A reply of one piece of text, with further fields in its events and a further header.
fn reply(header: &str, more: &str) -> Answer {
    let text = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}}}}]{more}}}\n\n");
    let end = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n";
    let body = text + end;
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{header}content-length: {}\r\n\r\n", body.len());
    Answer::Steps(vec![Step::Write((head + &body).into_bytes())])
}

#[test]
fn workers_that_a_router_names_are_named_in_every_table() {
    let turns = AtomicUsize::new(0);
    // Three workers in turn, whatever the key; the first request is the probe.
    let router = Scripted::start(move |seen| match &*seen.method {
        "POST" => {
            let worker = turns.fetch_add(1, Ordering::SeqCst) % 3;
            reply(&format!("x-smg-routed-worker-id: http://w{worker}:1\r\n"), "")
        }
        _ => Answer::Whole(404, "text/plain", String::new()),
    });
    let dir = tempfile::tempdir().unwrap();
    let more = ["--api=chat", "--out=out", "--warmup-requests=0", "--disable-ignore-eos"];
    let args = [&["run", "--target", &router.url], &SMALL[..], &more].concat();
    // Void or not: a busy host may make the client late, which is not this test's business.
    let output = Command::new(env!("CARGO_BIN_EXE_gspbench")).args(&args).current_dir(dir.path()).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let run = json(&dir.path().join("out/run.json"));
    let rows: Vec<_> =
        run["ranks"].as_array().unwrap().iter().map(|row| (&row["place"]["node"], &row["turns"])).collect();
    let node = |n: u32| Value::from(format!("http://w{n}:1"));
    assert_eq!(rows, [(&node(0), &4.into()), (&node(1), &4.into()), (&node(2), &4.into())]);
    assert_eq!(run["affinity"]["attribution"]["source"], "router_header");
    assert_eq!((&run["affinity"]["split_sessions"], &run["affinity"]["stickiness"]), (&6.into(), &0.0.into()));
    let places = run["affinity"]["split_examples"][0]["places"].as_array().unwrap();
    assert_eq!(places.len(), 2);
    let sequence: Vec<_> = places.iter().map(|place| place["node"].as_str().unwrap()).collect();
    assert!(table.contains(&sequence.join(",")), "{sequence:?} is not in:\n{table}");
    for worker in 0..3 {
        // Rows of two tables, by place and by keys.
        assert!(table.matches(&format!("│ http://w{worker}:1")).count() >= 2, "{table}");
    }
    let markdown = std::fs::read_to_string(dir.path().join("out/report.md")).unwrap();
    assert!(markdown.contains("| http://w2:1 |"), "{markdown}");
}

#[test]
fn fields_are_asked_for_where_the_server_has_them_and_nowhere_else() {
    let nvext = r#","nvext":{"worker_id":{"prefill_worker_id":7,"decode_worker_id":18446744073709551615},"timing":{"prefill_wait_time_ms":1.5,"prefill_time_ms":20}}"#;
    let server = Scripted::start(move |_| reply("", nvext));
    let turn = |asks: Asks| {
        let mut sender = Sender::new(Api::Chat, &server.url);
        sender.settings.shape.asks = asks;
        let turn = sender.build().turn(0).0;
        let body = server.turns().last().unwrap().json();
        (turn, body["nvext"].clone(), body["return_cached_tokens_details"].clone())
    };
    let (_, nvext, details) = turn(Asks::default());
    assert_eq!((nvext, details), (Value::Null, Value::Null));
    let (turn, nvext, details) = turn(Asks { nvext: true, cached_details: CachedDetails::Asked, rank: None });
    assert_eq!((nvext["extra_fields"][0].as_str(), details), (Some("worker_id"), true.into()));
    let pair = Place::Pair { prefill: "7".into(), decode: u64::MAX.to_string() };
    assert_eq!((turn.place, turn.place_source), (Some(pair), Some(PlaceSource::WorkerId)));
    let times = turn.server_times.unwrap();
    assert_eq!(times.spans(), [None, Some(1_500), Some(20_000), None]);
}

#[test]
fn a_run_that_is_pinned_as_a_whole_has_its_place_from_the_pin() {
    let dir = tempfile::tempdir().unwrap();
    let sim = Sim::start(&["--ranks=2"]);
    let args = ["run", "--target", &sim.url, "--api=chat", "--header=X-Data-Parallel-Rank=1", "--out=out"];
    gspbench(&[&args, &SMALL[..]].concat(), dir.path());
    let run = json(&dir.path().join("out/run.json"));
    assert_eq!(run["affinity"]["attribution"]["source"], "pin");
    // The simulator counts where each prompt went: what was claimed is what it saw.
    let turns: Vec<_> = run["ranks"].as_array().unwrap().iter().map(|row| row["turns"].as_u64().unwrap()).collect();
    assert_eq!(turns, [0, 12]);
    assert_eq!(run["validity"]["voids"], Value::Array(vec![]), "counters by rank agree");
}
