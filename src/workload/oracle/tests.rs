//! The published numbers, and a brute-force second opinion: caches that hold every prefix as a list of tokens.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::profile::sample::spec;
use crate::profile::{Length, Popularity, RunSpec};
use crate::text::Vocabulary;
use crate::workload::plan;

fn planned(spec: &RunSpec) -> Plan {
    plan(spec, &Vocabulary::words()).unwrap()
}

fn near(value: f64, want: f64, within: f64) {
    assert!((value - want).abs() <= within, "{value} is not {want} ± {within}");
}

/// Every turn as the tokens it sends, in an order that keeps each session's own.
fn caches(plan: &Plan, order: &[(usize, u32)], place: impl Fn(usize, u32) -> u32) -> u64 {
    // A token is who wrote it and its number there; system prompts belong to the group.
    type Token = (u32, u32, u32, u32);
    let mut kept: BTreeMap<u32, BTreeSet<Vec<Token>>> = BTreeMap::new();
    let mut cached = 0;
    for &(at, turn) in order {
        let session = &plan.sessions[at];
        let (group, seat) = (session.group, session.session);
        let mut tokens: Vec<Token> = (0..plan.system_tokens[group as usize]).map(|n| (group, u32::MAX, 0, n)).collect();
        for (k, planned) in (0..=turn).zip(&session.turns) {
            tokens.extend((0..planned.question_tokens).map(|n| (group, seat, 3 * k, n)));
            if k < turn {
                tokens.extend((0..planned.output_tokens).map(|n| (group, seat, 3 * k + 1, n)));
            }
        }
        let cache = kept.entry(place(at, turn)).or_default();
        let longest = (0..tokens.len()).rev().find(|&n| cache.contains(&tokens[..n])).unwrap_or(0);
        cached += longest as u64;
        let reply = session.turns[turn as usize].output_tokens;
        // With synthetic history the server's own reply is text that nobody sends again.
        let author = if plan.workload.history == History::Real { 3 * turn + 1 } else { 3 * turn + 2 };
        tokens.extend((0..reply - 1).map(|n| (group, seat, author, n)));
        cache.extend((1..=tokens.len()).map(|n| tokens[..n].to_vec()));
    }
    cached
}

/// All turns in a random order that keeps each session's own.
fn shuffled(plan: &Plan, rng: &mut ChaCha8Rng) -> Vec<(usize, u32)> {
    let mut order: Vec<usize> =
        plan.sessions.iter().enumerate().flat_map(|(at, session)| session.turns.iter().map(move |_| at)).collect();
    order.shuffle(rng);
    let mut next = vec![0; plan.sessions.len()];
    let turns = order.into_iter().map(|at| {
        next[at] += 1;
        (at, next[at] - 1)
    });
    turns.collect()
}

#[test]
fn single_turn_workloads_give_the_published_ratios() {
    let gsp = planned(&spec(16, 32, 1, 4096, 128, 256));
    assert_eq!((ideal(&gsp).cached, ideal(&gsp).prompt), (2_031_616, 2_162_688));
    near(ideal(&gsp).ratio, 0.9394, 5e-5);
    let spread = round_robin(&gsp, 8);
    near(spread.cold_pairs, 126.5, 0.05);
    near(spread.reuse, 0.7302, 5e-5);
    assert_eq!(spread.split_share, None);
    for (ranks, want) in [(1, 0.9394), (2, 0.909), (4, 0.848), (16, 0.542)] {
        near(round_robin(&gsp, ranks).reuse, want, 6e-4);
    }
    let mla = planned(&spec(64, 8, 1, 8192, 256, 512));
    near(ideal(&mla).ratio, 0.8485, 5e-5);
    near(round_robin(&mla, 8).reuse, 0.331, 3e-3);
}

#[test]
fn multi_turn_workloads_give_the_published_ratios_and_split_shares() {
    let chat = planned(&spec(60, 1, 5, 6144, 2048, 128));
    near(ideal(&chat).ratio, 0.739, 5e-4);
    for (ranks, reuse) in [(2, 0.541), (4, 0.335), (8, 0.187)] {
        let spread = round_robin(&chat, ranks);
        near(spread.reuse, reuse, 5e-4);
        near(spread.split_share.unwrap(), 1.0 - f64::from(ranks).powi(-4), 1e-12);
    }
    let pair = planned(&spec(48, 1, 2, 100, 10, 10));
    near(48.0 * round_robin(&pair, 8).split_share.unwrap(), 42.0, 1e-9);
}

#[test]
fn without_a_second_rank_round_robin_is_ideal() {
    for (sessions, turns) in [(4, 1), (1, 5), (3, 4)] {
        let plan = planned(&spec(5, sessions, turns, 300, 20, 10));
        near(round_robin(&plan, 1).reuse, ideal(&plan).ratio, 1e-12);
        near(round_robin(&plan, 0).reuse, ideal(&plan).ratio, 1e-12);
    }
}

