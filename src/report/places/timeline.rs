//! A run in slices of equal width, for plots over time.
//!
//! Nobody knows at the start how long a run will be, and memory must not grow with its length. So slices begin narrow,
//! and whenever there would be too many, each two neighbours become one. Slices start at multiples of their width, so
//! the result depends on the turns alone and not on their order or on who counted them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::record::{Place, TurnRecord};
use crate::report::ratio;
use crate::stats::{Quantile, rounded};
use crate::units::Micros;

/// Most slices of a run.
const MOST: u64 = 100;
/// Width of the first slices.
const NARROWEST: Micros = Micros(20_000);
/// Most places that are told apart: a plot of more rows shows nothing.
const MOST_PLACES: usize = 64;
/// Bits of a TTFT that are kept: two neighbours are less than 1 % apart.
const BITS: u32 = 8;

/// Complete turns by the time at which they were sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    pub slice_us: Micros,
    /// In order and without gaps, the first from the start of the run.
    pub slices: Vec<Slice>,
    /// In the order of `ranks`; none where no place is known, or more than a plot has rows.
    pub places: Vec<PlaceSlices>,
}

/// The turns sent within one slice. The TTFT is within 1 %, its maximum exact; null without turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    pub turns: u64,
    pub ttft_p50_ms: Option<f64>,
    pub ttft_p90_ms: Option<f64>,
    pub ttft_max_ms: Option<f64>,
}

/// One place over time, a figure a slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlaceSlices {
    pub place: Place,
    pub turns: Vec<u64>,
    /// Σ cached / Σ prompt tokens; null where no turn tells both.
    pub hit_rate: Vec<Option<f64>>,
}

