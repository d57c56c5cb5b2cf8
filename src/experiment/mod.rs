//! Rounds and their order: the pure next block, given the blocks that are done. A round runs every arm once; every second
//! round is reversed (AB BA AB …), so that a linear drift of the machine falls on all arms alike. A block that gave no
//! numbers is run once more, at the end of its round, where the others have had their turn.

use std::collections::{BTreeMap, BTreeSet};

mod curve;
mod ladder;
mod levels;

use serde::{Deserialize, Serialize};

pub use curve::{Curve, Curves, Held, Point, StepResult, seen};
pub use ladder::{Ladder, Rung, Seen, Step, Stop};
pub use levels::{Axis, Levels};

/// One run of one arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Block {
    /// From 1.
    pub round: u32,
    /// Index of the arm; 0 is the baseline.
    pub arm: usize,
}

/// How a block ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With numbers that count.
    Complete,
    /// With numbers that do not.
    Void,
    /// Without any: its server did not start, died, or refused warm-up or flush.
    Failed,
}

/// A block that has run.
pub type Past = (Block, Ended);

/// How many rounds of how many arms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Design {
    pub rounds: u32,
    pub arms: usize,
}

/// The arms of a round, in the order in which they run.
pub fn order(round: u32, arms: usize) -> impl Iterator<Item = usize> {
    let reversed = round.is_multiple_of(2);
    (0..arms).map(move |at| if reversed { arms - 1 - at } else { at })
}

impl Design {
    /// The next block, given all that have run; none when there is nothing left to run.
    #[must_use]
    pub fn next(&self, past: &[Past]) -> Option<Block> {
        self.rest(past).first().copied()
    }

    /// The blocks still to come if all of them end well, in running order.
    ///
    /// An arm that failed twice in a round is given up: its server does not come up, and waiting for it in every round
    /// would cost more than it gives. Without the baseline, or with it alone, there is nothing to compare.
    #[must_use]
    pub fn rest(&self, past: &[Past]) -> Vec<Block> {
        let runs = Runs::of(past);
        let live: Vec<usize> = (0..self.arms).filter(|arm| !runs.lost.contains(arm)).collect();
        if live.len() < 2 || live[0] != 0 {
            return vec![];
        }
        let of_round = |round| {
            let blocks = order(round, self.arms).map(move |arm| Block { round, arm });
            let blocks: Vec<Block> = blocks.filter(|block| live.contains(&block.arm)).collect();
            let first = blocks.iter().copied().filter(|block| runs.of_block(*block).is_empty());
            let again = blocks
                .iter()
                .copied()
                .filter(|block| matches!(runs.of_block(*block), [once] if *once != Ended::Complete));
            first.chain(again).collect::<Vec<_>>()
        };
        (1..=self.rounds).flat_map(of_round).collect()
    }
}

/// How each block ended, each time that it ran.
struct Runs {
    ends: BTreeMap<Block, Vec<Ended>>,
    /// Arms that are given up.
    lost: BTreeSet<usize>,
}

impl Runs {
    fn of(past: &[Past]) -> Self {
        let mut ends: BTreeMap<Block, Vec<Ended>> = BTreeMap::new();
        past.iter().for_each(|(block, ended)| ends.entry(*block).or_default().push(*ended));
        let twice = |ends: &[Ended]| ends.iter().filter(|ended| **ended == Ended::Failed).count() >= 2;
        let lost = ends.iter().filter(|(_, ends)| twice(ends)).map(|(block, _)| block.arm).collect();
        Self { ends, lost }
    }

    fn of_block(&self, block: Block) -> &[Ended] {
        self.ends.get(&block).map_or(&[], Vec::as_slice)
    }
}

/// What counts of the blocks of an experiment that is taken up again: an arm that was given up gets another chance, since
/// whoever resumes has mended it.
#[must_use]
pub fn resumed(past: &[Past]) -> Vec<Past> {
    let Runs { lost, .. } = Runs::of(past);
    past.iter().copied().filter(|(block, ended)| *ended != Ended::Failed || !lost.contains(&block.arm)).collect()
}

