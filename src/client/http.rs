//! One turn over HTTP: send, stamp, feed the machine, end.
//!
//! `sent` is stamped at the first poll of the request body, which is when the connection is up and asks for bytes: waiting
//! for a connection or for the runtime lies before it and is send lag. Every chunk is stamped before it is looked at.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant as TokioInstant;
use tokio_util::sync::CancellationToken;

use super::body::{Shape, encode};
use super::deadline::Deadline;
use super::machine::{End, Machine};
use super::network;
use crate::clock::Clock;
use crate::record::{Failure, TurnRecord};
use crate::units::Micros;
use crate::workload::Prompt;

/// How long the rest of a stream is read after `[DONE]`, so that its connection can be used again.
const DRAIN: Duration = Duration::from_millis(5);

/// How long connections may be opened ahead: below the time that servers and our pool keep idle ones.
const OPENING: Duration = Duration::from_secs(3);

/// Everything that stays the same for all turns of a run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Full URL of the generation route.
    pub url: String,
    pub shape: Shape,
    /// Headers that carry the routing key.
    pub key_headers: Vec<String>,
    /// Further headers of every request.
    pub headers: BTreeMap<String, String>,
    /// Sent as a bearer token; kept out of every file and message.
    pub api_key: Option<String>,
    pub connect_timeout: Duration,
    pub first_byte_timeout: Duration,
    pub idle_timeout: Duration,
}

/// A client that cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("header `{name}`: not a name and value that HTTP allows")]
    Header { name: String },
    #[error("the HTTP client cannot start: {0}")]
    Build(#[from] reqwest::Error),
}

/// Sends turns. Clones share one connection pool.
#[derive(Debug, Clone)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    http: reqwest::Client,
    settings: Settings,
    headers: HeaderMap,
    key_headers: Vec<HeaderName>,
    clock: Clock,
    cancel: CancellationToken,
}

/// The headers of every request of a run, on whatever route. A profile that names its own authorization means it, so it
/// beats `api_key`, which comes from the environment.
///
/// # Errors
/// When a header is malformed.
pub fn common_headers(profile: &BTreeMap<String, String>, api_key: Option<&str>) -> Result<HeaderMap, ClientError> {
    let mut headers = HeaderMap::new();
    // A compressor would hold tokens back.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(key) = api_key {
        let wrong = |_| ClientError::Header { name: "authorization".into() };
        let mut bearer = HeaderValue::try_from(format!("Bearer {key}")).map_err(wrong)?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
    }
    for (name, value) in profile {
        let wrong = || ClientError::Header { name: name.clone() };
        let mut value: HeaderValue = value.parse().map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.insert(name.parse::<HeaderName>().map_err(|_| wrong())?, value);
    }
    Ok(headers)
}

/// The pool and transport that every room uses: no proxy, no redirect, no retry, HTTP/1.1, no total timeout.
///
/// # Errors
/// When TLS cannot be set up.
pub fn transport(connect_timeout: Duration, url: &str, headers: HeaderMap) -> Result<reqwest::Client, reqwest::Error> {
    let builder = reqwest::Client::builder()
        .default_headers(headers)
        .no_proxy()
        .http1_only()
        .retry(reqwest::retry::never())
        .redirect(reqwest::redirect::Policy::none())
        .tcp_nodelay(true)
        .connect_timeout(connect_timeout)
        // SGLang closes idle connections after 5 s: never be the one that finds out.
        .pool_idle_timeout(Duration::from_secs(4))
        .pool_max_idle_per_host(usize::MAX);
    if url.starts_with("https://") {
        builder.build()
    } else {
        // Without TLS no CA bundle is needed, and a host that has none must not fail.
        builder.tls_certs_only([]).build()
    }
}

impl Client {
    /// A client for one target.
    ///
    /// # Errors
    /// When a header is malformed or TLS cannot be set up.
    pub fn new(settings: Settings, clock: Clock, cancel: CancellationToken) -> Result<Self, ClientError> {
        let mut headers = common_headers(&settings.headers, settings.api_key.as_deref())?;
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        let key_headers = settings
            .key_headers
            .iter()
            .map(|name| name.parse().map_err(|_| ClientError::Header { name: name.clone() }))
            .collect::<Result<_, _>>()?;
        let http = transport(settings.connect_timeout, &settings.url, HeaderMap::new())?;
        Ok(Self(Arc::new(Inner { http, settings, headers, key_headers, clock, cancel })))
    }

    /// Opens connections for a start of many turns at once, so that the first of them need not wait for theirs: concurrent
    /// cheap requests to `url`, each of which dials because none is answered yet. What fails here fails again in a turn,
    /// which then says why.
    pub async fn open_ahead(&self, url: &str, connections: usize) {
        let get = || async {
            let sending = self.0.http.get(url).headers(self.0.headers.clone()).send();
            if let Ok(response) = sending.await {
                // Read to its end, or the connection could not be used again.
                let _ = response.bytes().await;
            }
        };
        let opening = futures::future::join_all((0..connections).map(|_| get()));
        let _ = tokio::time::timeout(OPENING, opening).await;
    }

    /// The body of a turn; work for the time before it is due.
    #[must_use]
    pub fn prepare(&self, turn: &TurnRecord, prompt: &Prompt) -> Bytes {
        encode(&self.0.settings.shape, turn, prompt)
    }

