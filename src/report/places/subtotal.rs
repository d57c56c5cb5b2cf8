//! What the complete turns of one place, or of any other part of a run, add up to.

use crate::record::{Place, TurnRecord};
use crate::report::latency::millis;
use crate::report::shape::PlaceRow;
use crate::report::{add, ratio, sum};
use crate::stats::{Distribution, Summary};
use crate::units::Micros;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Subtotal {
    turns: u64,
    prompt_tokens: Option<u64>,
    covered_prompt_tokens: u64,
    cached_tokens: Option<u64>,
    output_tokens: Option<u64>,
    ttft: Distribution,
}

impl Subtotal {
    pub(super) fn add(&mut self, turn: &TurnRecord) {
        self.turns += 1;
        add(&mut self.prompt_tokens, turn.prompt_tokens);
        add(&mut self.output_tokens, turn.output_tokens);
        if let (Some(prompt), Some(cached)) = (turn.prompt_tokens, turn.cached_tokens) {
            add(&mut self.cached_tokens, Some(cached));
            self.covered_prompt_tokens += u64::from(prompt);
        }
        if let Some(Micros(us)) = turn.ttft() {
            self.ttft.record(us, 1);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        let Self { turns, prompt_tokens, covered_prompt_tokens, cached_tokens, output_tokens, ttft } = other;
        self.turns += turns;
        self.prompt_tokens = sum(self.prompt_tokens, *prompt_tokens);
        self.covered_prompt_tokens += covered_prompt_tokens;
        self.cached_tokens = sum(self.cached_tokens, *cached_tokens);
        self.output_tokens = sum(self.output_tokens, *output_tokens);
        self.ttft.merge(ttft);
    }

    pub(super) fn turns(&self) -> u64 {
        self.turns
    }

    pub(super) fn prompt_tokens(&self) -> Option<u64> {
        self.prompt_tokens
    }

    pub(super) fn cached_tokens(&self) -> Option<u64> {
        self.cached_tokens
    }

    /// None also where turns report more than can be.
    pub(super) fn hit_rate(&self) -> Option<f64> {
        ratio(self.cached_tokens?, self.covered_prompt_tokens).filter(|rate| *rate <= 1.0)
    }

    pub(super) fn ttft_ms(&self) -> Option<Summary> {
        millis(&self.ttft)
    }

    pub(super) fn row(&self, place: Place) -> PlaceRow {
        PlaceRow {
            place,
            turns: self.turns,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            hit_rate: self.hit_rate(),
            output_tokens: self.output_tokens,
            ttft_ms: self.ttft_ms(),
            ttft_us: (self.ttft.count() > 0).then(|| self.ttft.encode()),
        }
    }
}
