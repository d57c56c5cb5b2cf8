//! The choices themselves, without the bookkeeping: callers bring the ranks and say what each rank's load is, whether that
//! is a controller's budget or a client's own requests in flight.

use crate::policy::hash::prefix_digest;
use crate::policy::{Guard, MaxLoadSkew};
use crate::units::Rank;

/// How many leading ids `prefix_match` reads (PR #26612).
pub const MATCHED_TOKENS: usize = 4096;

/// What a rank has to do, as far as the one who chooses knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Load {
    /// Running and waiting.
    pub requests: u32,
    /// Tokens in use by running requests, and the prompts of waiting ones.
    pub tokens: u64,
}

/// A counter over a fixed list of ranks, which steps over those that are off, as in SGLang. The counter goes along with each
/// step, so that the live ranks keep equal shares.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoundRobin {
    next: usize,
}

impl RoundRobin {
    /// The next live rank of `ranks`; none when all are off.
    pub fn next(&mut self, ranks: &[Rank], is_live: impl Fn(Rank) -> bool) -> Option<Rank> {
        for _ in ranks {
            let rank = ranks[self.next % ranks.len()];
            self.next = (self.next + 1) % ranks.len();
            if is_live(rank) {
                return Some(rank);
            }
        }
        None
    }
}

/// The rank with the fewest requests; of equals the lowest id.
#[must_use]
pub fn least_requests(live: &[Rank], load: impl Fn(Rank) -> Load) -> Option<Rank> {
    live.iter().copied().min_by_key(|&rank| (load(rank).requests, rank))
}

/// The rank with the fewest tokens, then the fewest requests, then the lowest id.
#[must_use]
pub fn least_tokens(live: &[Rank], load: impl Fn(Rank) -> Load) -> Option<Rank> {
    live.iter().copied().min_by_key(|&rank| (load(rank).tokens, load(rank).requests, rank))
}

/// The rank that the prompt's head hashes to, modulo the number of live ranks: almost every key moves when one leaves.
/// None for an empty prompt.
#[must_use]
pub fn prefix_match(prompt: &[u32], live: &[Rank]) -> Option<Rank> {
    if prompt.is_empty() || live.is_empty() {
        return None;
    }
    let slot = prefix_digest(prompt, MATCHED_TOKENS) % live.len() as u64;
    live.get(usize::try_from(slot).ok()?).copied()
}

/// The first rank of `order` whose load, before this request, is at most skew × max(mean load, 1).
///
/// `order` holds every live rank. The walk cannot run dry: the least loaded rank is at most at the mean, and the skew is at
/// least 1. So a single live rank never spills, and none is returned only for an empty order. The floor of 1 lets a key's
/// third concurrent request at an idle server spill already, whatever the number of ranks.
#[must_use]
pub fn guarded(order: &[Rank], guard: Guard, skew: MaxLoadSkew, load: impl Fn(Rank) -> Load) -> Option<Rank> {
    let signal = |rank| match guard {
        Guard::None => 0,
        Guard::Requests => u64::from(load(rank).requests),
        Guard::Tokens => load(rank).tokens,
    };
    let threshold = skew.get() * mean(order.iter().map(|&rank| signal(rank))).max(1.0);
    order.iter().copied().find(|&rank| as_f64(signal(rank).into()) <= threshold)
}

fn mean(loads: impl ExactSizeIterator<Item = u64>) -> f64 {
    let ranks = loads.len() as u128;
    as_f64(loads.map(u128::from).sum()) / as_f64(ranks)
}

