//! What a reply is worth, with the figures that the rows of the traps name, each in full where other files hold a part of it
//! (B10, B11, B23, B24, B35).

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use gspbench::client::End;
use gspbench::lanes::Lanes;
use gspbench::record::{Failure, Outcome, TurnRecord};
use gspbench::report::{Accumulator, Closing, RunReport, State};
use gspbench::text::Vocabulary;
use gspbench::units::Micros;
use gspbench::workload::{self, Api};
use serde_json::json;
use tokio::task::JoinSet;

use crate::load;
use crate::play::{
    self, DONE, Figures, chat, content, counts, ending, event, field, finish, play, role, script, usage,
};
use crate::scripted::{Answer, BREATH, Scripted, Step, chunk, end, head, stream};
use crate::traps_program::{Ran, server};
use crate::traps_rows::tokenizer;
use crate::wire_client::{Sender, chat_turn};

/// The report of a run of this one turn.
fn report_of(turn: &TurnRecord) -> RunReport {
    let spec = load::spec("workload.groups = 1\nworkload.sessions_per_group = 1");
    let plan = workload::plan(&spec, &Vocabulary::words()).unwrap();
    let mut accumulator = Accumulator::new(load::context(&spec, &plan));
    accumulator.add(turn);
    accumulator.finish(Closing::plain(State::Complete))
}

/// B10: ROLE @0; C @500, 510, 520; U(10, 3).
#[test]
fn the_wait_for_the_first_token_is_no_gap_between_chunks() {
    let writes = script([
        (0, role()),
        (500, content("a")),
        (510, content("b")),
        (520, content("c") + &finish("stop") + &usage(10, 3) + DONE),
    ]);
    let turn = chat(&writes).0.complete();
    assert_eq!((turn.ttft_ms(), turn.gaps_ms()), (Some(500.0), vec![10, 10]));
    let metrics = report_of(&turn).metrics;
    let gaps = metrics.icl_ms.unwrap();
    assert_eq!((gaps.count, gaps.min, gaps.mean, gaps.max), (2, 10.0, 10.0, 10.0), "and not 173");
    assert_eq!((metrics.tpot_ms.unwrap().mean, metrics.ttft_ms.unwrap().mean), (10.0, 500.0));
}

/// B11: 64 streams at once, each with an event of 4 MiB. Of every event the last byte is held back until all streams are
/// there, so that one instant lies before all of those bytes.
#[test]
fn huge_events_of_many_streams_are_timed_by_their_last_bytes() {
    const STREAMS: usize = 64;
    const PIECE: usize = 64 << 10;
    let big = event(&play::chunk(&json!({"content": "a"}), None, &json!({"logprobs": "FILLER"})));
    let (before, after) = big.split_once("FILLER").unwrap();
    let (before, after) = (before.to_owned(), after.strip_suffix('\n').unwrap().to_owned());
    let there = Arc::new((Mutex::new(0_usize), Condvar::new()));
    let server = Scripted::start(move |_| {
        let filler = std::iter::repeat_n((), (4 << 20) / PIECE).map(|()| chunk([b'x'; PIECE]));
        let there = Arc::clone(&there);
        let wait = std::iter::once_with(move || {
            let mut count = there.0.lock().unwrap();
            *count += 1;
            there.1.notify_all();
            drop(there.1.wait_timeout_while(count, Duration::from_secs(120), |count| *count < STREAMS).unwrap());
            Step::Note
        });
        let opening = [head(), chunk(&before)].into_iter().chain(filler).chain([chunk(&after)]);
        let closing = [chunk("\n"), BREATH, chunk(content("b")), chunk(ending(10, 2)), end()];
        Answer::Pour(Box::new(opening.chain(wait).chain(closing)))
    });
    let lanes = Lanes::threads(2).unwrap();
    let bench = Sender { lanes: lanes.clone(), ..Sender::new(Api::Chat, &server.url) }.build();
    let turns = bench.runtime.block_on(async {
        let mut turns = JoinSet::new();
        (0..).take(STREAMS).zip(0..).for_each(|(number, lane)| drop(lanes.spawn(lane, &mut turns, bench.send(number))));
        turns.join_all().await
    });
    let held_until: Micros = bench.clock.at(server.noted().into_iter().min().unwrap()).into();
    assert_eq!((turns.len(), server.connections()), (STREAMS, STREAMS));
    for (turn, text) in turns {
        assert_eq!((turn.outcome, turn.frames, text.as_str()), (Outcome::Complete, 2, "ab"), "{:?}", turn.detail);
        assert!(turn.first_us.unwrap() >= held_until && turn.gaps.len() == 1);
    }
}

