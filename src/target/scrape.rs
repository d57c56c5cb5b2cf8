//! A look at `/metrics`: a server that leaves the question open is waited for once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::reply::{ReplyError, bytes};
use super::{Dialect, dialect, join, loads};
use crate::record::ServerCounter;
use crate::wire::Exposition;

/// The first question may take this long; all of them lie outside the measured time.
const PATIENCE: Duration = Duration::from_secs(10);

/// So may the next ones, after one that was not answered in time.
const IMPATIENCE: Duration = Duration::from_millis(500);

/// One look.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Scrape {
    pub raw: String,
    pub exposition: Exposition,
    /// Those that a dialect table knows, and what SGLang tells in `/v1/loads`.
    pub counters: Vec<ServerCounter>,
    /// Unix seconds at which the server's process started, where it tells.
    pub started: Option<f64>,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    #[error("no answer within {}", humantime::format_duration(*.0))]
    Silent(Duration),
    #[error("nothing answers there")]
    Unreached,
    #[error("it says {0}")]
    Refused(reqwest::StatusCode),
    #[error("{0}")]
    Unusable(String),
}

/// Asks for pages, and remembers which addresses left a question open: each of them costs 10 s once, and half a second from
/// then on until it answers.
#[derive(Debug, Clone)]
pub struct Scraper {
    http: reqwest::Client,
    silent: Arc<Mutex<BTreeSet<String>>>,
}

impl Scraper {
    #[must_use]
    pub fn new(http: reqwest::Client) -> Self {
        Self { http, silent: Arc::default() }
    }

    /// Reads `/metrics` of `base`.
    ///
    /// # Errors
    /// When there is no such page, or it does not come in time, is larger than 16 MiB or breaks off.
    pub async fn scrape(&self, base: &str) -> Result<Scrape, ScrapeError> {
        let url = metrics_url(base);
        let page = self.page(&url, self.patience(&url, PATIENCE)).await;
        self.note(&url, matches!(page, Err(ScrapeError::Silent(_))));
        let mut scrape = read(page?);
        if url != base && dialect::dialects(&scrape.exposition).contains(&Dialect::Sglang) {
            let url = join(base, loads::ROUTE);
            let told = loads::counters(&self.http, &url, self.patience(&url, loads::PATIENCE)).await;
            self.note(&url, told.is_none());
            scrape.counters.extend(told.unwrap_or_default());
        }
        Ok(scrape)
    }

    async fn page(&self, url: &str, patience: Duration) -> Result<String, ScrapeError> {
        let failed = |why: &reqwest::Error| match why.is_timeout() {
            true => ScrapeError::Silent(patience),
            false => ScrapeError::Unreached,
        };
        let reply = self.http.get(url).timeout(patience).send().await.map_err(|why| failed(&why))?;
        if !reply.status().is_success() {
            return Err(ScrapeError::Refused(reply.status()));
        }
        match bytes(reply).await {
            Ok(page) => Ok(String::from_utf8_lossy(&page).into_owned()),
            Err(ReplyError::Broken(why)) if why.is_timeout() => Err(ScrapeError::Silent(patience)),
            Err(why) => Err(ScrapeError::Unusable(why.to_string())),
        }
    }

    fn patience(&self, url: &str, most: Duration) -> Duration {
        let silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if silent.contains(url) { most.min(IMPATIENCE) } else { most }
    }

    fn note(&self, url: &str, is_silent: bool) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if is_silent {
            silent.insert(url.to_owned())
        } else {
            silent.remove(url)
        };
    }
}

/// Where an address shows its counters; it may be given with the route or without.
pub(super) fn metrics_url(base: &str) -> String {
    if base.ends_with("/metrics") { base.to_owned() } else { join(base, "/metrics") }
}

fn read(raw: String) -> Scrape {
    let exposition = Exposition::parse(&raw);
    let started = exposition.samples.iter().find(|sample| sample.name == "process_start_time_seconds");
    let started = started.map(|sample| sample.value).filter(|seconds| seconds.is_finite());
    Scrape { counters: dialect::counters(&exposition), started, raw, exposition }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_left_a_question_open_is_waited_for_once() {
        let scraper = Scraper::new(reqwest::Client::new());
        let patience = |url| scraper.patience(url, PATIENCE);
        scraper.note("http://a/metrics", true);
        assert_eq!((patience("http://a/metrics"), patience("http://b/metrics")), (IMPATIENCE, PATIENCE));
        assert_eq!(scraper.clone().patience("http://a/metrics", PATIENCE), IMPATIENCE, "whoever asks");
        scraper.note("http://a/metrics", false);
        assert_eq!(patience("http://a/metrics"), PATIENCE);
    }
}
