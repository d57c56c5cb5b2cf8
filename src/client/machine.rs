//! What a stream of bytes and instants means for one turn. Pure: no clock, no socket; the same bytes at the same instants
//! give the same record however they were cut.
//!
//! Definitions (README, "Definitions"): the first output is the first event that carries content, text, reasoning, a
//! refusal, a tool-call piece, or growth of the running token count; a role frame, a comment, an empty delta or a closing
//! usage frame is none.

use crate::record::{Failure, Gap, Outcome, Place, PlaceSource, TurnRecord};
use crate::units::{Micros, Rank};
use crate::wire::frame::{self, Frame};
use crate::wire::{OpenAiEvents, SseDecoder};
use crate::workload::Api;

/// Bytes of an error body that a record keeps.
const DETAIL_LIMIT: usize = 200;

/// How the bytes ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The body ended as HTTP says it should.
    Clean,
    /// The run itself is over.
    Cancelled,
    /// The attempt failed outside the protocol.
    Failed(Failure, String),
}

/// Reads one reply.
#[derive(Debug)]
pub struct Machine {
    api: Api,
    record: TurnRecord,
    decoder: SseDecoder,
    events: OpenAiEvents,
    state: State,
}

/// What the events have said so far.
#[derive(Debug, Default)]
struct State {
    text: String,
    /// Output tokens so far, where events carry a running count.
    running: Option<u32>,
    /// The last output event.
    last: Option<Micros>,
    error: Option<String>,
    /// The first event that could not be read.
    unreadable: Option<String>,
    events: u32,
    is_done: bool,
}

impl Machine {
    /// A machine for the reply to a request that left as `record` says.
    #[must_use]
    pub fn new(api: Api, record: TurnRecord) -> Self {
        Self { api, record, decoder: SseDecoder::default(), events: OpenAiEvents::default(), state: State::default() }
    }

    /// The record so far.
    #[must_use]
    pub fn record(&mut self) -> &mut TurnRecord {
        &mut self.record
    }

    /// Takes the bytes that were read at `at`.
    pub fn feed(&mut self, bytes: &[u8], at: Micros) {
        let Self { api, record, decoder, events, state } = self;
        decoder.push(bytes, |data| state.event(*api, events, record, data, at));
    }

    /// Whether `[DONE]` came: whatever follows says nothing more.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.is_done
    }

    /// Ends the reply at `at`: how the turn ended, and the answer's text for the session's next turn.
    #[must_use]
    pub fn finish(mut self, end: End, at: Micros) -> (TurnRecord, String) {
        let last = self.state.last;
        if end == End::Clean {
            // An event that lacks its blank line arrived with the last bytes, not with the end of the stream; its instant
            // is unknown to within that, and only its content matters by now.
            let Self { api, record, decoder, events, state } = &mut self;
            decoder.finish(|data| state.event(*api, events, record, data, last.unwrap_or(at)));
        }
        let outcome = self.outcome(end);
        let Self { mut record, state, .. } = self;
        record.outcome = outcome;
        record.done_us = Some(at);
        record.last_us = state.last;
        (record, state.text)
    }

    fn outcome(&mut self, end: End) -> Outcome {
        let (failure, detail) = match self.verdict(end) {
            Ok(outcome) => return outcome,
            Err(failed) => failed,
        };
        self.record.detail = Some(shorten(&detail)).filter(|detail| !detail.is_empty());
        Outcome::Failed(failure)
    }

    /// The order matters: what the server says outweighs how its bytes ended.
    fn verdict(&mut self, end: End) -> Result<Outcome, (Failure, String)> {
        let stray = String::from_utf8_lossy(self.decoder.stray()).into_owned();
        if let Some(status) = self.record.status.filter(|status| !(200..300).contains(status)) {
            return Err((Failure::Http(status), error_of(&stray).unwrap_or(stray)));
        }
        if self.record.finish.as_deref() == Some("abort") {
            let why = self.state.error.take().unwrap_or_else(|| "finish_reason abort".to_owned());
            return Err((Failure::Aborted, why));
        }
        if let Some(error) = self.state.error.take().or_else(|| error_of(&stray)) {
            return Err((Failure::InBandError, error));
        }
        match end {
            End::Cancelled => return Ok(Outcome::Cancelled),
            // All output and its end were told before the connection broke.
            End::Failed(..) if self.state.is_done => {}
            End::Failed(failure, why) => return Err((failure, why)),
            End::Clean => {}
        }
        if let Some(unreadable) = self.state.unreadable.take() {
            return Err((Failure::Protocol, unreadable));
        }
        if self.state.events == 0 && !stray.is_empty() {
            return Err((Failure::Protocol, format!("the reply is no event stream: {stray}")));
        }
        if !self.state.is_done && self.record.finish.is_none() {
            return Err((Failure::Truncated, "the stream ended without [DONE] or a finish reason".to_owned()));
        }
        if self.record.first_us.is_none() {
            return Err((Failure::NoOutput, "the stream ended well and carried no output".to_owned()));
        }
        Ok(Outcome::Complete)
    }
}

