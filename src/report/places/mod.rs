//! What depends on where turns were served and on what their server says of them: rows by place, affinity, the split of the
//! time to first token. Apart from the rest, since places may become known only after the run.

pub(super) mod affinity;
mod placement;
mod split;
mod spread;
mod subtotal;
mod timeline;

use std::collections::BTreeMap;

use super::audit;
use super::cold::{self, Beginnings};
use super::server::CounterDelta;
use super::shape::{ObservedOracle, PlaceRow, RunReport};
use crate::profile::{Popularity, RunSpec};
use crate::record::{CounterRole, Oddity, Place, TurnRecord};
use crate::units::Rank;

pub use placement::{GroupPlaces, Placement};
pub use split::TtftSplit;
pub use timeline::{PlaceSlices, Slice, Timeline};

use affinity::{Affinity, AffinityTally, Follow, Spilled, SpilledAt};
use placement::PlacementTally;
use split::SplitTally;
use subtotal::Subtotal;
use timeline::TimelineTally;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Places {
    places: BTreeMap<Place, Subtotal>,
    affinity: AffinityTally,
    split: SplitTally,
    placement: PlacementTally,
    timeline: TimelineTally,
    /// Of each group at each place; where that is unknown, at any.
    beginnings: Beginnings<(Option<Place>, u32)>,
    slack: u32,
    reports_cached: bool,
}

/// The parts of a report that [`Places`] makes.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) ranks: Vec<PlaceRow>,
    pub(super) affinity: Affinity,
    pub(super) ttft_split: Option<TtftSplit>,
    pub(super) placement: Placement,
    pub(super) timeline: Timeline,
}

impl Places {
    pub(super) fn new(spec: &RunSpec, page_tokens: Option<u32>) -> Self {
        let follow = Follow {
            key_by: spec.key.by,
            api: spec.request.api,
            turns: spec.workload.turns.get(),
            place_field: spec.request.place_field,
            slack: cold::slack(page_tokens),
            is_skewed: spec.workload.popularity != Popularity::Uniform,
        };
        Self {
            places: BTreeMap::new(),
            affinity: AffinityTally::new(follow),
            split: SplitTally::default(),
            placement: PlacementTally::default(),
            timeline: TimelineTally::default(),
            beginnings: Beginnings::default(),
            slack: follow.slack,
            reports_cached: false,
        }
    }

