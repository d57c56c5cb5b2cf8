//! The ladder of a sweep on the command line: which loads, and when one holds.

use crate::experiment::{Axis, Ladder, Levels};
use crate::profile::{ProfileError, RunSpec};

/// Which loads a sweep applies.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LadderArgs {
    /// Sessions in flight of each step, ascending; every one is run, unless an arm could not be run twice at one. `double` is the
    /// default
    #[arg(long, value_name = "N,N,…|double", help_heading = "Sweep", conflicts_with = "rates")]
    concurrencies: Option<String>,
    /// Sessions a second of each step, ascending; every one is run, as above. `double`: 1, 2, 4, … until saturated. No cap holds
    /// sessions back
    #[arg(long, value_name = "R,R,…|double", help_heading = "Sweep")]
    rates: Option<String>,
    /// Share of good turns at which a step holds the limits of --goodput [default: 0.9]
    #[arg(long, value_name = "SHARE", help_heading = "Sweep")]
    attainment: Option<f64>,
}

/// Nine of ten turns are served in time.
const ATTAINMENT: f64 = 0.9;
/// The word for a ladder without a list.
const DOUBLE: &str = "double";

impl LadderArgs {
    /// Whether the command line says nothing of it.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.concurrencies.is_none() && self.rates.is_none() && self.attainment.is_none()
    }

    /// The ladder of `arms` arms.
    ///
    /// # Errors
    /// When the list is none, or asks for what the plan cannot give.
    pub(crate) fn ladder(&self, spec: &RunSpec, arms: usize) -> Result<Ladder, ProfileError> {
        let (axis, flag, given) = match (&self.concurrencies, &self.rates) {
            (_, Some(rates)) => (Axis::Rate, "--rates", rates.as_str()),
            (given, None) => (Axis::Concurrency, "--concurrencies", given.as_deref().unwrap_or(DOUBLE)),
        };
        let levels = match given {
            DOUBLE => Levels::Doubling { most: if axis == Axis::Concurrency { sessions(spec) } else { f64::MAX } },
            list => listed(axis, list).map_err(|why| ProfileError::value(flag, why))?,
        };
        check_sessions(axis, &levels, spec)?;
        Ok(Ladder { axis, levels, attainment: self.attainment(spec)?, arms })
    }

    fn attainment(&self, spec: &RunSpec) -> Result<Option<f64>, ProfileError> {
        check_attainment(self.attainment, spec)?;
        Ok(spec.slo.map(|_| self.attainment.unwrap_or(ATTAINMENT)))
    }
}

/// Checks a ladder that a file held, which anyone may have changed since it was written.
///
/// # Errors
/// As [`LadderArgs::ladder`].
pub(crate) fn check_stored(ladder: Ladder, spec: &RunSpec, arms: usize) -> Result<Ladder, ProfileError> {
    if let Levels::Given(levels) = &ladder.levels {
        Levels::given(ladder.axis, levels).map_err(|why| ProfileError::value("ladder.levels", why))?;
    }
    check_sessions(ladder.axis, &ladder.levels, spec)?;
    check_attainment(ladder.attainment, spec)?;
    Ok(Ladder { arms, ..ladder })
}

fn listed(axis: Axis, list: &str) -> Result<Levels, String> {
    let number = |text: &str| {
        text.trim().parse::<f64>().map_err(|_| format!("`{text}` is no number: give a list as 1,2,4, or `{DOUBLE}`"))
    };
    let levels = list.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
    Levels::given(axis, &levels)
}

/// All sessions of the plan.
fn sessions(spec: &RunSpec) -> f64 {
    f64::from(spec.workload.groups.get()) * f64::from(spec.workload.sessions_per_group.get())
}

fn check_sessions(axis: Axis, levels: &Levels, spec: &RunSpec) -> Result<(), ProfileError> {
    let sessions = sessions(spec);
    let highest = levels.level(levels.count()).filter(|level| axis == Axis::Concurrency && *level > sessions);
    highest.map_or(Ok(()), |level| {
        let why = format!(
            "{level} sessions can never be in flight at once, since the plan has {sessions}: give less, or more \
             sessions with --gsp-prompts-per-group"
        );
        Err(ProfileError::value("--concurrencies", why))
    })
}

fn check_attainment(given: Option<f64>, spec: &RunSpec) -> Result<(), ProfileError> {
    let wrong = |why: String| Err(ProfileError::value("--attainment", why));
    match given {
        Some(_) if spec.slo.is_none() => {
            wrong("it is a share of good turns, and nothing says which are good: give --goodput ttft:MS".to_owned())
        }
        Some(share) if !(share > 0.0 && share <= 1.0) => {
            wrong(format!("{share}: give a share of turns, above 0 and at most 1, such as 0.9"))
        }
        _ => Ok(()),
    }
}
