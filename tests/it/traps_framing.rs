//! How events are cut, framed and ended (cases B11, B29–B39), and what is a success (B42–B49): through the turn machine at
//! every cut.

use gspbench::client::End;
use gspbench::record::{Failure, Oddity, Outcome};
use gspbench::units::Micros;
use gspbench::workload::Api;
use serde_json::json;

use crate::play::{DONE, Figures, Script, chat, chunk, content, counted, ending, event, finish, play, role, script};

/// The text "abc" with counts, as one stream.
fn abc() -> String {
    role() + &content("a") + &content("b") + &content("c") + &ending(10, 3)
}

/// B29
#[test]
fn several_events_in_one_read_are_all_seen() {
    let (turn, text) = chat(&script([(100, abc())]));
    let turn = turn.complete();
    assert_eq!((text.as_str(), turn.output_tokens, turn.ttft_ms()), ("abc", Some(3), Some(100.0)));
    assert_eq!(turn.gaps_ms(), [0, 0]);
}

/// B30
#[test]
fn spaces_at_a_cut_belong_to_the_text() {
    let first = content("a ");
    let second = content("x y");
    let space = second.find("x y").unwrap() + 1;
    let writes = script([
        (10, &first[..5]),
        (20, &first[5..]),
        (30, &second[..space]),
        (40, &second[space..]),
        (50, &ending(10, 2)),
    ]);
    let (turn, text) = chat(&writes);
    assert_eq!((turn.complete().gaps_ms(), text.as_str()), (vec![20], "a x y"));
}

/// B31
#[test]
fn the_space_after_the_colon_is_optional() {
    for space in ["", " ", "  "] {
        let (turn, text) = chat(&script([(10, abc().replace("data: ", &format!("data:{space}")))]));
        assert_eq!((turn.complete().output_tokens, text.as_str()), (Some(3), "abc"), "{space:?}");
    }
}

/// B32
#[test]
fn comments_are_no_events_and_no_output() {
    let writes = script([
        (100, ":\n\n".to_owned()),
        (200, ": keep-alive\n\n".to_owned()),
        (300, ": x\n".to_owned() + &content("a") + ": data: {\n\n" + &ending(10, 1)),
    ]);
    let (turn, text) = chat(&writes);
    let turn = turn.complete();
    assert_eq!((turn.ttft_ms(), turn.frames, text.as_str()), (Some(300.0), 1, "a"));
    assert!(turn.oddities.is_empty());
}

/// B33
#[test]
fn every_line_ending_gives_the_same_events_at_the_same_times() {
    let events = [(10, content("a")), (30, content("b")), (60, content("c") + &ending(10, 3))];
    let with = |ending: &str| script(events.iter().map(|(ms, text)| (*ms, text.replace('\n', ending))));
    let expected = chat(&with("\n"));
    assert_eq!(expected.0.clone().complete().gaps_ms(), [20, 30]);
    for ending in ["\r\n", "\r"] {
        assert_eq!(chat(&with(ending)), expected, "{ending:?}");
    }
    let mixed = script([
        (10, events[0].1.replacen('\n', "\r\n", 1)),
        (30, events[1].1.trim_end().to_owned() + "\n\r"),
        (60, events[2].1.clone()),
    ]);
    assert_eq!(chat(&mixed), expected);
    // The CR ends the event, and the LF that comes later is the rest of it and no blank line.
    let torn = script([
        (10, content("a").trim_end().to_owned() + "\r\n\r"),
        (20, "\n".to_owned()),
        (30, content("b").trim_end().to_owned() + "\r"),
        (30, "\n\r".to_owned()),
        (60, "\n".to_owned() + &events[2].1),
    ]);
    assert_eq!(chat(&torn), expected);
}

/// B35
#[test]
fn other_fields_are_skipped_and_data_lines_are_joined() {
    let odd = "event: message\nid: 7\nretry: 10\ndata: {\"choices\":[{\"index\":0,\ndata: \"delta\":{\"content\":\"a\"}}]}\n\n";
    // A CR LF that is cut in two between data lines is one line end, and no blank line.
    for line_end in ["\n", "\r\n", "\r"] {
        let wire = (odd.to_owned() + &ending(10, 1)).replace('\n', line_end);
        let (turn, text) = chat(&script([(10, wire)]));
        assert_eq!((turn.complete().frames, text.as_str()), (1, "a"), "{line_end:?}");
    }
}

