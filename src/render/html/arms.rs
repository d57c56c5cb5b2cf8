//! Runs grouped by their arm, in the order and colour in which every plot shows them.

use crate::compare::{BlockResult, Comparison};
use crate::report::{Latency, RunReport, State, Verdict};
use crate::stats::Distribution;

/// Classes of colour in the style sheet; arms beyond them share the last.
const COLOURS: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];

/// One arm with the runs whose numbers may be used.
#[derive(Debug)]
pub(super) struct Arm<'a> {
    pub name: String,
    pub colour: &'static str,
    pub runs: Vec<Run<'a>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Run<'a> {
    pub round: Option<u32>,
    pub report: &'a RunReport,
}

impl Run<'_> {
    /// Which run of the arm it is; of the only one, its arm.
    pub(super) fn of(&self, arm: &Arm<'_>) -> String {
        self.round.map_or_else(|| arm.name.clone(), |_| format!("{}, {}", arm.name, self.name()))
    }

    pub(super) fn name(&self) -> String {
        self.round.map_or("the run".to_owned(), |round| format!("round {round}"))
    }
}

impl Arm<'_> {
    /// All runs as one distribution; none when any has none.
    pub(super) fn distribution(&self, latency: Latency) -> Option<Distribution> {
        let mut parts = self.runs.iter().map(|run| run.report.distribution(latency));
        let mut whole = parts.next()??;
        for part in parts {
            whole.merge(&part?);
        }
        Some(whole)
    }
}

/// The class of an arm's colour.
pub(super) fn colour(at: usize) -> &'static str {
    COLOURS[at.min(COLOURS.len() - 1)]
}

/// One run, whatever may be said against it: its page says that.
pub(super) fn of_run(report: &RunReport) -> Vec<Arm<'_>> {
    let manifest = &report.manifest;
    let name = manifest.arm.clone().unwrap_or_else(|| "this run".to_owned());
    vec![Arm { name, colour: COLOURS[1], runs: vec![Run { round: manifest.round, report }] }]
}

/// The arms of a comparison. Void and unfinished blocks are in no plot, as they are in no figure.
pub(super) fn of_comparison<'a>(comparison: &Comparison, blocks: &'a [BlockResult]) -> Vec<Arm<'a>> {
    let is_used =
        |block: &&BlockResult| block.report.validity.verdict == Verdict::Valid && block.report.state == State::Complete;
    let run = |block: &'a BlockResult| Run { round: Some(block.round), report: &block.report };
    let arm = |(at, arm): (usize, &crate::compare::Arm)| Arm {
        name: arm.name.clone(),
        colour: colour(at),
        runs: blocks.iter().filter(is_used).filter(|block| block.arm == arm.name).map(run).collect(),
    };
    comparison.arms.iter().enumerate().map(arm).collect()
}
