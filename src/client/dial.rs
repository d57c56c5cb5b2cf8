//! The connections of a pool: how many were opened and how long that took, how many of them in the place of lost ones, and
//! which turns waited for one. reqwest does not say, so a layer around its connector counts, and tells the turn in whose task
//! it runs.
//!
//! The layer also keeps connections that were opened ahead until a turn needs one. Nothing is sent on them before: a cheap
//! request on each would load the server, and its reply would free the connection for the next, which then opens none.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use tower_layer::Layer;
use tower_service::Service;

use super::transport::IDLE;
use crate::stats::Distribution;
use crate::units::Micros;

tokio::task_local! {
    static DIALED: Cell<Dialed>;
    /// There where a connection is opened to be kept.
    static AHEAD: ();
}

/// Runs a request that opens a connection and leaves it at that: it fails with [`Ahead`].
pub(super) async fn ahead<F: Future>(request: F) -> F::Output {
    AHEAD.scope((), request).await
}

/// Why a request that was to open a connection was not sent.
#[derive(Debug, thiserror::Error)]
#[error("the connection is kept for a turn that comes")]
pub(super) struct Ahead;

/// Whether a connection was opened for a piece of work.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialed {
    /// It went over one that was open.
    #[default]
    Not,
    /// One was asked for, and could not be had, or not before another turn let go of its own.
    Asked,
    /// One came, so long after it was asked for.
    Took(Micros),
}

impl Dialed {
    pub(super) fn took(self) -> Option<Micros> {
        match self {
            Self::Took(us) => Some(us),
            Self::Not | Self::Asked => None,
        }
    }
}

/// Runs `work`: what it gives, and whether a connection was opened for it.
pub(super) async fn watched<F: Future>(work: F) -> (F::Output, Dialed) {
    let work = async {
        let done = work.await;
        (done, DIALED.with(Cell::get))
    };
    DIALED.scope(Cell::default(), work).await
}

/// Connections of one pool, or of several together.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Dials {
    pub opened: u64,
    /// Opened beyond the most that were in use at once: an earlier one had been closed, or was not free in time.
    pub again: u64,
    /// How long each of those that were opened took until a request could go over it, in µs: TCP, TLS where there is any, and
    /// for the first to a host name its look-up.
    pub connect: Distribution,
}

/// Counts the connections of a pool, and their uses. Clones share the counts.
#[derive(Debug, Default, Clone)]
pub(super) struct Dialer(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    opened: AtomicU64,
    in_use: AtomicU64,
    most_in_use: AtomicU64,
    /// Locked once a connection, which takes a thousand times as long by itself.
    connect: Mutex<Distribution>,
    kept: Mutex<VecDeque<Kept>>,
}

/// A connection that was opened ahead.
#[derive(Debug)]
struct Kept {
    /// As the connector was given it.
    address: String,
    since: Instant,
    /// Of a type that reqwest keeps to itself.
    connection: Box<dyn Any + Send>,
}

/// Ends a use when it is dropped.
#[derive(Debug)]
pub(super) struct Use(Arc<Counts>);

impl Dialer {
    /// One exchange begins, which takes a connection.
    pub(super) fn begin(&self) -> Use {
        let Counts { in_use, most_in_use, .. } = &*self.0;
        most_in_use.fetch_max(in_use.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        Use(Arc::clone(&self.0))
    }

    pub(super) fn dials(&self) -> Dials {
        let [opened, needed] = [&self.0.opened, &self.0.most_in_use].map(|count| count.load(Ordering::Relaxed));
        let connect = self.0.connect.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Dials { opened, again: opened.saturating_sub(needed), connect }
    }
}

impl Counts {
    /// A connection is there, so long after it was asked for.
    fn opened(&self, took: Micros) {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.connect.lock().unwrap_or_else(PoisonError::into_inner).record(took.0, 1);
    }

    fn keep<C: Send + 'static>(&self, address: String, connection: C) {
        let kept = Kept { address, since: Instant::now(), connection: Box::new(connection) };
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push_back(kept);
    }

    /// A connection to `address` that was opened ahead, the oldest first. Those that are too old are closed.
    fn kept<C: 'static>(&self, address: &impl Debug) -> Option<C> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            return None;
        }
        while kept.pop_front_if(|oldest| oldest.since.elapsed() >= IDLE).is_some() {}
        let address = format!("{address:?}");
        let at = kept.iter().position(|kept| kept.address == address)?;
        kept.remove(at)?.connection.downcast().ok().map(|connection| *connection)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::iter::Sum for Dials {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, Self { opened, again, connect }| {
            sum.connect.merge(&connect);
            Self { opened: sum.opened + opened, again: sum.again + again, ..sum }
        })
    }
}

/// A connector whose connections are counted.
#[derive(Debug, Clone)]
pub(super) struct Noted<S> {
    connector: S,
    dialer: Dialer,
}

impl<S> Layer<S> for Dialer {
    type Service = Noted<S>;

    fn layer(&self, connector: S) -> Noted<S> {
        Noted { connector, dialer: self.clone() }
    }
}

impl<S, R> Service<R> for Noted<S>
where
    S: Service<R, Future: Send + 'static, Response: Send + 'static, Error: From<Ahead> + Send + 'static>,
    R: Debug,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.connector.poll_ready(cx)
    }

    fn call(&mut self, address: R) -> Self::Future {
        let ahead = AHEAD.try_with(|()| format!("{address:?}")).ok();
        if ahead.is_none()
            && let Some(connection) = self.dialer.0.kept(&address)
        {
            return Box::pin(std::future::ready(Ok(connection)));
        }
        // Outside of a turn nobody asks.
        let dialed = |how| DIALED.try_with(|dialed| dialed.set(how));
        let _ = dialed(Dialed::Asked);
        let (dialing, dialer) = (self.connector.call(address), self.dialer.clone());
        Box::pin(async move {
            let asked = Instant::now();
            let connection = dialing.await?;
            let took = Micros::from(asked.elapsed());
            dialer.0.opened(took);
            let _ = dialed(Dialed::Took(took));
            match ahead {
                Some(address) => {
                    dialer.0.keep(address, connection);
                    Err(Ahead.into())
                }
                None => Ok(connection),
            }
        })
    }
}
