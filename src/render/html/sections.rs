//! A page's own sections: the same words and figures as in the other forms.

use super::element::{Element, el};
use crate::render::page::{Grid, Mark, Section};

pub(super) fn element(section: &Section) -> Element {
    match section {
        Section::Claims(claims) => {
            let claim = |[claim, rest]: &[String; 2]| [el("p").child(el("strong").text(claim)), el("p").text(rest)];
            el("div").with("class", "claims").all(claims.iter().flat_map(claim))
        }
        Section::Code { summary, lines } => {
            el("details").child(el("summary").text(summary)).all(lines.iter().map(|line| el("pre").text(line)))
        }
        Section::Lead(lines) | Section::Lines(lines) => {
            el("ul").with("class", "lines").all(lines.iter().map(|line| el("li").with("class", class(line)).text(line)))
        }
        Section::Table(grid) => table(grid),
        Section::Details { summary, tables } => {
            el("details").child(el("summary").text(summary)).all(tables.iter().map(table))
        }
    }
}

/// What a reader must not overlook.
fn class(line: &str) -> &'static str {
    if ["VOID", "NOT COMPARABLE", "INTERRUPTED"].iter().any(|word| line.contains(word)) {
        "void"
    } else if line.contains("warning(") {
        "warning"
    } else {
        "plain"
    }
}

/// A table that scrolls by itself where the screen is too narrow for it.
pub(super) fn table(grid: &Grid) -> Element {
    let row = |cells: &[String], of_first: &'static str, of_rest: &'static str| {
        let cell = |(at, text): (usize, &String)| {
            let scope = if of_rest == "th" { "col" } else { "row" };
            let cell = el(if at == 0 { of_first } else { of_rest });
            let cell = if at == 0 || of_rest == "th" { cell.with("scope", scope) } else { cell };
            cell.text(text)
        };
        el("tr").all(cells.iter().enumerate().map(cell))
    };
    let head = el("thead").child(row(&grid.header, "th", "th"));
    let class = |at: usize| match grid.marks.get(at) {
        Some(Mark::Good) => "better",
        Some(Mark::Bad) => "worse",
        Some(Mark::Neutral) | None => "plain",
    };
    let body = grid.rows.iter().enumerate().map(|(at, cells)| row(cells, "th", "td").with("class", class(at)));
    let body = el("tbody").all(body);
    el("div").with("class", "scroll").with("tabindex", 0).child(el("table").child(head).child(body))
}
