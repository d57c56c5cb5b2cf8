//! A page as text for a terminal: about 100 columns, no colour, no control characters.

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, ContentArrangement, Table};

use super::page::{Grid, Page, Section};
use crate::units::steers;

/// Columns after which plain lines wrap.
const WIDTH: usize = 100;

/// The page as terminal text, ending in a newline.
#[must_use]
pub fn terminal(page: &Page) -> String {
    let mut out = format!("{}\n", clean(&page.title));
    for section in &page.sections {
        match section {
            Section::Claims(claims) => claims.iter().flatten().for_each(|line| push_wrapped(&mut out, line)),
            Section::Lead(lines) | Section::Lines(lines) => lines.iter().for_each(|line| push_wrapped(&mut out, line)),
            Section::Table(grid) => push_table(&mut out, grid),
            Section::Details { summary, tables } => {
                push_wrapped(&mut out, summary);
                tables.iter().for_each(|grid| push_table(&mut out, grid));
            }
            Section::Code { summary, lines } => {
                push_wrapped(&mut out, summary);
                // Unbroken, so that it can be copied.
                lines.iter().for_each(|line| out.push_str(&format!("    {}\n", clean(line))));
            }
        }
    }
    out
}

fn push_table(out: &mut String, grid: &Grid) {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(printable(&grid.header)).add_rows(grid.rows.iter().map(|row| printable(row)));
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_padding((u16::from(at == 0), 1));
        if at > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    out.push_str(&table.trim_fmt());
    out.push('\n');
}

fn printable(cells: &[String]) -> Vec<String> {
    cells.iter().map(|cell| clean(cell)).collect()
}

/// Text of servers and files must not steer the terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if steers(c) { '?' } else { c }).collect()
}

/// Breaks between words; what follows is indented.
fn push_wrapped(out: &mut String, line: &str) {
    let mut column = 0;
    for word in clean(line).split(' ') {
        let width = word.chars().count();
        if column > 0 && column + 1 + width > WIDTH {
            out.push_str("\n    ");
            column = 4;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += width;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_page_steers_the_terminal() {
        let evil = || "a\u{1b}]0;x\u{7}\u{9b}31m\u{202e}z\u{2066}\u{200f}\u{2028}".to_owned();
        let grid = || Grid { header: vec![evil(), evil()], rows: vec![vec![evil(), evil()]], marks: vec![] };
        let sections = vec![
            Section::Lines(vec![evil()]),
            Section::Table(grid()),
            Section::Details { summary: evil(), tables: vec![grid()] },
            Section::Claims(vec![[evil(), evil()]]),
            Section::Code { summary: evil(), lines: vec![evil()] },
        ];
        let page = Page { title: evil(), sections };
        for text in [terminal(&page), super::super::markdown(&page)] {
            assert!(!text.chars().any(|c| steers(c) && c != '\n'), "{text:?}");
        }
    }

    #[test]
    fn lines_wrap_between_words_and_control_characters_are_shown_as_such() {
        let mut out = String::new();
        push_wrapped(&mut out, &format!("{} {} \u{1b}[31mred", "a".repeat(60), "b".repeat(60)));
        assert_eq!(out, format!("{}\n    {} ?[31mred\n", "a".repeat(60), "b".repeat(60)));
    }
}
