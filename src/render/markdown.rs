//! A page as GitHub markdown, to be pasted into a pull request: ASCII markup, no HTML but `<details>`.

use super::page::{Grid, Page, Section};

/// The page as markdown, ending in a newline.
#[must_use]
pub fn markdown(page: &Page) -> String {
    let mut out = format!("### {}\n", escaped(&page.title));
    for section in &page.sections {
        out.push('\n');
        match section {
            Section::Lines(lines) => lines.iter().for_each(|line| out.push_str(&format!("- {}\n", escaped(line)))),
            Section::Table(grid) => push_table(&mut out, grid),
            Section::Details { summary, tables } => {
                out.push_str(&format!("<details><summary>{}</summary>\n\n", as_html(summary)));
                for grid in tables {
                    push_table(&mut out, grid);
                    out.push('\n');
                }
                out.push_str("</details>\n");
            }
        }
    }
    out
}

fn push_table(out: &mut String, grid: &Grid) {
    let row =
        |cells: &[String]| format!("| {} |\n", cells.iter().map(|cell| escaped(cell)).collect::<Vec<_>>().join(" | "));
    out.push_str(&row(&grid.header));
    out.push_str(&format!("|---|{}\n", "--:|".repeat(grid.header.len() - 1)));
    grid.rows.iter().for_each(|cells| out.push_str(&row(cells)));
}

/// Text inside a tag, where GitHub reads no markdown.
fn as_html(text: &str) -> String {
    text.replace(char::is_control, " ").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
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
            c if c.is_control() => out.push(' '),
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
}
