//! Proof that the cache was cold when the run began, from the replies alone.
//!
//! Of the turns of a group that left before that group's first output came, none can have found the group's prompt in a
//! cache that this run filled. If at least one of them reports no more than the slack as cached, that group began cold; if
//! all report more, the cache was warm. A flush that answers 200 proves nothing of the kind: under data parallelism the
//! status is that of whichever rank replied first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::TurnRecord;
use crate::units::Micros;

/// Tokens that templates give to all groups alike; a page, where that is larger, is reported whole.
const SLACK_TOKENS: u32 = 64;

/// Cached tokens that a turn may report without having met its group's prompt.
pub(super) fn slack(page_tokens: Option<u32>) -> u32 {
    page_tokens.unwrap_or(0).max(SLACK_TOKENS)
}

/// What the first turns of all groups say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColdEvidence {
    /// Groups whose first turns show an empty cache.
    pub cold_groups: u64,
    /// Groups whose every early turn found more than the slack.
    pub warm_groups: u64,
    /// Groups whose early turns do not report cached tokens.
    pub silent_groups: u64,
}

/// The early turns of each group, or of each group at each place; memory grows with these and with turns in flight, not
/// with turns.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Beginnings<K>(BTreeMap<K, Beginning>);

#[derive(Debug, Clone, Default, PartialEq)]
struct Beginning {
    first_output: Option<Micros>,
    /// Turns that left before `first_output`.
    early: Vec<Early>,
}

/// A turn that cannot have met what the first one of its kind was about to leave in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Early {
    sent: Micros,
    cached: Option<u32>,
    prompt: Option<u32>,
}

impl<K> Default for Beginnings<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Beginnings<K> {
    pub(super) fn add(&mut self, key: K, turn: &TurnRecord) {
        let Some(sent) = turn.sent_us else { return };
        let beginning = self.0.entry(key).or_default();
        beginning.early.push(Early { sent, cached: turn.cached_tokens, prompt: turn.prompt_tokens });
        beginning.end_at(turn.first_us);
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self(keys) = other;
        for (key, Beginning { first_output, early }) in keys {
            let beginning = self.0.entry(key).or_default();
            beginning.early.extend(early);
            beginning.end_at(first_output);
            // The order of arrival says nothing, so that any split into parts merges to the same.
            beginning.early.sort_unstable();
        }
    }

    /// Prompt tokens of the early turns that found no more than the slack, but for the first of each beginning: each read
    /// a prompt that an earlier turn was still reading.
    pub(super) fn overlap(&self, slack: u32) -> u64 {
        let cold = |turn: &&Early| turn.cached.is_some_and(|cached| cached <= slack);
        let of = |beginning: &Beginning| {
            let cold = beginning.early.iter().filter(cold);
            let first = cold.clone().min().and_then(|turn| turn.prompt).map_or(0, u64::from);
            cold.filter_map(|turn| turn.prompt).map(u64::from).sum::<u64>() - first
        };
        self.0.values().map(of).sum()
    }

    /// The evidence, with what a reply may report without having met its group's prompt.
    pub(super) fn evidence(&self, slack: u32) -> ColdEvidence {
        let mut evidence = ColdEvidence::default();
        for beginning in self.0.values() {
            let early = &beginning.early;
            if early.iter().any(|turn| turn.cached.is_some_and(|cached| cached <= slack)) {
                evidence.cold_groups += 1;
            } else if early.iter().all(|turn| turn.cached.is_some()) {
                evidence.warm_groups += 1;
            } else {
                // One that failed, or tells nothing, may have been the one that read the prompt.
                evidence.silent_groups += 1;
            }
        }
        evidence
    }
}