/// Mergeable state behind [`Timeline`].
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TimelineTally {
    width: Micros,
    slices: BTreeMap<u64, SliceTally>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct SliceTally {
    turns: u64,
    /// Lower edges in µs, with their counts.
    ttft: BTreeMap<u64, u64>,
    ttft_max: Option<Micros>,
    places: BTreeMap<Place, Served>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Served {
    turns: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
}

impl Default for TimelineTally {
    fn default() -> Self {
        Self { width: NARROWEST, slices: BTreeMap::new() }
    }
}

impl TimelineTally {
    /// Adds one complete turn.
    pub(super) fn add(&mut self, turn: &TurnRecord) {
        let Some(Micros(sent)) = turn.sent_us else { return };
        while sent / self.width.0 >= MOST {
            self.widen();
        }
        self.slices.entry(sent / self.width.0).or_default().add(turn);
    }

    pub(super) fn merge(&mut self, other: Self) {
        let mut other = other;
        while self.width < other.width {
            self.widen();
        }
        while other.width < self.width {
            other.widen();
        }
        for (at, slice) in other.slices {
            self.slices.entry(at).or_default().merge(slice);
        }
    }

    fn widen(&mut self) {
        self.width = Micros(self.width.0 * 2);
        for (at, slice) in std::mem::take(&mut self.slices) {
            self.slices.entry(at / 2).or_default().merge(slice);
        }
    }

    /// `places`: the rows of the report, in order.
    pub(super) fn finish<'a>(&self, places: impl ExactSizeIterator<Item = &'a Place>) -> Timeline {
        let end = self.slices.last_key_value().map_or(0, |(last, _)| last + 1);
        let place = |place: &Place| {
            let served = |at: u64| self.slices.get(&at)?.places.get(place).copied();
            PlaceSlices {
                place: place.clone(),
                turns: (0..end).map(|at| served(at).unwrap_or_default().turns).collect(),
                hit_rate: (0..end).map(|at| served(at)?.hit_rate()).collect(),
            }
        };
        let few = places.len() <= MOST_PLACES;
        Timeline {
            slice_us: self.width,
            slices: (0..end).map(|at| self.slices.get(&at).map_or(Slice::default(), SliceTally::finish)).collect(),
            places: if few { places.map(place).collect() } else { vec![] },
        }
    }
}

impl SliceTally {
    fn add(&mut self, turn: &TurnRecord) {
        self.turns += 1;
        if let Some(ttft) = turn.ttft() {
            *self.ttft.entry(lower_edge(ttft.0)).or_default() += 1;
            self.ttft_max = self.ttft_max.max(Some(ttft));
        }
        if let Some(place) = &turn.place {
            let mut served = Served { turns: 1, ..Served::default() };
            if let (Some(prompt), Some(cached)) = (turn.prompt_tokens, turn.cached_tokens) {
                served.prompt_tokens = prompt.into();
                served.cached_tokens = cached.into();
            }
            self.places.entry(place.clone()).or_default().merge(served);
        }
    }

    fn merge(&mut self, other: Self) {
        let Self { turns, ttft, ttft_max, places } = other;
        self.turns += turns;
        for (edge, count) in ttft {
            *self.ttft.entry(edge).or_default() += count;
        }
        self.ttft_max = self.ttft_max.max(ttft_max);
        for (place, served) in places {
            self.places.entry(place).or_default().merge(served);
        }
    }

    fn finish(&self) -> Slice {
        let ms = |us: Option<Micros>| us.map(|us| rounded(us.as_ms()));
        Slice {
            turns: self.turns,
            ttft_p50_ms: ms(self.ttft(Quantile::P50)),
            ttft_p90_ms: ms(self.ttft(Quantile::P90)),
            ttft_max_ms: ms(self.ttft_max),
        }
    }

    /// By nearest rank: the middle of its bucket, and never above the maximum.
    fn ttft(&self, q: Quantile) -> Option<Micros> {
        let rank = q.rank_of(self.ttft.values().sum())?;
        let mut seen = 0;
        let (edge, _) = self.ttft.iter().find(|(_, count)| {
            seen += **count;
            seen > rank
        })?;
        Some(Micros(edge + bucket_width(*edge) / 2)).min(self.ttft_max)
    }
}

impl Served {
    fn merge(&mut self, other: Self) {
        let Self { turns, prompt_tokens, cached_tokens } = other;
        self.turns += turns;
        self.prompt_tokens += prompt_tokens;
        self.cached_tokens += cached_tokens;
    }

    /// None where a server counts more cached tokens than prompts have: that is no rate.
    fn hit_rate(self) -> Option<f64> {
        ratio(self.cached_tokens, self.prompt_tokens).filter(|rate| *rate <= 1.0)
    }
}

/// All but the first bits cut off.
fn lower_edge(us: u64) -> u64 {
    us & !(bucket_width(us) - 1)
}

fn bucket_width(us: u64) -> u64 {
    1 << (u64::BITS - us.leading_zeros()).saturating_sub(BITS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::TurnId;
    use crate::units::Rank;

    fn turn(sent: u64, ttft: u64, rank: u16) -> TurnRecord {
        let id = TurnId { group: 0, session: 0, turn: 0 };
        TurnRecord {
            sent_us: Some(Micros(sent)),
            first_us: Some(Micros(sent + ttft)),
            place: Some(Place::Rank(Rank(rank))),
            prompt_tokens: Some(100),
            cached_tokens: Some(40),
            ..TurnRecord::planned("a".into(), id, None, Micros(sent), 1)
        }
    }

    fn of(turns: &[TurnRecord]) -> TimelineTally {
        let mut tally = TimelineTally::default();
        turns.iter().for_each(|turn| tally.add(turn));
        tally
    }

    #[test]
    fn slices_without_turns_are_there_and_say_nothing() {
        let places = [Place::Rank(Rank(0)), Place::Rank(Rank(1))];
        let line = of(&[turn(0, 5_000, 0), turn(50_000, 7_000, 1)]).finish(places.iter());
        assert_eq!(line.slices.iter().map(|slice| slice.turns).collect::<Vec<_>>(), [1, 0, 1]);
        assert_eq!((line.slices[1].ttft_p50_ms, line.slices[2].ttft_max_ms), (None, Some(7.0)));
        assert_eq!(line.places[0].turns, [1, 0, 0]);
        assert_eq!(line.places[1].hit_rate, [None, None, Some(0.4)]);
    }

    #[test]
    fn a_run_of_any_length_has_a_bounded_number_of_slices() {
        let day = 86_400_000_000;
        let long = of(&(0..5_000).map(|n| turn(n * day / 5_000, 1_000, 0)).collect::<Vec<_>>());
        let slices = long.finish([].iter()).slices;
        assert!((50..=100).contains(&slices.len()), "{}", slices.len());
        assert_eq!(slices.iter().map(|slice| slice.turns).sum::<u64>(), 5_000);
    }

    #[test]
    fn many_places_are_not_told_apart() {
        let places: Vec<_> = (0..65).map(|rank| Place::Rank(Rank(rank))).collect();
        assert!(of(&[turn(0, 1, 0)]).finish(places.iter()).places.is_empty());
        assert_eq!(of(&[turn(0, 1, 0)]).finish(places[1..].iter()).places.len(), 64);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn order_and_grouping_of_turns_change_nothing(turns in prop::collection::vec((0..90_000_000_u64, 0..9_000_000_u64, 0..3_u16), 0..40), cut in 0..40_usize) {
            let turns: Vec<_> = turns.iter().map(|(sent, ttft, rank)| turn(*sent, *ttft, *rank)).collect();
            let (one, two) = turns.split_at(cut.min(turns.len()));
            let mut merged = of(two);
            merged.merge(of(one));
            prop_assert_eq!(&merged, &of(&turns));
            let mut turned = turns;
            turned.reverse();
            prop_assert_eq!(merged, of(&turned));
        }

        #[test]
        fn a_median_of_one_is_within_a_hundredth_and_not_above_the_maximum(ttft in 0..3_600_000_000_u64) {
            let slice = of(&[turn(0, ttft, 0)]).finish([].iter()).slices[0];
            let (seen, exact) = (slice.ttft_p50_ms.unwrap() * 1e3, ttft as f64);
            prop_assert!((seen - exact).abs() <= exact / 100.0 + 1.0, "{} {}", seen, exact);
            prop_assert!(slice.ttft_p50_ms <= slice.ttft_max_ms);
        }
    }
}