#[test]
fn a_shuffled_deal_averages_to_the_hypergeometric_form() {
    // 7 ranks do not divide 60 sessions, so that ranks get 8 or 9 turns.
    let plan = planned(&spec(6, 10, 1, 50, 5, 5));
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mean = |rng: &mut ChaCha8Rng| {
        let mut sum = 0.0;
        for _ in 0..4_000 {
            let mut order: Vec<usize> = (0..60).collect();
            order.shuffle(rng);
            let places = order.iter().zip(0u32..).map(|(&at, dealt)| {
                let session = &plan.sessions[at];
                ((session.group, session.session, 0), dealt % 7)
            });
            sum += precise(observed(&plan, &places.collect()).cold_pairs);
        }
        sum / 4_000.0
    };
    let spread = round_robin(&plan, 7);
    near(mean(&mut rng), spread.cold_pairs, 0.1);
    let independent = 6.0 * 7.0 * (1.0 - (1.0 - 1.0 / 7.0_f64).powi(10));
    assert!((spread.cold_pairs - independent).abs() > 0.5, "or the test could not tell the two forms apart");
}

#[test]
fn grouped_neighbours_go_to_different_ranks() {
    let mut few = spec(4, 3, 1, 50, 5, 5);
    few.workload.order = Order::Grouped;
    let plan = planned(&few);
    for ranks in [2, 3, 5] {
        let places = plan.sessions.iter().zip(0..).map(|(s, at)| ((s.group, s.session, 0), at % ranks)).collect();
        near(round_robin(&plan, ranks).cold_pairs, precise(observed(&plan, &places).cold_pairs), 1e-9);
    }
}

#[test]
fn random_ranks_average_to_the_multi_turn_form() {
    let mut mixed = spec(3, 4, 4, 60, 20, 10);
    (mixed.workload.question_tokens.min, mixed.workload.output_tokens.min) = (5, 2);
    for history in [History::Real, History::Synthetic] {
        mixed.workload.history = history;
        let plan = planned(&mixed);
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let (mut reuse, mut cold) = (0.0, 0.0);
        for _ in 0..4_000 {
            let order = shuffled(&plan, &mut rng);
            let places = order.iter().map(|&(at, turn)| {
                let session = &plan.sessions[at];
                ((session.group, session.session, turn), rng.random_range(0..3))
            });
            let seen = observed(&plan, &places.collect());
            (reuse, cold) = (reuse + seen.reuse, cold + precise(seen.cold_pairs));
        }
        let spread = round_robin(&plan, 3);
        near(reuse / 4_000.0, spread.reuse, 2e-3);
        near(cold / 4_000.0, spread.cold_pairs, 0.02);
    }
}

#[test]
fn turns_without_a_place_are_left_out() {
    let plan = planned(&spec(2, 2, 2, 100, 10, 6));
    let places = BTreeMap::from([((0, 0, 0), 'a'), ((0, 0, 1), 'a'), ((0, 1, 1), 'a'), ((1, 0, 1), 'b')]);
    let seen = observed(&plan, &places);
    // 110 cold, 126 that finds 110 + 5, then 126 that finds the system prompt, then 126 cold.
    assert_eq!((seen.prompt, seen.cached, seen.cold_pairs), (110 + 126 + 126 + 126, 115 + 100, 2));
    assert_eq!(
        observed(&plan, &BTreeMap::<TurnIndex, u32>::new()),
        Observed { cached: 0, prompt: 0, reuse: 0.0, cold_pairs: 0 }
    );
}

#[test]
fn only_later_turns_can_alias_and_only_when_a_cycle_fits_the_ranks() {
    let chat = planned(&spec(60, 1, 5, 64, 20, 10));
    assert_eq!(aliasing(&chat, Some(12), 2), [Aliasing::Concurrency(12), Aliasing::Sessions(60)]);
    assert_eq!(aliasing(&chat, Some(13), 2), [Aliasing::Sessions(60)]);
    assert_eq!(aliasing(&chat, None, 8), []);
    assert_eq!(aliasing(&chat, Some(12), 1), []);
    assert_eq!(aliasing(&chat, Some(64), 8), [], "a limit above all sessions never binds");
    assert_eq!(aliasing(&planned(&spec(16, 32, 1, 64, 20, 10)), Some(64), 8), []);
}

prop_compose! {
    fn small_plan()(
        (groups, sessions, turns) in (1..4u32, 1..4u32, 1..4u32),
        (system, question, output) in (0..9u32, 2..6u32, 1..6u32),
        zipf: bool, synthetic: bool, seed: u64,
    ) -> Plan {
        let mut spec = spec(groups, sessions, turns, system + 3, question, output);
        spec.workload.system_tokens = Length { min: 2, max: system + 3 };
        spec.workload.question_tokens.min = 2;
        spec.workload.output_tokens.min = 1;
        spec.workload.seed = seed;
        if zipf { spec.workload.popularity = Popularity::Zipf(1.1) }
        if synthetic { spec.workload.history = History::Synthetic }
        planned(&spec)
    }
}

proptest! {
    #[test]
    fn brute_force_caches_agree_whatever_the_order_and_the_places(plan in small_plan(), ranks in 1..4u32, seed: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let order = shuffled(&plan, &mut rng);
        let drawn: BTreeMap<(usize, u32), u32> = order.iter().map(|&turn| (turn, rng.random_range(0..ranks))).collect();
        let places = drawn.iter().map(|(&(at, turn), &rank)| {
            ((plan.sessions[at].group, plan.sessions[at].session, turn), rank)
        });
        let seen = observed(&plan, &places.collect());
        prop_assert_eq!(seen.cached, caches(&plan, &order, |at, turn| drawn[&(at, turn)]));
        let ideal = ideal(&plan);
        prop_assert_eq!(ideal.cached, caches(&plan, &order, |_, _| 0));
        prop_assert!(seen.cached <= ideal.cached && seen.prompt == ideal.prompt);
    }
}
