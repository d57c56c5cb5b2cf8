//! A plan before any server is asked: what it sends, what reuse it allows, whether caches hold it, how long it takes.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::oracle::{Aliasing, Reuse, RoundRobin, aliasing, cold_ranks, ideal, round_robin};
use super::placement::Placement;
use super::plan::{Plan, SessionPlan, Totals, precise};
use super::prompt::Prompter;
use super::router_key::RouterKey;
use crate::profile::{KeyScope, Length, Order, Pacing, RunSpec};

/// All that `gspbench plan` shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanSummary {
    pub name: String,
    pub digest: String,
    pub seed: u64,
    pub totals: Totals,
    pub turns_per_session: u32,
    pub system_tokens: Length,
    pub question_tokens: Length,
    pub output_tokens: Length,
    pub order: Order,
    pub pacing: Pacing,
    /// The run is cut here if the plan has not ended before.
    pub duration: Option<Duration>,
    /// Sessions in flight at once: the limit, or for an open loop without one the rate times a session's least time.
    pub in_flight: u32,
    pub key_by: KeyScope,
    pub ranks: u32,
    /// Where the keys prefer to go; absent without keys.
    pub placement: Option<Placement>,
    pub ideal: Reuse,
    pub round_robin: RoundRobin,
    pub working_set: WorkingSet,
    pub run_time: RunTime,
    /// What a router that looks at the prompt makes of it; absent where none does.
    pub router_key: Option<RouterKey>,
    pub warnings: Vec<PlanWarning>,
}

/// Tokens that one rank's cache should hold at once so that nothing is lost that will be asked for again: the shared system
/// prompts of its groups, and all that the sessions in flight have of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingSet {
    pub kv_tokens_per_rank: u64,
    /// On the rank where keys put the most; absent without keys.
    pub affinity: Option<u64>,
    /// On any rank, in expectation.
    pub round_robin: u64,
}

/// The least time a run can take on a machine of the given costs, in seconds.
///
/// Prefill: tokens that no cache holds × `per_token`, and `prefill_base` for each step of `chunk` tokens a rank. Decoding:
/// output tokens after the first, `in_flight` at a time, a step each of `decode_base` + `per_token` × the padded batch. An
/// open loop lasts at least from the first arrival to the end of the last session.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RunTime {
    /// With one cache for all.
    pub ideal_s: f64,
    /// With every turn where its key prefers; absent without keys.
    pub affinity_s: Option<f64>,
    pub round_robin_s: f64,
}

/// What a step of all ranks costs; see [`RunTime`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepCost {
    pub decode_base: Duration,
    pub prefill_base: Duration,
    pub per_token: Duration,
    /// Prefill tokens of one rank in one step.
    pub chunk: u32,
}

/// What the reader should know before spending GPU time on the plan.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum PlanWarning {
    /// No prompt repeats anything.
    NoReuse,
    /// Every rank can hold all prefixes: only first meetings differ.
    FitsEverywhere { cold_round_robin: f64, cold_affinity: u64 },
    /// Round robin evicts what affinity keeps.
    RoundRobinThrashes { wanted: u64, held: u64 },
    /// Not even affinity fits.
    AffinityThrashes { wanted: u64, held: u64 },
    /// Some ranks have no key.
    IdleRanks { idle: u64, ranks: u32 },
    /// One rank has many more turns than the mean.
    HotRank { rank: u32, over_mean: f64 },
    /// Keys of sessions send the sessions of a group to several ranks, each of which reads the group's prompt.
    GroupsScattered { cold_pairs: u64, groups: u64 },
    /// A router that takes its key from the prompt sees one key, or another one in each turn.
    RouterKey { key: RouterKey },
    /// Round robin may keep step with the sessions.
    Aliasing { cycle: Aliasing, ranks: u32 },
}