/// What a round adds to the seed and to the salt: new prompts and a new placement of keys, equal in every arm.
#[must_use]
pub fn offset(round: u32) -> u64 {
    u64::from(round.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs the whole design; `end` says how the n-th block ends.
    fn run(design: Design, end: impl Fn(usize) -> Ended) -> Vec<Past> {
        let mut past = vec![];
        while let Some(block) = design.next(&past) {
            past.push((block, end(past.len())));
        }
        past
    }

    fn order_of(past: &[Past]) -> Vec<(u32, usize)> {
        past.iter().map(|(block, _)| (block.round, block.arm)).collect()
    }

    #[test]
    fn every_second_round_runs_backwards() {
        let all = |arms| order_of(&run(Design { rounds: 3, arms }, |_| Ended::Complete));
        assert_eq!(all(2), [(1, 0), (1, 1), (2, 1), (2, 0), (3, 0), (3, 1)]);
        assert_eq!(all(3)[3..6], [(2, 2), (2, 1), (2, 0)]);
        assert_eq!([offset(1), offset(2)], [0, 1]);
    }

    #[test]
    fn a_linear_drift_falls_on_two_arms_alike_over_an_even_number_of_rounds() {
        for rounds in [2, 4, 6] {
            let mut places = [0, 0];
            let all = run(Design { rounds, arms: 2 }, |_| Ended::Complete);
            all.iter().enumerate().for_each(|(at, (block, _))| places[block.arm] += at);
            assert_eq!(places[0], places[1], "{rounds} rounds");
        }
    }

    #[test]
    fn a_void_block_is_repeated_once_at_the_end_of_its_round() {
        let design = Design { rounds: 2, arms: 2 };
        let void_first = run(design, |at| if at == 0 { Ended::Void } else { Ended::Complete });
        assert_eq!(order_of(&void_first), [(1, 0), (1, 1), (1, 0), (2, 1), (2, 0)]);
        let always_void = run(design, |_| Ended::Void);
        assert_eq!(order_of(&always_void)[..5], [(1, 0), (1, 1), (1, 0), (1, 1), (2, 1)]);
    }

    #[test]
    fn an_arm_that_fails_twice_in_a_round_is_given_up_and_has_another_chance_when_resumed() {
        let design = Design { rounds: 3, arms: 3 };
        let fails = |block: Block| block.arm == 2;
        let mut past = vec![];
        while let Some(block) = design.next(&past) {
            past.push((block, if fails(block) { Ended::Failed } else { Ended::Complete }));
        }
        assert_eq!(order_of(&past), [(1, 0), (1, 1), (1, 2), (1, 2), (2, 1), (2, 0), (3, 0), (3, 1)]);
        assert_eq!(design.next(&resumed(&past)), Some(Block { round: 1, arm: 2 }));
        let two = run(Design { rounds: 3, arms: 2 }, |at| if at % 2 == 1 { Ended::Failed } else { Ended::Complete });
        assert_eq!(order_of(&two), [(1, 0), (1, 1), (1, 1), (2, 1), (2, 0), (2, 1)], "no arm is left to compare");
    }

    fn ending() -> impl Strategy<Value = Ended> {
        prop_oneof![4 => Just(Ended::Complete), 1 => Just(Ended::Void), 1 => Just(Ended::Failed)]
    }

    proptest! {
        #[test]
        fn every_arm_that_is_not_given_up_runs_once_a_round_and_once_more_where_that_gave_nothing(
            rounds in 1_u32..6, arms in 2_usize..5, ends in prop::collection::vec(ending(), 60),
        ) {
            let design = Design { rounds, arms };
            let past = run(design, |at| ends[at]);
            let mut times: BTreeMap<Block, Vec<Ended>> = BTreeMap::new();
            past.iter().for_each(|(block, ended)| times.entry(*block).or_default().push(*ended));
            for ends in times.values() {
                prop_assert!(ends.len() <= 2);
                prop_assert!(ends.len() == 1 || ends[0] != Ended::Complete);
            }
            prop_assert!(past.is_sorted_by_key(|(block, _)| block.round), "no round begins before the last has ended");
            let lost = Runs::of(&past).lost;
            let live: Vec<usize> = (0..arms).filter(|arm| !lost.contains(arm)).collect();
            if live.contains(&0) && live.len() > 1 {
                for (round, arm) in (1..=rounds).flat_map(|round| live.iter().map(move |arm| (round, *arm))) {
                    let ends = &times[&Block { round, arm }];
                    prop_assert!(ends.contains(&Ended::Complete) || ends.len() == 2);
                }
            }
        }

        #[test]
        fn an_experiment_taken_up_anywhere_goes_on_as_if_it_had_never_stopped(
            rounds in 1_u32..5, arms in 2_usize..4, ends in prop::collection::vec(ending(), 40), cut in 0_usize..40,
        ) {
            let design = Design { rounds, arms };
            let whole = run(design, |at| ends[at]);
            let cut = cut.min(whole.len());
            let mut past = whole[..cut].to_vec();
            prop_assume!(Runs::of(&past).lost.is_empty());
            prop_assert_eq!(&resumed(&past), &past);
            while let Some(block) = design.next(&past) {
                past.push((block, ends[past.len()]));
            }
            prop_assert_eq!(past, whole);
        }

        #[test]
        fn the_rest_that_is_foretold_is_what_runs_if_all_goes_well(
            rounds in 1_u32..5, arms in 2_usize..4, ends in prop::collection::vec(ending(), 40), cut in 0_usize..40,
        ) {
            let design = Design { rounds, arms };
            let past: Vec<Past> = run(design, |at| ends[at]).into_iter().take(cut).collect();
            let well = run(design, |at| past.get(at).map_or(Ended::Complete, |(_, ended)| *ended));
            let rest: Vec<Block> = well[past.len()..].iter().map(|(block, _)| *block).collect();
            prop_assert_eq!(design.rest(&past), rest);
        }
    }
}
