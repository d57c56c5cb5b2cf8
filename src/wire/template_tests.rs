//! That a template says what the JSON reader says.

use proptest::prelude::*;

use super::*;

const STREAMS: usize = 3;

fn chat(text: &str, tokens: u32, created: u64) -> String {
    let text = serde_json::to_string(text).unwrap();
    format!(
        r#"{{"id":"c1","object":"chat.completion.chunk","created":{created},"model":"m","choices":[{{"index":0,"delta":{{"content":{text}}},"logprobs":null,"finish_reason":null}}],"usage":{{"prompt_tokens":9,"total_tokens":{},"completion_tokens":{tokens}}}}}"#,
        tokens.saturating_add(9)
    )
}

/// As [`read_streams`], of one stream.
fn read_all<'a>(events: impl IntoIterator<Item = &'a str>) -> usize {
    read_streams(events.into_iter().map(|data| (0, data)))
}

/// Reads events of streams that share what they learn, and asserts that the reader would have said the same of each;
/// gives the number that fitted the template of their own stream.
fn read_streams<'a>(events: impl IntoIterator<Item = (usize, &'a str)>) -> usize {
    let shared = SharedTemplate::default();
    let mut streams: [_; STREAMS] = std::array::from_fn(|_| (OpenAiEvents::sharing(shared.clone()), Frame::default()));
    let mut hits = 0;
    for (stream, data) in events {
        let (reader, before) = &mut streams[stream];
        let data = data.as_bytes();
        hits += usize::from(reader.template.as_ref().is_some_and(|template| template.delta(data).is_some()));
        let (read, expected) = match (reader.read(data), parse_openai(data)) {
            (Ok(read), Ok(expected)) => (read, expected),
            (read, expected) => {
                assert_eq!(read.is_err(), expected.is_err());
                continue;
            }
        };
        let before = std::mem::take(before);
        let read = match read {
            Event::Whole(frame) => frame,
            Event::Again(Delta { id, text, reasoning, counts }) => {
                let [text, reasoning] = [text, reasoning].map(|text| text.map(Cow::Borrowed));
                Frame {
                    text,
                    reasoning,
                    id: id.map(Cow::Borrowed).or(before.id),
                    prompt_tokens: counts.prompt.or(before.prompt_tokens),
                    completion_tokens: counts.completion,
                    cached_tokens: counts.cached.or(before.cached_tokens),
                    reasoning_tokens: counts.reasoning.or(before.reasoning_tokens),
                    ..before
                }
            }
        };
        assert_eq!(read, expected, "{}", String::from_utf8_lossy(data));
        streams[stream].1 = expected;
    }
    hits
}

#[test]
fn an_event_like_the_one_before_is_not_parsed_again() {
    let events = [chat("a", 1, 7), chat(" bé", 2, 7), chat("\n", 3, 8), chat("", 3, 8), chat("c", 10, 99)];
    // All but the first, which teaches, and the one with an escape.
    assert_eq!(read_all(events.iter().map(String::as_str)), 3);
}

#[test]
fn of_a_stream_under_way_only_what_is_new_is_told() {
    let [one, two] = [chat("a", 1, 7), chat("b", 2, 7)];
    let mut reader = OpenAiEvents::default();
    assert!(matches!(reader.read(one.as_bytes()), Ok(Event::Whole(_))));
    let counts = Counts { prompt: Some(9), completion: Some(2), ..Counts::default() };
    let new = Delta { id: Some("c1"), text: Some("b"), reasoning: None, counts };
    assert_eq!(reader.read(two.as_bytes()).unwrap(), Event::Again(new));
}

#[test]
fn a_stream_reads_with_what_another_has_learned() {
    let shared = SharedTemplate::default();
    let [mut one, mut other] = [0; 2].map(|_| OpenAiEvents::sharing(shared.clone()));
    one.read(chat("a", 1, 7).as_bytes()).unwrap();
    let of_another = |text, tokens| chat(text, tokens, 8).replace("c1", "c2").replace(":9,", ":14,");
    let (first, second) = (of_another("b", 1), of_another("c", 2));
    let expected = parse_openai(first.as_bytes()).unwrap();
    assert_eq!(other.read(first.as_bytes()).unwrap(), Event::Whole(expected), "its facts are its own");
    assert!(matches!(other.read(second.as_bytes()), Ok(Event::Again(_))));
    assert_eq!((one.lessons, other.lessons), (1, 0));
}

