//! What a record keeps of a server's words on a failure.

/// Bytes of an error body that a record keeps.
const DETAIL_LIMIT: usize = 200;

/// The words of an error body that is JSON, in any of the servers' shapes.
pub(super) fn error_of(body: &str) -> Option<String> {
    let body = body.trim();
    if !body.starts_with('{') {
        return None;
    }
    let value: serde_json::Value = serde_json::from_str(body).ok()?;
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    match value.get("error") {
        Some(serde_json::Value::Object(fields)) => fields.get("message").and_then(text),
        Some(error) => text(error),
        None => value.get("message").or_else(|| value.get("detail")).and_then(text),
    }
}

/// The first 200 bytes, cut at a character.
pub(super) fn shorten(text: &str) -> String {
    let text = text.trim();
    let end = (0..=DETAIL_LIMIT.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}
