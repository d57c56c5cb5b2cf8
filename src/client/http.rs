//! One turn over HTTP: send, stamp, feed the machine, end.
//!
//! `sent` is stamped at the first poll of the request body, which is when the connection is up and asks for bytes: waiting
//! for a connection or for the runtime lies before it and is send lag. Every chunk is stamped, as [`Arrivals`] says, before
//! it is looked at.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hyper_util::client::legacy::connect::HttpInfo;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tokio::task::JoinSet;
use tokio::time::Instant as TokioInstant;
use tokio_util::sync::CancellationToken;

use super::arrivals::Arrivals;
use super::body::{Shape, encode};
use super::dial::{self, Dialed, Dials};
use super::ending::{Ended, Ending, Rings};
use super::inflate::Inflate;
use super::machine::{End, Machine};
use super::network;
use super::place;
use super::request::{Request, StampedBody, with_rank};
use super::secrets;
use super::transport::{ClientError, Trust, builder, common_headers};
use crate::clock::Clock;
use crate::lanes::{self, Lanes};
use crate::record::{Failure, Oddity, Place, PlaceSource, TurnRecord};
use crate::wire::SharedTemplate;
use crate::workload::{Api, Connections, Prompt};

/// How long the rest of a stream is read after `[DONE]`, so that its connection can be used again.
const DRAIN: Duration = Duration::from_millis(5);

/// How long connections may be opened ahead: below the time that servers and this program keep idle ones.
const OPENING: Duration = Duration::from_secs(3);

/// Connections that one lane opens at a time.
const WAVE: usize = 128;

/// Everything that stays the same for all turns of a run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Full URL of the generation route. Turns that are aimed elsewhere go by the same protocol, with TLS or without.
    pub url: String,
    pub shape: Shape,
    /// Headers that carry the routing key.
    pub key_headers: Vec<String>,
    /// Further headers of every request.
    pub headers: BTreeMap<String, String>,
    /// Sent as a bearer token; kept out of every file and message.
    pub api_key: Option<String>,
    pub trust: Trust,
    pub connections: Connections,
    pub connect_timeout: Duration,
    pub first_byte_timeout: Duration,
    pub idle_timeout: Duration,
}

/// Where one turn goes. By default to the one address of the run, whose server chooses a rank itself.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Aim {
    /// Full URL of the generation route, where there are several servers.
    pub url: Option<Arc<str>>,
    /// Where the turn will be served; a rank is asked of the server by number.
    pub place: Option<Place>,
}

/// Sends turns. Clones share its connections.
#[derive(Debug, Clone)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// One for each lane: a connection stays on the runtime that dialed it.
    pools: Vec<Pool>,
    lanes: Lanes,
    url: Arc<str>,
    settings: Settings,
    headers: HeaderMap,
    key_headers: Vec<HeaderName>,
    /// What no record may repeat.
    secrets: Arc<[String]>,
    clock: Clock,
    cancel: CancellationToken,
    rings: Arc<Rings>,
    /// Without a pool, for the turns that a pooled connection lost; made when the first one is.
    fresh: OnceLock<reqwest::Client>,
    /// Counts those of `fresh`, which nobody uses again.
    lost: dial::Dialer,
}

#[derive(Debug)]
struct Pool {
    http: reqwest::Client,
    dialer: dial::Dialer,
    template: SharedTemplate,
}

impl Client {
    /// A client for one target.
    ///
    /// # Errors
    /// When a header is malformed or TLS cannot be set up.
    pub fn new(
        settings: Settings,
        lanes: &Lanes,
        clock: Clock,
        cancel: CancellationToken,
    ) -> Result<Self, ClientError> {
        let mut headers = common_headers(&settings.headers, settings.api_key.as_deref())?;
        headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
        let key_headers = settings
            .key_headers
            .iter()
            .map(|name| name.parse().map_err(|_| ClientError::Header { name: name.clone() }))
            .collect::<Result<_, _>>()?;
        let pool = || {
            let builder = builder(settings.connect_timeout, &settings.url, &settings.trust)?;
            let dialer = dial::Dialer::default();
            let builder = match settings.connections {
                Connections::Kept => builder,
                Connections::PerTurn => builder.pool_max_idle_per_host(0),
            };
            let http = builder.no_gzip().connector_layer(dialer.clone()).build()?;
            Ok(Pool { http, dialer, template: SharedTemplate::default() })
        };
        let pools = (0..lanes.count()).map(|_| pool()).collect::<Result<_, ClientError>>()?;
        let url = settings.url.as_str().into();
        let (lanes, secrets) = (lanes.clone(), secrets::of(&settings));
        let (fresh, lost) = (OnceLock::new(), dial::Dialer::default());
        let rings = Arc::default();
        let inner =
            Inner { pools, lanes, url, settings, headers, key_headers, secrets, clock, cancel, rings, fresh, lost };
        Ok(Self(Arc::new(inner)))
    }

    /// The connections so far, with those that were opened ahead.
    #[must_use]
    pub fn dials(&self) -> Dials {
        let Inner { pools, lost, .. } = &*self.0;
        pools.iter().map(|pool| &pool.dialer).chain([lost]).map(dial::Dialer::dials).sum()
    }

