//! Where the keys of a plan prefer to go. With few keys this is one draw of many: a comparison of placements is worth as
//! much as the number of keys on each rank.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::plan::{Plan, precise};
use super::summary::{PlanWarning, own_tokens, rounded};

/// Turns over the mean above which a rank is called hot.
const HOT: f64 = 1.5;

/// The ranks that keys prefer when nothing is loaded; each list has an entry a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Distinct keys of the plan.
    pub keys: u64,
    pub keys_per_rank: Vec<u64>,
    pub turns_per_rank: Vec<u64>,
    /// Groups with a turn on that rank.
    pub groups_per_rank: Vec<BTreeSet<u32>>,
}

impl Placement {
    /// Asks `preferred` for the rank (below `ranks`) of each key; `None` when turns carry no key.
    pub(super) fn new(plan: &Plan, ranks: u32, preferred: impl Fn(&str) -> usize) -> Option<Self> {
        let ranks = ranks.max(1) as usize;
        let mut placed: BTreeMap<String, usize> = BTreeMap::new();
        let mut placement = Self {
            keys: 0,
            keys_per_rank: vec![0; ranks],
            turns_per_rank: vec![0; ranks],
            groups_per_rank: vec![BTreeSet::new(); ranks],
        };
        for session in &plan.sessions {
            for (turn, _) in (0u32..).zip(&session.turns) {
                let key = plan.key(session.group, session.session, turn)?;
                let rank = *placed.entry(key).or_insert_with_key(|key| {
                    let rank = preferred(key).min(ranks - 1);
                    placement.keys += 1;
                    placement.keys_per_rank[rank] += 1;
                    rank
                });
                placement.turns_per_rank[rank] += 1;
                placement.groups_per_rank[rank].insert(session.group);
            }
        }
        Some(placement)
    }

    /// The most that a rank should hold at once: its groups' system prompts, and its share of the sessions in flight.
    pub(super) fn working_set(&self, plan: &Plan, in_flight: u32) -> u64 {
        let all = precise(self.turns_per_rank.iter().sum());
        let rank = |groups: &BTreeSet<u32>, turns: u64| {
            let shared: u64 = groups.iter().map(|group| u64::from(plan.system_tokens[*group as usize])).sum();
            precise(shared) + f64::from(in_flight) * own_tokens(plan) * precise(turns) / all
        };
        let ranks = self.groups_per_rank.iter().zip(&self.turns_per_rank);
        rounded(ranks.map(|(groups, turns)| rank(groups, *turns)).fold(0.0, f64::max))
    }

    /// The most turns on a rank over the mean, and that rank.
    #[must_use]
    pub fn hottest(&self) -> (u32, f64) {
        let (ranks, turns) = (self.turns_per_rank.len() as u64, self.turns_per_rank.iter().sum());
        let most = (0u32..).zip(&self.turns_per_rank).max_by_key(|(rank, turns)| (**turns, std::cmp::Reverse(*rank)));
        most.map_or((0, 0.0), |(rank, most)| (rank, precise(*most) * precise(ranks) / precise(turns)))
    }

    pub(super) fn warnings(&self) -> Vec<PlanWarning> {
        let ranks = u32::try_from(self.keys_per_rank.len()).unwrap_or(u32::MAX);
        let idle = self.keys_per_rank.iter().filter(|keys| **keys == 0).count() as u64;
        let (rank, over_mean) = self.hottest();
        let idle = (idle > 0).then_some(PlanWarning::IdleRanks { idle, ranks });
        let hot = (over_mean > HOT).then_some(PlanWarning::HotRank { rank, over_mean });
        idle.into_iter().chain(hot).collect()
    }
}