impl Beginning {
    /// The group's first output came at `first` at the latest: turns that left after it are not early.
    fn end_at(&mut self, first: Option<Micros>) {
        self.first_output = match (self.first_output, first) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let Some(end) = self.first_output else { return };
        self.early.retain(|turn| turn.sent < end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::TurnId;

    fn turn(group: u32, sent: u64, first: u64, cached: Option<u32>) -> TurnRecord {
        let id = TurnId { group, session: 0, turn: 0 };
        TurnRecord {
            sent_us: Some(Micros(sent)),
            first_us: Some(Micros(first)),
            cached_tokens: cached,
            prompt_tokens: Some(4_100),
            ..TurnRecord::planned("t".into(), id, None, Micros(sent), 1)
        }
    }

    fn beginnings(turns: &[TurnRecord]) -> Beginnings<u32> {
        let mut beginnings = Beginnings::default();
        turns.iter().for_each(|turn| beginnings.add(turn.group, turn));
        beginnings
    }

    fn evidence(turns: &[TurnRecord]) -> ColdEvidence {
        beginnings(turns).evidence(SLACK_TOKENS)
    }

    #[test]
    fn one_early_turn_that_found_nothing_proves_its_group_cold() {
        // Two turns left together on one rank: the second one met what the first had just written.
        let together = [turn(0, 10, 100, Some(0)), turn(0, 11, 120, Some(4096)), turn(0, 130, 140, Some(4096))];
        assert_eq!(evidence(&together), ColdEvidence { cold_groups: 1, ..ColdEvidence::default() });
        let template = [turn(0, 10, 100, Some(64))];
        assert_eq!(evidence(&template).cold_groups, 1);
    }

    #[test]
    fn a_group_whose_early_turns_all_found_its_prompt_began_warm() {
        let warm = [turn(0, 10, 100, Some(0)), turn(1, 10, 50, Some(4096)), turn(1, 60, 70, Some(0))];
        assert_eq!(evidence(&warm), ColdEvidence { cold_groups: 1, warm_groups: 1, silent_groups: 0 });
    }

    #[test]
    fn turns_that_read_a_prompt_beside_its_first_reader_overlap_with_it() {
        let together = [
            turn(0, 10, 100, Some(0)),
            turn(0, 11, 120, Some(64)),
            turn(0, 12, 130, Some(4096)),
            turn(0, 13, 140, None),
            turn(0, 100, 140, Some(0)),
        ];
        assert_eq!(beginnings(&together).overlap(SLACK_TOKENS), 4_100, "the second; the last one came too late");
        assert_eq!(beginnings(&together[..1]).overlap(SLACK_TOKENS), 0);
    }

    #[test]
    fn silence_is_no_proof() {
        assert_eq!(evidence(&[turn(0, 10, 100, None)]).silent_groups, 1);
        let failed = TurnRecord { first_us: None, ..turn(0, 10, 100, None) };
        assert_eq!(evidence(&[failed, turn(0, 11, 120, Some(4096))]).silent_groups, 1);
    }

    proptest! {
        #[test]
        fn the_order_of_records_and_the_parts_they_came_in_do_not_matter(
            raw in proptest::collection::vec((0_u32..3, 0_u64..200, 1_u64..100, proptest::option::of(0_u32..200)), 0..30),
            cut in 0_usize..30,
        ) {
            let turns: Vec<_> = raw.iter().map(|(g, sent, wait, cached)| turn(*g, *sent, sent + wait, *cached)).collect();
            let whole = evidence(&turns);
            let reversed: Vec<_> = turns.iter().rev().cloned().collect();
            prop_assert_eq!(evidence(&reversed), whole);
            let (left, right) = turns.split_at(cut.min(turns.len()));
            let mut merged = beginnings(left);
            merged.merge(beginnings(right));
            prop_assert_eq!(merged.evidence(SLACK_TOKENS), whole);
            let overlap = beginnings(&turns).overlap(SLACK_TOKENS);
            prop_assert_eq!([beginnings(&reversed), merged].map(|of| of.overlap(SLACK_TOKENS)), [overlap; 2]);
        }
    }
}
