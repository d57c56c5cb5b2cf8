//! Streams with known instants. Each case is fed at several cuts: the record must not depend on them.

use super::*;
use crate::record::{Gap, Place, PlaceSource, TurnId};
use crate::units::Rank;

const DONE: &str = "data: [DONE]\n\n";

fn chat(delta: &str, rest: &str) -> String {
    format!(
        "data: {{\"id\":\"x\",\"choices\":[{{\"index\":0,\"delta\":{{{delta}}},\"finish_reason\":null}}]{rest}}}\n\n"
    )
}

fn content(text: &str) -> String {
    chat(&format!("\"content\":\"{text}\""), "")
}

fn counted(text: &str, completion: u32) -> String {
    chat(
        &format!("\"content\":\"{text}\""),
        &format!(",\"usage\":{{\"prompt_tokens\":10,\"completion_tokens\":{completion}}}"),
    )
}

fn finish(reason: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"{reason}\"}}]}}\n\n")
}

fn usage(prompt: u32, completion: u32) -> String {
    format!("data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{completion}}}}}\n\n")
}

fn role() -> String {
    chat("\"role\":\"assistant\",\"content\":\"\"", "")
}

/// Feeds `(ms, bytes)` whole and byte by byte and checks that both say the same.
fn play(api: Api, status: u16, script: &[(u64, String)], end: &End) -> (TurnRecord, String) {
    let run = |size: usize| {
        let id = TurnId { group: 0, session: 0, turn: 0 };
        let mut machine = Machine::new(api, TurnRecord::planned("r".into(), id, None, Micros(0), 9));
        machine.record().sent_us = Some(Micros(0));
        machine.record().status = Some(status);
        for (ms, bytes) in script {
            for chunk in bytes.as_bytes().chunks(size) {
                machine.feed(chunk, Micros(ms * 1000));
            }
        }
        machine.finish(end.clone(), Micros(script.last().map_or(0, |(ms, _)| ms * 1000)))
    };
    let whole = run(usize::MAX);
    for size in [1, 2, 7, 64] {
        assert_eq!(run(size), whole, "chunks of {size}");
    }
    whole
}

fn chat_turn(script: &[(u64, String)]) -> TurnRecord {
    play(Api::Chat, 200, script, &End::Clean).0
}

fn gaps_ms(record: &TurnRecord) -> Vec<u32> {
    record.gaps.iter().map(|gap| gap.us / 1000).collect()
}

fn ttft_ms(record: &TurnRecord) -> Option<f64> {
    record.ttft().map(Micros::as_ms)
}

#[test]
fn a_role_frame_or_a_comment_is_no_first_token() {
    let body = [(5, role()), (100, ": keep-alive\n\n".into()), (200, content("a")), (220, content("b"))];
    let end = (220, finish("stop") + &usage(10, 2) + DONE);
    let turn = chat_turn(&[body.to_vec(), vec![end]].concat());
    assert_eq!((turn.outcome, ttft_ms(&turn), turn.output_tokens), (Outcome::Complete, Some(200.0), Some(2)));
    assert_eq!(gaps_ms(&turn), [20]);
    assert_eq!(turn.tpot_us(), Some(20_000.0));
}

#[test]
fn a_closing_usage_frame_moves_no_clock() {
    let turn = chat_turn(&[(80, content("hello")), (80, finish("stop")), (400, usage(10, 3) + DONE)]);
    assert_eq!((ttft_ms(&turn), turn.e2e().map(Micros::as_ms)), (Some(80.0), Some(80.0)));
    assert_eq!((turn.output_tokens, turn.done_us), (Some(3), Some(Micros(400_000))));
    let first = chat_turn(&[(1, usage(10, 3)), (90, content("abc")), (95, finish("stop") + DONE)]);
    assert_eq!((ttft_ms(&first), first.output_tokens), (Some(90.0), Some(3)));
}

