//! What the workload alone implies about reuse: caches that never evict, so that only the routing can lose a prefix. A
//! measured reuse above [`ideal`] plus the slack proves a warm start; one far below the expectation proves bad routing.
//!
//! A prompt finds in a cache what earlier turns left there: all of its session's latest prompt there and, with real
//! history, the reply but for its last token, whose keys and values never exist; else the group's system prompt, if any
//! turn of the group was there before. Nothing is taken off for page sizes, or for turns in flight at the same time.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::plan::{Plan, SessionPlan, TurnIndex, precise};
use crate::profile::{ArmPrompts, History, Order};

/// Prompt tokens that need no prefill.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Reuse {
    /// Tokens found in a cache.
    pub cached: u64,
    /// Tokens of all prompts.
    pub prompt: u64,
    /// cached / prompt; 0 for no prompt.
    pub ratio: f64,
}

/// What routing without any affinity gives, on average.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RoundRobin {
    pub ranks: u32,
    /// Expected tokens found in a cache, as a share of all prompt tokens.
    pub reuse: f64,
    /// Expected number of (rank, group) pairs that see a turn: each pays its system prompt once.
    pub cold_pairs: f64,
    /// Expected share of sessions whose turns are not all on one rank, 1 − N^−(T−1); absent where all have one turn.
    pub split_share: Option<f64>,
}

/// What the places that turns went to would give.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Observed {
    pub cached: u64,
    /// Tokens of the prompts whose place is known.
    pub prompt: u64,
    /// cached / prompt; 0 for no prompt.
    pub reuse: f64,
    /// Distinct (place, group) pairs.
    pub cold_pairs: u64,
}

/// The most that any routing can reuse: one cache for all.
#[must_use]
pub fn ideal(plan: &Plan) -> Reuse {
    let places = plan
        .sessions
        .iter()
        .flat_map(|session| (0u32..).zip(&session.turns).map(|(turn, _)| ((session.group, session.session, turn), ())));
    let Observed { cached, prompt, reuse, cold_pairs: _ } = observed(plan, &places.collect());
    Reuse { cached, prompt, ratio: reuse }
}

/// The reuse to expect, given where turns went. Turns without a place are left out of both sums.
///
/// Exact for turns that do not overlap, whatever their order between sessions: each distinct (place, group) pair lacks
/// the system prompt once, for whichever turn came first.
#[must_use]
pub fn observed<P: Ord + Clone>(plan: &Plan, places: &BTreeMap<TurnIndex, P>) -> Observed {
    let mut observing = Observing::new(plan);
    for session in &plan.sessions {
        for ((turn, tokens), planned) in (0u32..).zip(prompts(plan, session)).zip(&session.turns) {
            let id = (session.group, session.session, turn);
            observing.add(id, tokens, planned.output_tokens, places.get(&id).cloned());
        }
    }
    observing.observed()
}

/// [`observed`] while turns end, each session's in its order: state grows with the sessions under way and with the
/// (place, group) pairs, not with turns.
#[derive(Debug, Clone)]
pub struct Observing<P> {
    prompts: ArmPrompts,
    history: History,
    turns: u32,
    system_tokens: Vec<u32>,
    cached: u64,
    prompt: u64,
    pairs: BTreeSet<(P, u32)>,
    /// What the sessions under way left at each place.
    left: BTreeMap<(u32, u32), BTreeMap<P, u64>>,
}

impl<P: Ord + Clone> Observing<P> {
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        Self {
            prompts: plan.prompts,
            history: plan.workload.history,
            turns: plan.workload.turns.get(),
            system_tokens: plan.system_tokens.clone(),
            cached: 0,
            prompt: 0,
            pairs: BTreeSet::new(),
            left: BTreeMap::new(),
        }
    }

    /// Adds a turn with the planned lengths of its prompt and its reply, and its place where that is known.
    pub fn add(&mut self, (group, session, turn): TurnIndex, prompt: u64, output: u32, place: Option<P>) {
        let is_last = turn + 1 == self.turns;
        if let Some(place) = place {
            let left = self.left.entry((group, session)).or_default();
            let is_cold = self.pairs.insert((place.clone(), group));
            let system = self.system_tokens.get(group as usize).copied().map_or(0, u64::from);
            self.prompt += prompt;
            let is_cold = is_cold || self.prompts == ArmPrompts::ZeroReuse;
            self.cached += if is_cold { 0 } else { left.get(&place).copied().unwrap_or(system) };
            left.insert(place, remains_of(self.history, prompt, output));
        }
        if is_last {
            self.end(group, session);
        }
    }

    /// A session ends before its last turn.
    pub fn end(&mut self, group: u32, session: u32) {
        self.left.remove(&(group, session));
    }

    /// The reuse to expect of the turns so far.
    #[must_use]
    pub fn observed(&self) -> Observed {
        let Self { cached, prompt, pairs, .. } = self;
        let reuse = share(precise(*cached), *prompt);
        Observed { cached: *cached, prompt: *prompt, reuse, cold_pairs: pairs.len() as u64 }
    }
}

