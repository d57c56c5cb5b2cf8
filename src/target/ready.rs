//! Whether a server is ready, and what its health routes give away of its kind.

use std::time::Duration;

use super::reply::{bytes, words};
use super::{TargetError, join};

/// One question may take this long: SGLang's `/health` generates a token before it answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// In the order in which they are asked: the first are cheap and speak of workers too, `/health` may cost a generated token
/// and says nothing of a router's workers.
const ROUTES: [&str; 4] = ["/ready", "/readiness", "/health", "/v1/models"];

/// What the health routes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    /// The route that said so, and the words of its reply.
    Ready { route: &'static str, said: String },
    /// A route says that it will be later.
    NotYet(String),
    /// It has none of these routes; only a real request can tell.
    Silent,
}

/// Asks the health routes one after the other, until one of them knows.
///
/// # Errors
/// When nothing answers at this address.
pub async fn readiness(http: &reqwest::Client, base: &str) -> Result<Readiness, TargetError> {
    for route in ROUTES {
        let url = join(base, route);
        let sent = http.get(&url).timeout(PATIENCE).send().await;
        let reply = sent.map_err(|why| super::server::unreachable(&url, &why))?;
        match reply.status().as_u16() {
            200..=299 => return Ok(Readiness::Ready { route, said: words(reply).await }),
            status @ 503 => return Ok(Readiness::NotYet(format!("{route} says {status}: {}", words(reply).await))),
            // Read to its end, so that the next question can have the connection.
            _ => drop(bytes(reply).await),
        }
    }
    Ok(Readiness::Silent)
}
