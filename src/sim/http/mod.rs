//! The HTTP front: SGLang's routes, with bytes that are written here by hand.

mod ask;
mod control;
mod error;
mod flight;
mod frames;
mod front;
mod generate;
mod metrics;

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::HeaderMap;
use axum::routing::{MethodFilter, get, on, post};
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use xxhash_rust::xxh3::xxh3_128;

use crate::clock::Clock;

use self::ask::Route;
use self::error::Refusal;
use self::front::Front;
use super::actor::{Handle, Report, start};
use super::log::Log;
use super::settings::Settings;
use super::tokens::Tokens;

/// All that the server needs beside its socket.
#[derive(Debug)]
pub struct Setup {
    pub settings: Settings,
    pub tokens: Tokens,
    pub log: Option<Log>,
    pub clock: Clock,
    /// Unix time of the clock's zero.
    pub start_unix: Duration,
}

/// Unix time of the clock's zero, as far as the wall can tell.
#[must_use]
pub fn start_unix(clock: &Clock) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(clock.now())
}

/// Connections get this long to end after a shutdown.
const GRACE: Duration = Duration::from_secs(1);

/// Serves until `shutdown` is ready. Streams that run then are cut without a `[DONE]`, as by a server that dies.
///
/// # Errors
/// When the socket fails, or the fleet has died: a server that can only refuse must not look alive.
pub async fn serve(listener: TcpListener, setup: Setup, shutdown: impl Future<Output = ()>) -> io::Result<()> {
    let Setup { settings, tokens, log, clock, start_unix } = setup;
    let (fleet, run) = start(&settings, clock.clone());
    let mut fleet_task = tokio::spawn(run);
    let app = Arc::new(App {
        settings,
        tokens,
        log,
        clock,
        start_unix,
        fleet,
        front: Mutex::default(),
        rids: Mutex::default(),
        ids: AtomicU64::new(0),
    });
    // Without this, small frames would wait for the acknowledgement of the frame before.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = axum::serve(listener, router(app)).with_graceful_shutdown(async {
        stopped.await.ok();
    });
    let mut serving = std::pin::pin!(serving.into_future());
    tokio::select! {
        ended = &mut serving => ended,
        died = &mut fleet_task => Err(io::Error::other(died.map_or_else(
            |why| format!("the simulated fleet has died: {why}"),
            |()| "the simulated fleet has ended".to_owned(),
        ))),
        () = shutdown => {
            fleet_task.abort();
            stop.send(()).ok();
            // A client that keeps its connection busy must not keep the server.
            tokio::time::timeout(GRACE, serving).await.unwrap_or(Ok(()))
        }
    }
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(completions))
        .route("/generate", on(MethodFilter::POST.or(MethodFilter::PUT), native))
        .route("/v1/models", get(control::models))
        .route("/model_info", get(control::model_info))
        .route("/get_model_info", get(control::model_info))
        .route("/server_info", get(control::server_info))
        .route("/get_server_info", get(control::server_info))
        .route("/health", get(control::health))
        .route("/health_generate", get(control::health))
        .route("/ready", get(control::health))
        .route("/flush_cache", get(control::flush).post(control::flush))
        .route("/v1/loads", get(control::loads))
        .route("/metrics", get(metrics::metrics))
        .fallback(|| async { Refusal::not_found() })
        .method_not_allowed_fallback(|| async { Refusal::method() })
        .layer(DefaultBodyLimit::disable())
        .with_state(app)
}

async fn chat(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> axum::response::Response {
    generate::serve(app, Route::Chat, headers, body).await
}

async fn completions(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> axum::response::Response {
    generate::serve(app, Route::Completions, headers, body).await
}

async fn native(State(app): State<Arc<App>>, headers: HeaderMap, body: Bytes) -> axum::response::Response {
    generate::serve(app, Route::Generate, headers, body).await
}

/// What all requests share.
#[derive(Debug)]
struct App {
    settings: Settings,
    tokens: Tokens,
    log: Option<Log>,
    clock: Clock,
    start_unix: Duration,
    fleet: Handle,
    front: Mutex<Front>,
    /// Ids that clients gave to requests in flight.
    rids: Mutex<HashSet<String>>,
    ids: AtomicU64,
}

impl App {
    /// Never held across an await.
    fn front(&self) -> MutexGuard<'_, Front> {
        self.front.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn report(&self) -> Result<Report, Refusal> {
        self.fleet.report().await.map_err(|_| Refusal::stopped())
    }

    /// Unix time of an instant of the clock.
    fn unix(&self, at: Duration) -> Duration {
        self.start_unix + at
    }

    /// The clock's time of a model instant or span.
    fn on_clock(&self, model: Duration) -> Duration {
        model.div_f64(self.settings.time_scale)
    }

    /// Takes an id for a request in flight; false when another has it.
    fn claim(&self, rid: &str) -> bool {
        self.rids.lock().unwrap_or_else(PoisonError::into_inner).insert(rid.to_owned())
    }

    fn forget(&self, rid: &str) {
        self.rids.lock().unwrap_or_else(PoisonError::into_inner).remove(rid);
    }

    /// 32 hex digits, as a UUID without dashes.
    fn fresh_id(&self) -> String {
        let seed = [u128::from(self.ids.fetch_add(1, Ordering::Relaxed)), self.start_unix.as_nanos()];
        let bytes: Vec<u8> = seed.iter().flat_map(|part| part.to_le_bytes()).collect();
        format!("{:032x}", xxh3_128(&bytes))
    }

    fn encode<'a>(&self, pieces: impl IntoIterator<Item = &'a str>) -> Result<Vec<u32>, Refusal> {
        self.tokens.encode(pieces).map_err(|cause| Refusal::openai(&cause.to_string()))
    }

    /// How many tokens the reply gets. Without a limit: what greedy sampling might well produce, 128.
    fn fit(&self, route: Route, prompt: usize, asked: Option<u32>) -> Result<u32, String> {
        let (context, prompt) = (self.settings.longest(), prompt as u64);
        if prompt >= context {
            return Err(format!(
                "The input ({prompt} tokens) is longer than the model's context length ({context} tokens)."
            ));
        }
        let room = u32::try_from(context - prompt).unwrap_or(u32::MAX);
        match asked {
            None => Ok(room.min(128)),
            Some(asked) if asked <= room => Ok(asked),
            // The native route cuts the reply where the OpenAI routes refuse.
            Some(_) if route == Route::Generate => Ok(room),
            Some(asked) => Err(format!(
                "Requested token count exceeds the model's maximum context length of {context} tokens. You requested a total \
                 of {total} tokens: {prompt} tokens from the input messages and {asked} tokens for the completion. Please \
                 reduce the number of tokens in the input messages or the completion to fit within the limit.",
                total = prompt + u64::from(asked)
            )),
        }
    }
}

/// A JSON string with its quotes.
fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