/// The expectation for round robin over `ranks` ranks (0 counts as 1).
///
/// - One turn a session, shuffled: a counter deals a random order out evenly, so the turns of a group that meet one rank
///   are hypergeometric: D = Σ over ranks, groups of 1 − C(R−P, m) / C(R, m), for R turns, P of the group, m on the rank.
/// - One turn a session, group by group: neighbours go to different ranks, D = Σ min(P, N).
/// - More turns: which rank a later turn meets depends on when the earlier one ended, so ranks are taken as independent
///   and even: D = Σ N·(1 − (1−1/N)^(P·T)), and turn k finds what turn j < k left with probability (1/N)·(1−1/N)^(k−1−j).
///
/// A counter that keeps step with the sessions makes false affinity; [`aliasing`] says when to expect it.
#[must_use]
pub fn round_robin(plan: &Plan, ranks: u32) -> RoundRobin {
    let ranks = ranks.max(1);
    let miss = 1.0 - 1.0 / f64::from(ranks);
    let (mut cached, mut cold_pairs, mut split, mut prompt) = (0.0, 0.0, 0.0, 0);
    for session in &plan.sessions {
        // The expected tokens that the latest turn at a random rank left there, or the system prompt.
        let mut found = f64::from(plan.system_tokens[session.group as usize]);
        for (tokens, remains) in prompts(plan, session).zip(remains(plan, session)) {
            prompt += tokens;
            cached += found;
            found = found * miss + precise(remains) * (1.0 - miss);
        }
        split += 1.0 - (1.0 - miss).powf(precise(session.turns.len() as u64 - 1));
    }
    for (group, ranks_met) in cold_ranks(plan, ranks) {
        cold_pairs += ranks_met;
        cached -= ranks_met * f64::from(plan.system_tokens[group as usize]);
    }
    if plan.prompts == ArmPrompts::ZeroReuse {
        cached = 0.0;
    }
    let split_share = (plan.workload.turns.get() > 1).then(|| split / precise(plan.sessions.len() as u64));
    RoundRobin { ranks, reuse: share(cached, prompt), cold_pairs, split_share }
}

/// A cycle that keeps step with the ranks, so that round robin may look like affinity or its opposite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aliasing {
    /// The limit of sessions in flight is a multiple of the ranks.
    Concurrency(u32),
    /// The number of sessions is a multiple of the ranks.
    Sessions(u32),
}

/// What may alias when the turns of `plan` are dealt out in turn to `ranks` ranks, `in_flight` sessions at a time.
///
/// Only later turns can: the first turns of a shuffled plan fall as they may.
#[must_use]
pub fn aliasing(plan: &Plan, in_flight: Option<u32>, ranks: u32) -> Vec<Aliasing> {
    if ranks < 2 || plan.workload.turns.get() < 2 {
        return Vec::new();
    }
    let sessions = u32::try_from(plan.sessions.len()).unwrap_or(u32::MAX);
    let in_flight =
        in_flight.filter(|limit| *limit < sessions && limit.is_multiple_of(ranks)).map(Aliasing::Concurrency);
    let all = sessions.is_multiple_of(ranks).then_some(Aliasing::Sessions(sessions));
    in_flight.into_iter().chain(all).collect()
}

/// Tokens of each prompt of a session.
fn prompts<'a>(plan: &Plan, session: &'a SessionPlan) -> impl Iterator<Item = u64> + use<'a> {
    let mut history = u64::from(plan.system_tokens[session.group as usize]);
    session.turns.iter().map(move |turn| {
        let prompt = history + u64::from(turn.question_tokens);
        history = prompt + u64::from(turn.output_tokens);
        prompt
    })
}

/// What each turn of a session leaves in its cache for the next ones.
fn remains<'a>(plan: &Plan, session: &'a SessionPlan) -> impl Iterator<Item = u64> + use<'a> {
    let history = plan.workload.history;
    prompts(plan, session)
        .zip(&session.turns)
        .map(move |(prompt, turn)| remains_of(history, prompt, turn.output_tokens))
}

fn remains_of(history: History, prompt: u64, output: u32) -> u64 {
    match history {
        History::Real => prompt + u64::from(output.saturating_sub(1)),
        History::Synthetic | History::Recorded => prompt,
    }
}

/// For each group with a session, the expected number of ranks that round robin lets see it.
pub(super) fn cold_ranks(plan: &Plan, ranks: u32) -> BTreeMap<u32, f64> {
    let turns = turns_per_group(plan);
    let all = turns.values().sum();
    turns.into_iter().map(|(group, turns)| (group, ranks_met(plan, ranks, turns, all))).collect()
}

fn turns_per_group(plan: &Plan) -> BTreeMap<u32, u64> {
    let mut turns = BTreeMap::new();
    for session in &plan.sessions {
        *turns.entry(session.group).or_default() += session.turns.len() as u64;
    }
    turns
}

/// The expected number of ranks that see one of the `turns` turns of a group, of `all` turns.
fn ranks_met(plan: &Plan, ranks: u32, turns: u64, all: u64) -> f64 {
    let one_each = plan.workload.turns.get() == 1;
    match (one_each, plan.workload.order) {
        (true, Order::Grouped) => precise(turns.min(ranks.into())),
        (true, Order::Shuffled) => {
            let (even, more) = (all / u64::from(ranks), all % u64::from(ranks));
            let met = |dealt| 1.0 - none_drawn(all, turns, dealt);
            precise(more) * met(even + 1) + (f64::from(ranks) - precise(more)) * met(even)
        }
        (false, _) => f64::from(ranks) * (1.0 - (1.0 - 1.0 / f64::from(ranks)).powf(precise(turns))),
    }
}

/// C(all − group, dealt) / C(all, dealt): the chance that none of `dealt` turns drawn from `all` is one of `group`.
fn none_drawn(all: u64, group: u64, dealt: u64) -> f64 {
    // The fraction is symmetric in group and dealt; the shorter product is exact enough and quicker.
    let (few, many) = (group.min(dealt), group.max(dealt));
    (0..few).map(|k| precise((all - k).saturating_sub(many)) / precise(all - k)).product()
}

fn share(cached: f64, prompt: u64) -> f64 {
    if prompt == 0 { 0.0 } else { cached / precise(prompt) }
}

#[cfg(test)]
mod tests;