impl PlanSummary {
    /// Sums up the plan of `prompter`, made from `spec`. `preferred` says which of the ranks `0..server.ranks` a key goes to
    /// when nothing is loaded.
    #[must_use]
    pub fn new(spec: &RunSpec, prompter: &Prompter, cost: StepCost, preferred: impl Fn(&str) -> usize) -> Self {
        let plan = &**prompter.plan();
        let ranks = spec.server.ranks.get();
        let placement = Placement::new(plan, ranks, preferred);
        let in_flight = in_flight(spec, plan, cost);
        let (ideal, round_robin) = (ideal(plan), round_robin(plan, ranks));
        let cached_round_robin = round_robin.reuse * precise(ideal.prompt);
        let working_set = WorkingSet {
            kv_tokens_per_rank: spec.server.kv_tokens_per_rank,
            affinity: placement.as_ref().map(|placement| placement.working_set(plan, in_flight)),
            round_robin: spread_working_set(plan, ranks, in_flight),
        };
        let time = |cached| run_time(plan, cost, ranks, in_flight, precise(ideal.prompt) - cached);
        let run_time = RunTime {
            ideal_s: time(precise(ideal.cached)),
            affinity_s: placement.as_ref().map(|placement| time(precise(placement.expected.cached))),
            round_robin_s: time(cached_round_robin),
        };
        let mut summary = Self {
            name: spec.name.clone(),
            digest: plan.digest.clone(),
            seed: plan.workload.seed,
            totals: plan.totals(),
            turns_per_session: plan.workload.turns.get(),
            system_tokens: plan.workload.system_tokens,
            question_tokens: plan.workload.question_tokens,
            output_tokens: plan.workload.output_tokens,
            order: plan.workload.order,
            pacing: spec.load.pacing,
            duration: spec.load.duration,
            in_flight,
            key_by: plan.key.by,
            ranks,
            placement,
            ideal,
            round_robin,
            working_set,
            run_time,
            router_key: RouterKey::of(prompter),
            warnings: Vec::new(),
        };
        summary.warnings = summary.warn(plan);
        summary
    }

    fn warn(&self, plan: &Plan) -> Vec<PlanWarning> {
        let held = self.working_set.kv_tokens_per_rank;
        let mut warnings = Vec::new();
        if self.ideal.cached == 0 {
            warnings.push(PlanWarning::NoReuse);
        }
        match (self.working_set.affinity, self.working_set.round_robin) {
            (Some(wanted), _) if wanted > held => warnings.push(PlanWarning::AffinityThrashes { wanted, held }),
            (_, wanted) if wanted > held => warnings.push(PlanWarning::RoundRobinThrashes { wanted, held }),
            _ => warnings.push(PlanWarning::FitsEverywhere {
                cold_round_robin: self.round_robin.cold_pairs,
                cold_affinity: self.placement.as_ref().map_or(self.totals.groups, |p| p.expected.cold_pairs),
            }),
        }
        warnings.extend(self.placement.iter().flat_map(Placement::warnings));
        let scattered = self.placement.as_ref().map(|placement| placement.expected.cold_pairs);
        let scattered = scattered.filter(|pairs| self.key_by == KeyScope::Session && *pairs > self.totals.groups);
        warnings.extend(
            scattered.map(|cold_pairs| PlanWarning::GroupsScattered { cold_pairs, groups: self.totals.groups }),
        );
        let router_key = self.router_key.filter(|key| key.collapses() || !key.is_stable);
        warnings.extend(router_key.map(|key| PlanWarning::RouterKey { key }));
        let limit = matches!(self.pacing, Pacing::Closed { .. }).then_some(self.in_flight);
        let cycles = aliasing(plan, limit, self.ranks).into_iter();
        warnings.extend(cycles.map(|cycle| PlanWarning::Aliasing { cycle, ranks: self.ranks }));
        warnings
    }
}