    /// Opens connections for a start of many turns at once, so that the first of them need not wait for theirs. Nothing is
    /// sent on them. What fails here fails again in a turn, which then says why. None are where each turn is to open its own.
    pub async fn open_ahead(&self, url: &str, connections: usize) {
        if self.0.settings.connections == Connections::PerTurn {
            return;
        }
        let lanes = self.0.lanes.count();
        let mut opening = JoinSet::new();
        for lane in 0..lanes {
            let share = connections / lanes + usize::from(lane < connections % lanes);
            let opened = Arc::clone(&self.0).open(url.to_owned(), share);
            self.0.lanes.spawn(lane, &mut opening, opened);
        }
        let _ = tokio::time::timeout(OPENING, opening.join_all()).await;
    }

    /// The body of a turn; work for the time before it is due.
    #[must_use]
    pub fn prepare(&self, turn: &TurnRecord, prompt: &Prompt) -> Bytes {
        encode(&self.0.settings.shape, turn, prompt)
    }

    /// Sends one turn where it is aimed and reads its reply to the end: the record, and the answer's text.
    ///
    /// What it works on is made before the future, which would hold it twice otherwise: every stream has one.
    pub fn send(
        &self,
        mut turn: TurnRecord,
        body: Bytes,
        aim: Aim,
    ) -> impl Future<Output = (TurnRecord, String)> + Send + use<> {
        let Self(inner) = self.clone();
        let sent = Arc::new(OnceLock::new());
        let api = inner.settings.shape.request.api;
        let Aim { url, place } = aim;
        let rank = match place {
            Some(Place::Rank(rank)) => Some(rank),
            _ => None,
        };
        turn.place_source = place.as_ref().map(|_| PlaceSource::Pin);
        turn.place = place;
        let request = Box::new(Request {
            url: url.unwrap_or_else(|| Arc::clone(&inner.url)),
            id: turn.id.clone(),
            key: turn.key.clone(),
            rank,
            body: with_rank(api, rank, body),
            sent: Arc::clone(&sent),
        });
        let Shape { request: asked, asks, .. } = &inner.settings.shape;
        let machine =
            Machine::new(asked.api, turn).hiding(Arc::clone(&inner.secrets)).sharing(inner.pool().template.clone());
        let mut machine = machine.reading(asked.place_field, *asks).within(asked.largest_event_mib);
        async move {
            let end = inner.exchange(&mut machine, request).await;
            if let Some(at) = sent.get() {
                machine.record().sent_us = Some(inner.clock.at(*at).into());
            }
            machine.finish(end, inner.clock.now().into())
        }
    }
}

impl Inner {
    /// Opens so many connections to where `url` points for the turns of the lane that asks. In waves, since what thousands of
    /// dials under way take would stay with the process.
    async fn open(self: Arc<Self>, url: String, connections: usize) {
        let uses: Vec<_> = (0..connections).map(|_| self.pool().dialer.begin()).collect();
        for first in (0..connections).step_by(WAVE) {
            let dial = |_| {
                let request = self.pool().http.get(&url).send();
                async move { drop(dial::ahead(request).await) }
            };
            let wave: JoinSet<()> = (first..connections.min(first + WAVE)).map(dial).collect();
            wave.join_all().await;
        }
        drop(uses);
    }

    /// The pool of the lane that asks.
    fn pool(&self) -> &Pool {
        &self.pools[lanes::current() % self.pools.len()]
    }

    fn headers_of(&self, request: &Request) -> HeaderMap {
        let mut headers = self.headers.clone();
        // Ids and keys are made by the plan from letters, digits and dashes.
        if let Ok(id) = HeaderValue::try_from(&request.id) {
            headers.insert("x-request-id", id);
        }
        if let Some(key) = request.key.as_ref().and_then(|key| HeaderValue::try_from(key).ok()) {
            for name in &self.key_headers {
                headers.insert(name, key.clone());
            }
        }
        // SGLang's OpenAI routes and vLLM read a rank here.
        if let Some(rank) = request.rank.filter(|_| self.settings.shape.request.api != Api::Generate) {
            headers.insert("x-data-parallel-rank", rank.0.into());
        }
        headers
    }

    /// Sends a request and waits for the head of its reply. A server may close a connection that idled in the pool in the
    /// instant in which it is used again: the request is then sent once more, on a connection of its own.
    async fn respond(&self, machine: &mut Machine, request: Box<Request>) -> reqwest::Result<reqwest::Response> {
        let (reply, dialed) = dial::watched(self.post(&self.pool().http, &request)).await;
        let is_reused = match dialed {
            Dialed::Not => true,
            // Where dialing did not fail, the pool gave it a connection that another turn let go of before its own came.
            Dialed::Asked => !reply.as_ref().is_err_and(reqwest::Error::is_connect),
            Dialed::Took(_) => false,
        };
        machine.record().reused_connection = Some(is_reused);
        machine.record().connect_us = dialed.took();
        match reply {
            Err(why) if is_reused && network::is_lost(&why) => {
                machine.record().resends += 1;
                self.post(self.fresh(), &request.again(self.settings.shape.request.api)).await
            }
            reply => reply,
        }
    }

