//! What counts as output, and how much of it (cases B01–B27): replies with known instants through the turn machine, so every
//! time is exact. Each test names the case that it plays.

use gspbench::client::End;
use gspbench::record::{Failure, Gap, Oddity, Outcome};
use gspbench::units::Micros;
use gspbench::workload::Api;
use serde_json::json;

use crate::play::{
    DONE, Figures, chat, chunk, content, counted, counts, ending, event, field, finish, play, role, script, usage,
};

/// B01, B10
#[test]
fn a_role_chunk_of_any_spelling_is_no_first_token() {
    let null = event(&chunk(&json!({"role": "assistant", "content": null}), None, &json!({})));
    let missing = event(&chunk(&json!({"role": "assistant"}), None, &json!({})));
    for opening in [Some(null), Some(missing), Some(role()), None] {
        let mut writes = script(opening.map(|bytes| (5, bytes)));
        writes.extend(script([(200, content("a")), (220, content("b")), (220, ending(10, 2))]));
        let turn = chat(&writes).0.complete();
        assert_eq!((turn.ttft_ms(), turn.output_tokens, turn.tpot_ms()), (Some(200.0), Some(2), Some(20.0)));
        assert_eq!(turn.gaps_ms(), [20], "the wait for the first token is no gap");
    }
}

/// B02
#[test]
fn a_role_chunk_starts_no_gap() {
    let turn = chat(&script([
        (90, role()),
        (220, content("a")),
        (222, content("b")),
        (224, content("c")),
        (224, ending(10, 3)),
    ]));
    assert_eq!((turn.0.ttft_ms(), turn.0.gaps_ms()), (Some(220.0), vec![2, 2]));
}

/// B03
#[test]
fn a_stream_without_a_token_has_no_latency_and_is_no_success() {
    let (turn, text) = chat(&script([
        (10, ": keep-alive\n\n".to_owned()),
        (20, role()),
        (300, finish("stop") + &usage(10, 0) + DONE),
    ]));
    assert_eq!((turn.outcome, turn.ttft(), turn.e2e()), (Outcome::Failed(Failure::NoOutput), None, None));
    assert_eq!((turn.output_tokens, turn.frames, text.as_str()), (Some(0), 0, ""));
}

/// B04, B05
#[test]
fn reasoning_is_output_under_both_names_and_the_answer_has_its_own_time() {
    for name in ["reasoning_content", "reasoning"] {
        let mut writes = script([(1, role())]);
        writes.extend(script((0..5).map(|i| (100 + 10 * i, field(name, "hm")))));
        writes.extend(script([(150, content("a")), (160, content("b") + &ending(10, 7))]));
        let (turn, text) = chat(&writes);
        let turn = turn.complete();
        assert_eq!((turn.ttft_ms(), turn.answer().map(Micros::as_ms)), (Some(100.0), Some(150.0)));
        assert_eq!((turn.output_tokens, turn.tpot_ms(), text.as_str()), (Some(7), Some(10.0), "ab"));
    }
    let mut writes = script([(0, role())]);
    writes.extend(script((0..4).map(|i| (50 + 10 * i, field("reasoning", "hm")))));
    writes.extend(script([(81, finish("length") + &usage(10, 4) + DONE)]));
    let (turn, text) = chat(&writes);
    let turn = turn.complete();
    assert_eq!((turn.ttft_ms(), turn.tpot_ms(), turn.output_tokens), (Some(50.0), Some(10.0), Some(4)));
    assert_eq!((turn.answer_us, text.as_str()), (None, ""));
}

/// B06
#[test]
fn pieces_of_tool_calls_are_output_and_the_limit_is_never_the_count() {
    let call = |ms, fields: serde_json::Value, completion| {
        (ms, event(&chunk(&json!({"tool_calls": [fields]}), None, &json!({"usage": counts(10, completion)}))))
    };
    let named = json!({"index": 0, "id": "c1", "function": {"name": "f"}});
    let piece = json!({"index": 0, "function": {"arguments": "{}"}});
    let end = (460, finish("tool_calls") + &usage(10, 31) + DONE);
    let turn = chat(&script([
        (1, role()),
        (100, counted("I", 10, 1)),
        call(280, named.clone(), 17),
        call(460, piece.clone(), 31),
        end.clone(),
    ]));
    let turn = turn.0.complete();
    assert_eq!((turn.ttft_ms(), turn.output_tokens, turn.tpot_ms()), (Some(100.0), Some(31), Some(12.0)));
    assert_eq!(turn.gaps_ms(), [180, 180]);
    let turn = chat(&script([(1, role()), call(280, named, 17), call(460, piece, 31), end])).0.complete();
    assert_eq!(turn.ttft_ms(), Some(280.0));
}

