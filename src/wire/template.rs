//! A shortcut for the event that differs from an earlier one only in its texts, its id and its counts, as nearly all do: the
//! bytes around these are compared, not parsed.
//!
//! It never decides by itself what an event means. A template is learned from an event that the JSON reader has read, and
//! kept only if the reader agrees with it about another filling of the same holes. What does not fit byte by byte goes to
//! the reader. Sound, because a number for a number, or a string without escapes for another, leaves all other tokens of
//! the JSON where they were.
//!
//! Streams of one thread share what one of them has learned: thousands of templates are in no cache, one is.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::frame::{Frame, FrameError, parse_openai};

/// Lessons that a stream may cost; one whose events never resemble each other is left to the JSON reader.
const LESSONS: u8 = 4;

/// Number fields that differ from event to event or from stream to stream.
const NUMBERS: [(&[u8], Holds); 6] = [
    (b"\"created\":", Holds::Unread),
    (b"\"prompt_tokens\":", Holds::Count(Count::Prompt)),
    (b"\"completion_tokens\":", Holds::Count(Count::Completion)),
    (b"\"total_tokens\":", Holds::Unread),
    (b"\"cached_tokens\":", Holds::Count(Count::Cached)),
    (b"\"reasoning_tokens\":", Holds::Count(Count::Reasoning)),
];

/// What streams have learned and share: the last template. Clones are the same one.
#[derive(Debug, Default, Clone)]
pub struct SharedTemplate(Arc<Mutex<Option<Arc<Template>>>>);

impl SharedTemplate {
    fn get(&self) -> Option<Arc<Template>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, template: &Arc<Template>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(template));
    }
}

/// Reads the events of one stream of `/v1/chat/completions` or `/v1/completions`: [`parse_openai`] with a memory.
#[derive(Debug, Default)]
pub struct OpenAiEvents {
    template: Option<Arc<Template>>,
    shared: SharedTemplate,
    lessons: u8,
    /// The last event said all that the template's constant bytes say.
    is_said: bool,
}

/// What an event says.
#[derive(Debug, PartialEq)]
pub enum Event<'a> {
    Whole(Frame<'a>),
    /// What the event before it said, but for this.
    Again(Delta<'a>),
}

/// What differs from event to event of a stream under way, whose first choice it speaks of. An empty text is none.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Delta<'a> {
    pub id: Option<&'a str>,
    /// Answer text that the event adds.
    pub text: Option<&'a str>,
    /// Reasoning text that it adds.
    pub reasoning: Option<&'a str>,
    pub counts: Counts,
}

/// Tokens so far, as an event's usage has them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub prompt: Option<u32>,
    pub completion: Option<u32>,
    pub cached: Option<u32>,
    pub reasoning: Option<u32>,
}

impl OpenAiEvents {
    /// A reader that shares its templates with others.
    #[must_use]
    pub fn sharing(shared: SharedTemplate) -> Self {
        Self { shared, ..Self::default() }
    }

    /// Reads the next event.
    ///
    /// # Errors
    /// Those of [`parse_openai`].
    pub fn read<'a>(&'a mut self, data: &'a [u8]) -> Result<Event<'a>, FrameError> {
        let was_said = std::mem::take(&mut self.is_said);
        let fitting = self.template.as_ref().and_then(|template| template.delta(data));
        if let (Some(delta), true) = (fitting, was_said) {
            self.is_said = true;
            return Ok(Event::Again(delta));
        }
        if let Some(delta) = fitting.or_else(|| self.adopt(data)) {
            self.is_said = true;
            let template = self.template.as_ref().expect("what fits fits a template");
            return Ok(Event::Whole(template.frame(delta)));
        }
        let frame = parse_openai(data)?;
        self.is_said = self.learn(data, &frame);
        Ok(Event::Whole(frame))
    }

    /// Takes the template of another stream, if this event fits it.
    fn adopt<'a>(&mut self, data: &'a [u8]) -> Option<Delta<'a>> {
        let other = self.shared.get().filter(|_| self.lessons < LESSONS)?;
        let delta = other.delta(data)?;
        self.template = Some(other);
        Some(delta)
    }

    /// Whether it became the template.
    fn learn(&mut self, data: &[u8], frame: &Frame<'_>) -> bool {
        if self.lessons == LESSONS {
            return false;
        }
        let Some(template) = Template::learn(data, frame) else { return false };
        self.lessons += 1;
        self.template = Some(template).filter(Template::is_confirmed).map(Arc::new);
        self.template.iter().for_each(|template| self.shared.set(template));
        self.template.is_some()
    }
}

/// An event with holes.
#[derive(Debug)]
struct Template {
    /// The event that taught it.
    event: Vec<u8>,
    /// In the order of their places.
    holes: Box<[Hole]>,
    /// What the bytes around the holes say.
    constant: Frame<'static>,
}

/// A part of the event that differs from one to the next.
#[derive(Debug)]
struct Hole {
    span: Range<usize>,
    holds: Holds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holds {
    Id,
    Text,
    Reasoning,
    Count(Count),
    /// A number that no [`Frame`] holds.
    Unread,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    Prompt,
    Completion,
    Cached,
    Reasoning,
}

impl Counts {
    pub(crate) fn of(frame: &Frame<'_>) -> Self {
        Self {
            prompt: frame.prompt_tokens,
            completion: frame.completion_tokens,
            cached: frame.cached_tokens,
            reasoning: frame.reasoning_tokens,
        }
    }