/// B33, crate traps: a byte order mark, a last event without its blank line, bytes that are no UTF-8.
#[test]
fn a_mark_a_missing_blank_line_and_a_bad_byte_lose_nothing() {
    let (turn, text) = chat(&script([(10, format!("\u{feff}{}", abc()))]));
    assert_eq!((turn.complete().output_tokens, text.as_str()), (Some(3), "abc"));

    let stream = content("a") + &content("b");
    let writes = script([(10, &stream[..stream.len() / 2]), (40, stream[stream.len() / 2..].trim_end())]);
    let close = End::Clean;
    let (turn, text) =
        play(Api::Chat, 200, &[writes, script([(50, "\n\n".to_owned() + &finish("stop"))])].concat(), &close);
    assert_eq!((turn.complete().frames, text.as_str()), (2, "ab"));
    let last = finish("stop") + content("late").trim_end();
    let turn = chat(&script([(10, content("a")), (40, last)])).0.complete();
    assert_eq!((turn.last_us, turn.gaps_ms()), (Some(Micros(40_000)), vec![30]), "it came with the last bytes");

    let mut bytes = content("a\u{fffd}b").into_bytes();
    let at = bytes.windows(3).position(|w| w == "\u{fffd}".as_bytes()).unwrap();
    bytes.splice(at..at + 3, [0xff]);
    let (turn, text) = chat(&vec![(10, bytes), (20, ending(10, 2).into_bytes())]);
    assert_eq!((turn.complete().oddities, text.as_str()), (vec![Oddity::InvalidUtf8], "a\u{fffd}b"));
}

/// B11, B36
#[test]
fn a_huge_event_is_timed_by_its_last_byte() {
    let filler = json!({"logprobs": "x".repeat(4 << 20)});
    let big = event(&chunk(&json!({"content": "a"}), None, &filler));
    let (head, tail) = big.split_at(1000);
    let turn = chat(&script([(20, head), (100, tail), (150, &content("b")), (160, &ending(10, 2))])).0.complete();
    assert_eq!((turn.ttft_ms(), turn.gaps_ms()), (Some(100.0), vec![50]));
    let (turn, text) = chat(&script([(100, content(&"a".repeat(1_048_000))), (110, ending(10, 262_000))]));
    assert_eq!((text.len(), turn.complete().output_tokens), (1_048_000, Some(262_000)));
}

/// B38
#[test]
fn done_ends_a_reply_and_what_follows_is_only_noted() {
    let good = content("a") + &content("b") + &content("c") + &ending(10, 3);
    let (turn, text) = chat(&script([(100, good.clone()), (150, content("late"))]));
    assert_eq!((turn.complete().oddities, text.as_str()), (vec![Oddity::AfterDone], "abc"));
    // Cut by the run's own end, or broken, after it was whole.
    let cancelled = play(Api::Chat, 200, &script([(100, good.clone())]), &End::Cancelled).0;
    assert_eq!(cancelled.outcome, Outcome::Complete);
    let reset = End::Failed(Failure::Reset, "connection reset".to_owned());
    let broken = play(Api::Chat, 200, &script([(100, good.trim_end())]), &reset).0.complete();
    assert_eq!(broken.oddities, [Oddity::BrokenAfterDone]);
}

/// B38, B45(a)
#[test]
fn a_reply_without_an_end_is_truncated_wherever_it_was_cut() {
    let stream = content("a") + &content("b");
    for cut in [stream.len(), stream.len() - 1, stream.len() - 2, stream.len() - 9, content("a").len() + 1] {
        let turn = chat(&script([(10, &stream[..cut])])).0;
        assert_eq!(turn.outcome, Outcome::Failed(Failure::Truncated), "cut at {cut}");
        assert!(turn.frames >= 1, "what came is kept");
    }
    assert_eq!(chat(&script([(10, stream + &finish("stop"))])).0.outcome, Outcome::Complete, "hfserve sends no [DONE]");
    assert_eq!(chat(&script([(10, "")])).0.outcome, Outcome::Failed(Failure::Truncated));
    assert_eq!(chat(&script([(10, DONE)])).0.outcome, Outcome::Failed(Failure::NoOutput));
}