/// B07
#[test]
fn a_refusal_is_a_reply() {
    for reason in ["stop", "content_filter"] {
        let end = finish(reason) + &usage(10, 2) + DONE;
        let writes = script([(0, role()), (50, field("refusal", "I ")), (60, field("refusal", "cannot") + &end)]);
        let turn = chat(&writes).0.complete();
        assert_eq!((turn.ttft_ms(), turn.output_tokens, turn.finish.as_deref()), (Some(50.0), Some(2), Some(reason)));
        assert_eq!((turn.oddities, turn.frames), (vec![Oddity::Refusal], 2));
    }
    let answer =
        chat(&script([(50, field("content", "I ") + &field("refusal", "")), (60, ending(10, 1))])).0.complete();
    assert_eq!((answer.oddities, answer.frames), (vec![], 1), "an empty refusal is none");
}

/// B08
#[test]
fn a_reply_in_one_chunk_has_a_first_token_and_no_rate() {
    let turn = chat(&script([(80, content("hello world") + &finish("stop")), (400, usage(10, 3) + DONE)])).0.complete();
    assert_eq!((turn.ttft_ms(), turn.e2e_ms(), turn.tpot_ms()), (Some(80.0), Some(80.0), None));
    assert_eq!((turn.output_tokens, turn.done_us), (Some(3), Some(Micros(400_000))));
}

/// B09, B12(b)
#[test]
fn output_that_came_at_once_is_counted_and_has_no_rate() {
    for ms in [100, 3000] {
        let all = role() + &content("x").repeat(20) + &ending(10, 20);
        let turn = chat(&script([(ms, all)])).0.complete();
        assert_eq!((turn.ttft_ms(), turn.output_tokens), (Some(f64::from(u32::try_from(ms).unwrap())), Some(20)));
        assert_eq!(turn.gaps_ms(), [0; 19]);
        assert_eq!((turn.tpot_ms(), turn.came_at_once()), (None, true));
    }
    let spread = chat(&script([(100, content("x")), (102, content("y") + &ending(10, 2))])).0;
    assert!(!spread.came_at_once());
}

/// B12(a)
#[test]
fn a_body_in_place_of_a_stream_is_complete_and_has_no_first_token() {
    let bodies = [
        (
            Api::Chat,
            json!({"id": "c1", "choices": [{"index": 0, "message": {"role": "assistant", "content": "long reply"},
                "finish_reason": "stop"}], "usage": counts(10, 100)}),
        ),
        (
            Api::Completions,
            json!({"id": "c1", "choices": [{"index": 0, "text": "long reply", "finish_reason": "stop"}],
                "usage": counts(10, 100)}),
        ),
        (
            Api::Generate,
            json!({"text": "long reply", "meta_info": {"id": "c1", "finish_reason": {"type": "stop"},
                "prompt_tokens": 10, "completion_tokens": 100, "dp_rank": 3}}),
        ),
    ];
    for (api, body) in bodies {
        for text in [body.to_string(), serde_json::to_string_pretty(&body).unwrap() + "\r\n"] {
            let (head, tail) = text.split_at(30);
            let (turn, reply) = play(api, 200, &script([(1000, head), (3000, tail)]), &End::Clean);
            let turn = turn.complete();
            assert_eq!((turn.ttft_ms(), turn.e2e_ms(), turn.tpot_ms()), (None, Some(3000.0), None));
            assert_eq!((turn.output_tokens, turn.prompt_tokens, turn.frames), (Some(100), Some(10), 0));
            assert_eq!(
                (turn.oddities.as_slice(), turn.detail.as_deref()),
                (&[Oddity::NotStreamed][..], Some("not streamed"))
            );
            assert_eq!((reply.as_str(), turn.finish.as_deref()), ("long reply", Some("stop")));
        }
    }
    let long = "x".repeat(1 << 20);
    let body = json!({"choices": [{"message": {"content": long}, "finish_reason": "stop"}]}).to_string();
    assert_eq!(chat(&script([(9, body)])).1.len(), 1 << 20);
}

