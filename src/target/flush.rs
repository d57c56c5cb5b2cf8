//! Emptying the server's prefix cache before a block.

use std::time::Duration;

use super::join;

/// What the server said to a flush. Even a yes proves nothing under data parallelism: SGLang answers with the status of
/// whichever rank replied first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flush {
    Accepted,
    /// The server has no such route.
    Unsupported,
    Refused(String),
}

/// Asks SGLang's `/flush_cache`, letting each rank wait up to `timeout` until it is idle.
pub async fn flush(http: &reqwest::Client, base: &str, timeout: Duration) -> Flush {
    let url = join(base, "/flush_cache");
    let separator = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{separator}timeout={}", timeout.as_secs_f64());
    // The ranks wait in the server; a little more than that here tells a hung server from a busy one.
    let sent = http.post(&url).timeout(timeout + Duration::from_secs(10)).send().await;
    match sent {
        Ok(reply) if reply.status().is_success() => Flush::Accepted,
        Ok(reply) if matches!(reply.status().as_u16(), 404 | 405 | 501) => Flush::Unsupported,
        Ok(reply) => {
            let status = reply.status();
            Flush::Refused(format!("{status}: {}", super::reply::words(reply).await))
        }
        Err(why) => Flush::Refused(why.without_url().to_string()),
    }
}