    /// Adds a complete turn.
    pub(super) fn add(&mut self, turn: &TurnRecord) {
        self.affinity.add(turn);
        self.split.add(turn);
        self.placement.add(turn);
        self.timeline.add(turn);
        self.beginnings.add((turn.place.clone(), turn.group), turn);
        self.reports_cached |= turn.cached_tokens.is_some();
        if let Some(place) = &turn.place {
            self.places.entry(place.clone()).or_default().add(turn);
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self { places, affinity, split, placement, timeline, beginnings, slack: _, reports_cached } = other;
        for (place, subtotal) in places {
            self.places.entry(place).or_default().merge(&subtotal);
        }
        self.affinity.merge(affinity);
        self.split.merge(&split);
        self.placement.merge(placement);
        self.timeline.merge(timeline);
        self.beginnings.merge(beginnings);
        self.reports_cached |= reports_cached;
    }

    /// With the server's number of ranks and its counters, and the turns that a pin sent past their preferred place.
    pub(super) fn finish(&self, ranks: Option<u32>, counters: &[CounterDelta], pinned: Option<u64>) -> Parts {
        let ranks = self.rows(ranks);
        let loads: Vec<_> = ranks.iter().map(|row| (row.place.clone(), row.turns)).collect();
        let pinned = pinned.map(|turns| Spilled { turns, from: "pin".into(), by_place: vec![] });
        let spilled = pinned.or_else(|| simulator_spills(counters));
        let overlap_tokens = self.reports_cached.then(|| self.beginnings.overlap(self.slack));
        let affinity = Affinity { spilled, overlap_tokens, ..self.affinity.finish(&loads) };
        let placement = self.placement.finish(ranks.iter().map(|row| &row.place));
        let timeline = self.timeline.finish(ranks.iter().map(|row| &row.place));
        Parts { ranks, affinity, ttft_split: self.split.finish(), placement, timeline }
    }

    /// A row a place; ranks that served nothing have one too, once any turn names its rank.
    fn rows(&self, ranks: Option<u32>) -> Vec<PlaceRow> {
        let served = self.places.iter().map(|(place, subtotal)| (place.clone(), subtotal.row(place.clone())));
        let mut rows: BTreeMap<Place, PlaceRow> = served.collect();
        if rows.keys().any(|place| matches!(place, Place::Rank(_))) {
            for rank in (0..ranks.unwrap_or(0)).filter_map(|rank| u16::try_from(rank).ok()).map(Rank) {
                rows.entry(Place::Rank(rank)).or_insert_with(|| idle(Place::Rank(rank)));
            }
        }
        rows.into_values().collect()
    }
}

/// The row of a rank that served nothing. It has no histogram: there may be thousands of such ranks.
fn idle(place: Place) -> PlaceRow {
    PlaceRow {
        place,
        turns: 0,
        prompt_tokens: None,
        cached_tokens: None,
        hit_rate: None,
        output_tokens: None,
        ttft_ms: None,
        ttft_us: None,
    }
}

/// Our own simulator counts the turns that its policy sent elsewhere than where their key belongs.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of turns; casts saturate")]
fn simulator_spills(counters: &[CounterDelta]) -> Option<Spilled> {
    let spills: Vec<(Option<&Place>, f64)> = counters
        .iter()
        .filter(|counter| counter.role == Some(CounterRole::Spills))
        .map(|counter| Some((counter.place.as_ref(), counter.delta?)))
        .collect::<Option<_>>()?;
    let turns = |spilled: f64| spilled.round() as u64;
    let by_place = spills.iter().filter_map(|(place, spilled)| {
        Some(SpilledAt { place: (*place)?.clone(), turns: turns(*spilled) }).filter(|at| at.turns > 0)
    });
    (!spills.is_empty()).then(|| Spilled {
        turns: turns(spills.iter().map(|(_, spilled)| spilled).sum()),
        from: "simulator".into(),
        by_place: by_place.collect(),
    })
}

/// Makes the parts of a saved report anew whose turns have learned their places after the run.
#[derive(Debug)]
pub struct Attributing {
    report: RunReport,
    placed: Places,
    /// Complete turns that were served elsewhere than this program had placed them.
    misplaced: u64,
}

impl Attributing {
    #[must_use]
    pub fn new(report: RunReport) -> Self {
        let placed = Places::new(&report.manifest.spec, report.server.page_tokens);
        Self { report, placed, misplaced: 0 }
    }

    /// Adds one turn of the run, however it ended.
    pub fn add(&mut self, turn: &TurnRecord) {
        if turn.outcome.is_complete() {
            self.placed.add(turn);
            self.misplaced += u64::from(turn.oddities.contains(&Oddity::PinIgnored));
        }
    }

    /// The report with these places, judged again; `observed` is the reuse that they allow.
    #[must_use]
    pub fn finish(self, observed: Option<ObservedOracle>) -> RunReport {
        let Self { mut report, placed, misplaced } = self;
        let Parts { ranks, affinity, ttft_split, placement, timeline } =
            placed.finish(report.server.ranks, &report.server.counters, None);
        report.workload.oracle.observed = observed;
        if misplaced > 0 {
            report.totals.oddities.insert(Oddity::PinIgnored.to_string(), misplaced);
        }
        report.ranks = ranks;
        // Who counted them has not changed its mind.
        report.affinity = Affinity { spilled: report.affinity.spilled, ..affinity };
        report.ttft_split = ttft_split;
        report.placement = placement;
        report.timeline = timeline;
        report.validity = audit::judge(&report);
        report
    }
}