#[test]
fn usage_on_the_finish_chunk_is_a_sum_unless_counts_ran_before() {
    let llama = "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\n";
    let text = |t: &str| format!("data: {{\"choices\":[{{\"text\":\"{t}\",\"finish_reason\":null}}]}}\n\n");
    let script = [(10, text("a")), (20, text("b")), (70, llama.to_owned() + DONE)];
    let turn = play(Api::Completions, 200, &script, &End::Clean).0;
    assert_eq!((turn.frames, turn.last_us, turn.output_tokens), (2, Some(Micros(20_000)), Some(2)));
    assert_eq!(turn.gaps, [Gap::new(10_000, None)]);
}

#[test]
fn reasoning_starts_ttft_and_the_answer_has_its_own_time() {
    let mut script = vec![(1, role())];
    script.extend((0..5).map(|i| (100 + 10 * i, chat("\"reasoning_content\":\"x\"", ""))));
    script.extend([(150, content("a")), (160, content("b")), (160, finish("stop") + &usage(10, 7) + DONE)]);
    let turn = chat_turn(&script);
    assert_eq!((ttft_ms(&turn), turn.answer().map(Micros::as_ms)), (Some(100.0), Some(150.0)));
    assert_eq!(turn.tpot_us(), Some(10_000.0));
    let only = chat_turn(&[(50, chat("\"reasoning\":\"x\"", "")), (81, finish("length") + &usage(10, 1) + DONE)]);
    assert_eq!((only.outcome, only.answer_us), (Outcome::Complete, None));
}

#[test]
fn tool_calls_and_refusals_are_output() {
    for delta in ["\"tool_calls\":[{\"index\":0,\"function\":{\"name\":\"f\"}}]", "\"refusal\":\"I \""] {
        let turn =
            chat_turn(&[(1, role()), (280, chat(delta, "")), (290, finish("tool_calls") + &usage(10, 31) + DONE)]);
        assert_eq!((turn.outcome, ttft_ms(&turn)), (Outcome::Complete, Some(280.0)));
    }
}

#[test]
fn several_tokens_a_frame_are_counted_by_the_running_usage() {
    let turn = chat_turn(&[
        (0, role()),
        (100, counted("a", 1)),
        (140, counted("b", 5)),
        (180, counted("c", 9)),
        (220, counted("d", 13)),
        (221, usage(10, 13) + DONE),
    ]);
    let gap = |us| Gap::new(us, Some(4));
    assert_eq!(turn.gaps, [gap(40_000), gap(40_000), gap(40_000)]);
    assert_eq!((turn.output_tokens, turn.first_frame_tokens, turn.tpot_us()), (Some(13), Some(1), Some(10_000.0)));
}

#[test]
fn growth_of_the_count_is_output_even_without_text() {
    let empty = |completion: u32| chat("", &format!(",\"usage\":{{\"completion_tokens\":{completion}}}"));
    let turn = chat_turn(&[(60, empty(1)), (100, counted("A", 2)), (150, empty(9)), (201, finish("stop") + DONE)]);
    assert_eq!((ttft_ms(&turn), turn.frames, turn.output_tokens), (Some(60.0), 3, Some(9)));
    assert_eq!(turn.gaps[1], Gap::new(50_000, Some(7)));
}

#[test]
fn a_stream_without_output_or_without_an_end_is_a_failure() {
    let none = chat_turn(&[(10, role()), (300, finish("stop") + &usage(10, 0) + DONE)]);
    assert_eq!((none.outcome, none.ttft()), (Outcome::Failed(Failure::NoOutput), None));
    let cut = chat_turn(&[(10, content("a")), (20, content("b"))]);
    assert_eq!(cut.outcome, Outcome::Failed(Failure::Truncated));
    let no_done = chat_turn(&[(10, content("a")), (20, finish("stop"))]);
    assert_eq!(no_done.outcome, Outcome::Complete);
    let reset = End::Failed(Failure::Reset, "connection reset".into());
    let broken = play(Api::Chat, 200, &[(10, content("a"))], &reset).0;
    assert_eq!((broken.outcome, broken.frames), (Outcome::Failed(Failure::Reset), 1));
    let after_done = play(Api::Chat, 200, &[(10, content("a") + &finish("stop") + DONE)], &reset).0;
    assert_eq!(after_done.outcome, Outcome::Complete);
}

