//! The steps of a sweep: the pure next one, given what the steps so far have shown. A step runs every arm that still climbs
//! once, every second step in reversed order, as rounds do. What gave no numbers is run once more, at the end of its step.

use serde::{Deserialize, Serialize};

use super::levels::{Axis, Levels};
use super::order;

/// Twice the load that brings less than this share more throughput found the server saturated.
const LEAST_GROWTH: f64 = 0.05;

/// A sweep before it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ladder {
    pub axis: Axis,
    pub levels: Levels,
    /// Share of good turns at which a step holds the objectives; absent without objectives.
    pub attainment: Option<f64>,
    pub arms: usize,
}

/// One run of one arm at one load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// From 1.
    pub step: u32,
    /// Index of the arm.
    pub arm: usize,
    /// Sessions in flight, or sessions a second.
    pub level: f64,
}

/// What a step has shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Seen {
    Measured {
        /// Complete turns a second.
        throughput: Option<f64>,
        /// Share of good turns.
        attainment: Option<f64>,
    },
    /// Ran, but its numbers may not be used: nothing is known of this load.
    Void,
    /// Could not be run.
    Failed,
}

/// A step that has run; one that gave no numbers may have run twice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rung {
    pub step: u32,
    pub arm: usize,
    pub seen: Seen,
}

/// How an arm stands with a step.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Standing {
    Open,
    /// Gave no numbers, and has another try.
    Again,
    Settled(Seen),
}

impl Standing {
    fn shown(self) -> Option<Seen> {
        match self {
            Self::Settled(seen) => Some(seen),
            Self::Open | Self::Again => None,
        }
    }
}

/// By all runs of one arm at one step, in any order.
fn standing<'a>(runs: impl Iterator<Item = &'a Rung>) -> Standing {
    let seen: Vec<Seen> = runs.map(|rung| rung.seen).collect();
    let is_measured = |seen: &&Seen| matches!(seen, Seen::Measured { .. });
    match (seen.iter().find(is_measured), seen.len()) {
        (Some(measured), _) => Standing::Settled(*measured),
        (None, 0) => Standing::Open,
        (None, 1) => Standing::Again,
        (None, _) if seen.contains(&Seen::Void) => Standing::Settled(Seen::Void),
        (None, _) => Standing::Settled(Seen::Failed),
    }
}

/// Why an arm climbed no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// Fewer good turns than asked for.
    SloMissed,
    /// Twice the load brought less than 5 % more throughput.
    Saturated,
    /// The last step was void or could not be run, and again when it was repeated.
    Unusable,
    /// The ladder has no higher step.
    Top,
}

impl Ladder {
    /// The next step, given those that have run, in any order.
    #[must_use]
    pub fn next(&self, past: &[Rung]) -> Option<Step> {
        let climbs: Vec<bool> = (0..self.arms).map(|arm| self.stop(arm, past).is_none()).collect();
        let standing = |step, arm| standing(past.iter().filter(|rung| (rung.step, rung.arm) == (step, arm)));
        let find = |step, wanted| order(step, self.arms).find(|arm| climbs[*arm] && standing(step, *arm) == wanted);
        (1..).map_while(|step| Some((step, self.levels.level(step)?))).find_map(|(step, level)| {
            let arm = find(step, Standing::Open).or_else(|| find(step, Standing::Again))?;
            Some(Step { step, arm, level })
        })
    }

    /// Why an arm climbs no further; none while it does. A list is climbed to its top, whatever it shows; but an arm that
    /// failed twice at a step is given up, since waiting for its server at every step would cost more than it gives.
    #[must_use]
    pub fn stop(&self, arm: usize, past: &[Rung]) -> Option<Stop> {
        let of = |step| standing(past.iter().filter(move |rung| (rung.step, rung.arm) == (step, arm)));
        let shown: Vec<Seen> = (1..=self.levels.count()).map_while(|step| of(step).shown()).collect();
        let is_at_top = u32::try_from(shown.len()).is_ok_and(|climbed| climbed >= self.levels.count());
        let top = is_at_top.then_some(Stop::Top);
        if matches!(self.levels, Levels::Given(_)) {
            return shown.contains(&Seen::Failed).then_some(Stop::Unusable).or(top);
        }
        let throughput = |seen: &Seen| match seen {
            Seen::Measured { throughput, .. } => *throughput,
            Seen::Void | Seen::Failed => None,
        };
        let before = std::iter::once(None).chain(shown.iter().map(throughput));
        let shown = shown.iter().zip(before).find_map(|(seen, before)| match *seen {
            Seen::Void | Seen::Failed => Some(Stop::Unusable),
            seen if self.holds(seen) == Some(false) => Some(Stop::SloMissed),
            Seen::Measured { throughput, .. } => {
                let is_flat = before.zip(throughput).is_some_and(|(low, high)| high < low * (1.0 + LEAST_GROWTH));
                is_flat.then_some(Stop::Saturated)
            }
        });
        shown.or(top)
    }

