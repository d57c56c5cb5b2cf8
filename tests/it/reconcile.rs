//! Client and server tell the same story, or the run says that they do not: requests of others, and prompts that two nodes
//! count.

use crate::bad_input::refuses;
use crate::end_to_end::Sim;
use crate::scripted::{Answer, Scripted, Seen, chat_stream};
use crate::small_runs::{kinds, passed_on, proxy, run};

#[test]
fn requests_of_others_are_noticed() {
    let sim = Sim::start(&["--ranks=2"]);
    let address = sim.url.strip_prefix("http://").unwrap().to_owned();
    // Somebody else sends a request of their own whenever we do.
    let shared = proxy(&sim.url, "", move |seen| {
        if seen.path == "/generate" {
            // Each another prompt, so that none of them is found in the cache.
            let id = seen.header("x-request-id").unwrap();
            let sampling = "{\"max_new_tokens\":1}";
            let body = format!("{{\"text\":\"{id} is the prompt of another user\",\"sampling_params\":{sampling}}}");
            let length = ("content-length".to_owned(), body.len().to_string());
            let theirs = Seen { headers: vec![("host".to_owned(), "h".to_owned()), length], body, ..seen.clone() };
            passed_on(&address, &theirs, "");
        }
        None
    });
    let (_, report, printed) = run(&shared.url, &[]);
    assert_eq!(kinds(&report, "voids"), Vec::<String>::new(), "{printed}");
    assert!(kinds(&report, "warnings").contains(&"traffic".to_owned()), "{printed}");
    let alone = run(&sim.url, &["--seed=9"]).1;
    assert!(!kinds(&alone, "warnings").contains(&"traffic".to_owned()), "{}", alone["validity"]);
}

/// A short request of somebody else on the same route.
fn of_another_user(seen: &Seen) -> Seen {
    let body = "{\"text\":\"hi\",\"sampling_params\":{\"max_new_tokens\":1}}".to_owned();
    let length = ("content-length".to_owned(), body.len().to_string());
    Seen { headers: vec![("host".to_owned(), "h".to_owned()), length], body, ..seen.clone() }
}

#[test]
fn requests_of_others_are_noticed_by_their_number_where_their_prompts_are_short() {
    let sim = Sim::start(&["--ranks=2"]);
    let address = sim.url.strip_prefix("http://").unwrap().to_owned();
    let shared = proxy(&sim.url, "", move |seen| {
        if seen.path == "/generate" {
            passed_on(&address, &of_another_user(seen), "");
        }
        None
    });
    let (_, report, printed) = run(&shared.url, &[]);
    let warnings = report["validity"]["warnings"].as_array().unwrap().iter();
    let seen: Vec<_> = warnings.filter(|of| of["kind"] == "traffic").map(|of| of["seen"].as_str().unwrap()).collect();
    assert_eq!((seen.len(), kinds(&report, "voids")), (1, vec![]), "{printed}");
    assert!(seen[0].contains("16 requests, our turns had 8"), "{seen:?}");
}

/// A proxy that sends every turn to a prefill node, and then to the decode node whose reply it passes on; with `others`, the
/// decode node serves somebody else before each.
fn pd_proxy(prefill: &str, decode: &str, others: bool) -> Scripted {
    let [prefill, decode] = [prefill, decode].map(|url| url.strip_prefix("http://").unwrap().to_owned());
    Scripted::start(move |seen| match seen.method.as_str() {
        "POST" if seen.path == "/generate" => {
            passed_on(&prefill, seen, "");
            if others {
                passed_on(&decode, &of_another_user(seen), "");
            }
            Answer::Raw(passed_on(&decode, seen, ""))
        }
        _ => Answer::Whole(404, "application/json", "{}".to_owned()),
    })
}

/// The same server with `word` in the place of another wherever it describes itself.
fn saying(upstream: &str, instead_of: &'static str, word: &'static str) -> Scripted {
    let address = upstream.strip_prefix("http://").unwrap().to_owned();
    Scripted::start(move |seen| {
        let reply = String::from_utf8(passed_on(&address, seen, "accept-encoding")).unwrap();
        let (_, body) = reply.split_once("\r\n\r\n").unwrap();
        Answer::Whole(200, "text/plain", body.replace(instead_of, word))
    })
}

