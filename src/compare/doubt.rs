//! Doubts about the order of an experiment's blocks: what a drift of the machine could imitate.

use serde::{Deserialize, Serialize};

use crate::report::RunReport;
use crate::units::{grouped, plural};

/// A reason to doubt every contrast of an arm, whatever its numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// One arm ran first in every round: a drift counts whole as its difference.
    FixedOrder { arm: String, first: String, rounds: usize },
    /// One arm ran first more often: a part of a drift counts as its difference.
    UnevenOrder { arm: String, first: String, times: usize, rounds: usize },
}

impl std::fmt::Display for Doubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::FixedOrder { arm, first, rounds } => write!(
                f,
                "{arm}: {first} ran first in {}; whatever changes with time, as heat and caches do, counts as a difference of \
                 the arms; run an even number of rounds, which `gspbench ab` orders AB BA",
                if *rounds == 1 {
                    "the only round".to_owned()
                } else {
                    format!("all {}", plural(*rounds as u64, "round"))
                }
            ),
            Self::UnevenOrder { arm, first, times, rounds } => write!(
                f,
                "{arm}: {first} ran first in {} of {}, so that a part of any drift counts as a difference of the arms; run an \
                 even number of rounds",
                grouped(*times as u64),
                plural(*rounds as u64, "round")
            ),
        }
    }
}

/// The doubt that an order gives before anything has run: `rounds` of AB BA AB ….
#[must_use]
pub fn planned_doubt(baseline: &str, arm: &str, rounds: u32) -> Option<Doubt> {
    let rounds = usize::try_from(rounds).unwrap_or(usize::MAX);
    doubt(baseline, arm, rounds.div_ceil(2), rounds)
}

/// The doubt that the order of paired blocks gives, by when they started. Blocks that bear the same time tell nothing.
pub(super) fn order<'a>(
    baseline: &str,
    arm: &str,
    pairs: impl Iterator<Item = (&'a RunReport, &'a RunReport)>,
) -> Option<Doubt> {
    // Both are RFC 3339 in UTC with the same digits, so their order as text is that in time.
    let starts = pairs.map(|(base, other)| (&base.manifest.started_utc, &other.manifest.started_utc));
    let orders: Vec<bool> = starts.filter(|(base, other)| base != other).map(|(base, other)| base < other).collect();
    doubt(baseline, arm, orders.iter().filter(|is_first| **is_first).count(), orders.len())
}

/// Of `rounds`, the baseline ran first in `first`.
fn doubt(baseline: &str, arm: &str, first: usize, rounds: usize) -> Option<Doubt> {
    let others = rounds - first;
    let (name, times) = if first >= others { (baseline, first) } else { (arm, others) };
    let (arm, first) = (arm.to_owned(), name.to_owned());
    if times * 2 == rounds {
        None
    } else if times == rounds {
        Some(Doubt::FixedOrder { arm, first, rounds })
    } else {
        Some(Doubt::UnevenOrder { arm, first, times, rounds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_or_an_odd_number_is_doubted_before_it_runs() {
        let said = |rounds| planned_doubt("a", "b", rounds);
        assert_eq!(said(1), Some(Doubt::FixedOrder { arm: "b".into(), first: "a".into(), rounds: 1 }));
        assert_eq!(said(3), Some(Doubt::UnevenOrder { arm: "b".into(), first: "a".into(), times: 2, rounds: 3 }));
        assert_eq!([2, 4, 6].map(said), [None, None, None]);
    }

    #[test]
    fn an_arm_that_always_ran_last_is_doubted_by_name() {
        assert_eq!(doubt("a", "b", 0, 4), Some(Doubt::FixedOrder { arm: "b".into(), first: "b".into(), rounds: 4 }));
        assert_eq!((doubt("a", "b", 0, 0), doubt("a", "b", 2, 4)), (None, None));
    }
}
