//! Where the keys of a plan prefer to go. With few keys this is one draw of many: a comparison of placements is worth as
//! much as the number of keys on each rank.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::oracle::{Observed, observed};
use super::plan::{Plan, precise};
use super::summary::{PlanWarning, own_tokens, rounded, shared_prompts};

/// Turns over the mean above which a rank is called hot.
const HOT: f64 = 1.5;

/// The ranks that keys prefer when nothing is loaded; each list has an entry a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// Distinct keys of the plan.
    pub keys: u64,
    /// The reuse when every turn is served where its key prefers.
    pub expected: Observed,
    /// Share of sessions whose turns prefer more than one rank.
    pub split_share: f64,
    pub keys_per_rank: Vec<u64>,
    pub turns_per_rank: Vec<u64>,
    /// Groups with a turn on that rank.
    pub groups_per_rank: Vec<BTreeSet<u32>>,
}

impl Placement {
    /// Asks `preferred` for the rank (below `ranks`) of each key; `None` when turns carry no key.
    pub(super) fn new(plan: &Plan, ranks: u32, preferred: impl Fn(&str) -> usize) -> Option<Self> {
        let ranks = ranks.max(1) as usize;
        let (mut keys, mut places) = (BTreeMap::new(), BTreeMap::new());
        let mut keys_per_rank = vec![0; ranks];
        let mut turns_per_rank = vec![0; ranks];
        let mut groups_per_rank = vec![BTreeSet::new(); ranks];
        let mut split = 0;
        for session in &plan.sessions {
            let mut visited = BTreeSet::new();
            for (turn, _) in (0u32..).zip(&session.turns) {
                let key = plan.key(session.group, session.session, turn)?;
                let rank = *keys.entry(key).or_insert_with_key(|key: &String| {
                    let rank = preferred(key).min(ranks - 1);
                    keys_per_rank[rank] += 1;
                    rank
                });
                turns_per_rank[rank] += 1;
                groups_per_rank[rank].insert(session.group);
                visited.insert(rank);
                places.insert((session.group, session.session, turn), rank);
            }
            split += u64::from(visited.len() > 1);
        }
        Some(Self {
            keys: keys.len() as u64,
            expected: observed(plan, &places),
            split_share: precise(split) / precise(plan.sessions.len() as u64),
            keys_per_rank,
            turns_per_rank,
            groups_per_rank,
        })
    }

    /// The most that a rank should hold at once: its groups' shared prompts, and its part of the sessions in flight.
    pub(super) fn working_set(&self, plan: &Plan, in_flight: u32) -> u64 {
        let all = precise(self.turns_per_rank.iter().sum());
        let (prompts, own) = (shared_prompts(plan), own_tokens(plan));
        let rank = |groups: &BTreeSet<u32>, turns: u64| {
            let shared: u64 = groups.iter().filter_map(|group| prompts.get(group)).sum();
            precise(shared) + f64::from(in_flight) * own * precise(turns) / all
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
