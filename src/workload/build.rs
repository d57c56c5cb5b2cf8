//! From a checked specification to a plan: who asks what, how long, when. Nothing is drawn from a shared generator.

use std::collections::BTreeSet;

use super::arrival;
use super::digest::digest;
use super::plan::{Plan, SessionPlan, TurnPlan};
use super::prompt::Seat;
use super::seed::{derive, fraction, length};
use crate::profile::{ArmPrompts, Order, Popularity, RunSpec, WorkloadSpec};
use crate::text::Vocabulary;

/// Why a specification has no plan; each names the profile key and the way out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error(
        "a prompt may reach {tokens} tokens, more than can be counted: make system_tokens, question_tokens or turns smaller"
    )]
    TooLong { tokens: u64 },
    #[error(
        "workload.{key} of {tokens} tokens gives only {distinct} different texts, so that prompts would repeat: make it \
         longer"
    )]
    Repeats { key: &'static str, tokens: u32, distinct: u64 },
}

/// Plans every turn of a run.
///
/// # Errors
/// When the specification asks for what cannot be: see [`PlanError`].
pub fn plan(spec: &RunSpec, vocabulary: &Vocabulary) -> Result<Plan, PlanError> {
    let workload = &spec.workload;
    check(workload)?;
    let seats = seats(workload);
    let arrivals = arrival::arrivals(workload.seed, &spec.load, seats.len());
    let sessions = seats.iter().enumerate().map(|(at, seat)| SessionPlan {
        group: seat.group,
        session: seat.session,
        arrival: arrivals.as_ref().map(|all| all[at]),
        turns: (0..workload.turns.get()).map(|turn| turn_plan(workload, *seat, turn)).collect(),
    });
    let mut plan = Plan {
        workload: workload.clone(),
        key: spec.key.clone(),
        request: spec.request.clone(),
        think: spec.load.think,
        system_tokens: (0..workload.groups.get())
            .map(|group| length(derive(workload.seed, "system_tokens", &[group.into()]), workload.system_tokens))
            .collect(),
        sessions: sessions.collect(),
        prompts: ArmPrompts::Plan,
        digest: String::new(),
    };
    check_distinct(&plan, vocabulary)?;
    plan.digest = digest(&plan, vocabulary);
    Ok(plan)
}

fn turn_plan(workload: &WorkloadSpec, seat: Seat, turn: u32) -> TurnPlan {
    let indices = [seat.group.into(), seat.session.into(), turn.into()];
    TurnPlan {
        question_tokens: length(derive(workload.seed, "question_tokens", &indices), workload.question_tokens),
        output_tokens: length(derive(workload.seed, "output_tokens", &indices), workload.output_tokens),
    }
}

/// The sessions in send order.
fn seats(workload: &WorkloadSpec) -> Vec<Seat> {
    let mut seats = match workload.popularity {
        Popularity::Uniform => (0..workload.groups.get())
            .flat_map(|group| (0..workload.sessions_per_group.get()).map(move |session| Seat { group, session }))
            .collect(),
        Popularity::Zipf(exponent) => zipf_seats(workload, exponent),
    };
    match workload.order {
        Order::Grouped => seats.sort_by_key(|seat| (seat.group, seat.session)),
        Order::Shuffled => seats.sort_by_cached_key(|seat| {
            let (group, session) = (seat.group, seat.session);
            (derive(workload.seed, "order", &[group.into(), session.into()]), group, session)
        }),
    }
    seats
}

/// Every session draws its group by itself; the sessions of a group are numbered as they come.
fn zipf_seats(workload: &WorkloadSpec, exponent: f64) -> Vec<Seat> {
    let mut total = 0.0;
    let cumulative: Vec<f64> = (0..workload.groups.get())
        .map(|group| {
            total += (f64::from(group) + 1.0).powf(-exponent);
            total
        })
        .collect();
    let mut sessions = vec![0; cumulative.len()];
    let slots = u64::from(workload.groups.get()) * u64::from(workload.sessions_per_group.get());
    (0..slots)
        .map(|slot| {
            let drawn = fraction(derive(workload.seed, "popularity", &[slot])) * total;
            let at = cumulative.partition_point(|sum| *sum <= drawn).min(cumulative.len() - 1);
            sessions[at] += 1;
            Seat { group: u32::try_from(at).expect("groups are counted in u32"), session: sessions[at] - 1 }
        })
        .collect()
}

/// What only the sizes together show; everything else is checked where the specification is made.
fn check(workload: &WorkloadSpec) -> Result<(), PlanError> {
    let turn = u64::from(workload.question_tokens.max) + u64::from(workload.output_tokens.max);
    let tokens = turn.saturating_mul(workload.turns.get().into()).saturating_add(workload.system_tokens.max.into());
    if tokens > u32::MAX.into() {
        return Err(PlanError::TooLong { tokens });
    }
    Ok(())
}

/// Refuses a plan in which two groups, or two sessions, would send the same text: reuse would then be more than planned.
fn check_distinct(plan: &Plan, vocabulary: &Vocabulary) -> Result<(), PlanError> {
    let repeats = |key, tokens| PlanError::Repeats { key, tokens, distinct: vocabulary.distinct(tokens) };
    let mut systems = BTreeSet::new();
    for (group, &tokens) in (0u64..).zip(&plan.system_tokens) {
        if tokens > 0 && !systems.insert((tokens, group % vocabulary.distinct(tokens))) {
            return Err(repeats("system_tokens", tokens));
        }
    }
    let mut first_questions = BTreeSet::new();
    for session in &plan.sessions {
        let shared = plan.system_tokens[session.group as usize] > 0;
        let tokens = session.turns[0].question_tokens;
        let text = Seat { group: session.group, session: session.session }.ordinal() % vocabulary.distinct(tokens);
        if !first_questions.insert((shared.then_some(session.group), tokens, text)) {
            return Err(repeats("question_tokens", tokens));
        }
    }
    Ok(())
}
