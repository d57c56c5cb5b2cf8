//! One request from its arrival to its log line: what the fleet said of it, what was written, and how it ended.
//!
//! A flight ends when it is dropped. That is the one place that counts it and logs it, whether the last token was written,
//! the client went away, or the server stopped.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::HeaderMap;

use crate::policy::{Dispatch, NoRank};

use super::super::actor::{Ticket, Update};
use super::super::fleet::Submission;
use super::super::job::JobId;
use super::super::log::{Line, Outcome, Virtual};
use super::super::tokens::Reply;
use super::App;
use super::ask::{Ask, header};
use super::front::Ended;

/// What the headers say of a request, beside what routes it.
#[derive(Debug, Clone)]
pub(super) struct Names {
    /// What the client called it in `X-Request-ID`.
    request_id: Option<String>,
    /// The key header, counted on every route, also where it routes nothing.
    key_header: Option<String>,
}

impl Names {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Self { request_id: header(headers, "x-request-id"), key_header: header(headers, "x-smg-routing-key") }
    }
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) app: Arc<App>,
    pub(super) ask: Ask,
    pub(super) rid: String,
    pub(super) reply: Reply,
    ticket: Ticket,
    names: Names,
    /// By the clock, as are all instants here that do not say otherwise.
    pub(super) received: Duration,
    pub(super) dispatch: Option<Dispatch>,
    pub(super) cached: u32,
    pub(super) queued: Duration,
    pub(super) admitted: Option<Duration>,
    /// When its prefill was done.
    pub(super) prefilled: Option<Duration>,
    /// When its first token was written.
    pub(super) first_written: Option<Duration>,
    last_written: Duration,
    pub(super) tokens: u32,
    /// Whether the last token has come.
    is_over: bool,
    /// Whether all of the reply was written.
    is_complete: bool,
    times: Virtual,
    writes: Vec<(Duration, u32)>,
}

/// Tokens that came since the last time: `from..to`, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) is_last: bool,
}

/// Why there will be no further token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    Refused(NoRank),
    Stopped,
}

impl Flight {
    /// Sends the request to the fleet.
    pub(super) fn start(app: &Arc<App>, ask: Ask, names: Names, received: Duration) -> Self {
        app.front().enter(names.key_header.as_deref());
        app.front().routed(ask.key.as_deref());
        let reply = app.tokens.reply(&ask.prompt, ask.max_new);
        let ticket = app.fleet.submit(Submission {
            id: JobId(0),
            key: ask.key.clone(),
            prompt: Arc::clone(&ask.prompt),
            output: Arc::clone(&reply.ids),
            pin: ask.pin,
            salt: ask.salt,
        });
        let rid = ask.rid.clone().unwrap_or_else(|| app.fresh_id());
        Self {
            app: Arc::clone(app),
            ask,
            rid,
            reply,
            ticket,
            names,
            received,
            dispatch: None,
            cached: 0,
            queued: Duration::ZERO,
            admitted: None,
            prefilled: None,
            first_written: None,
            last_written: received,
            tokens: 0,
            is_over: false,
            is_complete: false,
            times: Virtual::default(),
            writes: vec![],
        }
    }

    /// The rank that serves it, once known.
    pub(super) fn rank(&self) -> Option<u16> {
        self.dispatch.map(|dispatch| dispatch.rank.0)
    }

    /// The text of tokens `from..to`.
    pub(super) fn text(&self, progress: Progress) -> impl Iterator<Item = &str> + '_ {
        (progress.from..progress.to).map(|index| self.app.tokens.text(&self.reply, index as usize))
    }

    /// Everything that has come since the last call, as one: a writer that lags writes fewer, larger frames.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Progress, Lost>> {
        let from = self.tokens;
        loop {
            let update = if self.tokens == from {
                match self.ticket.poll_next(context) {
                    Poll::Ready(Some(update)) => update,
                    Poll::Ready(None) => return Poll::Ready(Err(Lost::Stopped)),
                    Poll::Pending => return Poll::Pending,
                }
            } else if let Some(update) = self.ticket.try_next() {
                update
            } else {
                return Poll::Ready(Ok(Progress { from, to: self.tokens, is_last: self.is_over }));
            };
            if let Err(refusal) = self.take(update) {
                return Poll::Ready(Err(Lost::Refused(refusal)));
            }
        }
    }

    /// As [`Self::poll`], awaited.
    pub(super) async fn progress(&mut self) -> Result<Progress, Lost> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn take(&mut self, update: Update) -> Result<(), NoRank> {
        match update {
            Update::Refused(refusal) => return Err(refusal),
            Update::Routed { dispatch, at } => {
                self.dispatch = Some(dispatch);
                self.times.arrived = at;
            }
            Update::Admitted { cached, queued, at } => {
                self.cached = cached;
                self.queued = self.app.on_clock(queued);
                self.admitted = Some(self.app.on_clock(at));
                self.times.admitted = Some(at);
            }
            Update::Token { index, at, is_last } => {
                self.tokens = index;
                self.is_over = is_last;
                if index == 1 {
                    self.prefilled = Some(self.app.on_clock(at));
                    self.times.first = Some(at);
                }
                self.times.last = Some(at);
            }
        }
        Ok(())
    }

    /// Notes that the whole reply has been handed to the connection.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Notes that a frame of `new` tokens goes out at `now`.
    pub(super) fn wrote(&mut self, now: Duration, new: u32) {
        self.writes.push((now, self.tokens));
        if new == 0 {
            return;
        }
        let mut front = self.app.front();
        match self.first_written {
            None => {
                // A reply in one piece has no first write; a live server counts the end of its prefill.
                let first = if self.ask.is_streaming { now } else { self.prefilled.unwrap_or(now) };
                self.first_written = Some(first);
                front.first_token(self.ask.is_streaming, first.saturating_sub(self.received).as_secs_f64());
            }
            Some(_) => front.next_tokens((now.saturating_sub(self.last_written)).as_secs_f64(), new),
        }
        self.last_written = now;
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let tokens = self.tokens;
        // A client that left early may have left before anyone looked at where its request went.
        while let Some(update) = self.ticket.try_next() {
            self.take(update).ok();
        }
        self.tokens = tokens;
        self.app.forget(&self.rid);
        self.app.front().leave(self.names.key_header.as_deref());
        let Some(dispatch) = self.dispatch else { return };
        let prompt_tokens = u32::try_from(self.ask.prompt.len()).unwrap_or(u32::MAX);
        let after_first = self.first_written.map(|first| (self.last_written.saturating_sub(first)).as_secs_f64());
        self.app.front().ended(&Ended {
            is_streaming: self.ask.is_streaming,
            is_complete: self.is_complete,
            prompt_tokens,
            cached_tokens: self.cached,
            output_tokens: self.tokens,
            seconds: (self.app.clock.now().saturating_sub(self.received)).as_secs_f64(),
            after_first,
        });
        let Some(log) = &self.app.log else { return };
        log.write(&Line {
            rid: &self.rid,
            request_id: self.names.request_id.as_deref(),
            route: self.ask.route.path(),
            is_streaming: self.ask.is_streaming,
            key: self.ask.key.as_deref(),
            dispatch,
            is_pinned: self.ask.pin.is_some(),
            prompt_tokens,
            cached_tokens: self.cached,
            output_tokens: self.tokens,
            asked_tokens: self.ask.max_new,
            received: self.received,
            times: self.times,
            writes: &self.writes,
            outcome: if self.is_complete { Outcome::Complete } else { Outcome::Aborted },
        });
    }
}
