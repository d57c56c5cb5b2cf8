//! The connections of a pool: how many were opened, how many of them in the place of lost ones, and which turns waited for
//! one. reqwest does not say, so a layer around its connector counts, and tells the turn in whose task it runs.
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

tokio::task_local! {
    static DIALED: Cell<bool>;
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

/// Runs `work`: what it gives, and whether a connection was opened for it.
///
/// A turn that began to dial and then got a connection that another turn had let go counts as one that dialed.
pub(super) async fn watched<F: Future>(work: F) -> (F::Output, bool) {
    let work = async {
        let done = work.await;
        (done, DIALED.with(Cell::get))
    };
    DIALED.scope(Cell::new(false), work).await
}

/// Connections of one pool, or of several together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Dials {
    pub opened: u64,
    /// Opened beyond the most that were in use at once: an earlier one had been closed, or was not free in time.
    pub again: u64,
}

/// Counts the connections of a pool, and their uses. Clones share the counts.
#[derive(Debug, Default, Clone)]
pub(super) struct Dialer(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    opened: AtomicU64,
    in_use: AtomicU64,
    most_in_use: AtomicU64,
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
        Dials { opened, again: opened.saturating_sub(needed) }
    }
}

impl Counts {
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
        all.fold(Self::default(), |sum, Self { opened, again }| Self {
            opened: sum.opened + opened,
            again: sum.again + again,
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
        let _ = DIALED.try_with(|dialed| dialed.set(true));
        let (dialing, dialer) = (self.connector.call(address), self.dialer.clone());
        Box::pin(async move {
            let connection = dialing.await?;
            dialer.0.opened.fetch_add(1, Ordering::Relaxed);
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
