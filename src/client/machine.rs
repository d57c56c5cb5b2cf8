//! What a stream of bytes and instants means for one turn. Pure: no clock, no socket; the same bytes at the same instants
//! give the same record however they were cut. What the events among them say is [`Reply`]'s; how the turn ended is said
//! here.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::body::{Asks, CachedDetails};
use super::detail::{error_of, shorten};
use super::place::Sightings;
use super::reply::{self, Reply};
use super::secrets;
use crate::record::{Failure, Oddity, Outcome, TurnRecord};
use crate::units::Micros;
use crate::wire::{OpenAiEvents, SharedTemplate, SseDecoder};
use crate::workload::{Api, PlaceField};

/// Bytes of an error body that are looked through for its message.
const ERROR_BODY_LIMIT: usize = 64 << 10;

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
    reply: Reply,
}

impl Machine {
    /// A machine for the reply to a request that left as `record` says.
    #[must_use]
    pub fn new(api: Api, record: TurnRecord) -> Self {
        let reply = Reply::of(record.planned_output_tokens);
        let (decoder, events) = (SseDecoder::default(), OpenAiEvents::default());
        Self { api, record, decoder, error_body: Vec::new(), fed: None, secrets: Arc::default(), events, reply }
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
        self.reply.sightings = Sightings::of(field, asks.rank);
        self.reply.is_silence_zero = asks.cached_details == CachedDetails::Answered;
        self
    }

    /// Takes lines and events of at most so many MiB; before the first bytes.
    #[must_use]
    pub fn within(mut self, largest_event_mib: NonZeroU32) -> Self {
        let mib = usize::try_from(largest_event_mib.get()).unwrap_or(usize::MAX);
        self.decoder = SseDecoder::within(mib.saturating_mul(1 << 20));
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
        let Self { api, record, decoder, events, reply, .. } = self;
        decoder.push(bytes, |data| reply.event(*api, events, record, data, at));
        reply.room.see(decoder.excess());
    }

    /// Whether the status says that there is no reply.
    fn is_refused(&self) -> bool {
        self.record.status.is_some_and(|status| !(200..300).contains(&status))
    }

    /// Whether `[DONE]` came: whatever follows says nothing more.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.reply.is_done
    }

    /// Whether the reply is longer than any may be: whatever follows is not looked at.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.reply.room.full().is_some()
    }

    /// Ends the reply at `at`: how the turn ended, and the answer's text for the session's next turn.
    #[must_use]
    pub fn finish(mut self, end: End, at: Micros) -> (TurnRecord, String) {
        let is_unreadable = self.reply.unreadable.is_some();
        // An event that lacks its blank line came with the last bytes, not with the end of the stream.
        let Self { api, record, decoder, events, fed, reply, .. } = &mut self;
        decoder.finish(|data| reply.event(*api, events, record, data, fed.unwrap_or(at)));
        reply.room.see(decoder.excess());
        let tail_is_cut = !is_unreadable && self.reply.unreadable.is_some();
        let outcome = self.outcome(end, tail_is_cut);
        let Self { mut record, reply, secrets, .. } = self;
        reply.sightings.settle(&mut record);
        secrets::hide(&secrets, &mut record);
        if outcome.is_complete() && reply.is_silence_zero {
            record.cached_tokens.get_or_insert(0);
        }
        record.outcome = outcome;
        record.done_us = Some(at);
        record.last_us = reply.last;
        (record, reply.text)
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
        let told = self.reply.error.take();
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
        if let Some(why) = self.reply.room.full().filter(|_| !self.reply.is_done) {
            return Err((Failure::Protocol, why.to_owned()));
        }
        match end {
            End::Clean => {}
            // All output and its end were told before the run or the connection ended.
            End::Cancelled if self.reply.is_done => {}
            End::Failed(..) if self.reply.is_done => self.record.note(Oddity::BrokenAfterDone),
            End::Cancelled => return Ok(Outcome::Cancelled),
            End::Failed(failure, why) => return Err((failure, why)),
        }
        if let Some(unreadable) = self.reply.unreadable.take().filter(|_| !tail_is_cut) {
            return Err((Failure::Protocol, unreadable));
        }
        if !self.decoder.stray().is_empty() {
            self.read_stray()?;
        }
        if self.reply.has_other_choices {
            let why = "the reply has several choices: ask for one, without `n`, `best_of` or a list of prompts";
            return Err((Failure::Protocol, why.to_owned()));
        }
        if !self.reply.is_done && self.record.finish.is_none() {
            return Err((Failure::Truncated, "the stream ended without [DONE] or a finish reason".to_owned()));
        }
        if self.reply.last.is_none() {
            return Err((Failure::NoOutput, "the reply ended well and carried no output".to_owned()));
        }
        Ok(Outcome::Complete)
    }

    /// What came beside the event stream: in its place, the whole reply of a server that does not stream.
    fn read_stray(&mut self) -> Result<(), (Failure, String)> {
        let Self { api, record, decoder, fed, reply, .. } = self;
        if reply.has_events {
            record.note(Oddity::StrayLines);
            return Ok(());
        }
        match reply::read(*api, decoder.stray()) {
            Ok(frame) if frame.has_choice => reply.whole(*api, record, frame, *fed),
            _ => {
                let stray = String::from_utf8_lossy(decoder.stray());
                return Err((Failure::Protocol, format!("the reply is no event stream: {stray}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