impl State {
    fn event(&mut self, api: Api, events: &mut OpenAiEvents, record: &mut TurnRecord, data: &[u8], at: Micros) {
        if self.is_done {
            return;
        }
        self.events += 1;
        if data.trim_ascii() == b"[DONE]" {
            self.is_done = true;
            return;
        }
        let parsed = match api {
            Api::Chat | Api::Completions => events.read(data),
            Api::Generate => frame::parse_generate(data),
        };
        match parsed {
            Ok(frame) => self.frame(api, record, frame, at),
            Err(why) => {
                let text = String::from_utf8_lossy(data);
                self.unreadable.get_or_insert_with(|| format!("{why}: {text}"));
            }
        }
    }

    fn frame(&mut self, api: Api, record: &mut TurnRecord, frame: Frame<'_>, at: Micros) {
        let grown = self.growth(record, &frame);
        let has_answer = match api {
            Api::Generate => self.replace_text(frame.text.as_deref()),
            Api::Chat | Api::Completions => self.add_text(frame.text.as_deref()) || frame.other_output,
        };
        let is_output = has_answer || frame.reasoning.is_some() || grown.is_some_and(|tokens| tokens > 0);
        if is_output {
            let is_answer = has_answer || frame.reasoning.is_none();
            self.output(record, grown, is_answer, at);
        }
        if let Some(error) = frame.error {
            self.error.get_or_insert(error);
        }
        record.prompt_tokens = frame.prompt_tokens.or(record.prompt_tokens);
        record.cached_tokens = frame.cached_tokens.or(record.cached_tokens);
        record.reasoning_tokens = frame.reasoning_tokens.or(record.reasoning_tokens);
        record.output_tokens = frame.completion_tokens.or(record.output_tokens);
        if let Some(finish) = frame.finish {
            record.finish = Some(finish.into_owned());
        }
        if record.request_id.is_none() {
            record.request_id = frame.id.map(std::borrow::Cow::into_owned);
        }
        if let (Some(rank), None) = (frame.dp_rank, &record.place) {
            record.place = Some(Place::Rank(Rank(rank)));
            record.place_source = Some(PlaceSource::MetaInfo);
        }
    }

    /// New tokens in this event, where events carry a running count.
    ///
    /// A count that comes first with the closing event (llama.cpp, or plain `include_usage`) is the sum of all, not the
    /// growth of one frame: it moves no clock.
    fn growth(&mut self, record: &TurnRecord, frame: &Frame<'_>) -> Option<u32> {
        let now = frame.completion_tokens.filter(|_| frame.has_choice)?;
        let counts_from_the_start = record.frames == 0 && (frame.finish.is_none() || carries_output(frame));
        let grown = match self.running {
            Some(before) => now.saturating_sub(before),
            None if counts_from_the_start => now,
            None => return None,
        };
        self.running = Some(now);
        Some(grown)
    }

    fn output(&mut self, record: &mut TurnRecord, tokens: Option<u32>, is_answer: bool, at: Micros) {
        record.frames += 1;
        match self.last {
            None => {
                record.first_us = Some(at);
                record.first_frame_tokens = tokens;
            }
            Some(before) => {
                let us = u32::try_from(at.since(before).0).unwrap_or(u32::MAX);
                record.gaps.push(Gap { us, tokens });
            }
        }
        if is_answer && record.answer_us.is_none() {
            record.answer_us = Some(at);
        }
        self.last = Some(at);
    }

    fn add_text(&mut self, text: Option<&str>) -> bool {
        let text = text.unwrap_or_default();
        self.text.push_str(text);
        !text.is_empty()
    }

    /// The native route repeats the whole text in every frame; with `--incremental-streaming-output` it does not.
    fn replace_text(&mut self, text: Option<&str>) -> bool {
        let text = text.unwrap_or_default();
        if let Some(new) = text.strip_prefix(self.text.as_str()) {
            self.text.push_str(new);
            return !new.is_empty();
        }
        self.add_text(Some(text))
    }
}

fn carries_output(frame: &Frame<'_>) -> bool {
    frame.text.is_some() || frame.reasoning.is_some() || frame.other_output
}

/// The words of an error body that is JSON, in any of the servers' shapes.
fn error_of(body: &str) -> Option<String> {
    let body = body.trim();
    if !body.starts_with('{') {
        return None;
    }
    let value: serde_json::Value = serde_json::from_str(body).ok()?;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    match value.get("error") {
        Some(serde_json::Value::Object(fields)) => fields.get("message").and_then(text),
        Some(error) => text(error),
        None => value.get("message").or_else(|| value.get("detail")).and_then(text),
    }
}

/// The first 200 bytes, cut at a character.
fn shorten(text: &str) -> String {
    let text = text.trim();
    let end = (0..=DETAIL_LIMIT.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
