//! Where the keys of a plan prefer to go. With few keys this is one draw of many: a comparison of placements is worth as
//! much as the number of keys on each rank.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::oracle::{Observed, observed};
use super::plan::{Plan, SessionPlan, precise};
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

/// Where a router that knows the whole plan sends each session (group, session), of places 0 to `places` − 1: groups stay
/// whole, so that each prefix is read once, and the places get about the same work.
///
/// Only a group with the work of several places is split over as many. Groups go, the largest first, to the place with the
/// least work so far (Graham's LPT rule, at most a third above the best balance). Work is what no cache can save: a group's
/// system prompt once at each of its places, and the questions and replies of its sessions.
///
/// It is no bound: with fewer groups than places some places idle unless a group has the work of two, and a placement that
/// cuts groups further, at the price of a system prompt for each cut, may end sooner.
#[must_use]
pub fn oracle_places(plan: &Plan, places: usize) -> BTreeMap<(u32, u32), usize> {
    let places = places.max(1);
    let mut groups: BTreeMap<u32, Vec<&SessionPlan>> = BTreeMap::new();
    plan.sessions.iter().for_each(|session| groups.entry(session.group).or_default().push(session));
    let all: u64 = groups.iter().map(|(group, sessions)| work(plan, *group, sessions)).sum();
    let mut parts: Vec<(u64, u32, Vec<&SessionPlan>)> = Vec::new();
    for (group, sessions) in groups {
        let share = work(plan, group, &sessions) * places as u64 / all.max(1);
        let pieces = usize::try_from(share).unwrap_or(places).clamp(1, places.min(sessions.len()));
        for piece in 0..pieces {
            let own: Vec<_> = sessions.iter().skip(piece).step_by(pieces).copied().collect();
            parts.push((work(plan, group, &own), group, own));
        }
    }
    parts.sort_by_key(|(work, group, _)| (std::cmp::Reverse(*work), *group));
    let mut loads = vec![0_u64; places];
    let mut placed = BTreeMap::new();
    for (work, _, sessions) in parts {
        let at = (0..places).min_by_key(|at| (loads[*at], *at)).unwrap_or(0);
        loads[at] += work;
        placed.extend(sessions.into_iter().map(|session| ((session.group, session.session), at)));
    }
    placed
}

fn work(plan: &Plan, group: u32, sessions: &[&SessionPlan]) -> u64 {
    let turns = sessions.iter().flat_map(|session| &session.turns);
    let own = turns.map(|turn| u64::from(turn.question_tokens) + u64::from(turn.output_tokens));
    u64::from(plan.system_tokens[group as usize]) + own.sum::<u64>()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::profile::sample::spec;
    use crate::text::Vocabulary;
    use crate::workload::{ideal, plan};

    fn placed(groups: u32, sessions: u32, places: usize) -> (Plan, BTreeMap<(u32, u32), usize>) {
        let plan = plan(&spec(groups, sessions, 2, 64, 8, 5), &Vocabulary::words()).unwrap();
        let placed = oracle_places(&plan, places);
        (plan, placed)
    }

    fn reuse(plan: &Plan, placed: &BTreeMap<(u32, u32), usize>) -> f64 {
        let turns = placed.iter().flat_map(|((group, session), at)| [0, 1].map(|turn| ((*group, *session, turn), *at)));
        observed(plan, &turns.collect()).reuse
    }

    #[test]
    fn whole_groups_reach_the_ideal_reuse_and_even_work() {
        let (plan, placed) = placed(8, 6, 4);
        assert!((reuse(&plan, &placed) - ideal(&plan).ratio).abs() < 1e-12);
        let mut per_place = [0; 4];
        placed.values().for_each(|at| per_place[*at] += 1);
        assert_eq!(per_place, [12; 4]);
    }

    #[test]
    fn fewer_groups_than_places_are_split_so_that_none_idles() {
        let (_, placed) = placed(2, 8, 4);
        let mut places: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
        placed.iter().for_each(|((group, _), at)| {
            places.entry(*at).or_default().insert(*group);
        });
        assert_eq!(places.len(), 4);
        assert!(places.values().all(|groups| groups.len() == 1), "{places:?}");
    }

    #[test]
    fn a_group_with_the_work_of_less_than_two_places_stays_whole_though_places_idle() {
        let (plan, placed) = placed(3, 8, 4);
        let places: BTreeSet<usize> = placed.values().copied().collect();
        assert_eq!(places.len(), 3, "one idles");
        assert!((reuse(&plan, &placed) - ideal(&plan).ratio).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn every_session_has_one_place_of_those_there_are(
            groups in 1_u32..9, sessions in 1_u32..7, places in 0_usize..12,
        ) {
            let (plan, placed) = placed(groups, sessions, places);
            prop_assert_eq!(placed.len(), plan.sessions.len());
            prop_assert!(placed.values().all(|at| *at < places.max(1)));
        }
    }
}
