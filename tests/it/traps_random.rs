//! Replies made at random: events drawn, written in any framing that the standard allows, cut anywhere. The record must be
//! the one that a naive reading of the drawn events gives, which knows neither bytes nor JSON.

use gspbench::client::{End, Machine};
use gspbench::record::{Failure, Gap, Outcome, TurnId, TurnRecord};
use gspbench::units::Micros;
use gspbench::workload::Api;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::play::{chunk, counts};

const PROMPT_TOKENS: u32 = 7;

/// One event of a reply.
#[derive(Debug, Clone, PartialEq)]
enum Event {
    Role,
    /// Text, and how many tokens it brings.
    Text(String, u32),
    Reasoning(String, u32),
    ToolCall(u32),
    /// No text, but perhaps tokens.
    Silence(u32),
    Comment(String),
    Null,
}

/// How a reply ends.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Ending {
    finish: bool,
    usage: bool,
    done: bool,
}

/// How a reply is written.
#[derive(Debug, Clone)]
struct Framing {
    /// Line ends, taken in turn.
    ends: &'static [&'static str],
    space: &'static str,
    mark: bool,
    /// Other fields before the data.
    fields: bool,
    /// JSON over several `data` lines.
    pretty: bool,
    /// Sizes of the pieces that are fed, taken in turn.
    pieces: Vec<usize>,
}

#[derive(Debug, Clone)]
struct Reply {
    /// Milliseconds after the event before.
    events: Vec<(u64, Event)>,
    ending: Ending,
    /// Whether events carry a running count.
    running: bool,
}

fn words() -> impl Strategy<Value = String> {
    prop_oneof!["[ a-z\"\\\\:\n\r\té€😀]{1,8}", Just("data: [DONE]\n\n".to_owned()), Just("\u{feff}".to_owned())]
}

fn an_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => Just(Event::Role),
        6 => (words(), 1..5_u32).prop_map(|(text, tokens)| Event::Text(text, tokens)),
        2 => (words(), 1..5_u32).prop_map(|(text, tokens)| Event::Reasoning(text, tokens)),
        1 => (1..5_u32).prop_map(Event::ToolCall),
        1 => (0..3_u32).prop_map(Event::Silence),
        1 => "[ a-z:{]{0,8}".prop_map(Event::Comment),
        1 => Just(Event::Null),
    ]
}

fn a_reply() -> impl Strategy<Value = Reply> {
    let ending =
        (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(finish, usage, done)| Ending { finish, usage, done });
    (prop::collection::vec((0..50_u64, an_event()), 0..12), ending, any::<bool>())
        .prop_map(|(events, ending, running)| Reply { events, ending, running })
}

fn a_framing() -> impl Strategy<Value = Framing> {
    let ends = prop_oneof![Just(&["\n"][..]), Just(&["\r\n"][..]), Just(&["\r"][..]), Just(&["\n", "\r\n", "\n"][..])];
    let pieces = prop::collection::vec(1..40_usize, 1..6);
    (ends, prop_oneof![Just(""), Just(" ")], any::<[bool; 3]>(), pieces)
        .prop_map(|(ends, space, [mark, fields, pretty], pieces)| Framing { ends, space, mark, fields, pretty, pieces })
}

/// The naive reading.
fn expected(reply: &Reply) -> (TurnRecord, String) {
    let mut turn = planned();
    let (mut text, mut now, mut total) = (String::new(), 0, 0);
    let mut outputs: Vec<(u64, u32)> = vec![];
    for (wait, event) in &reply.events {
        now += wait;
        let (tokens, is_output, is_answer) = match event {
            Event::Role | Event::Comment(_) | Event::Null => (0, false, false),
            Event::Text(piece, tokens) => {
                text += piece;
                (*tokens, true, true)
            }
            Event::Reasoning(_, tokens) => (*tokens, true, false),
            Event::ToolCall(tokens) => (*tokens, true, true),
            Event::Silence(tokens) => (*tokens, reply.running && *tokens > 0, true),
        };
        total += tokens;
        if is_output {
            outputs.push((now, tokens));
            if is_answer && turn.answer_us.is_none() {
                turn.answer_us = Some(Micros(now * 1000));
            }
        }
    }
    let known = |tokens| reply.running.then_some(tokens);
    turn.frames = u32::try_from(outputs.len()).unwrap();
    turn.first_us = outputs.first().map(|(at, _)| Micros(at * 1000));
    turn.last_us = outputs.last().map(|(at, _)| Micros(at * 1000));
    turn.first_frame_tokens = outputs.first().and_then(|(_, tokens)| known(*tokens));
    turn.gaps = outputs
        .windows(2)
        .map(|pair| Gap::new(u32::try_from((pair[1].0 - pair[0].0) * 1000).unwrap(), known(pair[1].1)))
        .collect();
    let counts_ran = reply.running
        && reply.events.iter().any(|(_, event)| !matches!(event, Event::Role | Event::Comment(_) | Event::Null));
    if reply.ending.usage || counts_ran {
        (turn.prompt_tokens, turn.output_tokens) = (Some(PROMPT_TOKENS), Some(total));
    }
    turn.finish = reply.ending.finish.then(|| "stop".to_owned());
    turn.outcome = match reply.ending {
        Ending { finish: false, done: false, .. } => Outcome::Failed(Failure::Truncated),
        _ if outputs.is_empty() => Outcome::Failed(Failure::NoOutput),
        _ => Outcome::Complete,
    };
    turn.done_us = Some(Micros(now * 1000));
    (turn, text)
}

