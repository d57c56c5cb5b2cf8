//! Rounds and their order: the pure next block, given the blocks that are done. A round runs every arm once; every second
//! round is reversed (AB BA AB …), so that a linear drift of the machine falls on all arms alike.

use serde::{Deserialize, Serialize};

/// One run of one arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Block {
    /// From 1.
    pub round: u32,
    /// Index of the arm; 0 is the baseline.
    pub arm: usize,
}

/// The arms of a round, in the order in which they run.
pub fn order(round: u32, arms: usize) -> impl Iterator<Item = usize> {
    let reversed = round.is_multiple_of(2);
    (0..arms).map(move |at| if reversed { arms - 1 - at } else { at })
}

/// Every block of an experiment, in running order.
pub fn blocks(rounds: u32, arms: usize) -> impl Iterator<Item = Block> {
    (1..=rounds).flat_map(move |round| order(round, arms).map(move |arm| Block { round, arm }))
}

/// What a round adds to the seed and to the salt: new prompts and a new placement of keys, equal in every arm.
#[must_use]
pub fn offset(round: u32) -> u64 {
    u64::from(round.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_runs_every_arm_once_and_every_second_one_backwards() {
        let order = |arms| blocks(3, arms).map(|block| (block.round, block.arm)).collect::<Vec<_>>();
        assert_eq!(order(2), [(1, 0), (1, 1), (2, 1), (2, 0), (3, 0), (3, 1)]);
        assert_eq!(order(3)[3..6], [(2, 2), (2, 1), (2, 0)]);
        assert_eq!([offset(1), offset(2)], [0, 1]);
    }

    #[test]
    fn a_linear_drift_falls_on_two_arms_alike_over_an_even_number_of_rounds() {
        for rounds in [2, 4, 6] {
            let mut places = [0, 0];
            blocks(rounds, 2).enumerate().for_each(|(at, block)| places[block.arm] += at);
            assert_eq!(places[0], places[1], "{rounds} rounds");
        }
    }
}