#[expect(clippy::cast_precision_loss, reason = "rounding is monotone, and loads stay below 2^53")]
fn as_f64(count: u128) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::policy::rendezvous;

    fn ranks(n: u16) -> Vec<Rank> {
        (0..n).map(Rank).collect()
    }

    fn loads(of: &[(u32, u64)]) -> impl Fn(Rank) -> Load {
        move |rank| {
            let (requests, tokens) = of[usize::from(rank.0)];
            Load { requests, tokens }
        }
    }

    #[test]
    fn ties_go_to_the_lowest_id_and_tokens_are_tied_by_requests() {
        assert_eq!(least_requests(&ranks(3), loads(&[(2, 0), (1, 9), (1, 0)])), Some(Rank(1)));
        assert_eq!(least_tokens(&ranks(3), loads(&[(2, 5), (1, 5), (1, 5)])), Some(Rank(1)));
        assert_eq!(least_tokens(&ranks(3), loads(&[(0, 6), (9, 5), (9, 5)])), Some(Rank(1)));
        assert_eq!(least_requests(&[], loads(&[])), None);
    }

    #[test]
    fn the_live_ranks_share_equally_when_one_is_off() {
        let mut counter = RoundRobin::default();
        let mut share = BTreeMap::new();
        for _ in 0..12 {
            *share.entry(counter.next(&ranks(4), |rank| rank != Rank(1)).unwrap().0).or_insert(0) += 1;
        }
        assert_eq!(share, BTreeMap::from([(0, 4), (2, 4), (3, 4)]));
        assert_eq!(counter.next(&ranks(4), |_| false), None);
        assert_eq!(counter.next(&[], |_| true), None);
    }

    #[test]
    fn a_rank_exactly_at_the_bound_is_taken_and_one_above_it_is_not() {
        let order = ranks(4);
        let take = |first| {
            guarded(&order, Guard::Requests, MaxLoadSkew::default(), loads(&[(first, 0), (1, 0), (2, 0), (2, 0)]))
        };
        assert_eq!(take(3), Some(Rank(0)), "3 is one and a half times the mean of 2");
        assert_eq!(take(7), Some(Rank(1)), "7 is above one and a half times the mean of 3");
    }

    #[test]
    fn a_modulo_hash_moves_nearly_every_key_when_a_rank_leaves() {
        let (all, rest) = (ranks(8), ranks(7));
        let moved = (0..500_u32).filter(|&key| prefix_match(&[key], &all) != prefix_match(&[key], &rest)).count();
        // 7/8 of 500 are 437; four standard deviations are 30.
        assert!((407..=467).contains(&moved), "{moved} of 500 moved");
        assert_eq!(prefix_match(&[], &all), None);
    }

    #[test]
    fn a_prompt_longer_than_the_window_matches_by_its_head() {
        let head = vec![7; MATCHED_TOKENS];
        let with = |tail| prefix_match(&[head.as_slice(), &[tail]].concat(), &ranks(64));
        assert!((0..50).all(|tail| with(tail) == with(0)), "one shared head of 4,096 tokens is one rank");
        assert!((0..50).any(|id| prefix_match(&[id], &ranks(64)) != prefix_match(&[0], &ranks(64))));
    }

    proptest! {
        /// I8: the rank that is taken was within the bound, every rank before it was not, and there always is one.
        #[test]
        fn the_walk_takes_the_first_rank_within_the_bound_and_never_runs_dry(
            of in prop::collection::vec((0_u32..300, 0_u64..900_000), 1..24),
            key in "[a-z]{1,8}", skew in 1.0_f64..4.0,
            guard in prop::sample::select(Guard::ALL.to_vec()),
        ) {
            let n = u16::try_from(of.len()).unwrap();
            let order = rendezvous(key.as_bytes(), &ranks(n));
            let taken = guarded(&order, guard, skew.try_into().unwrap(), loads(&of)).unwrap();
            let signal = |rank: Rank| match guard {
                Guard::None => 0.0,
                Guard::Requests => f64::from(of[usize::from(rank.0)].0),
                Guard::Tokens => of[usize::from(rank.0)].1 as f64,
            };
            let mean = order.iter().map(|&rank| signal(rank)).sum::<f64>() / f64::from(n);
            let bound = skew * mean.max(1.0);
            prop_assert!(signal(taken) <= bound);
            for &passed in order.iter().take_while(|&&rank| rank != taken) {
                prop_assert!(signal(passed) > bound);
            }
        }

        #[test]
        fn without_a_guard_or_with_one_rank_nothing_spills(requests in 0_u32..1_000_000, tokens in any::<u32>()) {
            let busy = [(requests, u64::from(tokens)), (0, 0), (0, 0)];
            let order = [Rank(0), Rank(1), Rank(2)];
            prop_assert_eq!(guarded(&order, Guard::None, MaxLoadSkew::default(), loads(&busy)), Some(Rank(0)));
            for guard in Guard::ALL {
                prop_assert_eq!(guarded(&order[..1], guard, MaxLoadSkew::default(), loads(&busy)), Some(Rank(0)));
            }
        }
    }
}