/// B12(a): half a body, an empty one and one that is something else are no replies.
#[test]
fn a_body_that_is_cut_empty_or_foreign_is_a_failure() {
    let whole = json!({"choices": [{"message": {"content": "reply"}, "finish_reason": "stop"}]}).to_string();
    let none = json!({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}).to_string();
    let cases = [
        (whole[..whole.len() / 2].to_owned(), Failure::Protocol),
        (none, Failure::NoOutput),
        ("{\"object\":\"list\",\"data\":[]}".to_owned(), Failure::Protocol),
        ("[1,2]".to_owned(), Failure::Protocol),
    ];
    for (body, failure) in cases {
        let turn = chat(&script([(9, body.clone())])).0;
        assert_eq!(turn.outcome, Outcome::Failed(failure), "{body}");
    }
    let reset = End::Failed(Failure::Reset, "connection reset".to_owned());
    let turn = play(Api::Chat, 200, &script([(9, whole)]), &reset).0;
    assert_eq!(turn.outcome, Outcome::Failed(Failure::Reset), "the length of a body is not known to be met");
}

/// B13, B16
#[test]
fn tokens_are_counted_by_usage_and_never_by_chunks() {
    let turn = chat(&script([
        (0, role()),
        (100, counted("a", 10, 1)),
        (140, counted("b", 10, 5)),
        (180, counted("c", 10, 9)),
        (220, counted("d", 10, 13) + &usage(10, 13) + DONE),
    ]));
    let turn = turn.0.complete();
    assert_eq!((turn.ttft_ms(), turn.output_tokens, turn.tpot_ms()), (Some(100.0), Some(13), Some(10.0)));
    assert_eq!(turn.gaps, [Gap::new(40_000, Some(4)); 3]);
    let silent = ["a", "b", "c", "d"].into_iter().zip([100, 140, 180, 220]).map(|(text, ms)| (ms, content(text)));
    let turn = chat(&script(silent.chain([(221, ending(10, 13))]))).0.complete();
    assert_eq!(turn.gaps, [Gap::new(40_000, None); 3], "not known per chunk");
    assert_eq!((turn.output_tokens, turn.tpot_ms()), (Some(13), Some(10.0)));
}

/// B15
#[test]
fn growth_of_the_count_without_text_is_output() {
    let empty = |completion| event(&chunk(&json!({}), None, &json!({"usage": counts(10, completion)})));
    let none = event(&chunk(&json!({"role": "assistant", "content": ""}), None, &json!({"usage": counts(10, 0)})));
    let end = (201, usage(10, 17) + DONE);
    let turn = chat(&script([
        (0, none.clone()),
        (100, counted("A", 10, 1)),
        (150, empty(9)),
        (200, counted("B", 10, 17)),
        end.clone(),
    ]));
    let turn = turn.0.complete();
    assert_eq!((turn.ttft_ms(), turn.e2e_ms(), turn.tpot_ms()), (Some(100.0), Some(200.0), Some(6.25)));
    let turn =
        chat(&script([(0, none), (60, empty(1)), (100, counted("A", 10, 2)), (200, counted("B", 10, 17)), end])).0;
    assert_eq!((turn.ttft_ms(), turn.gaps_ms()), (Some(60.0), vec![40, 100]));
}

/// B19
#[test]
fn a_running_usage_is_a_sum_already() {
    let mut writes = script((1..=5).map(|n| (10 * u64::from(n), counted("x", 10, n))));
    writes.extend(script([(60, finish("stop") + &usage(10, 5) + DONE)]));
    let turn = chat(&writes).0.complete();
    assert_eq!((turn.prompt_tokens, turn.output_tokens), (Some(10), Some(5)));
    let last = event(&chunk(&json!({}), Some("stop"), &json!({"usage": counts(10, 5)})));
    let turn = chat(&script([(10, content("abc")), (30, content("de")), (90, last + DONE)])).0.complete();
    assert_eq!((turn.output_tokens, turn.e2e_ms(), turn.frames), (Some(5), Some(30.0), 2));
}

/// B21
#[test]
fn usage_is_read_with_empty_null_or_missing_choices_and_in_any_place() {
    let shapes = [
        json!({"choices": [], "usage": counts(10, 2)}),
        json!({"usage": counts(10, 2)}),
        json!({"choices": null, "usage": counts(10, 2)}),
        json!({"choices": [null], "usage": counts(10, 2)}),
    ];
    for shape in shapes {
        for first in [true, false] {
            let (before, after) = if first { (event(&shape), String::new()) } else { (String::new(), event(&shape)) };
            let writes =
                script([(1, before), (80, content("a")), (90, content("b") + &finish("stop") + &after + DONE)]);
            let turn = chat(&writes).0.complete();
            assert_eq!(
                (turn.ttft_ms(), turn.output_tokens, turn.tpot_ms()),
                (Some(80.0), Some(2), Some(10.0)),
                "{shape}"
            );
        }
    }
}

