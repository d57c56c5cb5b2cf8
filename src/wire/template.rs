//! A shortcut for the event that differs from an earlier one of its stream only in its text and its counts, as nearly all
//! do: the bytes around these are compared, not parsed.
//!
//! It never decides by itself what an event means. A template is learned from an event that the JSON reader has read, and
//! kept only if the reader agrees with it about another filling of the same holes. What does not fit byte by byte goes to
//! the reader. Sound, because a number for a number, or a string without escapes for another, leaves all other tokens of
//! the JSON where they were.

use std::borrow::Cow;
use std::ops::Range;

use super::frame::{Frame, FrameError, parse_openai};

/// Lessons that a stream may cost; one whose events never resemble each other is left to the JSON reader.
const LESSONS: u8 = 4;

/// Number fields that differ from event to event and that no [`Frame`] holds.
const UNREAD_NUMBERS: [&[u8]; 2] = [b"\"created\":", b"\"total_tokens\":"];
const COMPLETION_TOKENS: &[u8] = b"\"completion_tokens\":";

/// Reads the events of one stream of `/v1/chat/completions` or `/v1/completions`: [`parse_openai`] with a memory.
#[derive(Debug, Default)]
pub struct OpenAiEvents {
    template: Option<Template>,
    lessons: u8,
}

impl OpenAiEvents {
    /// Reads the next event.
    ///
    /// # Errors
    /// Those of [`parse_openai`].
    pub fn read<'a>(&'a mut self, data: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        let filling = self.template.as_ref().and_then(|template| template.filling(data));
        let Some(filling) = filling else {
            let frame = parse_openai(data)?;
            self.learn(data, &frame);
            return Ok(frame);
        };
        let template = self.template.as_ref().expect("a filling comes from a template");
        Ok(template.frame(filling))
    }

    fn learn(&mut self, data: &[u8], frame: &Frame<'_>) {
        if self.lessons == LESSONS {
            return;
        }
        if let Some(template) = Template::learn(data, frame) {
            self.lessons += 1;
            self.template = Some(template).filter(Template::is_confirmed);
        }
    }
}

/// An event with holes.
#[derive(Debug)]
struct Template {
    /// The event that taught it, in one piece: thousands of streams compete for the processor's cache.
    event: Vec<u8>,
    /// Where its holes lie, in order.
    holes: Vec<(Range<usize>, Hole)>,
    /// What the bytes around the holes say.
    constant: Frame<'static>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hole {
    Text,
    Reasoning,
    CompletionTokens,
    UnreadNumber,
}

/// What an event has in the holes.
#[derive(Debug, Default, Clone, Copy)]
struct Filling<'a> {
    text: Option<&'a str>,
    reasoning: Option<&'a str>,
    completion_tokens: Option<u32>,
}

impl Template {
    /// The template of an event that carries text in one piece, and nothing that comes once in a stream.
    fn learn(data: &[u8], frame: &Frame<'_>) -> Option<Self> {
        let comes_once = frame.finish.is_some() || frame.error.is_some() || frame.other_output;
        let (hole, text) = match (&frame.text, &frame.reasoning) {
            (Some(Cow::Borrowed(text)), None) => (Hole::Text, *text),
            (None, Some(Cow::Borrowed(text))) => (Hole::Reasoning, *text),
            _ => return None,
        };
        let mut spans = vec![(span_of(data, text)?, hole)];
        spans.extend(UNREAD_NUMBERS.iter().filter_map(|name| Some((number_after(data, name)?, Hole::UnreadNumber))));
        if frame.completion_tokens.is_some() {
            spans.push((number_after(data, COMPLETION_TOKENS)?, Hole::CompletionTokens));
        }
        spans.sort_by_key(|(span, _)| span.start);
        let own = |text: &Option<Cow<'_, str>>| text.clone().map(|text| Cow::Owned(text.into_owned()));
        let constant = Frame {
            text: None,
            reasoning: None,
            completion_tokens: None,
            id: own(&frame.id),
            model: own(&frame.model),
            finish: None,
            error: None,
            ..*frame
        };
        (!comes_once).then_some(Self { event: data.to_vec(), holes: spans, constant })
    }

    /// Whether the JSON reader agrees about an event with other text and other counts.
    fn is_confirmed(&self) -> bool {
        let mut other = Vec::with_capacity(self.event.len() + 32);
        let mut at = 0;
        for (span, hole) in &self.holes {
            other.extend_from_slice(&self.event[at..span.start]);
            other.extend_from_slice(match hole {
                Hole::Text | Hole::Reasoning => b"other words",
                Hole::CompletionTokens => b"4000000001",
                Hole::UnreadNumber => b"4000000002",
            });
            at = span.end;
        }
        other.extend_from_slice(&self.event[at..]);
        let filled = self.filling(&other).map(|filling| self.frame(filling));
        filled.is_some() && filled == parse_openai(&other).ok()
    }