    /// Whether a step held the objectives; none without any, or where nothing was measured.
    #[must_use]
    pub fn holds(&self, seen: Seen) -> Option<bool> {
        match seen {
            Seen::Measured { attainment, .. } => Some(attainment? >= self.attainment?),
            Seen::Void | Seen::Failed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn measured(throughput: f64, attainment: f64) -> Seen {
        Seen::Measured { throughput: Some(throughput), attainment: Some(attainment) }
    }

    /// Climbs to the end, with what each step shows.
    fn climb(ladder: &Ladder, mut see: impl FnMut(Step) -> Seen) -> (Vec<Step>, Vec<Rung>) {
        let (mut steps, mut past) = (vec![], vec![]);
        while let Some(next) = ladder.next(&past) {
            steps.push(next);
            past.push(Rung { step: next.step, arm: next.arm, seen: see(next) });
            assert!(steps.len() <= 2 * 64 * ladder.arms, "a ladder has an end");
        }
        (steps, past)
    }

    fn doubling(arms: usize) -> Ladder {
        let levels = Levels::Doubling { most: 1e6 };
        Ladder { axis: Axis::Concurrency, levels, attainment: Some(0.9), arms }
    }

    fn order_of(steps: &[Step]) -> Vec<(u32, usize)> {
        steps.iter().map(|step| (step.step, step.arm)).collect()
    }

    #[test]
    fn arms_climb_side_by_side_and_every_second_step_is_reversed() {
        let ladder = Ladder { levels: Levels::Given(vec![1.0, 3.0]), ..doubling(2) };
        let (steps, _) = climb(&ladder, |_| measured(1.0, 0.0));
        let short: Vec<_> = steps.iter().map(|step| (step.step, step.arm, step.level)).collect();
        assert_eq!(short, [(1, 0, 1.0), (1, 1, 1.0), (2, 1, 3.0), (2, 0, 3.0)], "a list is run to its end");
    }

    #[test]
    fn what_gives_no_numbers_runs_once_more_at_the_end_of_its_step_and_never_a_third_time() {
        let ladder = Ladder { levels: Levels::Given(vec![1.0, 3.0]), ..doubling(2) };
        let (steps, past) = climb(&ladder, |_| Seen::Void);
        assert_eq!(order_of(&steps), [(1, 0), (1, 1), (1, 0), (1, 1), (2, 1), (2, 0), (2, 1), (2, 0)]);
        assert_eq!(ladder.stop(0, &past), Some(Stop::Top), "a list is run to its end");
        let doubling = doubling(2);
        let (steps, past) = climb(&doubling, |_| Seen::Void);
        assert_eq!(order_of(&steps), [(1, 0), (1, 1), (1, 0), (1, 1)]);
        assert_eq!(doubling.stop(1, &past), Some(Stop::Unusable));
        assert_eq!(doubling.stop(1, &past[..3]), None, "it is to run again");
    }

    #[test]
    fn an_arm_that_fails_twice_at_a_step_of_a_list_is_given_up_and_the_others_climb_on() {
        let ladder = Ladder { levels: Levels::Given(vec![1.0, 2.0, 3.0]), ..doubling(2) };
        let fails = |step: Step| (step.arm, step.step) == (1, 2);
        let (steps, past) = climb(&ladder, |step| if fails(step) { Seen::Failed } else { measured(1.0, 0.0) });
        assert_eq!(order_of(&steps), [(1, 0), (1, 1), (2, 1), (2, 0), (2, 1), (3, 0)]);
        assert_eq!([0, 1].map(|arm| ladder.stop(arm, &past)), [Some(Stop::Top), Some(Stop::Unusable)]);
        let mut once = vec![];
        let (steps, _) = climb(&ladder, |step| {
            let is_again = once.contains(&(step.step, step.arm));
            once.push((step.step, step.arm));
            if fails(step) && !is_again { Seen::Failed } else { Seen::Void }
        });
        assert!(steps.iter().any(|step| (step.arm, step.step) == (1, 3)), "a server that ran once is there");
    }

    #[test]
    fn a_repetition_that_gives_numbers_stands_for_its_step() {
        let ladder = Ladder { levels: Levels::Doubling { most: 4.0 }, ..doubling(1) };
        let mut past = vec![];
        while let Some(next) = ladder.next(&past) {
            let is_first = !past.iter().any(|rung: &Rung| rung.step == next.step);
            let seen = if next.step == 2 && is_first { Seen::Failed } else { measured(next.level, 1.0) };
            past.push(Rung { step: next.step, arm: next.arm, seen });
        }
        assert_eq!(past.iter().map(|rung| rung.step).collect::<Vec<_>>(), [1, 2, 2, 3]);
        assert_eq!(ladder.stop(0, &past), Some(Stop::Top));
    }

    #[test]
    fn an_arm_stops_where_it_misses_or_is_saturated_and_the_other_climbs_on() {
        let ladder = doubling(3);
        let see = |step: Step| match step.arm {
            0 => measured(step.level, if step.level < 4.0 { 0.95 } else { 0.8 }),
            1 => measured(step.level.min(8.0), 1.0),
            _ => measured(step.level, 1.0),
        };
        let (steps, past) = climb(&ladder, see);
        let highest = |arm| steps.iter().filter(|step| step.arm == arm).map(|step| step.level).fold(0.0, f64::max);
        assert_eq!([highest(0), highest(1), highest(2)], [4.0, 16.0, 2_048.0]);
        let stops = [0, 1, 2].map(|arm| ladder.stop(arm, &past));
        assert_eq!(stops, [Some(Stop::SloMissed), Some(Stop::Saturated), Some(Stop::Top)]);
    }

    #[test]
    fn doubling_ends_at_what_the_plan_can_hold() {
        let ladder = Ladder { levels: Levels::Doubling { most: 12.0 }, attainment: None, ..doubling(1) };
        let (steps, _) = climb(&ladder, |step| measured(step.level, 0.0));
        assert_eq!(steps.iter().map(|step| step.level).collect::<Vec<_>>(), [1.0, 2.0, 4.0, 8.0]);
        assert_eq!(ladder.levels.count(), 4);
    }

    fn any_seen() -> impl Strategy<Value = Seen> {
        let measured = (prop::option::of(0.0..100.0_f64), prop::option::of(0.0..=1.0_f64))
            .prop_map(|(throughput, attainment)| Seen::Measured { throughput, attainment });
        prop_oneof![8 => measured, 1 => Just(Seen::Void), 1 => Just(Seen::Failed)]
    }

    proptest! {
        #[test]
        fn a_ladder_ends_climbs_and_repeats_only_what_gave_no_numbers_and_once(
            arms in 1_usize..4,
            most in 1.0..5_000.0_f64,
            target in prop::option::of(0.0..=1.0_f64),
            given in prop::option::of(prop::collection::btree_set(1_u32..500, 1..20)),
            seen in prop::collection::vec(any_seen(), 48),
        ) {
            let listed = given.map(|levels| Levels::Given(levels.into_iter().map(f64::from).collect()));
            let levels = listed.unwrap_or(Levels::Doubling { most });
            let ladder = Ladder { axis: Axis::Concurrency, levels, attainment: target, arms };
            let mut draw = seen.iter().cycle();
            let (steps, past) = climb(&ladder, |_| *draw.next().unwrap());
            for arm in 0..arms {
                let mut levels: Vec<_> = steps.iter().filter(|step| step.arm == arm).map(|step| step.level).collect();
                prop_assert!(levels.windows(2).all(|pair| pair[0] <= pair[1]));
                levels.dedup();
                for step in 1..=u32::try_from(levels.len()).unwrap() {
                    let runs: Vec<_> = past.iter().filter(|rung| (rung.step, rung.arm) == (step, arm)).collect();
                    let again = !matches!(runs[0].seen, Seen::Measured { .. });
                    prop_assert_eq!(runs.len(), if again { 2 } else { 1 });
                }
                let early: Vec<_> = past.iter().filter(|rung| (rung.step as usize) < levels.len()).copied().collect();
                prop_assert_eq!(ladder.stop(arm, &early), None, "while it climbs there is no reason");
                let is_whole = levels.len() == ladder.levels.count() as usize;
                let stop = ladder.stop(arm, &past);
                prop_assert!(stop.is_some() && (is_whole || stop != Some(Stop::Top)), "an arm stops for a reason");
            }
            prop_assert!(steps.windows(2).all(|pair| pair[0].step <= pair[1].step), "all arms are on the same step");
            let backwards: Vec<_> = past.iter().rev().copied().collect();
            prop_assert_eq!(ladder.next(&backwards), None, "the order of what is known does not matter");
        }
    }
}
