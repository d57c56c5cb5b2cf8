//! Refusals in SGLang's shapes. The native and the OpenAI routes differ, and validation differs from both.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::json_string;

/// A reply that is no generation: a status and a JSON body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    status: StatusCode,
    body: String,
}

impl Refusal {
    /// A request that parses but cannot be served.
    pub(super) fn openai(message: &str) -> Self {
        Self::envelope(StatusCode::BAD_REQUEST, message, "BadRequestError")
    }

    /// The same on `/generate`.
    pub(super) fn native(message: &str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, body: format!(r#"{{"error":{{"message":{}}}}}"#, json_string(message)) }
    }

    /// A field of the wrong type on `/generate`, where the schema is checked before anything else.
    pub(super) fn native_type(message: &str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, body: format!(r#"{{"error":{}}}"#, json_string(message)) }
    }

    /// A body that does not fit the schema: where, what, and what was there instead (as JSON).
    pub(super) fn invalid(at: &str, message: &str, input: &str) -> Self {
        let problem = format!("{{'loc': ({at}), 'msg': '{message}', 'input': {input}}}");
        Self::envelope(StatusCode::BAD_REQUEST, &format!("1 validation error:\n  {problem}"), "Bad Request")
    }

    /// A bad rank header: its type is the bare status.
    pub(super) fn header(message: &str) -> Self {
        Self::envelope(StatusCode::BAD_REQUEST, message, "400")
    }

    /// The fleet has stopped.
    pub(super) fn stopped() -> Self {
        Self::envelope(StatusCode::SERVICE_UNAVAILABLE, "the simulated fleet has stopped", "503")
    }

    /// No such route.
    pub(super) fn not_found() -> Self {
        Self { status: StatusCode::NOT_FOUND, body: r#"{"detail":"Not Found"}"#.to_owned() }
    }

    /// A route that has other methods.
    pub(super) fn method() -> Self {
        Self { status: StatusCode::METHOD_NOT_ALLOWED, body: r#"{"detail":"Method Not Allowed"}"#.to_owned() }
    }

    fn envelope(status: StatusCode, message: &str, kind: &str) -> Self {
        let (message, code) = (json_string(message), status.as_u16());
        let body = format!(r#"{{"object":"error","message":{message},"type":"{kind}","param":null,"code":{code}}}"#);
        Self { status, body }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, [(header::CONTENT_TYPE, "application/json")], self.body).into_response()
    }
}