    /// Sends one turn and reads its reply to the end: the record, and the answer's text.
    pub async fn send(&self, turn: TurnRecord, body: Bytes) -> (TurnRecord, String) {
        let inner = &*self.0;
        let sent = Arc::new(OnceLock::new());
        let headers = inner.turn_headers(&turn);
        let mut machine = Machine::new(inner.settings.shape.request.api, turn);
        // A token of the turn's own: every chunk looks at it, and all turns would meet at the lock of the one they share.
        let cancel = inner.cancel.child_token();
        let end = tokio::select! {
            biased;
            end = inner.exchange(&mut machine, headers, StampedBody { bytes: Some(body), sent: Arc::clone(&sent) }) => end,
            () = cancel.cancelled() => End::Cancelled,
        };
        if let Some(at) = sent.get() {
            machine.record().sent_us = Some(inner.clock.at(*at).into());
        }
        machine.finish(end, inner.clock.now().into())
    }
}

impl Inner {
    fn turn_headers(&self, turn: &TurnRecord) -> HeaderMap {
        let mut headers = self.headers.clone();
        // Ids and keys are made by the plan from letters, digits and dashes.
        if let Ok(id) = HeaderValue::try_from(&turn.id) {
            headers.insert("x-request-id", id);
        }
        if let Some(key) = turn.key.as_ref().and_then(|key| HeaderValue::try_from(key).ok()) {
            for name in &self.key_headers {
                headers.insert(name, key.clone());
            }
        }
        headers
    }

    async fn exchange(&self, machine: &mut Machine, headers: HeaderMap, body: StampedBody) -> End {
        let Settings { url, connect_timeout, first_byte_timeout, idle_timeout, .. } = &self.settings;
        let mut deadline = Deadline::at(TokioInstant::now() + *connect_timeout + *first_byte_timeout);
        let sending = self.http.post(url).headers(headers).body(reqwest::Body::wrap(body)).send();
        let mut response = match deadline.bound(sending).await {
            None => return first_byte_end(*first_byte_timeout),
            Some(Err(why)) => return network::end(&why),
            Some(Ok(response)) => response,
        };
        let record = machine.record();
        record.head_us = Some(self.now());
        record.status = Some(response.status().as_u16());
        // Headers are slices of the connection's read buffer: kept, they cost each stream a second one of 8 KiB.
        response.headers_mut().clear();
        let mut has_bytes = false;
        loop {
            match deadline.bound(response.chunk()).await {
                Some(Ok(Some(bytes))) => {
                    let at = TokioInstant::now();
                    machine.feed(&bytes, self.clock.at(at.into_std()).into());
                    has_bytes = true;
                    deadline.set(at + if machine.is_done() { DRAIN } else { *idle_timeout });
                }
                Some(Ok(None)) => return End::Clean,
                Some(Err(why)) => return network::end(&why),
                None if machine.is_done() => return End::Clean,
                None if has_bytes => return idle_end(*idle_timeout),
                None => return first_byte_end(*first_byte_timeout),
            }
        }
    }

    fn now(&self) -> Micros {
        self.clock.now().into()
    }
}

fn first_byte_end(limit: Duration) -> End {
    let why = format!("no byte of the reply within {}", humantime::format_duration(limit));
    End::Failed(Failure::FirstByteTimeout, why)
}

fn idle_end(limit: Duration) -> End {
    End::Failed(Failure::IdleTimeout, format!("silence for {}", humantime::format_duration(limit)))
}

/// A body that notes when it is first asked for.
#[derive(Debug)]
struct StampedBody {
    bytes: Option<Bytes>,
    sent: Arc<OnceLock<Instant>>,
}

impl http_body::Body for StampedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        self.sent.get_or_init(Instant::now);
        Poll::Ready(self.bytes.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::sync::Barrier;

    use super::*;
    use crate::workload::{Api, ChatLayout, PromptAs, RequestSpec};

    fn client(url: &str) -> Client {
        let request = RequestSpec {
            api: Api::Chat,
            chat_layout: ChatLayout::System,
            prompt_as: PromptAs::Text,
            tokenizer: None,
            model: None,
            temperature: 0.0,
            ignore_eos: true,
            extra_body: serde_json::Map::new(),
            headers: BTreeMap::new(),
        };
        let settings = Settings {
            url: url.to_owned(),
            shape: Shape { request, model: None, key_field: None, continuous_usage: true },
            key_headers: vec![],
            headers: BTreeMap::new(),
            api_key: None,
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(10),
        };
        Client::new(settings, Clock::wall(), CancellationToken::new()).unwrap()
    }

    #[tokio::test]
    async fn as_many_connections_are_opened_ahead_as_were_asked_for() {
        const ASKED: usize = 5;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/models", listener.local_addr().unwrap());
        let answered = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&answered);
        // No request is answered before all connections are there.
        let all = Arc::new(Barrier::new(ASKED));
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let (all, count) = (Arc::clone(&all), Arc::clone(&count));
                tokio::spawn(async move {
                    let mut request = [0; 1024];
                    assert!(socket.read(&mut request).await.unwrap() > 0);
                    all.wait().await;
                    count.fetch_add(1, Ordering::SeqCst);
                    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                    // Kept open.
                    assert!(socket.read(&mut request).await.unwrap() > 0);
                });
            }
        });
        client(&url).open_ahead(&url, ASKED).await;
        assert_eq!(answered.load(Ordering::SeqCst), ASKED);
    }
}
