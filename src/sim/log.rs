//! The simulator's truth: a JSON line per request, with the instants of its writes.
//!
//! The first line says how its times relate to the wall: `*_us` are microseconds of the server's clock, and
//! `start_unix_us` is the Unix time of that clock's zero. `virtual_us` are microseconds of model time.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::policy::Dispatch;
use crate::units::Micros;

use super::settings::Settings;

/// An open log. Every line is written at once and whole.
#[derive(Debug)]
pub struct Log(Mutex<File>);

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Complete,
    /// The client went away, or the server stopped.
    Aborted,
}

/// Model time of what happened to a request.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Virtual {
    pub(super) arrived: Duration,
    pub(super) admitted: Option<Duration>,
    pub(super) first: Option<Duration>,
    pub(super) last: Option<Duration>,
}

/// What is logged of a request.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) rid: &'a str,
    pub(super) request_id: Option<&'a str>,
    pub(super) route: &'static str,
    pub(super) is_streaming: bool,
    pub(super) key: Option<&'a str>,
    pub(super) dispatch: Dispatch,
    pub(super) is_pinned: bool,
    pub(super) prompt_tokens: u32,
    pub(super) cached_tokens: u32,
    pub(super) output_tokens: u32,
    pub(super) asked_tokens: u32,
    /// When the server had read the request.
    pub(super) received: Duration,
    pub(super) times: Virtual,
    /// Each frame: when, and how many tokens were out by then.
    pub(super) writes: &'a [(Duration, u32)],
    pub(super) outcome: Outcome,
}

impl Log {
    /// Creates the file and writes its first line.
    ///
    /// # Errors
    /// When the file cannot be created or written.
    pub fn create(path: &Path, settings: &Settings, start_unix: Duration) -> io::Result<Self> {
        let mut file = File::create(path)?;
        let head = json!({
            "log": "gspbench-sim",
            "schema": 1,
            "start_unix_us": us(start_unix),
            "time_scale": settings.time_scale,
            "preset": settings.preset,
            "load_balance_method": settings.method.name(),
            "ranks": settings.ranks,
        });
        writeln!(file, "{head}")?;
        Ok(Self(Mutex::new(file)))
    }

    pub(super) fn write(&self, line: &Line<'_>) {
        let text = format!("{}\n", line.json());
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A full disk must not fail a request; the reader sees that lines are missing.
        file.write_all(text.as_bytes()).ok();
    }
}

impl Line<'_> {
    fn json(&self) -> Value {
        let outcome = match self.outcome {
            Outcome::Complete => "complete",
            Outcome::Aborted => "aborted",
        };
        json!({
            "rid": self.rid,
            "request_id": self.request_id,
            "route": self.route,
            "stream": self.is_streaming,
            "routing_key": self.key,
            "rank": self.dispatch.rank,
            "preferred_rank": self.dispatch.preferred,
            "spilled": self.dispatch.spilled(),
            "pinned": self.is_pinned,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "asked_tokens": self.asked_tokens,
            "received_us": us(self.received),
            "write_us": self.writes.iter().map(|(at, _)| us(*at)).collect::<Vec<_>>(),
            "write_tokens": self.writes.iter().map(|(_, tokens)| tokens).collect::<Vec<_>>(),
            "virtual_us": {
                "arrived": us(self.times.arrived),
                "admitted": self.times.admitted.map(us),
                "first": self.times.first.map(us),
                "last": self.times.last.map(us),
            },
            "outcome": outcome,
        })
    }
}

fn us(instant: Duration) -> u64 {
    Micros::from(instant).0
}
