//! What no record, file or message may repeat of what was sent.

use std::sync::Arc;

use super::http::Settings;
use crate::record::TurnRecord;

/// Header values shorter than this are words, not secrets, and hiding them would garble messages.
const SECRET_LENGTH: usize = 8;

/// The key, and the values of headers that by their names hold one.
pub(super) fn of(settings: &Settings) -> Arc<[String]> {
    let is_secret =
        |name: &str| ["auth", "key", "cookie", "token"].iter().any(|word| name.to_lowercase().contains(word));
    let headers = settings.headers.iter().filter(|(name, value)| is_secret(name) && value.len() >= SECRET_LENGTH);
    settings.api_key.iter().chain(headers.map(|(_, value)| value)).cloned().collect()
}

/// A text of the server's without them.
pub(super) fn hidden(secrets: &[String], text: &str) -> String {
    secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "(hidden)"))
}

/// The same for what a record quotes of the server beside its error.
pub(super) fn hide(secrets: &[String], record: &mut TurnRecord) {
    if secrets.is_empty() {
        return;
    }
    let TurnRecord { place, request_id, finish, .. } = record;
    *place = place.take().map(|place| place.renamed(|name| hidden(secrets, name)));
    for text in [request_id, finish].into_iter().flatten() {
        *text = hidden(secrets, text);
    }
}