/// B22
#[test]
fn null_unknown_and_oddly_typed_fields_of_no_interest_are_ignored() {
    let nulls = json!({"usage": null, "logprobs": null, "system_fingerprint": null, "error": null, "id": 7, "model": null,
        "nvext": {"worker_id": 18_446_744_073_709_551_615_u64}});
    let piece =
        |text: &str| event(&chunk(&json!({"content": text, "tool_calls": null, "refusal": null}), None, &nulls));
    let odd = event(&json!({"object": null}))
        + "data: null\n\ndata: {}\n\ndata:\n\n"
        + &event(&json!({"message": {"a": []}}));
    let writes = script([(10, odd.clone()), (50, piece("a")), (60, piece("b")), (70, odd + &ending(10, 2))]);
    let (turn, text) = chat(&writes);
    let turn = turn.complete();
    assert_eq!((turn.ttft_ms(), turn.output_tokens, turn.frames, text.as_str()), (Some(50.0), Some(2), 2, "ab"));
    assert!(turn.oddities.is_empty());
}

/// B23, B26
#[test]
fn absent_usage_is_absent_and_zero_is_zero() {
    let mut writes = script((0..5).map(|i| (10 * i, content("two words "))));
    let without = [writes.clone(), script([(60, finish("stop") + DONE)])].concat();
    let (turn, text) = chat(&without);
    let turn = turn.complete();
    assert_eq!((turn.output_tokens, turn.output_estimated, turn.frames), (None, false, 5));
    assert_eq!(text, "two words ".repeat(5), "what is counted is the joined text, spaces and all");
    writes.extend(script([(60, finish("stop") + &usage(10, 0) + DONE)]));
    assert_eq!(chat(&writes).0.output_tokens, Some(0));
}

/// B24
#[test]
fn reasoning_tokens_are_part_of_the_count() {
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 110,
        "completion_tokens_details": {"reasoning_tokens": 60}});
    let end = finish("stop") + &event(&json!({"choices": [], "usage": usage})) + DONE;
    let turn = chat(&script([(10, field("reasoning_content", "hm")), (20, content("a") + &end)])).0.complete();
    assert_eq!((turn.output_tokens, turn.reasoning_tokens), (Some(100), Some(60)));
}

/// B27
#[test]
fn a_reply_of_several_choices_is_refused_since_it_cannot_be_timed() {
    let piece = |index: u32, text: &str| {
        event(&json!({"choices": [{"index": index, "delta": {"content": text}, "finish_reason": null}]}))
    };
    let mut writes = script((0..10_u32).map(|i| (u64::from(i) * 10, piece(i % 2, if i % 2 == 0 { "a" } else { "b" }))));
    writes.extend(script([(100, ending(10, 10))]));
    let (turn, text) = chat(&writes);
    assert_eq!((turn.outcome, text.as_str()), (Outcome::Failed(Failure::Protocol), "aaaaa"));
    assert!(turn.detail.unwrap().contains("several choices"));
    let native = |index: u32| {
        event(&json!({"index": index, "text": "a", "meta_info": {"completion_tokens": 1,
        "finish_reason": {"type": "length"}}}))
    };
    let turn = play(Api::Generate, 200, &script([(1, native(0) + &native(1) + DONE)]), &End::Clean).0;
    assert_eq!(turn.outcome, Outcome::Failed(Failure::Protocol));
}

/// The native route: text that repeats, text that does not, and what tells them apart.
#[test]
fn native_text_is_whole_or_new_and_both_read_the_same() {
    let frame = |text: &str, ids: &[u32], count: u32| {
        event(&json!({"text": text, "output_ids": ids, "meta_info": {"id": "r", "finish_reason": null,
            "prompt_tokens": 9, "completion_tokens": count, "cached_tokens": 8, "dp_rank": 1}}))
    };
    let end = event(&json!({"text": "", "output_ids": [], "meta_info": {"completion_tokens": 4,
        "finish_reason": {"type": "length", "length": 4}}}));
    let whole =
        [frame("ha", &[1], 1), frame("haha", &[1, 1], 2), frame("hahaha!", &[1, 1, 1, 2], 4), end.clone() + DONE];
    let new = [frame("ha", &[1], 1), frame("ha", &[1], 2), frame("ha!", &[1, 2], 4), end + DONE];
    for frames in [whole, new] {
        let writes = script(frames.into_iter().zip([10, 20, 40, 40]).map(|(bytes, ms)| (ms, bytes)));
        let (turn, text) = play(Api::Generate, 200, &writes, &End::Clean);
        let turn = turn.complete();
        assert_eq!((text.as_str(), turn.output_tokens, turn.frames), ("hahaha!", Some(4), 3));
        assert_eq!(turn.gaps, [Gap::new(10_000, Some(1)), Gap::new(20_000, Some(2))]);
    }
}
