//! Places of sessions and keys, and that any order and partition of turns says the same.

use proptest::prelude::*;

use super::trail::EXAMPLES;
use super::*;
use crate::record::{Outcome, TurnId};
use crate::units::{Micros, Rank};

fn follow(key_by: KeyScope) -> Follow {
    Follow { key_by, api: Api::Generate, turns: 16, place_field: None, slack: 64, is_skewed: true }
}

fn turn(session: u32, turn: u32, rank: Option<u16>) -> TurnRecord {
    let id = TurnId { group: 0, session, turn };
    TurnRecord {
        outcome: Outcome::Complete,
        place: rank.map(|rank| Place::Rank(Rank(rank))),
        place_source: rank.map(|_| PlaceSource::MetaInfo),
        cached_tokens: Some(u32::from(rank.unwrap_or(0))),
        ..TurnRecord::planned(id.to_string(), id, Some("g0".into()), Micros(0), 1)
    }
}

fn of(turns: &[TurnRecord]) -> AffinityTally {
    let mut tally = AffinityTally::new(follow(KeyScope::Group));
    turns.iter().for_each(|turn| tally.add(turn));
    tally
}

fn loads() -> Vec<(Place, u64)> {
    [(0, 3), (1, 1), (2, 0)].map(|(rank, turns)| (Place::Rank(Rank(rank)), turns)).to_vec()
}

#[test]
fn stickiness_counts_neighbours_of_known_place_only() {
    let turns = [turn(0, 0, Some(1)), turn(0, 1, Some(1)), turn(0, 2, Some(0)), turn(0, 3, None), turn(0, 4, Some(0))];
    let affinity = of(&turns).finish(&loads());
    assert_eq!((affinity.stickiness, affinity.split_sessions), (Some(0.5), Some(1)));
    assert_eq!(affinity.zero_hit_share, Some(0.75));
    assert_eq!(affinity.off_majority_turns, Some(2));
    let path = [Some(1), Some(1), Some(0), None, Some(0)].map(|rank| rank.map(|rank| Place::Rank(Rank(rank))));
    assert_eq!(affinity.split_examples[0].places, path);
    assert_eq!(affinity.off_majority_per_rank, [0, 2, 0], "of two places with as many turns the first is the main one");
    assert_eq!((affinity.attribution.known, affinity.attribution.turns), (4, 5));
}

#[test]
fn balance_counts_idle_ranks() {
    let affinity = of(&[turn(0, 0, Some(0))]).finish(&loads());
    assert_eq!(affinity.load_max_over_mean, Some(2.25));
    assert_eq!(affinity.keys_per_rank, [1, 0, 0]);
}

#[test]
fn without_places_nothing_is_claimed_and_the_reason_is_given() {
    let affinity = of(&[turn(0, 0, None), turn(0, 1, None)]).finish(&[]);
    assert_eq!((affinity.stickiness, affinity.split_sessions, affinity.off_majority_turns), (None, None, None));
    assert!(affinity.attribution.reason.unwrap().contains("meta_info"));
}

#[test]
fn a_session_in_order_is_one_stretch() {
    let tally = of(&(0..50).map(|k| turn(0, k, Some(0))).collect::<Vec<_>>());
    assert_eq!(tally.sessions[&(0, 0)].stretches.len(), 1);
}

#[test]
fn a_session_that_is_whole_is_only_counted() {
    let of = |key_by, sessions: u32| {
        let mut tally = AffinityTally::new(Follow { turns: 3, ..follow(key_by) });
        for session in 0..sessions {
            // The second turn of every third session goes elsewhere.
            (0..3).for_each(|k| tally.add(&turn(session, k, Some(u16::from(k == 1 && session % 3 == 0)))));
        }
        tally
    };
    let tally = of(KeyScope::Session, 300);
    assert!(tally.sessions.is_empty() && tally.keys.len() == 0 && tally.whole.examples.len() == EXAMPLES);
    let affinity = tally.finish(&loads());
    assert_eq!((affinity.sessions, affinity.keys, affinity.split_sessions), (300, Some(300), Some(100)));
    assert_eq!((affinity.off_majority_turns, affinity.stickiness), (Some(100), Some(0.666667)));
    assert_eq!(affinity.keys_per_rank, [300, 100, 0]);
    assert_eq!(affinity.split_examples[4].session, "g0-s12");
    assert_eq!(of(KeyScope::Group, 300).finish(&loads()).keys, Some(1));
}

#[test]
fn a_key_of_a_single_turn_is_where_that_turn_was() {
    let mut tally = AffinityTally::new(Follow { turns: 1, ..follow(KeyScope::Session) });
    (0..4).for_each(|session| tally.add(&turn(session, 0, Some(u16::from(session == 0)))));
    let affinity = tally.finish(&loads());
    assert_eq!((affinity.keys, affinity.off_majority_turns, affinity.keys_per_rank), (Some(4), Some(0), vec![3, 1, 0]));
}