#[test]
fn a_prompt_that_two_nodes_count_is_compared_once() {
    let (prefill, decode) = (Sim::start(&["--ranks=1"]), Sim::start(&["--ranks=1"]));
    let proxy = pd_proxy(&prefill.url, &decode.url, false);
    let judged = |urls: [&str; 2], seed: &str| {
        let [first, second] = urls.map(|url| format!("--metrics-url={url}"));
        // A busy host voids the client, and no more.
        let (_, report, printed) = run(&proxy.url, &[&first, &second, seed]);
        assert_eq!(kinds(&report, "voids"), Vec::<String>::new(), "{printed}");
        let of_counters = |kind: &String| ["hit", "traffic", "unreconciled", "scrape"].contains(&kind.as_str());
        let warnings: Vec<_> = kinds(&report, "warnings").into_iter().filter(of_counters).collect();
        (warnings, printed.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let told = |urls: [&str; 2], seed: &str| {
        let (warnings, printed) = judged(urls, seed);
        assert_eq!(warnings, Vec::<String>::new(), "{printed}");
        assert!(printed.contains("compared with the prefill side alone"), "{printed}");
    };
    let given = [format!("prefill={}", prefill.url), format!("decode={}", decode.url)];
    told([&given[0], &given[1]], "--seed=11");
    let unlabelled = "engine_type=\"unified\"";
    let first = saying(&prefill.url, unlabelled, "engine_type=\"prefill\"");
    let second = saying(&decode.url, unlabelled, "engine_type=\"decode\"");
    told([&first.url, &second.url], "--seed=12");
    let both = "\"disaggregation_mode\":\"null\"";
    let first = saying(&prefill.url, both, "\"disaggregation_mode\":\"prefill\"");
    let second = saying(&decode.url, both, "\"disaggregation_mode\":\"decode\"");
    told([&first.url, &format!("{}/metrics", second.url)], "--seed=13");
    let (warnings, printed) = judged([&prefill.url, &decode.url], "--seed=14");
    assert_eq!(warnings, ["unreconciled"], "{printed}");
    assert!(printed.contains("prefill=URL"), "{printed}");
}

#[test]
fn requests_that_others_send_to_the_decode_node_alone_are_noticed() {
    let (prefill, decode) = (Sim::start(&["--ranks=1"]), Sim::start(&["--ranks=1"]));
    let nodes = [format!("--metrics-url=prefill={}", prefill.url), format!("--metrics-url=decode={}", decode.url)];
    let traffic = |others: bool, seed: &str| {
        let proxy = pd_proxy(&prefill.url, &decode.url, others);
        let (_, report, printed) = run(&proxy.url, &[&nodes[0], &nodes[1], seed]);
        assert_eq!(kinds(&report, "voids"), Vec::<String>::new(), "{printed}");
        let warnings = report["validity"]["warnings"].as_array().unwrap().iter();
        let seen = warnings.filter(|of| of["kind"] == "traffic").map(|of| of["seen"].as_str().unwrap().to_owned());
        seen.collect::<Vec<_>>()
    };
    let seen = traffic(true, "--seed=21");
    let words = "the decode nodes' counters moved by 16 requests, our turns had 8, and by 32 generated tokens";
    assert!(seen.len() == 1 && seen[0].starts_with(words), "{seen:?}");
    assert_eq!(traffic(false, "--seed=22"), Vec::<String>::new());
}

/// What vLLM counts of finished requests, by their reason, and of the tokens that it generated for them.
#[test]
fn a_vllm_decode_node_that_counts_more_than_its_turns_serves_others() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    let traffic = |others: u32| {
        let turns = Arc::new(AtomicU32::new(0));
        let served = Arc::clone(&turns);
        let node = Scripted::start(move |seen| {
            let (ours, theirs) = (turns.load(SeqCst), turns.load(SeqCst) * others);
            let page = format!(
                "vllm:request_success_total{{engine=\"0\",finished_reason=\"length\"}} {ours}\n\
                 vllm:request_success_total{{engine=\"0\",finished_reason=\"stop\"}} {theirs}\n\
                 vllm:generation_tokens_total{{engine=\"0\"}} {}\n",
                3 * ours + 7 * theirs
            );
            match seen.path.as_str() {
                "/metrics" => Answer::Whole(200, "text/plain", page),
                _ => Answer::Whole(404, "application/json", "{}".to_owned()),
            }
        });
        let router = Scripted::start(move |seen| match (seen.method.as_str(), seen.path.as_str()) {
            ("POST", "/v1/chat/completions") => {
                served.fetch_add(1, SeqCst);
                Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12))
            }
            _ => Answer::Whole(404, "application/json", "{}".to_owned()),
        });
        let decode = format!("--metrics-url=decode={}", node.url);
        let (_, report, printed) = run(&router.url, &["--api=chat", &decode]);
        assert_eq!(kinds(&report, "voids"), Vec::<String>::new(), "{printed}");
        let warnings = report["validity"]["warnings"].as_array().unwrap().iter();
        let seen = warnings.filter(|of| of["kind"] == "traffic").map(|of| of["seen"].as_str().unwrap().to_owned());
        seen.collect::<Vec<_>>()
    };
    assert_eq!(traffic(0), Vec::<String>::new());
    let seen = "the decode nodes' counters moved by 16 requests, our turns had 8, and by 80 generated tokens, our turns had 24";
    assert_eq!(traffic(1), [seen]);
}