fn in_flight(spec: &RunSpec, plan: &Plan, cost: StepCost) -> u32 {
    let all = u32::try_from(plan.sessions.len()).unwrap_or(u32::MAX);
    let limit = match spec.load.pacing {
        Pacing::Closed { sessions } | Pacing::Open { sessions: Some(sessions), .. } => sessions.get(),
        Pacing::Open { per_second, gaps: _, sessions: None } => {
            count(per_second * session_time(plan, cost, spec.server.ranks.get()))
        }
    };
    limit.clamp(1, all.max(1))
}

/// A mean session alone on the machine, from its first prefill to its last token.
fn session_time(plan: &Plan, cost: StepCost, ranks: u32) -> f64 {
    let totals = plan.totals();
    let (sessions, turns) = (precise(totals.sessions), precise(totals.turns));
    let step = cost.decode_base.as_secs_f64() + cost.per_token.as_secs_f64() * f64::from(ranks);
    let thinking = (turns - sessions) * plan.think.as_secs_f64();
    (turns * cost.prefill_base.as_secs_f64() + (precise(totals.output_tokens) - turns) * step + thinking) / sessions
}

fn run_time(plan: &Plan, cost: StepCost, ranks: u32, in_flight: u32, prefill: f64) -> f64 {
    let totals = plan.totals();
    let per_token = cost.per_token.as_secs_f64();
    let steps = (prefill / (f64::from(cost.chunk.max(1)) * f64::from(ranks))).ceil();
    let batch = f64::from(in_flight.div_ceil(ranks)) * f64::from(ranks);
    let decode_steps = precise(totals.output_tokens - totals.turns) / f64::from(in_flight);
    let thinking = precise(totals.turns - totals.sessions) * plan.think.as_secs_f64() / f64::from(in_flight);
    let busy = prefill * per_token
        + steps * cost.prefill_base.as_secs_f64()
        + decode_steps * (cost.decode_base.as_secs_f64() + per_token * batch)
        + thinking;
    let last = plan.sessions.last().and_then(|session| session.arrival);
    let scheduled = last.map_or(0.0, |last| last.as_secs_f64() + session_time(plan, cost, ranks));
    busy.max(scheduled)
}

/// What a rank should hold when turns go anywhere: every shared prompt that it will have met, and each session in flight
/// if it has been there.
fn spread_working_set(plan: &Plan, ranks: u32, in_flight: u32) -> u64 {
    let met = cold_ranks(plan, ranks);
    let shared: f64 = shared_prompts(plan).iter().map(|(group, tokens)| met[group] * precise(*tokens)).sum();
    let visits = 1.0 - (1.0 - 1.0 / f64::from(ranks)).powf(f64::from(plan.workload.turns.get()));
    rounded(shared / f64::from(ranks) + f64::from(in_flight) * visits * own_tokens(plan))
}

/// Tokens of the system prompts that more than one session has. That of a lone session is its own, and done with it.
pub(super) fn shared_prompts(plan: &Plan) -> BTreeMap<u32, u64> {
    let mut sessions: BTreeMap<u32, u32> = BTreeMap::new();
    plan.sessions.iter().for_each(|session| *sessions.entry(session.group).or_default() += 1);
    let shared = sessions.into_iter().filter(|(_, sessions)| *sessions > 1);
    shared.map(|(group, _)| (group, u64::from(plan.system_tokens[group as usize]))).collect()
}

/// Mean tokens that a session ends with beside a shared system prompt.
pub(super) fn own_tokens(plan: &Plan) -> f64 {
    let shared = shared_prompts(plan);
    let own = |session: &SessionPlan| {
        let lone = if shared.contains_key(&session.group) { 0 } else { plan.system_tokens[session.group as usize] };
        let turns = session.turns.iter().map(|turn| u64::from(turn.question_tokens) + u64::from(turn.output_tokens));
        u64::from(lone) + turns.sum::<u64>()
    };
    precise(plan.sessions.iter().map(own).sum()) / precise(plan.sessions.len() as u64)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sum of lengths, never below 0")]
pub(super) fn rounded(tokens: f64) -> u64 {
    tokens.round() as u64
}

fn count(sessions: f64) -> u32 {
    u32::try_from(rounded(sessions.ceil())).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