#[test]
fn an_error_in_a_200_is_a_failure_and_keeps_the_servers_words() {
    let error = "data: {\"error\":{\"object\":\"error\",\"message\":\"The request queue is full.\",\"code\":503}}\n\n";
    let cases = [
        (200, error.to_owned() + DONE, Failure::InBandError, "The request queue is full."),
        (200, "{\"error\":\"no such model\"}".into(), Failure::InBandError, "no such model"),
        (200, "data: {\"error\":\"x\"}\n\n".into(), Failure::InBandError, "x"),
        (503, "<html>busy</html>".into(), Failure::Http(503), "<html>busy</html>"),
        (404, "{\"detail\":\"Not Found\"}".into(), Failure::Http(404), "Not Found"),
        (400, "{\"object\":\"error\",\"message\":\"too long\"}".into(), Failure::Http(400), "too long"),
        (200, "data: {\"choices\":[{\"del\n\n".into(), Failure::Protocol, "an event is no JSON"),
        (200, "<html>hi</html>".into(), Failure::Protocol, "the reply is no event stream"),
    ];
    for (status, body, failure, words) in cases {
        let turn = play(Api::Chat, status, &[(5, body)], &End::Clean).0;
        assert_eq!(turn.outcome, Outcome::Failed(failure));
        assert!(turn.detail.as_deref().is_some_and(|detail| detail.starts_with(words)), "{:?}", turn.detail);
    }
}

#[test]
fn events_after_done_say_nothing() {
    let turn =
        play(Api::Chat, 200, &[(100, content("a") + &finish("stop") + DONE), (150, content("late"))], &End::Clean);
    assert_eq!((turn.0.frames, turn.1.as_str()), (1, "a"));
}

#[test]
fn the_native_route_repeats_its_text_and_tells_the_rank() {
    let event = |text: &str, n: u32, finish: &str| {
        format!(
            "data: {{\"text\":\"{text}\",\"meta_info\":{{\"id\":\"r1\",\"finish_reason\":{finish},\"prompt_tokens\":9,\"completion_tokens\":{n},\"cached_tokens\":8,\"dp_rank\":3}}}}\n\n"
        )
    };
    let script = [
        (10, event("a", 1, "null")),
        (30, event("a b", 3, "null")),
        (40, event("a b c", 4, "{\"type\":\"length\",\"length\":4}") + DONE),
    ];
    let (turn, reply) = play(Api::Generate, 200, &script, &End::Clean);
    assert_eq!((turn.outcome, reply.as_str(), turn.output_tokens), (Outcome::Complete, "a b c", Some(4)));
    assert_eq!(turn.gaps, [Gap::new(20_000, Some(2)), Gap::new(10_000, Some(1))]);
    assert_eq!((turn.place, turn.cached_tokens), (Some(Place::Rank(Rank(3))), Some(8)));
    assert_eq!(turn.server_times, None);
    let abort = "data: {\"text\":\"\",\"meta_info\":{\"finish_reason\":{\"type\":\"abort\",\"message\":\"queue is full\"}}}\n\n";
    let turn = play(Api::Generate, 200, &[(1, abort.to_owned() + DONE)], &End::Clean).0;
    assert_eq!((turn.outcome, turn.detail.as_deref()), (Outcome::Failed(Failure::Aborted), Some("queue is full")));
}

