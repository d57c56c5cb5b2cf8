//! What a stream of bytes and instants means for one turn. Pure: no clock, no socket; the same bytes at the same instants
//! give the same record however they were cut.
//!
//! Definitions (README, "Definitions"): the first output is the first event that carries content, text, reasoning, a
//! refusal, a tool-call piece, or growth of the running token count; a role frame, a comment, an empty delta or a closing
//! usage frame is none.

use std::sync::Arc;

use super::body::{Asks, CachedDetails};
use super::detail::{error_of, shorten};
use super::place::{self, Sightings};
use super::room::Room;
use super::secrets;
use crate::record::{Failure, Gap, Oddity, Outcome, TurnRecord};
use crate::units::Micros;
use crate::wire::frame::{self, Frame};
use crate::wire::{Counts, Delta, Event, OpenAiEvents, SharedTemplate, SseDecoder};
use crate::workload::{Api, PlaceField};

/// Bytes of an error body that are looked through for its message.
const ERROR_BODY_LIMIT: usize = 64 << 10;

/// Most gaps that room is made for ahead of their time.
const GAPS_AHEAD: usize = 1 << 12;

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
    /// The body of a status that is no success, as it came: a web server's page is no event stream.
    error_body: Vec<u8>,
    /// When bytes last came.
    fed: Option<Micros>,
    /// What no message may repeat.
    secrets: Arc<[String]>,
    events: OpenAiEvents,
    state: State,
}

/// What the events have said so far.
#[derive(Debug, Default)]
struct State {
    room: Room,
    text: String,
    /// Output tokens so far, where events carry a running count.
    running: Option<u32>,
    /// The last output event.
    last: Option<Micros>,
    error: Option<String>,
    /// The first event that could not be read.
    unreadable: Option<String>,
    has_events: bool,
    is_done: bool,
    /// Events spoke of several choices.
    has_other_choices: bool,
    /// The native route sends what is new in each frame, not the whole text.
    sends_deltas: bool,
    sightings: Sightings,
    /// Whether a reply that does not tell cached tokens found none.
    is_silence_zero: bool,
}

impl Machine {
    /// A machine for the reply to a request that left as `record` says.
    #[must_use]
    pub fn new(api: Api, record: TurnRecord) -> Self {
        let state = State { room: Room::of(record.planned_output_tokens), ..State::default() };
        let (decoder, events) = (SseDecoder::default(), OpenAiEvents::default());
        Self { api, record, decoder, error_body: Vec::new(), fed: None, secrets: Arc::default(), events, state }
    }

    /// Hides these in what the record keeps of the server's words: some servers repeat the key that they refuse.
    #[must_use]
    pub fn hiding(mut self, secrets: Arc<[String]>) -> Self {
        self.secrets = secrets;
        self
    }

    /// Shares what it learns of the shape of events with other machines.
    #[must_use]
    pub fn sharing(mut self, shared: SharedTemplate) -> Self {
        self.events = OpenAiEvents::sharing(shared);
        self
    }

    /// Reads the worker's name from this field, and the silence of a server that was asked for details as what it means.
    #[must_use]
    pub fn reading(mut self, field: Option<PlaceField>, asks: Asks) -> Self {
        self.state.sightings = Sightings::of(field, asks.rank);
        self.state.is_silence_zero = asks.cached_details == CachedDetails::Answered;
        self
    }

    /// The record so far.
    #[must_use]
    pub fn record(&mut self) -> &mut TurnRecord {
        &mut self.record
    }