#[test]
fn what_another_event_said_between_is_said_anew() {
    let [one, other] = [chat("a", 1, 7), chat("b", 2, 7).replace("\"model\":\"m\"", "\"model\":\"n\"")];
    let closing = chat("c", 3, 7).replace("\"finish_reason\":null", "\"finish_reason\":\"stop\"");
    let events = [&one, &closing, &one, &one, "{", &one, &other, &one, &other, &other];
    assert_eq!(read_all(events), 4);
}

#[test]
fn what_comes_once_in_a_stream_teaches_nothing() {
    let data = chat("a", 1, 7).replace("\"finish_reason\":null", "\"finish_reason\":\"stop\"");
    assert_eq!(read_all([data.as_str(), data.as_str()]), 0);
}

#[test]
fn a_count_that_is_not_the_readers_spoils_the_template() {
    let decoy = r#"{"x":{"completion_tokens":2},"choices":[{"text":"a"}],"usage":{"completion_tokens":2}}"#;
    assert_eq!(read_all([decoy, decoy]), 0);
}

#[test]
fn what_is_no_number_to_the_reader_fits_no_hole() {
    let [one, two] = [chat("a", 1, 7), chat("b", 2, 7)];
    for odd in ["07", "00", "7x"] {
        let spoilt = two.replace("\"created\":7", &format!("\"created\":{odd}"));
        assert_eq!(read_all([&*one, &*spoilt, &*two]), 1, "{odd}");
    }
}

/// The reader adds up the details, whose sum is what a probe would write into the other field.
#[test]
fn a_count_that_other_constants_add_up_to_spoils_the_template() {
    for probe in 0..10 {
        let sum = 4_000_000_000_u32 + probe;
        let decoy = format!(
            r#"{{"zz":{{"cached_tokens":8}},"choices":[{{"text":"a"}}],"sglext":{{"cached_tokens_details":{{"device":{sum}}}}}}}"#
        );
        assert_eq!(read_all([decoy.as_str(), decoy.as_str()]), 0);
    }
}

#[test]
fn a_stream_that_never_repeats_costs_few_lessons() {
    let mut reader = OpenAiEvents::default();
    for at in 0..100 {
        let data = format!(r#"{{"seed":"{at}","choices":[{{"text":"a"}}]}}"#);
        reader.read(data.as_bytes()).unwrap();
    }
    assert_eq!(reader.lessons, LESSONS);
}

proptest! {
    #[test]
    fn with_and_without_a_memory_events_mean_the_same(
        parts in proptest::collection::vec((0..STREAMS, ".{0,4}", prop_oneof![any::<u32>(), 0..3_u32], any::<u64>()), 1..12),
        written in prop::sample::select(vec!["N", "N.0", "\"N\"", " N", "\tN"]),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let event = |(stream, text, tokens, created): &(usize, String, u32, u64)| {
            let event = chat(text, *tokens, *created).replace("c1", &format!("id-{stream}"));
            let count = format!("\"completion_tokens\":{}", written.replace('N', &tokens.to_string()));
            (*stream, event.replace(&format!("\"completion_tokens\":{tokens}"), &count))
        };
        let events: Vec<(usize, String)> = parts.iter().map(event).collect();
        let mut spoilt = events.clone();
        for (at, byte) in damage {
            let (stream, event) = at.get(&events).clone();
            let mut bytes = event.into_bytes();
            let place = at.index(bytes.len());
            bytes[place] = byte;
            spoilt.push((stream, String::from_utf8_lossy(&bytes).into_owned()));
        }
        read_streams(events.iter().chain(&spoilt).map(|(stream, data)| (*stream, data.as_str())));
    }
}
