//! The only places that write: results to standard output, everything else to standard error. A reader that has gone away
//! (`| head`) is no error.

use std::io::Write as _;

/// Writes a result.
pub(super) fn result(text: &str) {
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
}

/// Writes a line for the person at the terminal.
pub(super) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Writes several.
pub(super) fn notes(texts: &[String]) {
    texts.iter().for_each(|text| note(&format!("note: {text}")));
}

/// Writes why the program ends.
pub(super) fn error(error: &anyhow::Error) {
    note(&format!("error: {error:#}"));
}