    /// Takes the bytes that were read at `at`.
    pub fn feed(&mut self, bytes: &[u8], at: Micros) {
        if bytes.is_empty() {
            return;
        }
        self.fed = Some(at);
        if self.is_refused() {
            let room = ERROR_BODY_LIMIT.saturating_sub(self.error_body.len());
            self.error_body.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        let Self { api, record, decoder, events, state, .. } = self;
        decoder.push(bytes, |data| state.event(*api, events, record, data, at));
        state.room.see(decoder.excess());
    }

    /// Whether the status says that there is no reply.
    fn is_refused(&self) -> bool {
        self.record.status.is_some_and(|status| !(200..300).contains(&status))
    }

    /// Whether `[DONE]` came: whatever follows says nothing more.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.is_done
    }

    /// Whether the reply is longer than any may be: whatever follows is not looked at.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.state.room.full().is_some()
    }

    /// Ends the reply at `at`: how the turn ended, and the answer's text for the session's next turn.
    #[must_use]
    pub fn finish(mut self, end: End, at: Micros) -> (TurnRecord, String) {
        let is_unreadable = self.state.unreadable.is_some();
        // An event that lacks its blank line came with the last bytes, not with the end of the stream.
        let Self { api, record, decoder, events, fed, state, .. } = &mut self;
        decoder.finish(|data| state.event(*api, events, record, data, fed.unwrap_or(at)));
        state.room.see(decoder.excess());
        let tail_is_cut = !is_unreadable && self.state.unreadable.is_some();
        let outcome = self.outcome(end, tail_is_cut);
        let Self { mut record, state, secrets, .. } = self;
        state.sightings.settle(&mut record);
        secrets::hide(&secrets, &mut record);
        if outcome.is_complete() && state.is_silence_zero {
            record.cached_tokens.get_or_insert(0);
        }
        record.outcome = outcome;
        record.done_us = Some(at);
        record.last_us = state.last;
        (record, state.text)
    }

    fn outcome(&mut self, end: End, tail_is_cut: bool) -> Outcome {
        let (failure, detail) = match self.verdict(end, tail_is_cut) {
            Ok(outcome) => return outcome,
            Err(failed) => failed,
        };
        self.record.detail =
            Some(shorten(&secrets::hidden(&self.secrets, &detail))).filter(|detail| !detail.is_empty());
        Outcome::Failed(failure)
    }

    /// The order matters: what the server says outweighs how its bytes ended, and a broken end outweighs what it broke.
    fn verdict(&mut self, end: End, tail_is_cut: bool) -> Result<Outcome, (Failure, String)> {
        let told = self.state.error.take();
        if let Some(status) = self.record.status.filter(|_| self.is_refused()) {
            let body = String::from_utf8_lossy(&self.error_body).into_owned();
            return Err((Failure::Http(status), told.or_else(|| error_of(&body)).unwrap_or(body)));
        }
        if let Some(word @ ("abort" | "error")) = self.record.finish.as_deref() {
            return Err((Failure::Aborted, told.unwrap_or_else(|| format!("finish_reason {word}"))));
        }
        if let Some(error) = told.or_else(|| error_of(&String::from_utf8_lossy(self.decoder.stray()))) {
            return Err((Failure::InBandError, error));
        }
        if let Some(why) = self.state.room.full().filter(|_| !self.state.is_done) {
            return Err((Failure::Protocol, why.to_owned()));
        }
        match end {
            End::Clean => {}
            // All output and its end were told before the run or the connection ended.
            End::Cancelled if self.state.is_done => {}
            End::Failed(..) if self.state.is_done => self.record.note(Oddity::BrokenAfterDone),
            End::Cancelled => return Ok(Outcome::Cancelled),
            End::Failed(failure, why) => return Err((failure, why)),
        }
        if let Some(unreadable) = self.state.unreadable.take().filter(|_| !tail_is_cut) {
            return Err((Failure::Protocol, unreadable));
        }
        if !self.decoder.stray().is_empty() {
            self.read_stray()?;
        }
        if self.state.has_other_choices {
            let why = "the reply has several choices: ask for one, without `n`, `best_of` or a list of prompts";
            return Err((Failure::Protocol, why.to_owned()));
        }
        if !self.state.is_done && self.record.finish.is_none() {
            return Err((Failure::Truncated, "the stream ended without [DONE] or a finish reason".to_owned()));
        }
        if self.state.last.is_none() {
            return Err((Failure::NoOutput, "the reply ended well and carried no output".to_owned()));
        }
        Ok(Outcome::Complete)
    }

    /// What came beside the event stream: in its place, the whole reply of a server that does not stream.
    fn read_stray(&mut self) -> Result<(), (Failure, String)> {
        let Self { api, record, decoder, fed, state, .. } = self;
        if state.has_events {
            record.note(Oddity::StrayLines);
            return Ok(());
        }
        match read(*api, decoder.stray()) {
            Ok(frame) if frame.has_choice => state.whole_reply(*api, record, frame, *fed),
            _ => {
                let stray = String::from_utf8_lossy(decoder.stray());
                return Err((Failure::Protocol, format!("the reply is no event stream: {stray}")));
            }
        }
        Ok(())
    }
}

