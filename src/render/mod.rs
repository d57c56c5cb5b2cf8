//! Text for people: a report or a comparison as a page, and a page as terminal text or GitHub markdown.
//!
//! Strings out; no file, no terminal, no arithmetic beyond the formatting of numbers. What a page says is decided once,
//! so both forms say the same.

mod comparison;
mod markdown;
mod number;
mod page;
mod places;
mod run;
mod terminal;

use crate::compare::Comparison;
use crate::report::RunReport;

/// A run for the terminal.
#[must_use]
pub fn run_table(report: &RunReport) -> String {
    terminal::terminal(&run::run(report))
}

/// A run as GitHub markdown.
#[must_use]
pub fn run_markdown(report: &RunReport) -> String {
    markdown::markdown(&run::run(report))
}

/// Arms side by side for the terminal.
#[must_use]
pub fn comparison_table(comparison: &Comparison) -> String {
    terminal::terminal(&comparison::comparison(comparison))
}

/// Arms side by side as GitHub markdown.
#[must_use]
pub fn comparison_markdown(comparison: &Comparison) -> String {
    markdown::markdown(&comparison::comparison(comparison))
}

#[cfg(test)]
mod tests;