#[test]
fn the_native_route_tells_where_the_time_to_the_first_token_went() {
    let meta = |more: &str| {
        format!(
            "data: {{\"text\":\"a\",\"meta_info\":{{\"id\":\"r1\",\"queue_time\":0.25,\"forward_entry_time\":10.5,\"prefill_finished_time\":10.625,\"completion_tokens\":1{more}}}}}\n\n"
        )
    };
    let last = ",\"finish_reason\":{\"type\":\"length\",\"length\":1},\"request_received_ts\":10.0,\"response_sent_to_client_ts\":10.75";
    let script = [(10, meta("")), (20, meta(last) + DONE)];
    let times = play(Api::Generate, 200, &script, &End::Clean).0.server_times.unwrap();
    assert_eq!(times.spans(), [Some(250_000), Some(250_000), Some(125_000), Some(125_000)]);
    // A server without metrics tells null, or something else: no reason to give the turn up.
    let odd = meta(last).replace("0.25", "null").replace("10.625", "\"soon\"");
    let turn = play(Api::Generate, 200, &[(10, odd + DONE)], &End::Clean).0;
    assert_eq!((turn.outcome, turn.server_times), (Outcome::Complete, None));
}

#[test]
fn silence_about_cached_tokens_is_zero_only_of_a_server_that_answered() {
    let reply = |details: &str| {
        let details = match details {
            "" => String::new(),
            details => format!("data: {{\"choices\":[],\"sglext\":{{\"cached_tokens_details\":{details}}}}}\n\n"),
        };
        content("a") + &finish("length") + &details + &usage(9, 1) + DONE
    };
    let cached = |details: &str, cached_details| {
        let id = TurnId { group: 0, session: 0, turn: 0 };
        let machine = Machine::new(Api::Chat, TurnRecord::planned("r".into(), id, None, Micros(0), 9));
        let mut machine = machine.reading(None, Asks { cached_details, ..Asks::default() });
        machine.feed(reply(details).as_bytes(), Micros(1));
        machine.finish(End::Clean, Micros(2)).0.cached_tokens
    };
    let found = "{\"device\":5,\"host\":2,\"storage\":1,\"storage_backend\":\"file\"}";
    for asked in [CachedDetails::NotAsked, CachedDetails::Asked, CachedDetails::Answered] {
        assert_eq!(cached(found, asked), Some(8));
        assert_eq!(cached("", asked), (asked == CachedDetails::Answered).then_some(0));
    }
}

#[test]
fn the_server_knows_better_than_the_pin_which_rank_it_was() {
    let event = "data: {\"text\":\"a\",\"meta_info\":{\"id\":\"r\",\"finish_reason\":{\"type\":\"length\",\"length\":1},\
                 \"prompt_tokens\":9,\"completion_tokens\":1,\"dp_rank\":3}}\n\ndata: [DONE]\n\n";
    let node = Place::Node("http://h".into());
    let cases = [
        (None, Place::Rank(Rank(3)), PlaceSource::MetaInfo, vec![]),
        (Some(Place::Rank(Rank(3))), Place::Rank(Rank(3)), PlaceSource::Pin, vec![]),
        (Some(Place::Rank(Rank(1))), Place::Rank(Rank(3)), PlaceSource::MetaInfo, vec![Oddity::PinIgnored]),
        (Some(node.clone()), node, PlaceSource::Pin, vec![]),
    ];
    for (pin, place, source, oddities) in cases {
        let id = TurnId { group: 0, session: 0, turn: 0 };
        let mut turn = TurnRecord::planned("r".into(), id, None, Micros(0), 1);
        turn.place_source = pin.as_ref().map(|_| PlaceSource::Pin);
        turn.place = pin;
        let mut machine = Machine::new(Api::Generate, turn);
        machine.record().status = Some(200);
        machine.feed(event.as_bytes(), Micros(1000));
        let (record, _) = machine.finish(End::Clean, Micros(2000));
        assert_eq!((record.place, record.place_source), (Some(place), Some(source)));
        assert_eq!(record.oddities, oddities);
    }
}