fn read(api: Api, data: &[u8]) -> Result<Frame<'_>, frame::FrameError> {
    match api {
        Api::Chat | Api::Completions => frame::parse_openai(data),
        Api::Generate => frame::parse_generate(data),
    }
}

impl State {
    fn event(&mut self, api: Api, events: &mut OpenAiEvents, record: &mut TurnRecord, data: &[u8], at: Micros) {
        if !self.room.take() {
            return;
        }
        let data = data.trim_ascii();
        if data.is_empty() {
            return;
        }
        if self.is_done {
            record.note(Oddity::AfterDone);
            return;
        }
        self.has_events = true;
        if data == b"[DONE]" {
            self.is_done = true;
            return;
        }
        let parsed = match api {
            Api::Chat | Api::Completions => events.read(data),
            Api::Generate => frame::parse_generate(data).map(Event::Whole),
        };
        let why = match parsed {
            Ok(Event::Again(delta)) => return self.delta(record, delta, at),
            Ok(Event::Whole(frame)) => return self.frame(api, record, frame, at),
            Err(why) => why,
        };
        let text = String::from_utf8_lossy(data);
        match read(api, text.as_bytes()) {
            Ok(frame) => {
                record.note(Oddity::InvalidUtf8);
                self.frame(api, record, frame, at);
            }
            Err(_) => {
                self.unreadable.get_or_insert_with(|| format!("{why}: {text}"));
            }
        }
    }

    /// A reply that is one body: its end is known, its first token is not.
    fn whole_reply(&mut self, api: Api, record: &mut TurnRecord, frame: Frame<'_>, at: Option<Micros>) {
        record.note(Oddity::NotStreamed);
        record.detail = Some("not streamed".to_owned());
        let has_output = frame.carries_output() || frame.completion_tokens.is_some_and(|tokens| tokens > 0);
        self.facts(record, &frame);
        if api != Api::Generate || !frame.text.as_deref().unwrap_or_default().is_empty() {
            self.add_text(frame.text.as_deref());
        }
        self.last = at.filter(|_| has_output);
    }

    fn frame(&mut self, api: Api, record: &mut TurnRecord, frame: Frame<'_>, at: Micros) {
        let counts_from_the_start = frame.finish.is_none() || frame.carries_output();
        let grown = self.growth(record, frame.completion_tokens.filter(|_| frame.has_choice), counts_from_the_start);
        let has_answer = match api {
            Api::Generate => self.native_text(&frame, grown),
            Api::Chat | Api::Completions => self.add_text(frame.text.as_deref()) || frame.other_output,
        };
        self.output(record, grown, [has_answer, frame.reasoning.is_some()], at);
        self.facts(record, &frame);
    }

    /// As [`Self::frame`], of an event whose other facts are known.
    fn delta(&mut self, record: &mut TurnRecord, delta: Delta<'_>, at: Micros) {
        let Delta { id: _, text, reasoning, counts } = delta;
        let grown = self.growth(record, counts.completion, true);
        let has_answer = self.add_text(text);
        self.output(record, grown, [has_answer, reasoning.is_some()], at);
        count(record, counts);
    }

