//! What SGLang's tokenizer process counts: requests as a whole, without their rank, when they end.

use std::collections::BTreeMap;

use super::super::histogram::{E2E, Histogram, INTER_TOKEN, TTFT};

/// Counters of the front end.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) streamed: Totals,
    pub(super) whole: Totals,
    pub(super) inter_token: Histogram,
    pub(super) cached_tokens: u64,
    pub(super) aborted: u64,
    /// Requests that came with a routing key where their route reads it, and without.
    pub(super) keyed: u64,
    pub(super) keyless: u64,
    /// Requests in flight by their key header.
    pub(super) active_keys: BTreeMap<String, u32>,
}

/// By whether the reply was streamed.
#[derive(Debug)]
pub(super) struct Totals {
    pub(super) requests: u64,
    pub(super) prompt_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) ttft: Histogram,
    pub(super) e2e: Histogram,
    pub(super) per_output_token: Histogram,
}

/// A request that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    pub(super) is_streaming: bool,
    pub(super) is_complete: bool,
    pub(super) prompt_tokens: u32,
    pub(super) cached_tokens: u32,
    pub(super) output_tokens: u32,
    pub(super) seconds: f64,
    /// From the first token to the last.
    pub(super) after_first: Option<f64>,
}

impl Default for Totals {
    fn default() -> Self {
        let (ttft, e2e, per_output_token) = (Histogram::new(TTFT), Histogram::new(E2E), Histogram::new(INTER_TOKEN));
        Self { requests: 0, prompt_tokens: 0, output_tokens: 0, ttft, e2e, per_output_token }
    }
}

impl Default for Front {
    fn default() -> Self {
        let (streamed, whole, inter_token) = (Totals::default(), Totals::default(), Histogram::new(INTER_TOKEN));
        let active_keys = BTreeMap::new();
        Self { streamed, whole, inter_token, cached_tokens: 0, aborted: 0, keyed: 0, keyless: 0, active_keys }
    }
}

impl Front {
    /// Counts a key header among those in flight.
    pub(super) fn enter(&mut self, key: Option<&str>) {
        if let Some(key) = key {
            *self.active_keys.entry(key.to_owned()).or_default() += 1;
        }
    }

    /// Counts a request by the key that its route read; an empty one is none.
    pub(super) fn routed(&mut self, key: Option<&str>) {
        match key {
            Some(key) if !key.is_empty() => self.keyed += 1,
            _ => self.keyless += 1,
        }
    }

    pub(super) fn leave(&mut self, key: Option<&str>) {
        let Some(key) = key else { return };
        if let Some(count) = self.active_keys.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.active_keys.remove(key);
            }
        }
    }

    fn totals(&mut self, is_streaming: bool) -> &mut Totals {
        if is_streaming { &mut self.streamed } else { &mut self.whole }
    }

    pub(super) fn first_token(&mut self, is_streaming: bool, seconds: f64) {
        self.totals(is_streaming).ttft.observe(seconds, 1);
    }

    /// A frame of `new` tokens, `seconds` after the one before.
    pub(super) fn next_tokens(&mut self, seconds: f64, new: u32) {
        self.inter_token.observe(seconds / f64::from(new), new);
    }

    /// An aborted request counts as aborted and as a request, as on a live server.
    pub(super) fn ended(&mut self, ended: &Ended) {
        self.cached_tokens += u64::from(ended.cached_tokens);
        self.aborted += u64::from(!ended.is_complete);
        let totals = self.totals(ended.is_streaming);
        totals.requests += 1;
        totals.prompt_tokens += u64::from(ended.prompt_tokens);
        totals.output_tokens += u64::from(ended.output_tokens);
        totals.e2e.observe(ended.seconds, 1);
        if let (true, Some(seconds), gaps @ 1..) =
            (ended.is_complete, ended.after_first, ended.output_tokens.max(1) - 1)
        {
            totals.per_output_token.observe(seconds / f64::from(gaps), 1);
        }
    }
}
