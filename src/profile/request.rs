//! From `[key]` and `[request]` of a profile to what every request carries.

use std::num::NonZeroU32;

use super::resolve::{Checked, at_least_one};
use super::spec::largest_event;
use super::{Api, ChatLayout, KeyScope, KeySpec, ProfileError, PromptAs, RequestSpec, raw};

/// Keys are those of a group where each session is one turn: only then does a group's key spread no conversation.
pub(super) fn key_spec(raw: &raw::Key, turns: NonZeroU32) -> Checked<KeySpec> {
    let by = if turns.get() == 1 { KeyScope::Group } else { KeyScope::Session };
    let headers = || ["x-smg-routing-key", "x-session-id"].map(str::to_owned).to_vec();
    let headers = raw.headers.clone().unwrap_or_else(headers);
    headers.iter().try_for_each(|name| check_key_header(name))?;
    Ok(KeySpec {
        by: raw.by.unwrap_or(by),
        salt: raw.salt.unwrap_or(0),
        headers,
        body_field: Some(raw.body_field.clone().unwrap_or_else(|| "routing_key".to_owned())).filter(|f| !f.is_empty()),
    })
}

/// Body fields that this program writes itself, with the way out; a second one of a name would be read by some servers and
/// not by others.
const RESERVED: [(&str, &str); 7] = [
    ("messages", "the workload writes the prompt: leave it out"),
    ("prompt", "the workload writes the prompt: leave it out"),
    ("text", "the workload writes the prompt: leave it out"),
    ("input_ids", "the workload writes the prompt: use `request.prompt_as` = \"ids\""),
    ("stream", "every request is streamed: leave it out"),
    ("model", "use `request.model`, or --model"),
    ("rid", "each turn has an id of its own: leave it out"),
];

/// Headers that the connection writes itself.
const FRAMING: [&str; 9] =
    ["connection", "content-length", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// Headers that every request has for another purpose.
const TAKEN: [&str; 7] =
    ["accept", "accept-encoding", "authorization", "content-type", "cookie", "user-agent", "x-request-id"];

fn check_key_header(name: &str) -> Checked<()> {
    check_header("key.headers", name, "")?;
    if TAKEN.contains(&name.to_ascii_lowercase().as_str()) {
        let why = "each request has this header for another purpose: give the one that the router takes its key from";
        return Err(ProfileError::value("key.headers", format!("`{name}`: {why}")));
    }
    Ok(())
}

fn check_header(key: &str, name: &str, value: &str) -> Checked<()> {
    let refused = |why: &str| Err(ProfileError::value(key, format!("`{name}`: {why}")));
    if reqwest::header::HeaderName::from_bytes(name.as_bytes()).is_err() {
        return refused("no name that HTTP allows: letters, digits and dashes");
    }
    if FRAMING.contains(&name.to_ascii_lowercase().as_str()) {
        return refused("the connection writes this header itself: leave it out");
    }
    // The value may be a secret, and is not repeated.
    if reqwest::header::HeaderValue::from_str(value).is_err() {
        return refused("its value holds characters that HTTP does not allow: give printable ASCII");
    }
    Ok(())
}

/// The request, without what this program or the connection writes itself.
pub(super) fn request_spec(raw: &raw::Request) -> Checked<RequestSpec> {
    let temperature = raw.temperature.unwrap_or(0.0);
    if !(temperature.is_finite() && temperature >= 0.0) {
        return Err(ProfileError::value(
            "request.temperature",
            format!("{temperature} is negative or no number: give 0 or more"),
        ));
    }
    let extra_body = match serde_json::to_value(&raw.extra_body) {
        Ok(serde_json::Value::Object(fields)) => fields,
        _ => return Err(ProfileError::value("request.extra_body", "not a table that JSON can hold")),
    };
    let sampling = extra_body.get("sampling_params");
    let choices = [Some(&extra_body), sampling.and_then(serde_json::Value::as_object)];
    if choices.into_iter().flatten().any(|fields| fields.get("n").is_some_and(|n| n != 1)) {
        return Err(ProfileError::value(
            "request.extra_body.n",
            "several choices a request cannot be timed: leave `n` out",
        ));
    }
    for (field, way_out) in RESERVED {
        if extra_body.contains_key(field) {
            return Err(ProfileError::value(&format!("request.extra_body.{field}"), way_out));
        }
    }
    for (name, value) in &raw.headers {
        check_header("request.headers", name, value)?;
    }
    let insecure = raw.insecure.unwrap_or(false);
    if insecure && raw.ca_file.is_some() {
        let why = "it trusts anyone, so a certificate file says nothing: give one of the two";
        return Err(ProfileError::value("request.insecure", why));
    }
    let limit = raw.largest_event_mib.map(|mib| at_least_one("request.largest_event_mib", mib)).transpose()?;
    let largest_event_mib = limit.unwrap_or(largest_event());
    Ok(RequestSpec {
        api: raw.api.unwrap_or(Api::Chat),
        chat_layout: raw.chat_layout.unwrap_or(ChatLayout::System),
        prompt_as: raw.prompt_as.unwrap_or(PromptAs::Text),
        tokenizer: raw.tokenizer.as_ref().map(Into::into),
        model: raw.model.clone(),
        temperature,
        ignore_eos: raw.ignore_eos.unwrap_or(true),
        extra_body,
        headers: raw.headers.clone(),
        ca_file: raw.ca_file.as_ref().map(Into::into),
        insecure,
        place_field: raw.place_field,
        largest_event_mib,
    })
}