fn planned() -> TurnRecord {
    let id = TurnId { group: 0, session: 0, turn: 0 };
    let mut turn = TurnRecord::planned("r".into(), id, None, Micros(0), 9);
    (turn.sent_us, turn.status) = (Some(Micros(0)), Some(200));
    turn
}

/// What is written, with the time of each event's last byte.
fn written(reply: &Reply, framing: &Framing) -> Vec<(u64, String)> {
    let (mut now, mut total) = (0, 0);
    let mut writer = Writer { framing, lines: 0 };
    let mut writes = vec![(0, if framing.mark { "\u{feff}".to_owned() } else { String::new() })];
    for (wait, event) in &reply.events {
        now += wait;
        let mut piece = |delta: &Value, tokens: u32| {
            total += tokens;
            let more = if reply.running { json!({"usage": counts(PROMPT_TOKENS, total)}) } else { Value::Null };
            chunk(delta, None, &more)
        };
        let value = match event {
            Event::Comment(text) => {
                writes.push((now, writer.line(&format!(":{text}")) + &writer.line("")));
                continue;
            }
            Event::Null => Value::Null,
            Event::Role => chunk(&json!({"role": "assistant", "content": ""}), None, &Value::Null),
            Event::Text(text, tokens) => piece(&json!({"content": text}), *tokens),
            Event::Reasoning(text, tokens) => piece(&json!({"reasoning_content": text, "content": null}), *tokens),
            Event::ToolCall(tokens) => piece(&json!({"tool_calls": [{"index": 0}]}), *tokens),
            Event::Silence(tokens) => piece(&json!({}), *tokens),
        };
        writes.push((now, writer.event(&value)));
    }
    let ending = reply.ending;
    if ending.finish {
        writes.push((now, writer.event(&chunk(&json!({}), Some("stop"), &Value::Null))));
    }
    if ending.usage {
        writes.push((now, writer.event(&json!({"choices": [], "usage": counts(PROMPT_TOKENS, total)}))));
    }
    if ending.done {
        writes.push((now, writer.line("data: [DONE]") + &writer.line("")));
    }
    writes
}

struct Writer<'a> {
    framing: &'a Framing,
    lines: usize,
}

impl Writer<'_> {
    fn line(&mut self, text: &str) -> String {
        self.lines += 1;
        text.to_owned() + self.framing.ends[self.lines % self.framing.ends.len()]
    }

    fn event(&mut self, value: &Value) -> String {
        let json = if self.framing.pretty { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
        let fields: &[&str] = if self.framing.fields { &["event: message", "id: 1", ": hm", "retry: 5"] } else { &[] };
        let mut wire: String = fields.iter().map(|field| self.line(field)).collect();
        for line in json.unwrap().lines() {
            wire += &self.line(&format!("data:{}{line}", self.framing.space));
        }
        wire + &self.line("")
    }
}

fn read(writes: &[(u64, String)], pieces: &[usize]) -> (TurnRecord, String) {
    let mut machine = Machine::new(Api::Chat, planned());
    let mut sizes = pieces.iter().copied().cycle();
    let mut now = Micros(0);
    for (ms, bytes) in writes {
        now = Micros(ms * 1000);
        let mut rest = bytes.as_bytes();
        while !rest.is_empty() {
            let (piece, later) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
            machine.feed(piece, now);
            rest = later;
        }
    }
    machine.finish(End::Clean, now)
}

proptest! {
    #[test]
    fn a_reply_in_any_framing_reads_as_what_it_says(reply in a_reply(), framing in a_framing()) {
        let (mut expected, text) = expected(&reply);
        let (turn, read_text) = read(&written(&reply, &framing), &framing.pieces);
        // Names and words of a failure are not part of the drawn events.
        (expected.request_id, expected.detail) = (turn.request_id.clone(), turn.detail.clone());
        prop_assert_eq!((turn, read_text), (expected, text));
    }

    /// Whatever the bytes, every turn ends in one outcome, no time runs backwards, and cuts do not matter.
    #[test]
    fn any_bytes_end_in_one_outcome(
        pieces in prop::collection::vec(
            prop_oneof![
                Just(b"data: ".to_vec()), Just(b"\n\n".to_vec()), Just(b"\r".to_vec()), Just(b"[DONE]".to_vec()),
                Just(b"{\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}".to_vec()),
                Just(b"{\"error\":\"x\"}".to_vec()), Just(b"{\"usage\":{\"completion_tokens\":3}}".to_vec()),
                Just(b"null".to_vec()), prop::collection::vec(any::<u8>(), 0..6),
            ],
            0..20,
        ),
        status in prop_oneof![Just(200_u16), Just(503)],
        api in prop_oneof![Just(Api::Chat), Just(Api::Generate)],
        size in 1..30_usize,
    ) {
        let bytes = pieces.concat();
        let read = |size: usize| {
            let mut machine = Machine::new(api, TurnRecord { status: Some(status), ..planned() });
            for piece in bytes.chunks(size) {
                machine.feed(piece, Micros(5));
            }
            machine.finish(End::Clean, Micros(9))
        };
        let (turn, text) = read(usize::MAX);
        prop_assert_eq!(&(turn.clone(), text), &read(size));
        prop_assert!(!matches!(turn.outcome, Outcome::Skipped | Outcome::Cancelled));
        prop_assert!(turn.first_us <= turn.last_us && turn.last_us <= turn.done_us);
        prop_assert!(turn.detail.is_none_or(|detail| detail.len() <= 200));
        prop_assert_eq!(turn.gaps.len(), turn.frames.saturating_sub(1) as usize);
    }
}
