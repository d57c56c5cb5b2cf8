//! What is shown, without how.

use super::number;
use crate::report::{Finding, FindingKind};

/// A title and its sections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub title: String,
    pub sections: Vec<Section>,
}

/// A part of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Section {
    /// The sentences that everything else is there for: of each arm the verdict, and the rest.
    Claims(Vec<[String; 2]>),
    /// Lines that every form shows at the top, such as what was measured.
    Lead(Vec<String>),
    /// Lines of plain text.
    Lines(Vec<String>),
    /// What the reader needs first.
    Table(Grid),
    /// Tables that markdown folds away under one summary.
    Details { summary: String, tables: Vec<Grid> },
    /// Lines for a shell, folded away likewise.
    Code { summary: String, lines: Vec<String> },
}

/// How a row is seen at a glance; markdown puts it into the last column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Good,
    Bad,
    Neutral,
}

/// A table; the first column is text, the others are numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// One a row, or none at all.
    pub marks: Vec<Mark>,
}

impl Grid {
    pub(super) fn new<const N: usize>(header: [&str; N]) -> Self {
        Self { header: header.map(str::to_owned).to_vec(), rows: vec![], marks: vec![] }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.header.len(), "every row has a cell under each head");
        self.rows.push(cells.to_vec());
    }

    /// In a table whose rows have marks.
    pub(super) fn row_marked<const N: usize>(&mut self, cells: [String; N], mark: Mark) {
        self.marks.resize(self.rows.len(), Mark::Neutral);
        self.row(cells);
        self.marks.push(mark);
    }

    /// For a column that turns out to have nothing to say.
    pub(super) fn drop_last_column(&mut self) {
        self.header.pop();
        self.rows.iter_mut().for_each(|row| drop(row.pop()));
    }
}

/// What findings are about, each kind once: `client, errors`.
pub fn kinds(found: impl IntoIterator<Item = FindingKind>) -> String {
    let kinds: std::collections::BTreeSet<FindingKind> = found.into_iter().collect();
    kinds.iter().map(number::word).collect::<Vec<_>>().join(", ")
}

/// A finding in one line: what, seen against which limit, what it does, what to change.
pub(super) fn finding(mark: &str, finding: &Finding) -> String {
    let limit = finding.limit.as_ref().map_or(String::new(), |limit| format!(" (limit {limit})"));
    let kind = number::word(&finding.kind);
    format!("{mark}({kind}): {}{limit}; {}; {}", finding.seen, finding.effect, finding.advice)
}
