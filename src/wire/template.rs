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
    /// The last event said all that the template's constant bytes say.
    is_said: bool,
}

/// What an event says.
#[derive(Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for every event of the native route")]
pub enum Event<'a> {
    Whole(Frame<'a>),
    /// What the event before it said, but for this.
    Again(Delta<'a>),
}

/// What differs from event to event of a stream under way, whose first choice it speaks of. An empty text is none.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Delta<'a> {
    /// Answer text that the event adds.
    pub text: Option<&'a str>,
    /// Reasoning text that it adds.
    pub reasoning: Option<&'a str>,
    /// Output tokens so far.
    pub completion_tokens: Option<u32>,
}

impl OpenAiEvents {
    /// Reads the next event.
    ///
    /// # Errors
    /// Those of [`parse_openai`].
    pub fn read<'a>(&'a mut self, data: &'a [u8]) -> Result<Event<'a>, FrameError> {
        let was_said = std::mem::take(&mut self.is_said);
        let Some(delta) = self.template.as_ref().and_then(|template| template.delta(data)) else {
            let frame = parse_openai(data)?;
            self.is_said = self.learn(data, &frame);
            return Ok(Event::Whole(frame));
        };
        self.is_said = true;
        Ok(match &self.template {
            Some(template) if !was_said => Event::Whole(template.frame(delta)),
            _ => Event::Again(delta),
        })
    }

    /// Whether it became the template.
    fn learn(&mut self, data: &[u8], frame: &Frame<'_>) -> bool {
        if self.lessons == LESSONS {
            return false;
        }
        let Some(template) = Template::learn(data, frame) else { return false };
        self.lessons += 1;
        self.template = Some(template).filter(Template::is_confirmed);
        self.template.is_some()
    }
}

/// An event with holes.
#[derive(Debug)]
struct Template {
    /// The event that taught it, in one piece: thousands of streams compete for the processor's cache.
    event: Vec<u8>,
    /// In the order of their places.
    holes: Box<[Hole]>,
    /// What the bytes around the holes say; looked at once, so it lies apart.
    constant: Box<Frame<'static>>,
}

/// A part of the event that differs from one to the next.
#[derive(Debug, Clone, Copy)]
struct Hole {
    start: u32,
    end: u32,
    holds: Holds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Text,
    Reasoning,
    CompletionTokens,
    UnreadNumber,
}

impl Hole {
    fn new(span: Range<usize>, holds: Holds) -> Option<Self> {
        Some(Self { start: span.start.try_into().ok()?, end: span.end.try_into().ok()?, holds })
    }

    fn span(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl Template {
    /// The template of an event that carries text in one piece, and nothing that comes once in a stream.
    fn learn(data: &[u8], frame: &Frame<'_>) -> Option<Self> {
        let comes_once = frame.finish.is_some() || frame.error.is_some() || frame.other_output;
        let (holds, text) = match (&frame.text, &frame.reasoning) {
            (Some(Cow::Borrowed(text)), None) => (Holds::Text, *text),
            (None, Some(Cow::Borrowed(text))) => (Holds::Reasoning, *text),
            _ => return None,
        };
        let mut holes = vec![Hole::new(span_of(data, text)?, holds)?];
        let unread = |name: &&[u8]| Hole::new(number_after(data, name)?, Holds::UnreadNumber);
        holes.extend(UNREAD_NUMBERS.iter().filter_map(unread));
        if frame.completion_tokens.is_some() {
            holes.push(Hole::new(number_after(data, COMPLETION_TOKENS)?, Holds::CompletionTokens)?);
        }
        holes.sort_by_key(|hole| hole.start);
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
        (!comes_once).then(|| Self { event: data.to_vec(), holes: holes.into(), constant: Box::new(constant) })
    }

    /// Whether the JSON reader agrees about an event with other text and other counts.
    fn is_confirmed(&self) -> bool {
        let mut other = Vec::with_capacity(self.event.len() + 32);
        let mut at = 0;
        for hole in &self.holes {
            let span = hole.span();
            other.extend_from_slice(&self.event[at..span.start]);
            other.extend_from_slice(match hole.holds {
                Holds::Text | Holds::Reasoning => b"other words",
                Holds::CompletionTokens => b"4000000001",
                Holds::UnreadNumber => b"4000000002",
            });
            at = span.end;
        }
        other.extend_from_slice(&self.event[at..]);
        let filled = self.delta(&other).map(|delta| self.frame(delta));
        filled.is_some() && filled == parse_openai(&other).ok()
    }

    /// What `data` has in the holes, if all around them is as it was.
    fn delta<'a>(&self, data: &'a [u8]) -> Option<Delta<'a>> {
        let mut delta = Delta::default();
        let (mut rest, mut at) = (data, 0);
        for hole in &self.holes {
            let span = hole.span();
            rest = rest.strip_prefix(&self.event[at..span.start])?;
            at = span.end;
            let length = match hole.holds {
                Holds::Text | Holds::Reasoning => plain_text(rest)?,
                Holds::CompletionTokens | Holds::UnreadNumber => digits(rest)?,
            };
            let (content, tail) = rest.split_at(length);
            rest = tail;
            match hole.holds {
                Holds::Text => delta.text = some(content)?,
                Holds::Reasoning => delta.reasoning = some(content)?,
                Holds::CompletionTokens => delta.completion_tokens = Some(str::from_utf8(content).ok()?.parse().ok()?),
                Holds::UnreadNumber => {}
            }
        }
        (rest == &self.event[at..]).then_some(delta)
    }

    fn frame<'a>(&'a self, delta: Delta<'a>) -> Frame<'a> {
        let Frame { id, model, .. } = &*self.constant;
        Frame {
            text: delta.text.map(Cow::Borrowed),
            reasoning: delta.reasoning.map(Cow::Borrowed),
            completion_tokens: delta.completion_tokens,
            id: id.as_deref().map(Cow::Borrowed),
            model: model.as_deref().map(Cow::Borrowed),
            finish: None,
            error: None,
            ..*self.constant
        }
    }
}

/// A text as the JSON reader gives it, to which an empty one is none; nothing at all if it is no UTF-8.
fn some(text: &[u8]) -> Option<Option<&str>> {
    Some(Some(str::from_utf8(text).ok()?).filter(|text| !text.is_empty()))
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
        let mut before = Frame::default();
        for data in events {
            let data = data.as_bytes();
            hits += usize::from(reader.template.as_ref().is_some_and(|template| template.delta(data).is_some()));
            let (read, expected) = match (reader.read(data), parse_openai(data)) {
                (Ok(read), Ok(expected)) => (read, expected),
                (read, expected) => {
                    assert_eq!(read.is_err(), expected.is_err());
                    continue;
                }
            };
            let read = match read {
                Event::Whole(frame) => frame,
                Event::Again(Delta { text, reasoning, completion_tokens }) => {
                    let [text, reasoning] = [text, reasoning].map(|text| text.map(Cow::Borrowed));
                    Frame { text, reasoning, completion_tokens, ..before }
                }
            };
            assert_eq!(read, expected, "{}", String::from_utf8_lossy(data));
            before = expected;
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
        let new = Delta { text: Some("b"), reasoning: None, completion_tokens: Some(2) };
        assert_eq!(reader.read(two.as_bytes()).unwrap(), Event::Again(new));
    }

    #[test]
    fn what_another_event_said_between_is_said_anew() {
        let [one, other] = [chat("a", 1, 7), chat("b", 2, 7).replace("\"prompt_tokens\":9", "\"prompt_tokens\":8")];
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
