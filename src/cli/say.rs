//! The only places that write: results to standard output, everything else to standard error. A reader that has gone away
//! (`| head`) is no error; a full disk is. Text of servers and files never steers the terminal.

use std::io::{ErrorKind, Write};

use crate::units::steers;
use anyhow::Context as _;

/// Writes a result.
///
/// # Errors
/// When it cannot be written, for another reason than that no one reads on.
pub(super) fn result(text: &str) -> anyhow::Result<()> {
    write(&mut std::io::stdout(), &harmless(text, |_| "?".to_owned()))
}

/// Writes a JSON document; a control character in it is spelled out, which leaves its meaning as it is.
///
/// # Errors
/// As [`result`].
pub(super) fn json(text: &str) -> anyhow::Result<()> {
    write(&mut std::io::stdout(), &harmless(text, |c| format!("\\u{:04x}", u32::from(c))))
}

/// Writes a line for the person at the terminal.
pub(super) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", harmless(text, |_| "?".to_owned()));
}

/// Writes several.
pub(super) fn notes(texts: &[String]) {
    texts.iter().for_each(|text| note(&format!("note: {text}")));
}

/// Writes why the program ends.
pub(super) fn error(error: &anyhow::Error) {
    note(&format!("error: {}", words(error)));
}

/// An error and its causes, each said once: many errors name their cause in their own words.
pub(super) fn words(error: &anyhow::Error) -> String {
    let mut words = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !words.contains(&cause) {
            words = format!("{words}: {cause}");
        }
    }
    words
}

fn write(out: &mut dyn Write, text: &str) -> anyhow::Result<()> {
    match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
        Err(why) if why.kind() != ErrorKind::BrokenPipe => {
            Err(why).context("cannot write the result to standard output")
        }
        _ => Ok(()),
    }
}

/// The text with the characters that steer replaced; line ends, also those of CSV, and tabs stay.
fn harmless(text: &str, instead: impl Fn(char) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let stays = !steers(c) || matches!(c, '\n' | '\t') || (c == '\r' && rest.peek() == Some(&'\n'));
        if stays { out.push(c) } else { out.push_str(&instead(c)) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_that_went_away_is_forgiven() {
        struct Ends(ErrorKind);
        impl Write for Ends {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(self.0.into())
            }

            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        assert!(write(&mut Ends(ErrorKind::BrokenPipe), "x").is_ok());
        assert!(write(&mut Ends(ErrorKind::StorageFull), "x").unwrap_err().to_string().contains("standard output"));
    }

    #[test]
    fn a_cause_is_said_once() {
        let inner = std::io::Error::other("disk is full");
        let store = crate::store::StoreError::Write { path: "x".into(), source: inner };
        let said = words(&anyhow::Error::new(store).context("arm `a`"));
        assert_eq!(said.matches("disk is full").count(), 1, "{said}");
        assert!(said.starts_with("arm `a`: cannot write `x`"), "{said}");
    }

    #[test]
    fn line_ends_of_every_kind_stay_and_a_return_by_itself_does_not() {
        assert_eq!(harmless("a,b\r\nc\td\n", |_| "?".into()), "a,b\r\nc\td\n");
        assert_eq!(harmless("a\rb\r\r\n", |_| "?".into()), "a?b?\r\n");
    }

    #[test]
    fn control_characters_of_a_document_are_spelled_out() {
        let text = "{\n \"a\": \"\u{9b}31m\u{7f}\u{202e}\"}";
        let shown = harmless(text, |c| format!("\\u{:04x}", u32::from(c)));
        assert!(!shown.chars().any(|c| steers(c) && c != '\n'));
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&shown), read(text));
    }
}