    /// Its headers are made anew for each attempt: kept for a second one, they would be most of what a waiting turn holds.
    fn post(
        &self,
        http: &reqwest::Client,
        request: &Request,
    ) -> impl Future<Output = reqwest::Result<reqwest::Response>> + use<> {
        let body = StampedBody { bytes: Some(request.body.clone()), sent: Arc::clone(&request.sent) };
        http.post(&*request.url).headers(self.headers_of(request)).body(reqwest::Body::wrap(body)).send()
    }

    fn fresh(&self) -> &reqwest::Client {
        let Settings { connect_timeout, url, trust, .. } = &self.settings;
        self.fresh.get_or_init(|| {
            let built = builder(*connect_timeout, url, trust)
                .map(|builder| builder.no_gzip().pool_max_idle_per_host(0).connector_layer(self.lost.clone()))
                .and_then(|builder| Ok(builder.build()?));
            built.unwrap_or_else(|_| self.pools[0].http.clone())
        })
    }

    /// Sends a request and reads its reply to the end. The loop stays here: a future of its own would hold the response twice.
    async fn exchange(&self, machine: &mut Machine, request: Box<Request>) -> End {
        let Settings { connect_timeout, first_byte_timeout, idle_timeout, .. } = &self.settings;
        let _in_use = self.pool().dialer.begin();
        let first_byte_at = TokioInstant::now() + *connect_timeout + *first_byte_timeout;
        let sent = Arc::clone(&request.sent);
        let mut ending = Ending::new(first_byte_at, self.cancel.clone(), Arc::clone(&self.rings));
        // In a box: what sending needs is large, and would take its place until the last chunk.
        let mut response = match ending.bound(Box::pin(self.respond(machine, request))).await {
            Err(Ended::Cancelled) => return End::Cancelled,
            Err(Ended::Deadline) => return first_byte_end(*first_byte_timeout),
            Ok(Err(why)) => return network::end(&why),
            Ok(Ok(response)) => response,
        };
        let now = TokioInstant::now().into_std();
        // A reply may begin before the body was asked for.
        let mut arrivals = Arrivals::after(sent.get().copied().unwrap_or(now));
        let record = machine.record();
        record.head_us = Some(self.clock.at(arrivals.stamp(now, lanes::woke_at())).into());
        let mut inflate = match take_head(&mut response, record) {
            Ok(inflate) => inflate,
            Err(end) => return end,
        };
        let (mut has_bytes, mut read, mut drained_by) = (false, now, None);
        loop {
            match ending.bound(response.chunk()).await {
                Ok(Ok(Some(bytes))) => {
                    let now = TokioInstant::now();
                    let at = self.clock.at(arrivals.stamp(now.into_std(), lanes::woke_at())).into();
                    lanes::count_chunk();
                    if let Err(why) = inflate.feed(&bytes, |bytes| machine.feed(bytes, at)) {
                        return End::Failed(Failure::Protocol, why.to_string());
                    }
                    has_bytes = true;
                    if machine.is_full() {
                        return End::Clean;
                    }
                    // Once, or a server that goes on after its end would never be left.
                    let drain = machine.is_done().then(|| *drained_by.get_or_insert(now + DRAIN));
                    if drain.is_some_and(|by| by <= now) {
                        return End::Clean;
                    }
                    ending.set(drain.unwrap_or(now + *idle_timeout));
                    lanes::give_way(std::mem::replace(&mut read, now.into_std()), now.into_std()).await;
                }
                Ok(Ok(None)) => return End::Clean,
                Ok(Err(why)) => return network::end(&why),
                Err(Ended::Cancelled) => return End::Cancelled,
                Err(Ended::Deadline) if machine.is_done() => return End::Clean,
                Err(Ended::Deadline) if has_bytes => return idle_end(*idle_timeout),
                Err(Ended::Deadline) => return first_byte_end(*first_byte_timeout),
            }
        }
    }
}

/// Notes what the head says and which connection it came by, and takes its headers: they are slices of the connection's read
/// buffer, and kept they cost each stream a second one of 8 KiB.
fn take_head(response: &mut reqwest::Response, record: &mut TurnRecord) -> Result<Inflate, End> {
    let headers = std::mem::take(response.headers_mut());
    record.local_port = response.extensions().get::<HttpInfo>().map(|connection| connection.local_addr().port());
    record.status = Some(response.status().as_u16());
    place::note_head(&headers, record);
    let inflate = Inflate::of(&headers).map_err(|why| End::Failed(Failure::Protocol, why.to_string()))?;
    if !inflate.is_plain() {
        record.note(Oddity::Compressed);
    }
    Ok(inflate)
}

fn first_byte_end(limit: Duration) -> End {
    let why = format!("no byte of the reply within {}", humantime::format_duration(limit));
    End::Failed(Failure::FirstByteTimeout, why)
}

fn idle_end(limit: Duration) -> End {
    End::Failed(Failure::IdleTimeout, format!("silence for {}", humantime::format_duration(limit)))
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
