//! The bytes of a reply, by hand, in the key order of captures from a live 0.5.23: frames of a stream, and whole bodies.
//!
//! Replies consist of letters and spaces, so text needs no escapes; ids and model names are escaped once per request.
//! `/generate` repeats all text and all ids in every frame, as the server does by default.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;

use super::ask::{Extras, Route};
use super::flight::{Flight, Progress};
use super::json_string;

/// Writes one request's reply.
#[derive(Debug)]
pub(super) struct Frames {
    /// `"id":…,"object":…,"created":…,"model":…` of the OpenAI routes.
    head: String,
    /// All text and ids so far; `/generate` and whole replies need them.
    text: String,
    ids: String,
}

const NO_FINISH: &str = r#""logprobs":null,"finish_reason":null,"matched_stop":null"#;
const FINISH: &str = r#""logprobs":null,"finish_reason":"length","matched_stop":null"#;
const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

impl Frames {
    pub(super) fn new(flight: &Flight) -> Self {
        let object = match (flight.ask.route, flight.ask.is_streaming) {
            (Route::Chat, true) => "chat.completion.chunk",
            (Route::Chat, false) => "chat.completion",
            (Route::Completions | Route::Generate, _) => "text_completion",
        };
        let (id, model) = (json_string(&flight.rid), json_string(&flight.ask.model));
        let created = flight.app.unix(flight.received).as_secs();
        let head = format!(r#""id":{id},"object":"{object}","created":{created},"model":{model}"#);
        Self { head, text: String::new(), ids: String::new() }
    }

    /// The frames that `progress` makes, each with the count of its new tokens.
    pub(super) fn push(
        &mut self,
        flight: &Flight,
        progress: Progress,
        now: Duration,
        out: &mut VecDeque<(Bytes, u32)>,
    ) {
        let new = progress.to - progress.from;
        match flight.ask.route {
            Route::Chat => self.push_chat(flight, progress, out),
            Route::Completions => out.push_back((self.completion(flight, progress), new)),
            Route::Generate => {
                self.append(flight, progress);
                let mut frame = String::with_capacity(self.text.len() + self.ids.len() + 640);
                frame.push_str("data: ");
                self.native(&mut frame, flight, progress, now);
                frame.push_str("\n\n");
                out.push_back((frame.into(), new));
            }
        }
        if progress.is_last {
            if flight.ask.route != Route::Generate {
                self.push_tail(flight, out);
            }
            out.push_back((DONE, 0));
        }
    }

    fn push_chat(&self, flight: &Flight, progress: Progress, out: &mut VecDeque<(Bytes, u32)>) {
        if progress.from == 0 {
            out.push_back((self.chat([r#","role":"assistant","content":"""#].into_iter(), NO_FINISH, ""), 0));
        }
        let usage = match flight.ask.extras {
            Extras { continuous_usage: true, .. } => format!(r#","usage":{}"#, usage(flight, Cached::Told, true)),
            Extras { .. } => String::new(),
        };
        let delta = std::iter::once(r#","content":""#).chain(flight.text(progress)).chain(["\""]);
        out.push_back((self.chat(delta, NO_FINISH, &usage), progress.to - progress.from));
        if progress.is_last {
            // Without usage, even when every content frame has it.
            out.push_back((self.chat([].into_iter(), FINISH, ""), 0));
        }
    }

    fn chat<'a>(&self, delta: impl Iterator<Item = &'a str>, finish: &str, usage: &str) -> Bytes {
        let mut frame = self.open(usage.len());
        frame.push_str(r#","choices":[{"index":0,"delta":{"reasoning_content":null"#);
        frame.extend(delta);
        frame.push_str("},");
        frame.push_str(finish);
        frame.push_str("}]");
        frame.push_str(usage);
        frame.push_str("}\n\n");
        frame.into()
    }

    /// A frame's beginning, in a string with room for the rest.
    fn open(&self, more: usize) -> String {
        let mut frame = String::with_capacity(self.head.len() + more + 224);
        frame.push_str("data: {");
        frame.push_str(&self.head);
        frame
    }

    fn completion(&self, flight: &Flight, progress: Progress) -> Bytes {
        let usage = match flight.ask.extras.continuous_usage {
            // This route never tells the cached tokens while it streams, whatever the server's flags.
            true => usage(flight, Cached::Hidden, true),
            false => "null".to_owned(),
        };
        let mut frame = self.open(usage.len());
        frame.push_str(r#","choices":[{"index":0,"text":""#);
        frame.extend(flight.text(progress));
        frame.push_str(r#"","#);
        frame.push_str(if progress.is_last { FINISH } else { NO_FINISH });
        frame.push_str(r#"}],"usage":"#);
        frame.push_str(&usage);
        frame.push_str("}\n\n");
        frame.into()
    }

    /// What follows the last content frame on the OpenAI routes.
    fn push_tail(&self, flight: &Flight, out: &mut VecDeque<(Bytes, u32)>) {
        let head = &self.head;
        if let Some(sglext) = sglext(flight) {
            out.push_back((format!("data: {{{head},\"choices\":[],\"usage\":null,{sglext}}}\n\n").into(), 0));
        }
        if flight.ask.extras.usage {
            let usage = usage(flight, Cached::Told, flight.ask.route == Route::Chat);
            out.push_back((format!("data: {{{head},\"choices\":[],\"usage\":{usage}}}\n\n").into(), 0));
        }
    }

    fn append(&mut self, flight: &Flight, progress: Progress) {
        self.text.extend(flight.text(progress));
        for id in &flight.reply.ids[progress.from as usize..progress.to as usize] {
            let comma = if self.ids.is_empty() { "" } else { "," };
            // Writing to a string cannot fail.
            write!(self.ids, "{comma}{id}").ok();
        }
    }

    fn native(&self, frame: &mut String, flight: &Flight, progress: Progress, now: Duration) {
        let (text, ids) = (&self.text, &self.ids);
        let meta = meta_info(flight, progress, now);
        write!(frame, r#"{{"text":"{text}","output_ids":[{ids}],"meta_info":{meta}}}"#).ok();
    }

    /// The whole reply of a request that is not streamed.
    pub(super) fn whole(&mut self, flight: &Flight, now: Duration) -> String {
        let all = Progress { from: 0, to: flight.tokens, is_last: true };
        self.append(flight, all);
        let mut body = String::new();
        if flight.ask.route == Route::Generate {
            self.native(&mut body, flight, all, now);
            return body;
        }
        let (head, text) = (&self.head, &self.text);
        let choice = match flight.ask.route {
            Route::Chat => {
                let meta = match flight.ask.extras.meta_info {
                    true => format!(r#","meta_info":{}"#, meta_info(flight, all, now)),
                    false => String::new(),
                };
                format!(
                    r#""message":{{"role":"assistant","content":"{text}","reasoning_content":null}},{FINISH}{meta}"#
                )
            }
            Route::Completions | Route::Generate => format!(r#""text":"{text}",{FINISH}"#),
        };
        let usage = usage(flight, Cached::Told, true);
        let sglext = sglext(flight).map_or(String::new(), |sglext| format!(",{sglext}"));
        let versions = weight_versions(flight.tokens);
        write!(
            body,
            r#"{{{head},"choices":[{{"index":0,{choice}}}],"usage":{usage},"metadata":{{"weight_version":"default",{versions}}}{sglext}}}"#
        )
        .ok();
        body
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cached {
    Told,
    Hidden,
}

fn usage(flight: &Flight, cached: Cached, with_nulls: bool) -> String {
    let (prompt, completion) = (flight.ask.prompt.len(), flight.tokens);
    let total = prompt + completion as usize;
    let details = match cached {
        Cached::Told if !flight.app.settings.cache_report => "null".to_owned(),
        Cached::Told => format!(r#"{{"cached_tokens":{}}}"#, flight.cached),
        Cached::Hidden => "null".to_owned(),
    };
    let nulls = if with_nulls { r#","completion_tokens_details":null"# } else { "" };
    format!(
        r#"{{"prompt_tokens":{prompt},"total_tokens":{total},"completion_tokens":{completion},"prompt_tokens_details":{details},"reasoning_tokens":0{nulls}}}"#
    )
}

/// Only when asked for, and only of requests that found something: zero hits leave no trace.
fn sglext(flight: &Flight) -> Option<String> {
    let is_told = flight.ask.extras.cached_details && flight.cached > 0;
    is_told.then(|| format!(r#""sglext":{{"cached_tokens_details":{{"device":{},"host":0}}}}"#, flight.cached))
}

fn weight_versions(tokens: u32) -> String {
    format!(r#""weight_versions":[{{"version":"default","start":0,"end":{tokens}}}]"#)
}

/// Seconds of Unix time, or spans, as the keys' names say; all by the server's clock.
fn meta_info(flight: &Flight, progress: Progress, now: Duration) -> String {
    let unix = |at: Option<Duration>| at.map_or(0.0, |at| flight.app.unix(at).as_secs_f64());
    let (id, prompt, cached, tokens) = (json_string(&flight.rid), flight.ask.prompt.len(), flight.cached, progress.to);
    let finish = match progress.is_last {
        true => format!(r#"{{"type":"length","length":{tokens}}}"#),
        false => "null".to_owned(),
    };
    let versions = if progress.is_last { format!("{},", weight_versions(tokens)) } else { String::new() };
    let details = match cached {
        0 => "null".to_owned(),
        hit => format!(r#"{{"device":{hit},"host":0}}"#),
    };
    let rank = flight.rank().map_or("null".to_owned(), |rank| rank.to_string());
    let (entry, prefilled, queued) = (unix(flight.admitted), unix(flight.prefilled), flight.queued.as_secs_f64());
    let mut meta = format!(
        r#"{{"id":{id},"finish_reason":{finish},"prompt_tokens":{prompt},"weight_version":"default","num_retractions":0,"storage_prefetch_wait":0.0,"storage_staging_wait":0.0,"forward_entry_time":{entry:?},"prefill_finished_time":{prefilled:?},"queue_time":{queued:?},"reasoning_tokens":0,"completion_tokens":{tokens},"cached_tokens":{cached},{versions}"cached_tokens_details":{details},"dp_rank":{rank}"#
    );
    let sent = flight.first_written.unwrap_or(now);
    if progress.is_last {
        let first = match flight.ask.is_streaming {
            true => sent,
            false => flight.prefilled.unwrap_or(now),
        };
        let (e2e, ttft) = ((now - flight.received).as_secs_f64(), first.saturating_sub(flight.received).as_secs_f64());
        let received = unix(Some(flight.received));
        let decoding = now.saturating_sub(first).as_secs_f64();
        let speed = if decoding > 0.0 { f64::from(tokens.saturating_sub(1)) / decoding } else { 0.0 };
        let (sent, finished) = (unix(Some(sent)), unix(Some(now)));
        write!(
            meta,
            r#","e2e_latency":{e2e:?},"request_received_ts":{received:?},"first_token_latency":{ttft:?},"api_server_dispatch_finish_ts":{received:?},"response_sent_to_client_ts":{sent:?},"request_finished_ts":{finished:?},"decode_throughput":{speed:?}"#
        )
        .ok();
    } else if progress.from == 0 {
        write!(meta, r#","response_sent_to_client_ts":{:?}"#, unix(Some(sent))).ok();
    }
    meta.push('}');
    meta
}
