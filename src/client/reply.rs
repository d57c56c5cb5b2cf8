//! What the events of one reply say: its text, its counts, and when output came.
//!
//! Definitions (README, "Definitions"): the first output is the first event that carries content, text, reasoning, a
//! refusal, a tool-call piece, or growth of the running token count; a role frame, a comment, an empty delta or a closing
//! usage frame is none.

use super::place::{self, Sightings};
use super::room::Room;
use crate::record::{Gap, Oddity, TurnRecord};
use crate::units::Micros;
use crate::wire::frame::{self, Frame};
use crate::wire::{Counts, Delta, Event, OpenAiEvents};
use crate::workload::Api;

/// Most gaps that room is made for ahead of their time.
const GAPS_AHEAD: usize = 1 << 12;

/// What the events have said so far.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub(super) room: Room,
    pub(super) text: String,
    /// Output tokens so far, where events carry a running count.
    running: Option<u32>,
    /// The last output event.
    pub(super) last: Option<Micros>,
    pub(super) error: Option<String>,
    /// The first event that could not be read.
    pub(super) unreadable: Option<String>,
    pub(super) has_events: bool,
    pub(super) is_done: bool,
    /// Events spoke of several choices.
    pub(super) has_other_choices: bool,
    /// The native route sends what is new in each frame, not the whole text.
    sends_deltas: bool,
    pub(super) sightings: Sightings,
    /// Whether a reply that does not tell cached tokens found none.
    pub(super) is_silence_zero: bool,
}

/// One event, or the whole of a reply that is none.
pub(super) fn read(api: Api, data: &[u8]) -> Result<Frame<'_>, frame::FrameError> {
    match api {
        Api::Chat | Api::Completions => frame::parse_openai(data),
        Api::Generate => frame::parse_generate(data),
    }
}

impl Reply {
    /// Of a request that wants so many output tokens.
    pub(super) fn of(planned: u32) -> Self {
        Self { room: Room::of(planned), ..Self::default() }
    }

    /// Takes the data of one event that was read at `at`.
    pub(super) fn event(
        &mut self,
        api: Api,
        events: &mut OpenAiEvents,
        record: &mut TurnRecord,
        data: &[u8],
        at: Micros,
    ) {
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
    pub(super) fn whole(&mut self, api: Api, record: &mut TurnRecord, frame: Frame<'_>, at: Option<Micros>) {
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
        if frame.refusal {
            record.note(Oddity::Refusal);
        }
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
