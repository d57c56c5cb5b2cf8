//! A page as GitHub markdown, to be pasted into a pull request: ASCII markup, no HTML but `<details>`.

use super::page::{Grid, Mark, Page, Section};
use crate::units::steers;

/// GitHub takes 65,536 characters in a comment or a description; the rest is for whoever writes above and below.
const MOST_CHARACTERS: usize = 60_000;

/// The page as markdown, ending in a newline. Where it would be too long for GitHub, folded sections are left out from the last
/// on, and that is said.
#[must_use]
pub fn markdown(page: &Page) -> String {
    let sections: Vec<String> = page.sections.iter().map(section).collect();
    let length = |text: &String| text.chars().count() + 1;
    let mut excess = sections.iter().map(length).sum::<usize>().saturating_sub(MOST_CHARACTERS);
    let mut left_out = 0;
    let mut kept = vec![];
    for (section, text) in page.sections.iter().zip(sections).rev() {
        if excess > 0 && matches!(section, Section::Details { .. } | Section::Code { .. }) {
            excess = excess.saturating_sub(length(&text));
            left_out += 1;
        } else {
            kept.push(text);
        }
    }
    let mut out = format!("### {}\n", escaped(&page.title));
    kept.iter().rev().for_each(|text| out.extend(["\n", text.as_str()]));
    if left_out > 0 {
        out.push_str(&format!(
            "\n- {left_out} more tables are too long for GitHub and stand in the results' directory\n"
        ));
    }
    out
}

fn section(section: &Section) -> String {
    let mut out = String::new();
    match section {
        Section::Claims(claims) => push_claims(&mut out, claims),
        Section::Lead(lines) | Section::Lines(lines) => {
            lines.iter().for_each(|line| out.push_str(&format!("- {}\n", escaped(line))));
        }
        Section::Table(grid) => push_table(&mut out, grid),
        Section::Details { summary, tables } => fold(&mut out, summary, |out| {
            for grid in tables {
                push_table(out, grid);
                out.push('\n');
            }
        }),
        Section::Code { summary, lines } => fold(&mut out, summary, |out| {
            // Four blanks make code of any text; a fence could be closed by what stands inside.
            lines.iter().for_each(|line| out.push_str(&format!("    {}\n", line.replace(steers, " "))));
            out.push('\n');
        }),
    }
    out
}

fn push_claims(out: &mut String, claims: &[[String; 2]]) {
    let paragraph = |[verdict, rest]: &[String; 2]| format!("**{}**\n\n{}\n", escaped(verdict), escaped(rest));
    out.push_str(&claims.iter().map(paragraph).collect::<Vec<_>>().join("\n"));
}

fn fold(out: &mut String, summary: &str, inside: impl FnOnce(&mut String)) {
    out.push_str(&format!("<details><summary>{}</summary>\n\n", as_html(summary)));
    inside(out);
    out.push_str("</details>\n");
}

fn push_table(out: &mut String, grid: &Grid) {
    let row =
        |cells: &[String]| format!("| {} |\n", cells.iter().map(|cell| escaped(cell)).collect::<Vec<_>>().join(" | "));
    out.push_str(&row(&grid.header));
    out.push_str(&format!("|---|{}\n", "--:|".repeat(grid.header.len() - 1)));
    for (at, cells) in grid.rows.iter().enumerate() {
        let mut cells = cells.clone();
        if let (Some(mark), Some(last)) = (grid.marks.get(at), cells.last_mut()) {
            *last = format!("{} {last}", sign(*mark)).trim_end().to_owned();
        }
        out.push_str(&row(&cells));
    }
}

fn sign(mark: Mark) -> &'static str {
    match mark {
        Mark::Good => "✅",
        Mark::Bad => "⚠️",
        Mark::Neutral => "▫️",
    }
}

/// Text inside a tag, where GitHub reads no markdown.
fn as_html(text: &str) -> String {
    text.replace(steers, " ").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Text of servers, files and users must not become markup; `~` twice in a line would strike out what is between.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '|' | '*' | '_' | '`' | '~' | '[' | ']' | '\\' | '#' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '@' => out.push_str("&#64;"),
            c if steers(c) => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_text() {
        assert_eq!(escaped("a|b <img> *x* ~1 @team\n"), "a\\|b &lt;img&gt; \\*x\\* \\~1 &#64;team ");
    }

    #[test]
    fn what_github_would_refuse_loses_its_last_folds_and_says_so() {
        let mut grid = Grid::new(["a", "b"]);
        (0..1_000).for_each(|_| grid.row(["x".repeat(20), "y".repeat(20)]));
        let fold = |summary: &str| Section::Details { summary: summary.into(), tables: vec![grid.clone()] };
        let sections = vec![
            Section::Claims(vec![["claim".into(), "rest".into()]]),
            fold("one"),
            fold("two"),
            Section::Lines(vec!["end".into()]),
        ];
        let text = markdown(&Page { title: "t".into(), sections });
        assert!(text.chars().count() < 65_536, "{}", text.len());
        assert!(text.contains("<summary>one") && !text.contains("<summary>two") && text.contains("- end"));
        assert!(text.ends_with("1 more tables are too long for GitHub and stand in the results' directory\n"));
    }
}
