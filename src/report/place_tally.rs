//! What the complete turns of one place add up to.

use super::latency::millis;
use super::ratio;
use super::shape::PlaceRow;
use super::tally::{add, sum};
use crate::record::{Place, TurnRecord};
use crate::stats::Distribution;
use crate::units::Micros;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PlaceTally {
    turns: u64,
    prompt_tokens: Option<u64>,
    covered_prompt_tokens: u64,
    cached_tokens: Option<u64>,
    output_tokens: Option<u64>,
    ttft: Distribution,
}

impl PlaceTally {
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

    pub(super) fn row(&self, place: Place) -> PlaceRow {
        let Self { turns, prompt_tokens, covered_prompt_tokens, cached_tokens, output_tokens, ttft } = self;
        let (turns, prompt_tokens, cached_tokens, output_tokens) =
            (*turns, *prompt_tokens, *cached_tokens, *output_tokens);
        PlaceRow {
            place,
            turns,
            prompt_tokens,
            cached_tokens,
            hit_rate: cached_tokens
                .and_then(|cached| ratio(cached, *covered_prompt_tokens))
                .filter(|rate| *rate <= 1.0),
            output_tokens,
            ttft_ms: millis(ttft),
            ttft_us: (ttft.count() > 0).then(|| ttft.encode()),
        }
    }
}
