//! The simulated server at work: routing inputs, counters, flush, aborts, its log, and its end.

use gspbench::policy::{Affinity, Fallback, Guard, Method};
use gspbench::sim::Settings;
use serde_json::Value;

use crate::sim_server::{Reply, Sim, quick, slow};

fn chat(text: &str, extra: &str) -> String {
    format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}],"max_tokens":2{extra}}}"#)
}

fn native(text: &str, extra: &str) -> String {
    format!(r#"{{"text":"{text}","sampling_params":{{"max_new_tokens":2}}{extra}}}"#)
}

/// A stream on `/generate` that ends only with its client or its server.
fn endless(text: &str, extra: &str) -> String {
    format!(r#"{{"text":"{text}","stream":true,"sampling_params":{{"max_new_tokens":100000}}{extra}}}"#)
}

/// The same as a chat.
fn endless_chat(text: &str) -> String {
    chat(text, r#","stream":true"#).replace(r#""max_tokens":2"#, r#""max_tokens":100000"#)
}

fn rank(reply: &Reply) -> u64 {
    let json = reply.json();
    json.pointer("/meta_info/dp_rank")
        .or_else(|| json.pointer("/choices/0/meta_info/dp_rank"))
        .unwrap()
        .as_u64()
        .unwrap()
}

#[test]
fn a_rank_asked_for_by_number_leaves_the_round_robin_counter_alone() {
    let sim = Sim::start(Settings { ranks: 4, ..quick() });
    assert_eq!(rank(&sim.post("/generate", &[], &native("a b", ""))), 0);
    assert_eq!(rank(&sim.post("/generate", &[], &native("a b", r#","routed_dp_rank":3"#))), 3);
    assert_eq!(rank(&sim.post("/generate", &[], &native("a b", r#","data_parallel_rank":2"#))), 2);
    let header = [("x-data-parallel-rank", "2")];
    let meta = r#","return_meta_info":true,"routed_dp_rank":1"#;
    assert_eq!(rank(&sim.post("/v1/chat/completions", &header, &chat("a b", meta))), 2, "the header beats the body");
    assert_eq!(
        rank(&sim.post("/generate", &header, &native("a b", ""))),
        1,
        "not read on this route: the next in turn"
    );
    assert_eq!(sim.post("/v1/chat/completions", &[("x-data-parallel-rank", "4")], &chat("a", "")).status, 400);
}

#[test]
fn keys_are_read_where_a_live_server_reads_them() {
    let affinity =
        Affinity { fallback: Fallback::RoundRobin, token_fallback: false, guard: Guard::None, ..Affinity::default() };
    let sim = Sim::start(Settings { ranks: 4, method: Method::PrefixAffinity, affinity, ..quick() });
    let header = [("x-smg-routing-key", "blue")];
    let meta = r#","return_meta_info":true"#;
    let home = rank(&sim.post("/v1/chat/completions", &header, &chat("a b", meta)));
    for text in ["c", "d", "e"] {
        assert_eq!(rank(&sim.post("/v1/chat/completions", &header, &chat(text, meta))), home);
        assert_eq!(rank(&sim.post("/generate", &[], &native(text, r#","routing_key":"blue""#))), home);
    }
    let keyless: Vec<u64> = (0..4).map(|_| rank(&sim.post("/generate", &header, &native("x", "")))).collect();
    assert_eq!(keyless, [0, 1, 2, 3], "the header is not read on /generate, so the fallback takes turns");
    let dropped = r#","return_meta_info":true,"routing_key":"blue""#;
    let keyless: Vec<u64> = (0..4).map(|_| rank(&sim.post("/v1/chat/completions", &[], &chat("x", dropped)))).collect();
    assert_eq!(keyless, [0, 1, 2, 3], "nor the body's key on the chat route");
}

#[test]
fn ranks_out_of_the_live_set_get_nothing() {
    let offline = vec![gspbench::units::Rank(1)];
    let sim = Sim::start(Settings { ranks: 3, offline, ..quick() });
    let ranks: Vec<u64> = (0..4).map(|_| rank(&sim.post("/generate", &[], &native("x", "")))).collect();
    assert_eq!(ranks, [0, 2, 0, 2]);
    assert_eq!(sim.post("/generate", &[], &native("x", r#","routed_dp_rank":1"#)).status, 400);
    let stream = r#","routed_dp_rank":1,"stream":true"#;
    assert_eq!(
        sim.post("/v1/chat/completions", &[], &chat("x", stream)).status,
        400,
        "a head goes out with the first frame"
    );
    let native = sim.post("/generate", &[], &native("x", stream));
    assert_eq!((native.status, native.frames()[0].get("error").is_some()), (200, true), "here it goes out at once");
}

#[test]
fn counters_replies_and_log_tell_the_same() {
    let sim = Sim::start(quick());
    let mut told = 0;
    for index in 0..12 {
        let text = format!("one two three four five six {} seven", index % 3);
        let (path, body) = match index % 3 {
            0 => ("/v1/chat/completions", chat(&text, r#","stream":true,"stream_options":{"include_usage":true}"#)),
            1 => ("/v1/completions", format!(r#"{{"prompt":"{text}","max_tokens":2}}"#)),
            _ => ("/generate", native(&text, "")),
        };
        let reply = sim.post(path, &[("x-request-id", &format!("turn-{index}"))], &body);
        let last = if reply.body.starts_with("data:") { reply.frames().pop().unwrap() } else { reply.json() };
        let cached = last
            .pointer("/usage/prompt_tokens_details/cached_tokens")
            .or_else(|| last.pointer("/meta_info/cached_tokens"));
        told += cached.unwrap().as_u64().unwrap();
    }
    assert!(told > 0);
    let series = |rank| {
        format!(r#"sglang:prefill_effective_tokens_total{{dp_rank="{rank}",engine_type="unified",mode="device_hit""#)
    };
    let hits: f64 = (0..2).map(|rank| sim.metric(&series(rank)).unwrap()).sum();
    assert_eq!(hits.to_string(), told.to_string());
    assert_eq!(sim.metric("sglang:cached_tokens_total").unwrap().to_string(), told.to_string());
    let log = sim.log();
    assert_eq!((&log[0]["log"], log.len()), (&Value::from("gspbench-sim"), 13));
    assert_eq!(log[1..].iter().map(|line| line["cached_tokens"].as_u64().unwrap()).sum::<u64>(), told);
    for (index, line) in log[1..].iter().enumerate() {
        assert_eq!(line["request_id"], format!("turn-{index}"));
        assert_eq!((&line["outcome"], &line["output_tokens"]), (&"complete".into(), &2.into()));
        let (times, tokens) = (line["write_us"].as_array().unwrap(), line["write_tokens"].as_array().unwrap());
        assert_eq!((times.len(), tokens.last()), (tokens.len(), Some(&2.into())));
        assert!(times.iter().map(|time| time.as_u64().unwrap()).is_sorted());
        assert!(line["virtual_us"]["first"].as_u64() < line["virtual_us"]["last"].as_u64());
    }
}

#[test]
fn a_flush_empties_idle_ranks_and_says_400_while_one_is_busy() {
    let sim = Sim::start(slow());
    let evictable = |rank: u8| sim.metric(&format!(r#"sglang:kv_evictable_tokens{{dp_rank="{rank}""#)).unwrap();
    for rank in [0, 1] {
        let body = format!(r#"{{"text":"a b c","routed_dp_rank":{rank},"sampling_params":{{"max_new_tokens":1}}}}"#);
        assert_eq!(sim.post("/generate", &[], &body).status, 200);
    }
    let mut busy = sim.open("POST", "/generate", &[], &endless("x y", r#","routed_dp_rank":1,"rid":"busy""#));
    busy.head();
    assert!(busy.chunk().unwrap().contains(r#""completion_tokens":1,"#));
    assert!(evictable(0) > 0.0 && evictable(1) > 0.0);
    let at_once = sim.get("/flush_cache");
    assert_eq!(at_once.status, 400);
    assert_eq!((evictable(0).to_string(), evictable(1) > 0.0), ("0".to_owned(), true));
    let waited = sim.post("/flush_cache?timeout=0.05", &[], "");
    assert_eq!((waited.status, waited.body.contains("Timed out waiting for idle state.")), (400, true));
    assert_eq!(sim.get("/flush_cache?timeout=soon").status, 400);
    let again = sim.post("/generate", &[], r#"{"text":"x y","rid":"busy"}"#);
    assert!(again.status == 400 && again.body.contains("Duplicate"), "{}", again.body);
    let mut pending = sim.open("POST", "/flush_cache?timeout=60", &[], "");
    let second = loop {
        let reply = sim.get("/flush_cache?timeout=0");
        if reply.body.contains("in progress") {
            break reply;
        }
    };
    assert_eq!(second.status, 400);
    drop(busy);
    assert_eq!(pending.head(), 200, "the busy one's client has left");
    assert_eq!(evictable(1).to_string(), "0");
}

#[test]
fn a_flush_that_would_wait_for_ever_leaves_the_fleet_alive() {
    for timeout in ["1e19", "1.8446744073709550e19", "1e-300", "315576000000"] {
        let sim = Sim::start(slow());
        let mut busy = sim.open("POST", "/generate", &[], &endless("x y", ""));
        busy.head();
        assert!(busy.chunk().is_some());
        let mut pending = sim.open("POST", &format!("/flush_cache?timeout={timeout}"), &[], "");
        assert_eq!(sim.get("/server_info").status, 200, "{timeout}: the fleet must still answer");
        drop(busy);
        let ended = pending.head();
        assert!(matches!(ended, 200 | 400), "{timeout}: {ended}");
        assert_eq!(sim.post("/generate", &[], &native("a b", "")).status, 200, "{timeout}");
    }
}

#[test]
fn a_client_that_leaves_aborts_its_request() {
    let sim = Sim::start(slow());
    for (path, body) in [("/generate", endless("a b", "")), ("/v1/chat/completions", endless_chat("a b"))] {
        let mut exchange = sim.open("POST", path, &[("content-type", "application/json")], &body);
        assert_eq!(exchange.head(), 200);
        exchange.chunk().unwrap();
        drop(exchange);
    }
    assert_eq!(sim.get("/flush_cache?timeout=60").status, 200);
    // One that waits for its whole reply has nothing to read yet; the rank shows when it runs.
    let whole = sim.open("POST", "/generate", &[], &endless("c d", "").replace(r#""stream":true,"#, ""));
    while sim.metric(r#"sglang:num_running_reqs{dp_rank="0""#).unwrap() < 1.0 {}
    drop(whole);
    assert_eq!(sim.get("/flush_cache?timeout=60").status, 200);
    assert_eq!(sim.metric("sglang:num_aborted_requests_total").unwrap().to_string(), "3");
    assert_eq!(
        sim.metric(r#"sglang:num_requests_total{engine_type="unified",is_streaming="true""#).unwrap().to_string(),
        "2"
    );
    assert_eq!(sim.metric(r#"sglang:num_used_tokens{dp_rank="0""#).unwrap().to_string(), "0");
    let log = sim.log();
    assert_eq!(log.len(), 4);
    assert!(log[1..].iter().all(|line| line["outcome"] == "aborted" && line["output_tokens"].as_u64() < Some(100_000)));
}

#[test]
fn a_server_that_stops_cuts_its_streams_without_a_done() {
    let mut sim = Sim::start(slow());
    let mut exchange = sim.open("POST", "/generate", &[], &endless("a b", ""));
    exchange.head();
    exchange.chunk().unwrap();
    sim.end();
    let reply = exchange.finish();
    assert!(!reply.body.contains("[DONE]") && !reply.is_whole);
}