/// B11: any status that says success is one, if its stream is; what is none stays none.
#[test]
fn every_status_of_success_is_accepted_with_a_valid_stream() {
    let good = script([(100, content("a")), (150, content("b") + &ending(10, 2))]);
    for status in [200, 201, 206, 299] {
        let (turn, text) = play(Api::Chat, status, &good, &End::Clean);
        let turn = turn.complete();
        assert_eq!((turn.status, turn.ttft_ms(), text.as_str()), (Some(status), Some(100.0), "ab"));
    }
    for status in [300, 304, 400, 500] {
        let turn = play(Api::Chat, status, &good, &End::Clean).0;
        assert_eq!(turn.outcome, Outcome::Failed(Failure::Http(status)));
    }
    for status in ["201 Created", "206 Partial Content"] {
        let server = Scripted::start(move |_| {
            let head =
                format!("HTTP/1.1 {status}\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n");
            Answer::Steps(vec![Step::Write(head.into()), chunk(content("a") + &content("b") + &ending(10, 2)), end()])
        });
        let (turn, text) = chat_turn(&server.url);
        assert_eq!((turn.outcome, turn.frames, text.as_str()), (Outcome::Complete, 2, "ab"), "{status}");
    }
}

/// B23: max_tokens 100; five events whose joined text is 12 tokens; no usage.
#[test]
fn without_usage_the_joined_text_is_counted_and_never_the_limit() {
    let text = Vocabulary::from_file(&tokenizer()).unwrap().passage(5, 0, 12).text;
    let words: Vec<&str> = text.split_inclusive(' ').collect();
    assert_eq!(words.len(), 12);
    let pieces: Vec<String> = words.chunks(3).map(<[&str]>::concat).collect();
    let (last, first) = pieces.split_last().unwrap();
    // Five events, of which one ends within a word.
    let (one, two) = last.split_at(last.len() - 2);
    let events: Vec<String> = first.iter().map(String::as_str).chain([one, two]).map(content).collect();
    assert_eq!(events.len(), 5);
    let server = server(move |_, _| stream(events.iter().cloned().chain([finish("stop") + DONE])));
    let path = tokenizer();
    let ran = Ran::new(
        &server,
        &["--gsp-output-len=100", "--disable-ignore-eos", "--tokenizer", path.to_str().unwrap(), "--disable-tqdm"],
    );
    assert!(server.turns()[1..].iter().all(|seen| seen.json()["max_tokens"] == 100));
    for turn in ran.turns() {
        assert_eq!((&turn["output_tokens"], &turn["output_estimated"]), (&json!(12), &json!(true)), "{turn}");
    }
    let totals = ran.totals();
    assert_eq!((&totals["output_tokens"], &totals["output_estimated_turns"]), (&json!(48), &json!(4)));
    assert!(ran.findings().contains("estimated"), "{}", ran.stderr);
}

/// B24: 100 tokens, of which 60 are reasoning and 40 the answer: TPOT is over 99 gaps.
#[test]
fn reasoning_is_a_part_of_the_output_and_is_not_added_to_it() {
    let mut of = counts(10, 100);
    of["completion_tokens_details"] = json!({"reasoning_tokens": 60});
    let end = finish("stop") + &event(&json!({"choices": [], "usage": of})) + DONE;
    let writes = script([(10, field("reasoning_content", "hm")), (1_000, content("a") + &end)]);
    let report = report_of(&chat(&writes).0.complete());
    let (output, reasoning) = (report.totals.output_tokens.unwrap(), report.totals.reasoning_tokens.unwrap());
    assert_eq!((output, reasoning, output - reasoning), (100, 60, 40));
    assert_eq!(report.metrics.tpot_ms.unwrap().mean, 10.0, "990 ms over 99 gaps");
}

/// B35: over a socket, where there would be something to connect to again.
#[test]
fn a_retry_field_makes_nobody_connect_again() {
    let odd = "event: message\nid: 7\nretry: 10\ndata: {\"choices\":[{\"index\":0,\ndata: \"delta\":{\"content\":\"a\"}}]}\n\n";
    let server = Scripted::start(move |seen| match seen.connection {
        0 if seen.before == 0 => Answer::Steps(vec![head(), chunk(odd), BREATH, chunk(ending(10, 1)), end()]),
        0 => Answer::Steps(vec![head(), chunk(odd), Step::Close]),
        _ => Answer::Steps(vec![head(), chunk(odd.replace('\n', "\r\n")), chunk(ending(10, 1)), end()]),
    });
    let bench = Sender::new(Api::Chat, &server.url).build();
    let turns: Vec<(TurnRecord, String)> = (0..3).map(|number| bench.turn(number)).collect();
    let truncated = Outcome::Failed(Failure::Truncated);
    for ((turn, text), outcome) in turns.iter().zip([Outcome::Complete, truncated, Outcome::Complete]) {
        assert_eq!((turn.outcome, turn.frames, text.as_str(), turn.resends), (outcome, 1, "a", 0));
    }
    // The third connects because the second's connection is gone, and not because of the 10 ms.
    assert_eq!((server.turns().len(), server.connections(), bench.dials().opened), (3, 2, 2));
    assert!(server.turns().iter().all(|seen| seen.header("last-event-id").is_none()));
}