/// B42, B47
#[test]
fn an_error_in_any_dress_is_a_failure_and_keeps_the_servers_words() {
    let envelope = json!({"error": {"message": "too long", "code": 400}});
    let flat = json!({"object": "error", "message": "too long"});
    let good = content("a") + &content("b");
    let in_band = [
        envelope.to_string(),
        event(&envelope),
        event(&envelope) + DONE,
        event(&flat),
        event(&json!({"error": "too long"})),
        good.clone() + &event(&envelope) + DONE,
        good.clone() + &finish("stop") + &event(&envelope),
        "event: error\n".to_owned() + &event(&envelope),
    ];
    for body in in_band {
        let turn = chat(&script([(5, body.clone())])).0;
        assert_eq!(
            (turn.outcome, turn.detail.as_deref()),
            (Outcome::Failed(Failure::InBandError), Some("too long")),
            "{body}"
        );
    }
    let refused = [
        (400, envelope.to_string(), "too long"),
        (400, event(&envelope), "too long"),
        (422, json!({"detail": "too long"}).to_string(), "too long"),
        (503, "<html>\ndata: busy\n: now</html>".to_owned(), "<html>\ndata: busy\n: now</html>"),
        (500, "Internal Server Error".to_owned(), "Internal Server Error"),
    ];
    for (status, body, words) in refused {
        let turn = play(Api::Chat, status, &script([(5, body)]), &End::Clean).0;
        assert_eq!((turn.outcome, turn.detail.as_deref()), (Outcome::Failed(Failure::Http(status)), Some(words)));
        assert_eq!((turn.ttft(), turn.status), (None, Some(status)));
    }
    let empty = play(Api::Chat, 405, &Script::new(), &End::Clean).0;
    assert_eq!((empty.outcome, empty.detail), (Outcome::Failed(Failure::Http(405)), None));
}

/// B47: the first 200 bytes, cut at a character.
#[test]
fn the_head_of_an_error_body_is_kept_and_not_all_of_it() {
    let page = "é".repeat(50_000);
    let turn = play(Api::Chat, 503, &script([(5, page)]), &End::Clean).0;
    assert_eq!(turn.detail.as_deref(), Some("é".repeat(100).as_str()));
}

/// Engine failures behind a 200: an abort, an error as finish reason, logits that are no numbers.
#[test]
fn an_engine_that_gave_up_has_failed() {
    let native = |finish: serde_json::Value| event(&json!({"text": "", "meta_info": {"finish_reason": finish}})) + DONE;
    let abort = native(json!({"type": "abort", "message": "queue is full", "status_code": 503}));
    let turn = play(Api::Generate, 200, &script([(1, abort)]), &End::Clean).0;
    assert_eq!((turn.outcome, turn.detail.as_deref()), (Outcome::Failed(Failure::Aborted), Some("queue is full")));
    for reason in ["abort", "error"] {
        let turn = chat(&script([(1, content("a") + &finish(reason) + DONE)])).0;
        assert_eq!(turn.outcome, Outcome::Failed(Failure::Aborted));
    }
    let nan = native(json!({"type": "stop", "matched": "NaN happened"}));
    let turn = play(Api::Generate, 200, &script([(1, nan)]), &End::Clean).0;
    assert_eq!((turn.outcome, turn.detail.as_deref()), (Outcome::Failed(Failure::InBandError), Some("NaN happened")));
    let with_stop = |matched: serde_json::Value| {
        event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "matched_stop": matched}]}))
    };
    let turn = chat(&script([(1, content("a") + &with_stop(json!("NaN happened")) + DONE)])).0;
    assert_eq!(turn.outcome, Outcome::Failed(Failure::InBandError));
    for matched in [json!(4), json!("</s>"), json!(null)] {
        chat(&script([(1, content("a") + &with_stop(matched) + DONE)])).0.complete();
    }
}

/// B46
#[test]
fn a_broken_stream_keeps_what_came_before() {
    let reset = End::Failed(Failure::Reset, "connection reset by peer".to_owned());
    let writes = script((1..=5_u32).map(|i| (u64::from(i) * 10, counted("x", 10, i))));
    let (turn, text) = play(Api::Chat, 200, &writes, &reset);
    assert_eq!((turn.outcome, turn.frames, turn.output_tokens), (Outcome::Failed(Failure::Reset), 5, Some(5)));
    assert_eq!((turn.ttft_ms(), text.as_str()), (Some(10.0), "xxxxx"));
    assert_eq!(turn.detail.as_deref(), Some("connection reset by peer"));
}

/// An event that cannot be read spoils its turn, and the first one is quoted.
#[test]
fn an_event_that_is_no_json_is_a_protocol_failure() {
    let turn =
        chat(&script([(10, content("a") + "data: {\"choices\":[{\"del\n\n" + &content("b") + &ending(10, 2))])).0;
    assert_eq!(turn.outcome, Outcome::Failed(Failure::Protocol));
    assert!(turn.detail.unwrap().ends_with("{\"choices\":[{\"del"));
    let stray = chat(&script([(10, content("a") + "oops\n\n" + &ending(10, 1))])).0.complete();
    assert_eq!(stray.oddities, [Oddity::StrayLines]);
}