/// A node that tells what it does in its description of itself, or by a label, and nothing else.
fn node(info: &'static str, label: &'static str) -> Scripted {
    Scripted::start(move |seen| match seen.path.split('?').next() {
        Some("/server_info") if !info.is_empty() => Answer::Whole(200, "application/json", info.to_owned()),
        Some("/metrics") => {
            let page = format!("sglang:prompt_tokens_total{{engine_type=\"{label}\"}} 1\n");
            Answer::Whole(200, "text/plain", page)
        }
        _ => Answer::Whole(404, "application/json", "{}".to_owned()),
    })
}

#[test]
fn a_node_that_says_it_does_something_else_than_it_was_given_for_is_refused_before_a_turn_is_sent() {
    let prefill = node("{\"disaggregation_mode\":\"prefill\"}", "unified");
    let decode = node("{\"disaggregation_mode\":\"decode\"}", "unified");
    let labelled = node("", "decode");
    let silent = node("{\"disaggregation_mode\":\"null\"}", "unified");
    let router = Scripted::start(|_| Answer::Whole(404, "application/json", "{}".to_owned()));
    let swapped = [format!("prefill={}", decode.url), format!("decode={}", prefill.url)];
    let contradicts = |url: &str, given: &str, own: &str| {
        format!("{url}: it was given as `{given}=` and says itself that it is the {own} node")
    };
    let both = [contradicts(&decode.url, "prefill", "decode"), contradicts(&prefill.url, "decode", "prefill")];
    let both = [both[0].as_str(), both[1].as_str(), "swap the addresses"];
    let [first, second] = swapped.each_ref().map(|given| format!("--metrics-url={given}"));
    refuses(&["run", "quick", "--target", &router.url, &first, &second], 3, &both);
    // Of an arm's own addresses, too.
    let arm = format!("--arm=a={};metrics={},{}", router.url, swapped[0], swapped[1]);
    refuses(&["ab", "quick", "--arm=b=sim:round_robin,ranks=2", &arm], 3, &[&both[..], &["arm `a`"]].concat());
    let wrong = format!("--metrics-url=prefill={}/metrics", labelled.url);
    let said = contradicts(&format!("{}/metrics", labelled.url), "prefill", "decode");
    refuses(&["run", "quick", "--target", &router.url, &wrong], 3, &[&said]);
    assert_eq!(router.turns().len(), 0);
    // What a node does not contradict is believed.
    let right = [
        format!("--metrics-url=prefill={}", prefill.url),
        format!("--metrics-url=decode={}", labelled.url),
        format!("--metrics-url=decode={}", silent.url),
    ];
    refuses(&["run", "quick", "--target", &router.url, &right[0], &right[1], &right[2]], 3, &["no such route"]);
    assert_eq!(router.turns().len(), 1, "the probe");
}
