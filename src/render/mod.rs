//! Text for people: a report or a comparison as a [`Page`], and a page as terminal text or GitHub markdown.
//!
//! Strings out; no file, no terminal, no arithmetic beyond the formatting of numbers. What a page says is decided once,
//! so both forms say the same.

mod audit;
mod claim;
mod clock;
mod comparison;
mod csv;
mod hlog;
mod html;
mod judged;
mod legend;
mod line;
mod markdown;
mod number;
mod page;
mod places;
mod plan;
mod run;
mod setting;
mod sweep;
mod terminal;
mod windows;

pub use comparison::comparison;
pub use csv::{csv_comparison, csv_run};
pub use hlog::hlog;
pub use html::{html_comparison, html_run, html_sweep};
pub use line::line;
pub use markdown::markdown;
pub use page::{Grid, Mark, Page, Section, kinds};
pub use plan::plan;
pub use run::run;
pub use sweep::{csv_sweep, sweep};
pub use terminal::terminal;

#[cfg(test)]
mod comparison_tests;
#[cfg(test)]
mod comparison_words_tests;
#[cfg(test)]
mod tests;
