//! Counts of turns and tokens, and how they merge.

use crate::report::shape::Totals;
use crate::report::sum;

impl Totals {
    /// A sum with an unknown part is unknown.
    pub(super) fn add_unheard(&mut self, requests: u64, prompt_tokens: Option<u64>, output_tokens: Option<u64>) {
        let joined = |known: Option<u64>, more: Option<u64>| match (self.unheard_requests, requests) {
            (_, 0) => known,
            (0, _) => more,
            _ => known.zip(more).map(|(known, more)| known + more),
        };
        self.unheard_prompt_tokens = joined(self.unheard_prompt_tokens, prompt_tokens);
        self.unheard_output_tokens = joined(self.unheard_output_tokens, output_tokens);
        self.unheard_requests += requests;
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self {
            planned,
            complete,
            failed,
            cancelled,
            skipped,
            failed_by_kind,
            prompt_tokens,
            planned_prompt_tokens,
            cached_tokens,
            cached_reported_turns,
            cached_above_prompt_turns,
            output_tokens,
            planned_output_tokens,
            short_output_turns,
            output_estimated_turns,
            reasoning_tokens,
            resends,
            unheard_requests,
            unheard_prompt_tokens,
            unheard_output_tokens,
            refused_turns,
            oddities,
        } = other;
        self.planned += planned;
        self.complete += complete;
        self.failed += failed;
        self.cancelled += cancelled;
        self.skipped += skipped;
        for (kind, turns) in failed_by_kind {
            *self.failed_by_kind.entry(kind).or_default() += turns;
        }
        self.prompt_tokens = sum(self.prompt_tokens, prompt_tokens);
        self.planned_prompt_tokens = sum(self.planned_prompt_tokens, planned_prompt_tokens);
        self.cached_tokens = sum(self.cached_tokens, cached_tokens);
        self.cached_reported_turns += cached_reported_turns;
        self.cached_above_prompt_turns += cached_above_prompt_turns;
        self.output_tokens = sum(self.output_tokens, output_tokens);
        self.planned_output_tokens += planned_output_tokens;
        self.short_output_turns += short_output_turns;
        self.output_estimated_turns += output_estimated_turns;
        self.reasoning_tokens = sum(self.reasoning_tokens, reasoning_tokens);
        self.resends += resends;
        self.add_unheard(unheard_requests, unheard_prompt_tokens, unheard_output_tokens);
        self.refused_turns += refused_turns;
        for (oddity, turns) in oddities {
            *self.oddities.entry(oddity).or_default() += turns;
        }
    }
}