    /// What a frame says beside its text: the latest of each count, the first of each name.
    fn facts(&mut self, record: &mut TurnRecord, frame: &Frame<'_>) {
        if let Some(error) = &frame.error {
            self.error.get_or_insert_with(|| error.clone());
        }
        self.has_other_choices |= frame.other_choice;
        count(record, Counts::of(frame));
        if let Some(finish) = &frame.finish {
            record.finish = Some(finish.clone().into_owned());
        }
        if record.request_id.is_none() {
            record.request_id = frame.id.as_deref().map(str::to_owned);
        }
        self.sightings.see(frame);
        record.server_times = place::times(frame.spans, record.server_times);
    }

    /// New tokens in this event, where events carry a running count; `now` is that of this one.
    ///
    /// A count that comes first with the closing event (llama.cpp, or plain `include_usage`) is the sum of all, not the
    /// growth of one frame: it moves no clock.
    fn growth(&mut self, record: &TurnRecord, now: Option<u32>, counts_from_the_start: bool) -> Option<u32> {
        let now = now?;
        let grown = match self.running {
            Some(before) => now.saturating_sub(before),
            None if counts_from_the_start && record.frames == 0 => now,
            None => return None,
        };
        self.running = Some(now);
        Some(grown)
    }

    /// Counts an event that carries output: an answer, reasoning, or more tokens than before.
    fn output(
        &mut self,
        record: &mut TurnRecord,
        tokens: Option<u32>,
        [has_answer, has_reasoning]: [bool; 2],
        at: Micros,
    ) {
        if !has_answer && !has_reasoning && tokens.is_none_or(|tokens| tokens == 0) {
            return;
        }
        record.frames += 1;
        match self.last {
            None => {
                // In one piece: grown bit by bit, the gaps of thousands of streams cost half as much again.
                record.gaps.reserve_exact((record.planned_output_tokens as usize).min(GAPS_AHEAD));
                record.first_us = Some(at);
                record.first_frame_tokens = tokens;
            }
            Some(before) => {
                let us = u32::try_from(at.since(before).0).unwrap_or(u32::MAX);
                record.gaps.push(Gap::new(us, tokens));
            }
        }
        if (has_answer || !has_reasoning) && record.answer_us.is_none() {
            record.answer_us = Some(at);
        }
        self.last = Some(at);
    }

    fn add_text(&mut self, text: Option<&str>) -> bool {
        let text = text.unwrap_or_default();
        self.text.push_str(text);
        self.room.hold(self.text.len());
        !text.is_empty()
    }

    /// The native route repeats the whole text in every frame; with `--incremental-streaming-output` it does not, which
    /// shows in a list of ids as long as the count grew, or in a text that does not go on from the one before.
    fn native_text(&mut self, frame: &Frame<'_>, grown: Option<u32>) -> bool {
        let text = frame.text.as_deref().unwrap_or_default();
        let lists_only_new = frame.listed_ids.is_some() && frame.listed_ids == grown && grown < frame.completion_tokens;
        match text.strip_prefix(self.text.as_str()) {
            Some(new) if !self.sends_deltas && !lists_only_new => self.add_text(Some(new)),
            _ => {
                self.sends_deltas |= !text.is_empty();
                self.add_text(Some(text))
            }
        }
    }
}

/// The latest of each count.
fn count(record: &mut TurnRecord, Counts { prompt, completion, cached, reasoning }: Counts) {
    record.prompt_tokens = prompt.or(record.prompt_tokens);
    record.output_tokens = completion.or(record.output_tokens);
    record.cached_tokens = cached.or(record.cached_tokens);
    record.reasoning_tokens = reasoning.or(record.reasoning_tokens);
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