    fn slot(&mut self, count: Count) -> &mut Option<u32> {
        match count {
            Count::Prompt => &mut self.prompt,
            Count::Completion => &mut self.completion,
            Count::Cached => &mut self.cached,
            Count::Reasoning => &mut self.reasoning,
        }
    }
}

impl Template {
    /// The template of an event that carries text in one piece, and nothing that comes once in a stream.
    fn learn(data: &[u8], frame: &Frame<'_>) -> Option<Self> {
        if frame.finish.is_some() || frame.error.is_some() || frame.other_output {
            return None;
        }
        let (holds, text) = match (&frame.text, &frame.reasoning) {
            (Some(Cow::Borrowed(text)), None) => (Holds::Text, *text),
            (None, Some(Cow::Borrowed(text))) => (Holds::Reasoning, *text),
            _ => return None,
        };
        let mut holes = vec![Hole { span: span_of(data, text)?, holds }];
        if let Some(Cow::Borrowed(id)) = frame.id {
            holes.push(Hole { span: span_of(data, id)?, holds: Holds::Id });
        }
        let mut counts = Counts::of(frame);
        let told = |(name, holds): (&[u8], Holds)| match holds {
            Holds::Count(count) if counts.slot(count).is_none() => None,
            _ => Some(Hole { span: number_after(data, name)?, holds }),
        };
        holes.extend(NUMBERS.into_iter().filter_map(told));
        // The one count whose standing still says something must not be taken for a constant.
        if frame.completion_tokens.is_some() && !holes.iter().any(|hole| hole.holds == Holds::Count(Count::Completion))
        {
            return None;
        }
        holes.sort_by_key(|hole| hole.span.start);
        let own = |text: &Option<Cow<'_, str>>| text.clone().map(|text| Cow::Owned(text.into_owned()));
        let constant = Frame {
            text: None,
            reasoning: None,
            id: own(&frame.id),
            model: own(&frame.model),
            finish: None,
            error: None,
            ..*frame
        };
        Some(Self { event: data.to_vec(), holes: holes.into(), constant })
    }

    /// Whether the JSON reader agrees about events with other texts and other counts; of two, since one count might be what
    /// other constants add up to.
    fn is_confirmed(&self) -> bool {
        ["400000000", "1700000"].iter().all(|digits| self.is_confirmed_with(digits))
    }

    /// With numbers that begin with these digits.
    fn is_confirmed_with(&self, digits: &str) -> bool {
        let mut other = Vec::with_capacity(self.event.len() + 64);
        let mut at = 0;
        for (number, hole) in self.holes.iter().enumerate() {
            other.extend_from_slice(&self.event[at..hole.span.start]);
            other.extend_from_slice(match hole.holds {
                Holds::Text | Holds::Reasoning => b"other words",
                Holds::Id => b"another-id",
                Holds::Count(_) | Holds::Unread => digits.as_bytes(),
            });
            // Each number another, or two of them could stand for each other.
            if matches!(hole.holds, Holds::Count(_) | Holds::Unread) {
                other.extend_from_slice(number.to_string().as_bytes());
            }
            at = hole.span.end;
        }
        other.extend_from_slice(&self.event[at..]);
        let filled = self.delta(&other).map(|delta| self.frame(delta));
        filled.is_some() && filled == parse_openai(&other).ok()
    }

    /// What `data` has in the holes, if all around them is as it was.
    fn delta<'a>(&self, data: &'a [u8]) -> Option<Delta<'a>> {
        let mut delta = Delta::default();
        let (mut rest, mut at) = (data, 0);
        for Hole { span, holds } in &self.holes {
            rest = rest.strip_prefix(&self.event[at..span.start])?;
            at = span.end;
            let length = match holds {
                Holds::Id | Holds::Text | Holds::Reasoning => plain_text(rest)?,
                Holds::Count(_) | Holds::Unread => digits(rest)?,
            };
            let (content, tail) = rest.split_at(length);
            rest = tail;
            match *holds {
                Holds::Id => delta.id = Some(str::from_utf8(content).ok()?),
                Holds::Text => delta.text = some(content)?,
                Holds::Reasoning => delta.reasoning = some(content)?,
                Holds::Count(count) => *delta.counts.slot(count) = Some(str::from_utf8(content).ok()?.parse().ok()?),
                Holds::Unread => {}
            }
        }
        (rest == &self.event[at..]).then_some(delta)
    }

    fn frame<'a>(&'a self, delta: Delta<'a>) -> Frame<'a> {
        let Delta { id, text, reasoning, counts } = delta;
        let constant = &self.constant;
        Frame {
            text: text.map(Cow::Borrowed),
            reasoning: reasoning.map(Cow::Borrowed),
            prompt_tokens: counts.prompt.or(constant.prompt_tokens),
            completion_tokens: counts.completion.or(constant.completion_tokens),
            cached_tokens: counts.cached.or(constant.cached_tokens),
            reasoning_tokens: counts.reasoning.or(constant.reasoning_tokens),
            id: id.or(constant.id.as_deref()).map(Cow::Borrowed),
            model: constant.model.as_deref().map(Cow::Borrowed),
            finish: None,
            error: None,
            ..*constant
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
#[path = "template_tests.rs"]
mod tests;
