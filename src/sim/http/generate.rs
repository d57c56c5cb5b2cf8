//! The three generation routes, streamed or whole. They differ in when the head goes out: `/generate` answers at once, the
//! OpenAI routes with the first frame.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::Stream;

use super::App;
use super::ask::{self, Ask, Bad, Route};
use super::error::Refusal;
use super::flight::{Flight, Lost, Names, Progress};
use super::frames::Frames;
use super::json_string;

/// Serves one request of `route`.
pub(super) async fn serve(app: Arc<App>, route: Route, headers: HeaderMap, body: Bytes) -> Response {
    let received = app.clock.now();
    match read(&app, route, &headers, body).await {
        Ok(ask) => fly(&app, ask, Names::of(&headers), received).await,
        Err(Bad::Schema(refusal)) => refusal.into_response(),
        Err(Bad::Request { message, is_streaming }) => refuse(route, is_streaming, &message),
    }
}

/// Tokenizing with a real tokenizer takes milliseconds, which must not stand between other requests' tokens.
async fn read(app: &Arc<App>, route: Route, headers: &HeaderMap, body: Bytes) -> Result<Ask, Bad> {
    let is_json = ask::header(headers, "content-type").is_some_and(|kind| kind.starts_with("application/json"));
    if route != Route::Generate && !is_json {
        let message = "Unsupported Media Type: Only \\'application/json\\' is allowed";
        return Err(Refusal::invalid("'header', 'content-type'", message, "None").into());
    }
    let ask = if app.tokens.vocabulary().is_none() {
        ask::read(app, route, headers, &body)?
    } else {
        let (app, headers) = (Arc::clone(app), headers.clone());
        let reading = tokio::task::spawn_blocking(move || ask::read(&app, route, &headers, &body));
        reading.await.map_err(|_| Refusal::stopped())??
    };
    match &ask.rid {
        Some(rid) if !app.claim(rid) => {
            let message = format!("Duplicate request ID detected: {rid}");
            Err(Bad::Request { message, is_streaming: ask.is_streaming })
        }
        _ => Ok(ask),
    }
}

async fn fly(app: &Arc<App>, ask: Ask, names: Names, received: Duration) -> Response {
    let mut flight = Flight::start(app, ask, names, received);
    if !flight.ask.is_streaming {
        return whole(flight).await;
    }
    let pending = match flight.ask.route {
        Route::Generate => None,
        Route::Chat | Route::Completions => match flight.progress().await {
            Ok(progress) => Some(progress),
            Err(lost) => return refuse_lost(flight.ask.route, lost),
        },
    };
    let frames = Frames::new(&flight);
    let stream = Frame { flight: Some(flight), frames, pending, queue: VecDeque::new() };
    ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], Body::from_stream(stream)).into_response()
}

async fn whole(mut flight: Flight) -> Response {
    loop {
        match flight.progress().await {
            Ok(Progress { is_last: false, .. }) => {}
            Ok(Progress { .. }) => break,
            Err(lost) => return refuse_lost(flight.ask.route, lost),
        }
    }
    let now = flight.app.clock.now();
    let body = Frames::new(&flight).whole(&flight, now);
    let tokens = flight.tokens;
    flight.wrote(now, tokens);
    flight.complete();
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// The body of a stream: frames as their tokens come.
struct Frame {
    /// Gone when all is written or lost.
    flight: Option<Flight>,
    frames: Frames,
    /// What was awaited before the head went out.
    pending: Option<Progress>,
    queue: VecDeque<(Bytes, u32)>,
}

impl Stream for Frame {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { flight: slot, frames, pending, queue } = self.get_mut();
        let Some(flight) = slot else { return Poll::Ready(None) };
        if queue.is_empty() {
            let progress = match pending.take() {
                Some(progress) => Ok(progress),
                None => match flight.poll(context) {
                    Poll::Ready(progress) => progress,
                    Poll::Pending => return Poll::Pending,
                },
            };
            match progress {
                Ok(progress) => frames.push(flight, progress, flight.app.clock.now(), queue),
                Err(Lost::Refused(refusal)) => {
                    *slot = None;
                    return Poll::Ready(Some(Ok(native_error(&refusal.to_string()).into())));
                }
                Err(Lost::Stopped) => {
                    *slot = None;
                    return Poll::Ready(Some(Err(io::Error::other("the simulated fleet has stopped"))));
                }
            }
        }
        let Some((frame, new)) = queue.pop_front() else { return Poll::Ready(None) };
        flight.wrote(flight.app.clock.now(), new);
        if queue.is_empty() && frame.ends_with(b"[DONE]\n\n") {
            flight.complete();
            *slot = None;
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

fn refuse(route: Route, is_streaming: bool, message: &str) -> Response {
    match (route, is_streaming) {
        (Route::Generate, false) => Refusal::native(message).into_response(),
        (Route::Generate, true) => {
            ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], native_error(message)).into_response()
        }
        (Route::Chat | Route::Completions, _) => Refusal::openai(message).into_response(),
    }
}

/// A stream on `/generate` has said 200 before it looks at the request.
fn native_error(message: &str) -> String {
    let message = json_string(message);
    format!(
        "data: {{\"error\":{{\"message\":{message},\"type\":\"invalid_request_error\",\"code\":400,\"retryable\":false}}}}\n\ndata: [DONE]\n\n"
    )
}

fn refuse_lost(route: Route, lost: Lost) -> Response {
    match lost {
        Lost::Refused(refusal) => refuse(route, false, &refusal.to_string()),
        Lost::Stopped => Refusal::stopped().into_response(),
    }
}
