//! Which turns opened a connection of their own. reqwest does not say, so a layer around its connector tells the turn in
//! whose task it runs.

use std::cell::Cell;
use std::task::{Context, Poll};

use tower_layer::Layer;
use tower_service::Service;

tokio::task_local! {
    static DIALED: Cell<bool>;
}

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

/// The layer that notes calls of the connector.
#[derive(Debug, Clone, Copy)]
pub(super) struct Noting;

/// A connector under [`Noting`].
#[derive(Debug, Clone)]
pub(super) struct Noted<S>(S);

impl<S> Layer<S> for Noting {
    type Service = Noted<S>;

    fn layer(&self, connector: S) -> Noted<S> {
        Noted(connector)
    }
}

impl<S: Service<R>, R> Service<R> for Noted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, address: R) -> S::Future {
        // Outside of a turn nobody asks.
        let _ = DIALED.try_with(|dialed| dialed.set(true));
        self.0.call(address)
    }
}
