//! Turns against service level objectives.
//!
//! A turn is good when it completed and met every limit. A failed turn is not good, nor is one that was never sent because
//! its session had failed: its user got nothing. A turn that the end of the run cut counts only where it had missed a
//! limit already; of the others nobody knows.

use crate::profile::Slo;
use crate::record::{Outcome, TurnRecord};
use crate::report::{per_second, ratio};
use crate::units::Micros;

/// Mergeable counts of one run; none without objectives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Goodput {
    slo: Option<Slo>,
    good: u64,
    judged: u64,
}

impl Goodput {
    pub(super) fn new(slo: Option<Slo>) -> Self {
        Self { slo, good: 0, judged: 0 }
    }

    pub(super) fn add(&mut self, turn: &TurnRecord) {
        if let Some(is_good) = self.slo.and_then(|slo| is_good(&slo, turn)) {
            self.judged += 1;
            self.good += u64::from(is_good);
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self { slo: _, good, judged } = other;
        self.good += good;
        self.judged += judged;
    }

    /// Good turns a second.
    pub(super) fn rate(&self, span: Micros) -> Option<f64> {
        self.slo.filter(|_| self.judged > 0).and_then(|_| per_second(self.good, span))
    }

    /// Good turns of those that are known to be good or not.
    pub(super) fn attainment(&self) -> Option<f64> {
        self.slo.and_then(|_| ratio(self.good, self.judged))
    }
}

/// None where the run's own end leaves it open.
fn is_good(slo: &Slo, turn: &TurnRecord) -> Option<bool> {
    match turn.outcome {
        Outcome::Complete => Some(meets(slo, turn)),
        Outcome::Failed(_) | Outcome::Skipped => Some(false),
        Outcome::Cancelled => has_missed(slo, turn).then_some(false),
    }
}

/// A limit on TPOT is met by a turn that has none: all its output came in one frame.
fn meets(slo: &Slo, turn: &TurnRecord) -> bool {
    let Slo { ttft_ms, tpot_ms, e2el_ms } = *slo;
    let within = |span: Option<Micros>, limit: f64| span.is_some_and(|span| span.as_ms() <= limit);
    ttft_ms.is_none_or(|limit| within(turn.ttft(), limit))
        && tpot_ms.is_none_or(|limit| turn.tpot_us().is_none_or(|us| us / 1e3 <= limit))
        && e2el_ms.is_none_or(|limit| within(turn.e2e(), limit))
}

/// Whether a cut turn had taken longer than it may when it was cut.
fn has_missed(slo: &Slo, turn: &TurnRecord) -> bool {
    let Slo { ttft_ms, tpot_ms: _, e2el_ms } = *slo;
    let Some(so_far) = turn.done_us.zip(turn.sent_us).map(|(cut, sent)| cut.since(sent)) else { return false };
    let until_first = turn.ttft().unwrap_or(so_far);
    let is_over = |span: Micros, limit: Option<f64>| limit.is_some_and(|limit| span.as_ms() > limit);
    is_over(until_first, ttft_ms) || is_over(so_far, e2el_ms)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{Failure, TurnId};

    const SLO: Slo = Slo { ttft_ms: Some(100.0), tpot_ms: Some(10.0), e2el_ms: Some(300.0) };

    /// Times in ms from sending; the tokens after the first frame.
    fn turn(outcome: Outcome, ttft: u64, e2e: u64, tokens: u32) -> TurnRecord {
        let id = TurnId { group: 0, session: 0, turn: 0 };
        let at = |ms: u64| Some(Micros(1_000 * ms));
        TurnRecord {
            outcome,
            sent_us: at(5),
            first_us: at(5 + ttft),
            last_us: at(5 + e2e),
            done_us: at(6 + e2e),
            output_tokens: Some(1 + tokens),
            first_frame_tokens: Some(1),
            ..TurnRecord::planned("a".into(), id, None, Micros(0), 1 + tokens)
        }
    }

    fn complete(ttft: u64, e2e: u64, tokens: u32) -> TurnRecord {
        turn(Outcome::Complete, ttft, e2e, tokens)
    }

    #[test]
    fn a_turn_is_good_at_its_limits_and_not_beyond_any_of_them() {
        assert_eq!(is_good(&SLO, &complete(100, 300, 20)), Some(true));
        assert_eq!(is_good(&SLO, &complete(101, 300, 20)), Some(false), "TTFT");
        assert_eq!(is_good(&SLO, &complete(100, 300, 19)), Some(false), "TPOT");
        assert_eq!(is_good(&SLO, &complete(100, 301, 30)), Some(false), "E2E");
        let late = Slo { ttft_ms: Some(100.0), tpot_ms: None, e2el_ms: None };
        assert_eq!(is_good(&late, &complete(100, 9_000, 1)), Some(true), "a limit that is not given is none");
        assert_eq!(is_good(&SLO, &complete(90, 90, 0)), Some(true), "one frame has no TPOT to miss");
    }

    #[test]
    fn failed_and_skipped_turns_are_not_good_and_cut_ones_only_count_once_they_are_late() {
        assert_eq!(is_good(&SLO, &turn(Outcome::Failed(Failure::Reset), 10, 20, 5)), Some(false));
        assert_eq!(is_good(&SLO, &turn(Outcome::Skipped, 10, 20, 5)), Some(false));
        assert_eq!(is_good(&SLO, &turn(Outcome::Cancelled, 10, 20, 5)), None);
        assert_eq!(is_good(&SLO, &turn(Outcome::Cancelled, 10, 400, 5)), Some(false));
        let silent = TurnRecord { first_us: None, last_us: None, ..turn(Outcome::Cancelled, 0, 150, 0) };
        assert_eq!(is_good(&SLO, &silent), Some(false), "no first token within its limit");
        assert_eq!(is_good(&SLO, &TurnRecord { sent_us: None, ..silent }), None, "never sent");
    }

    #[test]
    fn without_objectives_there_is_no_goodput_and_with_them_none_of_nothing() {
        let mut none = Goodput::new(None);
        none.add(&complete(1, 2, 1));
        assert_eq!((none.rate(Micros(1_000_000)), none.attainment()), (None, None));
        let nothing = Goodput::new(Some(SLO));
        assert_eq!((nothing.rate(Micros(1_000_000)), nothing.attainment()), (None, None));
    }

    proptest! {
        #[test]
        fn parts_of_a_run_merge_to_the_whole_and_good_turns_are_some_of_those_judged(
            turns in prop::collection::vec((0_usize..4, 0_u64..200, 0_u64..400, 0_u32..40, any::<bool>()), 0..40),
        ) {
            let (mut whole, mut parts) = (Goodput::new(Some(SLO)), [Goodput::new(Some(SLO)); 2]);
            for (outcome, ttft, more, tokens, part) in turns {
                let outcomes = [Outcome::Complete, Outcome::Skipped, Outcome::Cancelled, Outcome::Failed(Failure::Reset)];
                let turn = turn(outcomes[outcome], ttft, ttft + more, tokens);
                whole.add(&turn);
                parts[usize::from(part)].add(&turn);
            }
            let [mut first, second] = parts;
            first.merge(second);
            prop_assert_eq!(first, whole);
            prop_assert!(whole.good <= whole.judged);
        }
    }
}