    /// What `data` has in the holes, if all around them is as it was.
    fn filling<'a>(&self, data: &'a [u8]) -> Option<Filling<'a>> {
        let mut filling = Filling::default();
        let (mut rest, mut at) = (data, 0);
        for (span, hole) in &self.holes {
            rest = rest.strip_prefix(&self.event[at..span.start])?;
            at = span.end;
            let length = match hole {
                Hole::Text | Hole::Reasoning => plain_text(rest)?,
                Hole::CompletionTokens | Hole::UnreadNumber => digits(rest)?,
            };
            let (content, tail) = rest.split_at(length);
            rest = tail;
            match hole {
                Hole::Text => filling.text = Some(str::from_utf8(content).ok()?),
                Hole::Reasoning => filling.reasoning = Some(str::from_utf8(content).ok()?),
                Hole::CompletionTokens => filling.completion_tokens = Some(str::from_utf8(content).ok()?.parse().ok()?),
                Hole::UnreadNumber => {}
            }
        }
        (rest == &self.event[at..]).then_some(filling)
    }

    fn frame<'a>(&'a self, filling: Filling<'a>) -> Frame<'a> {
        let Frame { id, model, .. } = &self.constant;
        // An empty text is none, as it is for the JSON reader.
        let some = |text: Option<&'a str>| text.filter(|text| !text.is_empty()).map(Cow::Borrowed);
        Frame {
            text: some(filling.text),
            reasoning: some(filling.reasoning),
            completion_tokens: filling.completion_tokens,
            id: id.as_deref().map(Cow::Borrowed),
            model: model.as_deref().map(Cow::Borrowed),
            finish: None,
            error: None,
            ..self.constant
        }
    }
}

/// Where a slice of `data` lies in it.
fn span_of(data: &[u8], part: &str) -> Option<Range<usize>> {
    let start = (part.as_ptr() as usize).checked_sub(data.as_ptr() as usize)?;
    let span = start..start + part.len();
    // A part that was copied lies elsewhere.
    (data.get(span.clone())? == part.as_bytes()).then_some(span)
}

/// The number of the first field of this name. Bytes like `"name":` are always a field: inside a string the quotes would
/// be escaped.
fn number_after(data: &[u8], field: &[u8]) -> Option<Range<usize>> {
    let start = memchr::memmem::find(data, field)? + field.len();
    let start = start + data[start..].iter().take_while(|byte| **byte == b' ').count();
    let end = start + digits(&data[start..])?;
    matches!(data.get(end), Some(b',' | b'}' | b' ')).then_some(start..end)
}

/// The length of the whole number at the head.
fn digits(bytes: &[u8]) -> Option<usize> {
    let length = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let has_leading_zero = bytes.first() == Some(&b'0') && length > 1;
    (length > 0 && !has_leading_zero).then_some(length)
}

/// The length of the text up to a closing quote, if it has nothing that JSON escapes.
fn plain_text(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
    (bytes[end] == b'"').then_some(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chat(text: &str, tokens: u32, created: u64) -> String {
        let text = serde_json::to_string(text).unwrap();
        format!(
            r#"{{"id":"c1","object":"chat.completion.chunk","created":{created},"model":"m","choices":[{{"index":0,"delta":{{"content":{text}}},"logprobs":null,"finish_reason":null}}],"usage":{{"prompt_tokens":9,"total_tokens":{},"completion_tokens":{tokens}}}}}"#,
            tokens.saturating_add(9)
        )
    }

    /// Reads a stream and asserts that the reader would have said the same of each event; gives the number of hits.
    fn read_all<'a>(events: impl IntoIterator<Item = &'a str>) -> usize {
        let (mut reader, mut hits) = (OpenAiEvents::default(), 0);
        for data in events {
            let data = data.as_bytes();
            hits += usize::from(reader.template.as_ref().is_some_and(|template| template.filling(data).is_some()));
            match (reader.read(data), parse_openai(data)) {
                (Ok(frame), Ok(expected)) => assert_eq!(frame, expected, "{}", String::from_utf8_lossy(data)),
                (read, expected) => assert_eq!(read.is_err(), expected.is_err()),
            }
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
            parts in proptest::collection::vec((".{0,4}", any::<u32>(), any::<u64>()), 1..6),
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let events: Vec<String> = parts.iter().map(|(text, tokens, created)| chat(text, *tokens, *created)).collect();
            let mut spoilt = events.clone();
            for (at, byte) in damage {
                let event = at.get(&events).clone();
                let mut bytes = event.into_bytes();
                let place = at.index(bytes.len());
                bytes[place] = byte;
                spoilt.push(String::from_utf8_lossy(&bytes).into_owned());
            }
            read_all(events.iter().chain(&spoilt).map(String::as_str));
        }
    }
}