#[test]
fn nothing_that_a_record_quotes_of_the_server_repeats_a_secret() {
    let secret = "sk-0123456789";
    let event = format!(
        "data: {{\"id\":\"chatcmpl-{secret}\",\"model\":\"w-{secret}\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"a\"}},\
         \"finish_reason\":\"{secret}\"}}]}}\n\n"
    );
    let id = TurnId { group: 0, session: 0, turn: 0 };
    let machine = Machine::new(Api::Chat, TurnRecord::planned("r".into(), id, None, Micros(0), 1));
    let machine = machine.hiding([secret.to_owned()].into());
    let mut machine = machine.reading(Some(PlaceField::Model), Asks::default());
    machine.feed((event + DONE).as_bytes(), Micros(1));
    let record = serde_json::to_string(&machine.finish(End::Clean, Micros(2)).0).unwrap();
    assert!(record.contains("w-(hidden)") && !record.contains(secret), "{record}");
}

/// Room for fewer events than came, at every number of them and every cut.
#[test]
fn a_reply_beyond_its_limit_fails_with_it_however_it_was_cut() {
    let wire = role() + &content("a").repeat(6) + &finish("stop") + &usage(10, 6) + DONE + &content("late").repeat(3);
    let run = |room: u32, size: usize| {
        let id = TurnId { group: 0, session: 0, turn: 0 };
        let mut machine = Machine::new(Api::Chat, TurnRecord::planned("r".into(), id, None, Micros(0), 9));
        machine.reply.room.narrow(room);
        for chunk in wire.as_bytes().chunks(size) {
            machine.feed(chunk, Micros(1));
        }
        (machine.is_full(), machine.finish(End::Clean, Micros(2)))
    };
    for room in 0..14 {
        let whole = run(room, wire.len());
        for size in 1..wire.len() {
            assert_eq!(run(room, size), whole, "room for {room}, chunks of {size}");
        }
        let (is_full, (turn, text)) = whole;
        assert_eq!((is_full, text.len()), (room < 13, room.saturating_sub(1).min(6) as usize));
        // Ten of the events are the reply; what comes after it cannot spoil it.
        if room < 10 {
            assert_eq!(turn.outcome, Outcome::Failed(Failure::Protocol));
            let words = "the reply has more than 1048720 events, the limit for 9 output tokens";
            assert_eq!(turn.detail.as_deref(), Some(words));
        } else {
            assert_eq!(turn.outcome, Outcome::Complete);
        }
    }
}

#[test]
fn the_text_of_a_reply_has_a_limit_on_every_route() {
    let piece = "x".repeat(1 << 18);
    let repeated = |times: usize| format!("data: {{\"text\":\"{}\",\"meta_info\":{{}}}}\n\n", piece.repeat(times));
    let whole_text = (1..=4).map(|quarter| repeated(quarter * 17)).collect::<String>();
    let pieces = format!("data: {{\"choices\":[{{\"text\":\"{piece}\"}}]}}\n\n").repeat(66);
    for (api, wire) in
        [(Api::Generate, whole_text), (Api::Completions, pieces), (Api::Chat, content(&piece).repeat(66))]
    {
        let turn = |size: usize| {
            let id = TurnId { group: 0, session: 0, turn: 0 };
            let mut machine = Machine::new(api, TurnRecord::planned("r".into(), id, None, Micros(0), 9));
            wire.as_bytes().chunks(size).for_each(|chunk| machine.feed(chunk, Micros(1)));
            assert!(machine.is_full(), "{api:?}");
            machine.finish(End::Clean, Micros(2))
        };
        let (record, text) = turn(wire.len());
        assert_eq!((&record, &text), (&turn(99_991).0, &turn(8_192).1));
        let limit = 1_048_720 * 16;
        assert_eq!(record.outcome, Outcome::Failed(Failure::Protocol));
        assert!(record.detail.is_some_and(|detail| detail.contains(&format!("longer than {limit} bytes"))));
        assert!(text.len() > limit && text.len() < limit + 18 * piece.len());
    }
}
