//! Client and server tell the same story, or the run says that they do not: requests of others, and prompts that two nodes
//! count.

use crate::end_to_end::Sim;
use crate::scripted::{Answer, Scripted, Seen};
use crate::server_side::{kinds, passed_on, proxy, run};

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
    let (exit, report, printed) = run(&shared.url, &[]);
    assert_eq!(exit, 0, "{printed}");
    assert!(kinds(&report, "warnings").contains(&"traffic".to_owned()), "{printed}");
    let alone = run(&sim.url, &["--seed=9"]).1;
    assert!(!kinds(&alone, "warnings").contains(&"traffic".to_owned()), "{}", alone["validity"]);
}

#[test]
fn requests_of_others_are_noticed_by_their_number_where_their_prompts_are_short() {
    let sim = Sim::start(&["--ranks=2"]);
    let address = sim.url.strip_prefix("http://").unwrap().to_owned();
    let shared = proxy(&sim.url, "", move |seen| {
        if seen.path == "/generate" {
            let body = "{\"text\":\"hi\",\"sampling_params\":{\"max_new_tokens\":1}}".to_owned();
            let length = ("content-length".to_owned(), body.len().to_string());
            let theirs = Seen { headers: vec![("host".to_owned(), "h".to_owned()), length], body, ..seen.clone() };
            passed_on(&address, &theirs, "");
        }
        None
    });
    let (exit, report, printed) = run(&shared.url, &[]);
    let warnings = report["validity"]["warnings"].as_array().unwrap().iter();
    let seen: Vec<_> = warnings.filter(|of| of["kind"] == "traffic").map(|of| of["seen"].as_str().unwrap()).collect();
    assert_eq!((exit, seen.len()), (0, 1), "{printed}");
    assert!(seen[0].contains("16 requests, our turns had 8"), "{seen:?}");
}

/// A proxy that sends every turn to a prefill node, and then to the decode node whose reply it passes on.
fn pd_proxy(prefill: &str, decode: &str) -> Scripted {
    let [prefill, decode] = [prefill, decode].map(|url| url.strip_prefix("http://").unwrap().to_owned());
    Scripted::start(move |seen| match seen.method.as_str() {
        "POST" if seen.path == "/generate" => {
            passed_on(&prefill, seen, "");
            Answer::Raw(passed_on(&decode, seen, ""))
        }
        _ => Answer::Whole(404, "application/json", "{}".to_owned()),
    })
}

/// The same server with this word for what it does, in the labels of its counters and in its description.
fn as_node(upstream: &str, role: &'static str) -> Scripted {
    let address = upstream.strip_prefix("http://").unwrap().to_owned();
    Scripted::start(move |seen| {
        let reply = String::from_utf8(passed_on(&address, seen, "accept-encoding")).unwrap();
        let (_, body) = reply.split_once("\r\n\r\n").unwrap();
        Answer::Whole(200, "text/plain", body.replace("engine_type=\"unified\"", &format!("engine_type=\"{role}\"")))
    })
}

#[test]
fn a_prompt_that_two_nodes_count_is_compared_once() {
    let (prefill, decode) = (Sim::start(&["--ranks=1"]), Sim::start(&["--ranks=1"]));
    let proxy = pd_proxy(&prefill.url, &decode.url);
    let judged = |urls: [&str; 2], seed: &str| {
        let [first, second] = urls.map(|url| format!("--metrics-url={url}"));
        let (exit, report, printed) = run(&proxy.url, &[&first, &second, seed]);
        assert_eq!((exit, kinds(&report, "voids")), (0, vec![]), "{printed}");
        (kinds(&report, "warnings"), printed)
    };
    let bad =
        |warnings: &[String]| warnings.iter().any(|kind| ["hit", "traffic", "unreconciled"].contains(&kind.as_str()));
    let given = [format!("prefill={}", prefill.url), format!("decode={}", decode.url)];
    let (warnings, printed) = judged([&given[0], &given[1]], "--seed=11");
    assert!(!bad(&warnings) && printed.contains("are compared with the prefill side alone"), "{printed}");
    let (first, second) = (as_node(&prefill.url, "prefill"), as_node(&decode.url, "decode"));
    let (warnings, printed) = judged([&first.url, &second.url], "--seed=12");
    assert!(!bad(&warnings) && printed.contains("are compared with the prefill side alone"), "{printed}");
    let (warnings, printed) = judged([&prefill.url, &decode.url], "--seed=13");
    assert!(warnings.contains(&"unreconciled".to_owned()) && printed.contains("prefill=URL"), "{printed}");
    assert!(!warnings.contains(&"traffic".to_owned()), "{printed}");
}
