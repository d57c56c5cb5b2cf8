//! The simulated server's bytes against captures of a live SGLang 0.5.23.

use gspbench::sim::{Limits, Tokens};
use serde_json::Value;

use crate::sim_server::{Reply, Sim, quick, slow};

fn captured(name: &str) -> String {
    let path = format!("{}/tests/data/sglang/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Status and body of a captured reply, its chunks joined.
fn captured_reply(name: &str) -> (u16, Vec<String>) {
    let text = captured(&format!("{name}.raw"));
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let is_chunked = head.contains("Transfer-Encoding: chunked");
    let frames = body.split_terminator("\n\n").filter_map(|part| part.find("data: ").map(|at| part[at..].to_owned()));
    (status, if is_chunked { frames.collect() } else { vec![body.to_owned()] })
}

/// The bytes with every value made equal: strings to `s`, numbers to `0`. Keys, their order and nulls stay.
fn shape(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(letter) = rest.chars().next() {
        if letter == '"' {
            let end = 1 + rest[1..]
                .char_indices()
                .scan(false, |escaped, (at, c)| {
                    let is_end = c == '"' && !*escaped;
                    *escaped = c == '\\' && !*escaped;
                    Some((at, is_end))
                })
                .find(|(_, is_end)| *is_end)
                .unwrap()
                .0;
            let (string, after) = rest.split_at(end + 1);
            out += if after.starts_with(':') { string } else { "s" };
            rest = after;
        } else if letter.is_ascii_digit() {
            out.push('0');
            rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || "+-.e".contains(c));
        } else {
            out.push(letter);
            rest = &rest[letter.len_utf8()..];
        }
    }
    // Lists of ids differ in length only.
    while out.contains("0,0") {
        out = out.replace("0,0", "0");
    }
    out
}

/// First frames, the last of the middle ones, and the tail: how many tokens there were does not matter.
fn outline(frames: &[String]) -> Vec<String> {
    let mut shapes: Vec<String> = frames.iter().map(|frame| shape(frame)).collect();
    shapes.dedup();
    shapes
}

fn assert_same_stream(reply: &Reply, capture: &str) {
    let (status, frames) = captured_reply(capture);
    assert_eq!(reply.status, status);
    assert!(reply.head.contains("content-type: text/event-stream; charset=utf-8"), "{}", reply.head);
    let ours: Vec<String> = reply.chunks.iter().map(|chunk| chunk.trim_end().to_owned()).collect();
    assert!(reply.chunks.iter().all(|chunk| chunk.ends_with("\n\n")), "a chunk is a frame");
    similar(&outline(&ours), &outline(&frames), capture);
}

fn similar(ours: &[String], theirs: &[String], what: &str) {
    assert_eq!(ours.join("\n"), theirs.join("\n"), "{what}");
}

const CHAT: &str = r#"{"model":"tiny","messages":[{"role":"system","content":"a b c d"},{"role":"user","content":"e f"}],"max_tokens":8,"ignore_eos":true,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}"#;
const CMPL: &str = r#"{"model":"tiny","prompt":"a b c d e f","max_tokens":8,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true}}"#;

fn with(body: &str, from: &str, to: &str) -> String {
    assert!(body.contains(from));
    body.replace(from, to)
}

#[test]
fn streams_have_the_bytes_of_a_live_server() {
    // In real time, since a fast model's frames merge.
    let sim = Sim::start(slow());
    let continuous = r#""include_usage":true,"continuous_usage_stats":true"#;
    let usage = r#""include_usage":true"#;
    assert_same_stream(&sim.post("/v1/chat/completions", &[], CHAT), "chat.stream_usage");
    assert_same_stream(&sim.post("/v1/chat/completions", &[], &with(CHAT, usage, continuous)), "chat.stream_cont");
    assert_same_stream(&sim.post("/v1/completions", &[], CMPL), "cmpl.stream_usage");
    assert_same_stream(&sim.post("/v1/completions", &[], &with(CMPL, usage, continuous)), "cmpl.stream_cont");
    let native =
        r#"{"text":"q r s t u v w x y","sampling_params":{"max_new_tokens":3},"stream":true,"routed_dp_rank":0}"#;
    assert_same_stream(&sim.post("/generate", &[], native), "dp2.generate_stream.rank1");
    assert_same_stream(&sim.post("/generate", &[], native), "dp2.generate_stream.rank0");
}

#[test]
fn whole_replies_have_the_bytes_of_a_live_server() {
    let sim = Sim::start(quick());
    let whole = |body: &str| body.replace(r#""stream":true"#, r#""stream":false"#);
    for (path, body, capture) in
        [("/v1/chat/completions", CHAT, "chat.nostream"), ("/v1/completions", CMPL, "cmpl.nostream")]
    {
        let reply = sim.post(path, &[], &whole(body));
        let (status, theirs) = captured_reply(capture);
        assert_eq!(reply.status, status);
        similar(&[shape(&reply.body)], &[shape(&theirs[0])], capture);
        assert!(reply.head.contains("content-type: application/json"));
    }
    let meta = sim.post(
        "/v1/chat/completions",
        &[],
        r#"{"messages":[{"role":"user","content":"x"}],"return_meta_info":true}"#,
    );
    assert_eq!(meta.json()["choices"][0]["meta_info"]["completion_tokens"], 128, "without a limit");
    let twice = sim.post("/v1/chat/completions", &[], r#"{"messages":[],"return_meta_info":true,"stream":true}"#);
    assert_eq!(twice.status, 400);
}

#[test]
fn refusals_have_the_status_and_the_keys_of_a_live_server() {
    let mut settings = quick();
    settings.context_length = 100;
    let sim = Sim::start(settings);
    let long = format!(r#"{{"prompt":"{}"}}"#, "w ".repeat(100));
    let json = ("content-type", "application/json");
    let cases = [
        ("err.ctype", sim.open("POST", "/v1/completions", &[("content-type", "text/plain")], CMPL).finish()),
        ("err.emptyprompt", sim.post("/v1/completions", &[], r#"{"prompt":""}"#)),
        ("err.json", sim.post("/v1/chat/completions", &[], r#"{"model":"tiny","messages":[{"role":"u"#)),
        ("err.maxtok0", sim.post("/v1/completions", &[], r#"{"prompt":"a","max_tokens":0}"#)),
        ("err.maxtokbig", sim.post("/v1/completions", &[], r#"{"prompt":"a b","max_tokens":99999999}"#)),
        ("err.toolong", sim.post("/v1/completions", &[], &long)),
        ("err.noprompt", sim.post("/v1/completions", &[], r#"{"model":"tiny","max_tokens":2}"#)),
        ("err.field", sim.post("/v1/chat/completions", &[], r#"{"messages":"notalist"}"#)),
        ("err.path", sim.open("POST", "/v1/nothing", &[json], "{}").finish()),
        ("err.method", sim.get("/v1/completions")),
    ];
    for (capture, reply) in cases {
        let (status, theirs) = captured_reply(capture);
        assert_eq!(reply.status, status, "{capture}: {}", reply.body);
        similar(&[shape(&reply.body)], &[shape(&theirs[0])], capture);
        let theirs: Value = serde_json::from_str(&theirs[0]).unwrap();
        assert_eq!((&reply.json()["type"], &reply.json()["code"]), (&theirs["type"], &theirs["code"]), "{capture}");
    }
    assert!(sim.get("/v1/completions").head.contains("allow: "));
}

#[test]
fn the_native_route_refuses_in_shapes_of_its_own() {
    let sim = Sim::start(quick());
    let stream = sim.post("/generate", &[], r#"{"text":"a b","routed_dp_rank":2,"stream":true}"#);
    assert_eq!((stream.status, stream.frames().len()), (200, 1), "a stream has said 200 before it looks");
    assert_eq!(stream.frames()[0]["error"]["code"], 400);
    let whole = sim.post("/generate", &[], r#"{"text":"a b","routed_dp_rank":2}"#);
    assert_eq!((whole.status, whole.json()["error"]["message"].is_string()), (400, true));
    let typed = sim.post("/generate", &[], r#"{"text":"a b","routed_dp_rank":"1"}"#);
    assert_eq!((typed.status, typed.body.as_str()), (400, r#"{"error":"invalid type: string \"1\", expected i64"}"#));
    let key = sim.post("/generate", &[], r#"{"text":"a b","routing_key":5}"#);
    assert_eq!((key.status, key.json()["type"].as_str()), (400, Some("Bad Request")));
    let chat = sim.post("/v1/chat/completions", &[("x-data-parallel-rank", "two")], CHAT);
    assert_eq!((chat.status, chat.json()["type"].as_str()), (400, Some("400")));
}

#[test]
fn what_is_not_simulated_is_refused_by_name() {
    let sim = Sim::start(quick());
    for (field, value) in [("n", "2"), ("logprobs", "1"), ("echo", "true"), ("stream_interval", "4")] {
        let reply = sim.post("/v1/completions", &[], &format!(r#"{{"prompt":"a","max_tokens":1,"{field}":{value}}}"#));
        assert_eq!(reply.status, 400, "{field}");
        let told = reply.json()["message"].as_str().unwrap().to_owned();
        assert!(told.contains(field) && told.contains("simulator"), "{told}");
    }
    let batch = sim.post("/v1/completions", &[], r#"{"prompt":["a","b"],"max_tokens":1}"#);
    assert_eq!(batch.status, 400);
    let one =
        sim.post("/v1/completions", &[], r#"{"prompt":["a b c"],"max_tokens":1,"n":1,"logprobs":null,"echo":false}"#);
    assert_eq!(one.json()["usage"]["prompt_tokens"], 3);
}

#[test]
fn prompts_are_counted_in_words_or_taken_as_ids() {
    let sim = Sim::start(quick());
    let prompt_tokens = |path: &str, body: &str| {
        let reply = sim.post(path, &[], body).json();
        reply
            .pointer("/usage/prompt_tokens")
            .or_else(|| reply.pointer("/meta_info/prompt_tokens"))
            .unwrap()
            .as_u64()
            .unwrap()
    };
    let parts = r#"{"messages":[{"role":"system","content":"a b"},{"role":"user","content":[{"type":"text","text":"c d e"}]}],"max_tokens":1}"#;
    assert_eq!(prompt_tokens("/v1/chat/completions", parts), 5, "the chat template adds no token");
    assert_eq!(prompt_tokens("/v1/completions", r#"{"prompt":"one\ntwo  three","max_tokens":1}"#), 3);
    assert_eq!(prompt_tokens("/v1/completions", r#"{"prompt":[7,8,9,10],"max_tokens":1}"#), 4);
    assert_eq!(prompt_tokens("/generate", r#"{"input_ids":[7,8,9],"sampling_params":{"max_new_tokens":1}}"#), 3);
    let chat_ids = r#"{"messages":[{"role":"user","content":"x"}],"input_ids":[1,2,3,4,5,6],"max_tokens":1}"#;
    assert_eq!(prompt_tokens("/v1/chat/completions", chat_ids), 6);
}

#[test]
fn a_tokenizer_counts_prompts_and_its_replies_encode_to_what_was_said() {
    let path = format!("{}/tests/data/bpe-2k.tokenizer.json", env!("CARGO_MANIFEST_DIR"));
    let sim = Sim::with_tokens(quick(), Tokens::from_file(path.as_ref()).unwrap());
    let own = tokenizers::Tokenizer::from_file(&path).unwrap();
    let text = "Some text of several words, and punctuation: 42!";
    let reply = sim.post("/v1/completions", &[], &format!(r#"{{"prompt":"{text}","max_tokens":40}}"#)).json();
    assert_eq!(reply["usage"]["prompt_tokens"], own.encode(text, false).unwrap().len());
    let said = reply["choices"][0]["text"].as_str().unwrap();
    assert_eq!(own.encode(said, false).unwrap().len(), 40, "{said}");
    let outside = sim.post("/v1/completions", &[], r#"{"prompt":[1,2,4000000],"max_tokens":1}"#);
    assert_eq!(outside.status, 400);
    assert!(outside.body.contains("4000000"));
}

#[test]
fn usage_on_every_frame_tells_the_tokens_of_merged_frames() {
    // So fast that the writer lags behind the engine.
    let mut settings = quick();
    settings.time_scale = 1e9;
    let sim = Sim::start(settings);
    let body = with(CHAT, r#""max_tokens":8"#, r#""max_tokens":500"#);
    let body = with(&body, r#""include_usage":true"#, r#""continuous_usage_stats":true"#);
    let reply = sim.post("/v1/chat/completions", &[], &body);
    let mut before = 0;
    for frame in reply.frames().iter().filter(|frame| frame["choices"][0]["delta"]["content"].is_string()) {
        let words = frame["choices"][0]["delta"]["content"].as_str().unwrap().split_whitespace().count() as u64;
        // The role frame carries neither.
        let after = frame["usage"]["completion_tokens"].as_u64().unwrap_or(before);
        assert_eq!(after - before, words);
        before = after;
    }
    assert_eq!(before, 500);
}

#[test]
fn cached_tokens_are_told_where_a_live_server_tells_them() {
    let sim = Sim::start(quick());
    let pinned = |body: &str| {
        with(body, r#""stream":true"#, r#""stream":true,"routed_dp_rank":1,"return_cached_tokens_details":true"#)
    };
    let cold = sim.post("/v1/chat/completions", &[], &pinned(CHAT)).frames();
    assert!(cold.iter().all(|frame| frame.get("sglext").is_none()), "a request without a hit has no sglext frame");
    let warm = sim.post("/v1/completions", &[], &pinned(CMPL)).frames();
    let sglext: Vec<&Value> = warm.iter().filter(|frame| frame.get("sglext").is_some()).collect();
    assert_eq!(sglext[0]["sglext"]["cached_tokens_details"]["device"], 5);
    assert_eq!(sglext[0]["choices"].as_array().unwrap().len(), 0);
    assert_eq!(warm.last().unwrap()["usage"]["prompt_tokens_details"]["cached_tokens"], 5);
}

#[test]
fn loads_models_and_info_have_the_keys_of_a_live_server() {
    let sim = Sim::start(quick());
    let loads = sim.get("/v1/loads").json();
    let theirs: Value = serde_json::from_str(&captured("dp2.loads.json")).unwrap();
    assert_eq!(keys(&loads), keys(&theirs));
    assert_eq!(sim.get("/v1/loads?include=core&dp_rank=7").json()["loads"].as_array().unwrap().len(), 0);
    assert_eq!(sim.get("/v1/loads?dp_rank=1").json()["loads"][0]["dp_rank"], 1);
    let models = sim.get("/v1/models").json();
    assert_eq!(keys(&models), keys(&serde_json::from_str(&captured_reply("models").1[0]).unwrap()));
    let info = sim.get("/get_server_info").json();
    assert_eq!(
        (&info["dp_size"], &info["attn_dp_size"], &info["enable_dp_attention"]),
        (&1.into(), &2.into(), &true.into())
    );
    assert_eq!((&info["version"], &info["load_balance_method"]), (&"0.5.23".into(), &"round_robin".into()));
    assert_eq!(info["internal_states"].as_array().unwrap().len(), 2);
    assert_eq!(info["gspbench_sim"]["preset"], "generic-8xh100");
    assert_eq!(sim.get("/model_info").json()["served_model_name"], "tiny");
    for path in ["/health", "/health_generate", "/ready"] {
        assert_eq!((sim.get(path).status, sim.get(path).body.as_str()), (200, ""), "{path}");
    }
}

/// All paths of keys; of a list, those of its first item.
fn keys(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| {
                std::iter::once(key.clone()).chain(keys(value).into_iter().map(move |below| format!("{key}.{below}")))
            })
            .collect(),
        Value::Array(items) => items.first().map(keys).unwrap_or_default(),
        _ => vec![],
    }
}

#[test]
fn metrics_have_the_names_and_labels_of_a_live_server() {
    let mut settings = quick();
    settings.limits = Limits { kv_tokens: 30, ..settings.limits };
    let sim = Sim::start(settings);
    for word in ["a", "b", "c", "d", "e", "f"] {
        sim.post(
            "/v1/completions",
            &[],
            &format!(r#"{{"prompt":"{}","max_tokens":2}}"#, format!("{word} ").repeat(20)),
        );
        sim.post(
            "/generate",
            &[],
            &format!(
                r#"{{"text":"{}","stream":true,"sampling_params":{{"max_new_tokens":2}}}}"#,
                format!("{word} ").repeat(20)
            ),
        );
    }
    let ours = sim.get("/metrics").body;
    let theirs = captured("dp2.metrics.series.txt");
    let live: std::collections::BTreeSet<_> = theirs.lines().filter_map(series).collect();
    let known: std::collections::BTreeSet<_> = ours.lines().filter_map(series).collect();
    let unknown: Vec<_> = known.difference(&live).filter(|(name, _)| name != "sglang:evicted_tokens_total").collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let evicted = ("sglang:evicted_tokens_total".to_owned(), "cache_type,dp_rank,pp_rank,tp_rank".to_owned());
    assert!(known.contains(&evicted));
    for name in [
        "prefill_effective_tokens_total",
        "realtime_tokens_total",
        "cached_tokens_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "num_requests_total",
        "num_running_reqs",
        "num_queue_reqs",
        "token_usage",
        "num_used_tokens",
        "kv_available_tokens",
        "kv_evictable_tokens",
        "kv_used_tokens",
        "max_total_num_tokens",
        "cache_hit_rate",
        "routing_keys_active",
        "num_unique_running_routing_keys",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_sum",
        "e2e_request_latency_seconds_count",
        "queue_time_seconds_bucket",
    ] {
        assert!(
            known.iter().any(|(known, _)| *known == format!("sglang:{name}")) || name == "cached_tokens_total",
            "{name}"
        );
    }
    assert!(ours.contains("gspbench_sim_spilled_total{dp_rank=\"1\"} 0.0\n"));
}

/// Name and label names of a line of the exposition.
fn series(line: &str) -> Option<(String, String)> {
    let (name, rest) = line.strip_prefix("sglang:")?.split_once(['{', ' '])?;
    let labels = rest.split_once('}').map_or("", |(labels, _)| labels);
    let names: Vec<&str> = labels.split(',').filter_map(|label| label.split_once('=')).map(|(name, _)| name).collect();
    Some((format!("sglang:{name}"), names.join(",")))
}
