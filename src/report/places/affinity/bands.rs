//! Turns by their number in the session, by what they found cached, and by how popular their group is.
//!
//! Numbers fall into bands that double (1, 2, 3–4, 5–8, …), so that state grows with neither turns nor groups.

use std::collections::BTreeMap;

use super::super::subtotal::Subtotal;
use super::Follow;
use super::shape::{Band, Cached, CachedBand};
use crate::record::TurnRecord;
use crate::report::ratio;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Bands {
    turns: Doubling,
    groups: Doubling,
    cached: BTreeMap<Cached, Subtotal>,
}

/// Slices by the exponent of their band.
#[derive(Debug, Clone, Default, PartialEq)]
struct Doubling(BTreeMap<u32, Subtotal>);

impl Bands {
    /// Adds a complete turn; by number and by group only where there is more than one band to tell apart.
    pub(super) fn add(&mut self, turn: &TurnRecord, follow: Follow) {
        let found = match turn.cached_tokens {
            None => Cached::Untold,
            Some(tokens) if tokens <= follow.slack => Cached::Cold,
            Some(_) => Cached::Warm,
        };
        if follow.turns > 1 {
            self.turns.add(turn.turn, turn);
        }
        if follow.is_skewed {
            self.groups.add(turn.group, turn);
        }
        self.cached.entry(found).or_default().add(turn);
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self { turns, groups, cached } = other;
        self.turns.merge(turns);
        self.groups.merge(groups);
        for (found, subtotal) in cached {
            self.cached.entry(found).or_default().merge(&subtotal);
        }
    }

    /// By turn, from 1.
    pub(super) fn by_turn(&self, all: u64) -> Vec<Band> {
        self.turns.bands(all)
    }

    /// By group: a skewed workload numbers its groups from the most popular one.
    pub(super) fn by_popularity(&self, all: u64) -> Vec<Band> {
        self.groups.bands(all)
    }

    pub(super) fn by_cached(&self, all: u64) -> Vec<CachedBand> {
        let band = |(cached, subtotal): (&Cached, &Subtotal)| CachedBand {
            cached: *cached,
            turns: subtotal.turns(),
            share: ratio(subtotal.turns(), all).unwrap_or_default(),
            prompt_tokens: subtotal.prompt_tokens(),
            cached_tokens: subtotal.cached_tokens(),
            hit_rate: subtotal.hit_rate(),
            ttft_ms: subtotal.ttft_ms(),
        };
        self.cached.iter().map(band).collect()
    }
}

impl Doubling {
    /// `at` counts from 0.
    fn add(&mut self, at: u32, turn: &TurnRecord) {
        self.0.entry(exponent(at)).or_default().add(turn);
    }

    fn merge(&mut self, other: Self) {
        let Self(subtotals) = other;
        for (exponent, subtotal) in subtotals {
            self.0.entry(exponent).or_default().merge(&subtotal);
        }
    }

    fn bands(&self, all: u64) -> Vec<Band> {
        let band = |(exponent, subtotal): (&u32, &Subtotal)| {
            let (from, to) = bounds(*exponent);
            Band {
                from,
                to,
                turns: subtotal.turns(),
                share: ratio(subtotal.turns(), all).unwrap_or_default(),
                prompt_tokens: subtotal.prompt_tokens(),
                cached_tokens: subtotal.cached_tokens(),
                hit_rate: subtotal.hit_rate(),
                ttft_ms: subtotal.ttft_ms(),
            }
        };
        self.0.iter().map(band).collect()
    }
}

/// The band of a number from 0: the first two have one each.
fn exponent(at: u32) -> u32 {
    u32::BITS - at.leading_zeros()
}

/// First and last number of a band, counted from 1.
fn bounds(exponent: u32) -> (u32, u32) {
    let last = |exponent: u32| 1u32.checked_shl(exponent).unwrap_or(u32::MAX);
    match exponent {
        0 => (1, 1),
        _ => (last(exponent - 1).saturating_add(1), last(exponent)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_double_and_leave_no_number_out() {
        let of = |at: u32| bounds(exponent(at));
        assert_eq!([0, 1, 2, 3, 4, 7, 8].map(of), [(1, 1), (2, 2), (3, 4), (3, 4), (5, 8), (5, 8), (9, 16)]);
        for at in (0..5_000).chain([u32::MAX - 1]) {
            let (from, to) = of(at);
            assert!((from..=to).contains(&(at + 1)), "{at}");
        }
        assert_eq!(of(u32::MAX), (2_147_483_649, u32::MAX));
    }
}