#[test]
fn hot_keys_come_first_with_their_places() {
    let keyed = |key: &str, rank| TurnRecord { key: Some(key.into()), ..turn(0, 0, rank) };
    let mut turns: Vec<_> = (0..9).map(|n| keyed(&format!("k{n}"), Some(0))).collect();
    turns.extend([keyed("k7", Some(1)), keyed("k7", Some(1)), keyed("k7", None)]);
    let hot = of(&turns).finish(&loads()).hot_keys;
    assert_eq!(hot.iter().map(|hot| &*hot.key).collect::<Vec<_>>(), ["k7", "k0", "k1", "k2", "k3"]);
    assert_eq!((hot[0].turns, hot[0].share, hot[0].places, hot[0].off_majority_turns), (4, 0.333333, 2, 1));
    assert_eq!(hot[0].main_place, Some(Place::Rank(Rank(1))));
}

#[test]
fn turns_are_told_apart_by_number_by_what_they_found_and_by_the_popularity_of_their_group() {
    let in_group = |group, at, cached| TurnRecord {
        group,
        cached_tokens: cached,
        prompt_tokens: Some(1_000),
        sent_us: Some(Micros(0)),
        first_us: Some(Micros(u64::from(at + 1) * 1_000)),
        ..turn(0, at, None)
    };
    let turns = [
        in_group(0, 0, Some(64)),
        in_group(0, 1, Some(65)),
        in_group(1, 2, Some(900)),
        in_group(2, 3, None),
        in_group(3, 4, Some(0)),
    ];
    let affinity = of(&turns).finish(&[]);
    let counts = |bands: &[Band]| bands.iter().map(|band| (band.from, band.to, band.turns)).collect::<Vec<_>>();
    assert_eq!(counts(&affinity.by_turn), [(1, 1, 1), (2, 2, 1), (3, 4, 2), (5, 8, 1)]);
    assert_eq!(counts(&affinity.by_popularity), [(1, 1, 2), (2, 2, 1), (3, 4, 2)]);
    assert_eq!(affinity.by_turn[2].hit_rate, Some(0.9), "of the turn that tells");
    assert_eq!(affinity.by_turn[3].ttft_ms.unwrap().p50, 5.0);
    let found: Vec<_> = affinity.by_cached.iter().map(|band| (band.cached, band.turns, band.share)).collect();
    assert_eq!(found, [(Cached::Cold, 2, 0.4), (Cached::Warm, 2, 0.4), (Cached::Untold, 1, 0.2)]);
    let mut single = AffinityTally::new(Follow { turns: 1, is_skewed: false, ..follow(KeyScope::Group) });
    turns.iter().for_each(|turn| single.add(turn));
    let single = single.finish(&[]);
    assert!(single.by_turn.is_empty() && single.by_popularity.is_empty());
}

#[test]
fn each_side_of_a_pair_moves_by_itself() {
    let pair = |at, prefill: &str, decode: &str| TurnRecord {
        place: Some(Place::Pair { prefill: prefill.into(), decode: decode.into() }),
        ..turn(0, at, None)
    };
    let turns = [pair(0, "p0", "d0"), pair(1, "p0", "d1"), pair(2, "p0", "d1"), pair(3, "p1", "d0")];
    let affinity = of(&turns).finish(&[]);
    let Sides { prefill, decode } = affinity.sides.unwrap();
    assert_eq!((prefill.moves, prefill.stickiness), (1, Some(0.666667)));
    assert_eq!((decode.moves, decode.stickiness), (2, Some(0.333333)));
    assert_eq!(affinity.stickiness, Some(0.333333), "of whole places");
    assert_eq!(of(&[turn(0, 0, Some(0)), turn(0, 1, Some(1))]).finish(&[]).sides, None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_order_and_any_partition_give_the_same_tally(
        turns in prop::collection::vec((0..2_u32, prop::option::of(0..3_u16), 0..4_usize), 0..16),
        order in any::<u64>(),
        per_session in 1..9_u32,
    ) {
        let follow = Follow { turns: per_session, ..follow(KeyScope::Group) };
        let of = |turns: &[TurnRecord]| {
            let mut tally = AffinityTally::new(follow);
            turns.iter().for_each(|turn| tally.add(turn));
            tally
        };
        let mut next = [0; 2];
        let turns: Vec<_> = turns.into_iter().map(|(session, rank, part)| {
            let k = next[session as usize];
            next[session as usize] += 1;
            (turn(2 * (k / per_session) + session, k % per_session, rank), part)
        }).collect();
        let whole = of(&turns.iter().map(|(turn, _)| turn.clone()).collect::<Vec<_>>());
        let mut shuffled = turns.clone();
        shuffled.sort_by_key(|(turn, _)| (u64::from(turn.turn * 7 + turn.session) ^ order).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut merged = AffinityTally::new(follow);
        for part in 0..4 {
            merged.merge(of(&shuffled.iter().filter(|(_, p)| *p == part).map(|(turn, _)| turn.clone()).collect::<Vec<_>>()));
        }
        prop_assert_eq!(whole, merged);
    }
}
