//! What a run says of replies that are not as a reply should be (cases B07, B36, B97): refused, too large, too short.

use serde_json::{Value, json};

use crate::play::{content, ending, event, role};
use crate::scripted::{Answer, Seen, chat_stream, stream};
use crate::traps_program::{Ran, abc, server};

/// B07: a refusal is a complete reply, and is named as what it is.
#[test]
fn refusals_are_counted_and_named() {
    let server = server(|_, turn| {
        let refused = event(&json!({"choices": [{"index": 0, "delta": {"refusal": "I cannot"}}]}));
        if turn % 2 == 0 { abc() } else { stream([role(), refused, ending(12, 3)]) }
    });
    let ran = Ran::new(&server, &[]);
    let totals = ran.totals();
    assert_eq!(
        (&totals["complete"], &totals["failed"], &totals["oddities"]["refusal"]),
        (&json!(4), &json!(0), &json!(2))
    );
    assert!(ran.findings().contains("refusals"), "{}", ran.stderr);
    assert!(ran.stdout.contains("the replies of 2 of 4 complete turns are refusals"), "{}", ran.stdout);
    let marked = |turn: &&Value| turn["oddities"] == json!(["refusal"]) && turn["outcome"] == "complete";
    assert_eq!(ran.turns().iter().filter(marked).count(), 2);
}

/// B36: the limit of one event is the user's, and its breach says by which key.
#[test]
fn the_largest_event_is_configurable_and_its_breach_names_the_key() {
    let big = stream_text(&"a".repeat(1_048_000 + 2_000));
    let server =
        server(move |_, turn| if turn % 5 == 0 { abc() } else { Answer::Whole(200, "text/event-stream", big.clone()) });
    let ran = Ran::new(&server, &["--gsp-output-len=262000"]);
    let spec = |ran: &Ran| ran.report()["manifest"]["spec"]["request"]["largest_event_mib"].clone();
    assert_eq!((&ran.totals()["complete"], spec(&ran)), (&json!(4), json!(64)), "{}", ran.stderr);
    let ran = Ran::new(&server, &["--gsp-output-len=262000", "--largest-event-mib=1"]);
    assert_eq!((&ran.totals()["failed_by_kind"], spec(&ran)), (&json!({"protocol": 4}), json!(1)), "{}", ran.stderr);
    for turn in ran.turns() {
        let detail = turn["detail"].as_str().unwrap();
        assert!(detail.contains("1048576 bytes") && detail.contains("`request.largest_event_mib`"), "{detail}");
    }
    let ran = Ran::new(&server, &["--gsp-output-len=262000", "--set", "request.largest_event_mib=2"]);
    assert_eq!((&ran.totals()["complete"], spec(&ran)), (&json!(4), json!(2)), "{}", ran.stderr);
    let refused = Ran::new(&server, &["--largest-event-mib=0"]);
    assert!(refused.exit == 2 && refused.stderr.contains("largest_event_mib"), "{}", refused.stderr);
}

fn stream_text(text: &str) -> String {
    role() + &content(text) + &ending(10, 262_000)
}

/// B97: 43 of 512 tokens in every reply. `min_tokens` is sent only where it is asked for.
#[test]
fn outputs_shorter_than_asked_for_are_counted_and_min_tokens_is_sent_on_request_alone() {
    let server = server(|_, _| Answer::Whole(200, "text/event-stream", chat_stream(&["a"; 43], 12)));
    let ran = Ran::new(&server, &["--gsp-output-len=512"]);
    let bodies: Vec<Value> = server.turns().iter().map(Seen::json).collect();
    assert!(bodies[1..].iter().all(|body| body["ignore_eos"] == true && body.get("min_tokens").is_none()));
    let totals = ran.totals();
    let lengths = ["short_output_turns", "complete", "output_tokens", "planned_output_tokens"];
    assert_eq!(lengths.map(|key| totals[key].as_u64()), [4, 4, 4 * 43, 4 * 512].map(Some));
    let shown = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["2,048 / 172 (4 turns short)", "planned 512.0; 4 of 4 complete turns shorter than planned"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let ran = Ran::new(&server, &["--gsp-output-len=512", "--extra-request-body", "{\"min_tokens\":512}"]);
    assert_eq!((ran.exit, &server.turns().last().unwrap().json()["min_tokens"]), (4, &json!(512)));
}
