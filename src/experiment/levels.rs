//! The loads of a sweep, ascending: given one by one, or doubled.

use serde::{Deserialize, Serialize};

/// Steps of doubling: from 1 to 2,048.
const MOST_DOUBLINGS: u32 = 12;
/// Steps of a list.
const MOST_STEPS: usize = 64;

/// What a sweep raises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Sessions in flight, in a closed loop.
    Concurrency,
    /// Sessions that start a second, in an open loop without a cap: a cap would hide that the server falls behind.
    Rate,
}

/// Which loads are applied, ascending.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Levels {
    /// These, every one, whatever comes of them.
    Given(Vec<f64>),
    /// 1, 2, 4, … up to `most`; an arm stops where it misses its objectives or is saturated.
    Doubling { most: f64 },
}

impl Axis {
    /// What a level counts.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::Concurrency => "sessions in flight",
            Self::Rate => "sessions/s",
        }
    }

    /// A level with what it counts.
    #[must_use]
    pub fn load(self, level: f64) -> String {
        match self {
            Self::Concurrency if level == 1.0 => "1 session in flight".to_owned(),
            Self::Concurrency | Self::Rate => format!("{level} {}", self.unit()),
        }
    }
}

impl Levels {
    /// Checks a list.
    ///
    /// # Errors
    /// One sentence with what is wrong and what to give.
    pub fn given(axis: Axis, levels: &[f64]) -> Result<Self, String> {
        if levels.is_empty() || levels.len() > MOST_STEPS {
            return Err(format!("{} steps: give 1 to {MOST_STEPS}, as in 1,2,4", levels.len()));
        }
        for level in levels {
            let is_possible = match axis {
                Axis::Concurrency => level.fract() == 0.0 && (1.0..=1e6).contains(level),
                Axis::Rate => (1e-6..=1e6).contains(level),
            };
            if !is_possible {
                let what = match axis {
                    Axis::Concurrency => "whole numbers of sessions in flight, 1 or more",
                    Axis::Rate => "sessions a second, above 0 and at most 1000000",
                };
                return Err(format!("{level}: give {what}"));
            }
        }
        match levels.windows(2).find(|pair| pair[0] >= pair[1]) {
            Some(pair) => Err(format!("{} stands before {}: give each load once, ascending", pair[0], pair[1])),
            None => Ok(Self::Given(levels.to_vec())),
        }
    }

    /// The load of a step, from 1; none after the last.
    #[must_use]
    pub fn level(&self, step: u32) -> Option<f64> {
        let at = step.checked_sub(1)?;
        match self {
            Self::Given(levels) => levels.get(usize::try_from(at).ok()?).copied(),
            Self::Doubling { most } => {
                let level = (at < MOST_DOUBLINGS).then(|| 2_f64.powi(i32::try_from(at).unwrap_or(i32::MAX)))?;
                Some(level).filter(|level| level <= most)
            }
        }
    }

    /// Steps at most.
    #[must_use]
    pub fn count(&self) -> u32 {
        (1..).take_while(|step| self.level(*step).is_some()).last().unwrap_or(0)
    }

    /// The loads in words: `1, 4, 16 sessions in flight`.
    #[must_use]
    pub fn loads(&self, axis: Axis) -> String {
        let all: Vec<f64> = (1..).map_while(|step| self.level(step)).collect();
        let told = |levels: &[f64]| levels.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
        let loads = match (self, &*all) {
            (_, [one]) => axis.load(*one),
            (Self::Doubling { .. }, [first, second, _, _, .., top]) => {
                format!("{first}, {second}, … {top} {}", axis.unit())
            }
            (_, all) => format!("{} {}", told(all), axis.unit()),
        };
        match self {
            Self::Given(_) => loads,
            Self::Doubling { .. } => format!("{loads}, as far as they bring more and hold the objectives"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_told_as_they_were_given_and_doubling_by_its_end() {
        assert_eq!(Levels::Given(vec![0.5, 2.0]).loads(Axis::Rate), "0.5, 2 sessions/s");
        assert_eq!(Levels::Given(vec![1.0]).loads(Axis::Concurrency), "1 session in flight");
        let doubled = |most| Levels::Doubling { most }.loads(Axis::Concurrency);
        assert!(doubled(16.0).starts_with("1, 2, … 16 sessions in flight"), "{}", doubled(16.0));
        assert_eq!(doubled(12.0), "1, 2, 4, 8 sessions in flight, as far as they bring more and hold the objectives");
    }

    #[test]
    fn a_list_that_is_no_ladder_is_refused_with_the_way_out() {
        let refused = |axis, levels: &[f64]| Levels::given(axis, levels).unwrap_err();
        assert!(refused(Axis::Concurrency, &[]).contains("as in 1,2,4"));
        assert!(refused(Axis::Concurrency, &[1.5]).contains("whole numbers"));
        assert!(refused(Axis::Rate, &[0.0]).contains("above 0"));
        assert!(refused(Axis::Rate, &[f64::NAN]).contains("above 0"));
        assert!(refused(Axis::Rate, &[4.0, 2.0]).contains("4 stands before 2"));
        assert!(refused(Axis::Rate, &[2.0, 2.0]).contains("once"));
        assert!(Levels::given(Axis::Rate, &[0.5, 2.0]).is_ok());
    }
}
