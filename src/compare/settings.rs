//! What a comparison is told beside its blocks.

use std::path::Path;

use super::shape::Interrupted;
use crate::report::{Gate, PRIMARY, THRESHOLD, TurnSample, what_may_differ};

/// What was declared before the runs, and how unlike work is met.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub baseline: String,
    /// Arms that are shown and never judged.
    pub controls: Vec<String>,
    /// Key of the primary metric.
    pub primary: String,
    /// Smallest relative change that matters.
    pub threshold: f64,
    /// Fields of the servers' own descriptions in which the arms are meant to differ; `*` at the end stands for any ending.
    pub server_info_may_differ: Vec<String>,
    pub fail_if: Vec<Gate>,
    /// Whether arms that are not comparable are judged all the same.
    pub allow_mismatch: bool,
    /// What is missing of the experiment.
    pub interrupted: Option<Interrupted>,
    /// Whether the arms are one and the same, so that what lies between them is noise.
    pub aa: bool,
}

impl Settings {
    /// Those of saved runs, where nobody declared anything.
    #[must_use]
    pub fn new(baseline: &str) -> Self {
        Self {
            baseline: baseline.to_owned(),
            controls: vec![],
            primary: PRIMARY.to_owned(),
            threshold: THRESHOLD,
            server_info_may_differ: what_may_differ(),
            fail_if: vec![],
            allow_mismatch: false,
            interrupted: None,
            aa: false,
        }
    }

    /// Whether the arm is shown and never judged.
    pub(super) fn is_control(&self, arm: &str) -> bool {
        self.controls.iter().any(|control| control == arm)
    }
}

/// Reads the turns in a block's directory; none when they cannot be read.
pub type Turns<'a> = dyn Fn(&Path) -> Option<Vec<TurnSample>> + 'a;

/// For blocks of which only the reports are at hand.
#[must_use]
pub fn no_turns(_: &Path) -> Option<Vec<TurnSample>> {
    None
}
