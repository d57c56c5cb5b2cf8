//! A look at `/metrics`: no more of a page is kept than a report needs, and a server that leaves the question open is waited
//! for once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::reply::{ReplyError, bytes};
use super::{Dialect, dialect, join, latencies, loads};
use crate::record::{ServerCounter, ServerHistogram};
use crate::wire::{Exposition, Histograms};

/// The first question may take this long; all of them lie outside the measured time.
const PATIENCE: Duration = Duration::from_secs(10);

/// So may the next ones, after one that was not answered in time.
const IMPATIENCE: Duration = Duration::from_millis(500);

/// Largest page that is kept as it came; of a larger one, lines of other names than those of known counters are kept up
/// to here. A fleet of hundreds of ranks has some 5 MB, most of it buckets of histograms.
const MOST_RAW: usize = 4 << 20;

/// Most series of counters that are kept apart. Those of 4,096 ranks are fewer.
const MOST_COUNTERS: usize = 20_000;

/// Most series of latency histograms that are read: each is some forty numbers in every report. 1,024 ranks have as many.
const MOST_HISTOGRAMS: usize = 4_096;

/// One look.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Scrape {
    /// The page, or what is kept of it.
    pub raw: String,
    /// Bytes of it that are not kept.
    pub left_out: usize,
    /// Samples that may tell something: those of a known server, but for the buckets of its histograms.
    pub exposition: Exposition,
    /// Those that a dialect table knows, and what SGLang tells in `/v1/loads`.
    pub counters: Vec<ServerCounter>,
    /// Latencies that a table knows; none where they are too many.
    pub histograms: Vec<ServerHistogram>,
    /// How many series of histograms there were, if they were too many.
    pub left_out_histograms: Option<usize>,
    /// How many series of counters there were, if they were too many to be kept [apart](summed).
    pub summed: Option<usize>,
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

fn read(page: String) -> Scrape {
    let (mut samples, mut histograms) = (vec![], Histograms::default());
    let unreadable = Exposition::each(&page, dialect::may_tell, |sample| {
        samples.extend(histograms.take(sample, latencies::is_known));
    });
    let exposition = Exposition { samples, unreadable };
    let mut histograms = latencies::histograms(histograms.finish());
    let left_out_histograms = Some(histograms.len()).filter(|count| *count > MOST_HISTOGRAMS);
    if left_out_histograms.is_some() {
        histograms.clear();
    }
    let started = exposition.samples.iter().find(|sample| sample.name == dialect::PROCESS_START);
    let started = started.map(|sample| sample.value).filter(|seconds| seconds.is_finite());
    let counters = dialect::counters(&exposition);
    let all = Some(counters.len()).filter(|count| *count > MOST_COUNTERS);
    let counters = if all.is_some() { summed(counters) } else { counters };
    let (raw, left_out) = kept(page, MOST_RAW);
    Scrape { raw, left_out, exposition, counters, histograms, left_out_histograms, summed: all, started }
}

/// Counters with the series of the same name, role, place and kind of node added up, in place of their labels.
#[must_use]
pub fn summed(counters: Vec<ServerCounter>) -> Vec<ServerCounter> {
    let mut sums = BTreeMap::new();
    for ServerCounter { name, labels: _, role, place, node, value } in counters {
        *sums.entry((name, role, place, node)).or_insert(0.0) += value;
    }
    let counter = |((name, role, place, node), value)| {
        let labels = BTreeMap::new();
        ServerCounter { name, labels, role, place, node, value }
    };
    sums.into_iter().map(counter).collect()
}

/// The page, and how many bytes of it are missing: beyond `most`, lines whose name no table knows.
fn kept(page: String, most: usize) -> (String, usize) {
    if page.len() <= most {
        return (page, 0);
    }
    let (mut kept, mut others) = (String::with_capacity(most), 0);
    for line in page.split_inclusive('\n') {
        let is_known = Exposition::name(line).is_some_and(dialect::is_known);
        others += if is_known { 0 } else { line.len() };
        if is_known || others <= most {
            kept.push_str(line);
        }
    }
    let left_out = page.len() - kept.len();
    (kept, left_out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{CounterRole, Place};
    use crate::units::Rank;

    /// `series` lines of each name, apart by a label that no table knows.
    fn page(names: &[&str], series: usize) -> String {
        let lines = |name: &&str| (0..series).map(|n| format!("{name}{{tenant=\"{n}\"}} 2\n")).collect::<String>();
        names.iter().map(lines).collect()
    }

    #[test]
    fn a_page_of_many_foreign_series_is_kept_in_part_and_loses_no_known_one() {
        let text = page(&["foreign_total", "sglang:num_requests_total"], 160_000);
        let scrape = read(text.clone());
        assert!(scrape.exposition.samples.iter().all(|sample| sample.name.starts_with("sglang:")));
        assert_eq!(scrape.raw.matches("sglang:num_requests_total").count(), 160_000);
        let foreign: usize =
            scrape.raw.lines().filter(|line| line.starts_with("foreign")).map(|line| line.len() + 1).sum();
        assert!(foreign <= MOST_RAW && foreign > MOST_RAW - 100, "{foreign}");
        assert_eq!(scrape.raw.len() + scrape.left_out, text.len());
    }

    #[test]
    fn too_many_series_of_one_counter_are_one_and_count_the_same() {
        let few = read(page(&["sglang:num_requests_total"], 10));
        assert_eq!((few.counters.len(), few.summed, few.left_out), (10, None, 0));
        let many = read(page(&["sglang:num_requests_total"], MOST_COUNTERS + 1));
        assert_eq!((many.counters.len(), many.summed), (1, Some(MOST_COUNTERS + 1)));
        assert_eq!(many.counters[0].value, 40_002.0);
        assert_eq!(summed(many.counters.clone()), many.counters, "once is enough");
    }

    #[test]
    fn too_many_series_of_latency_histograms_are_counted_and_none_is_read() {
        let buckets = |series: usize| {
            let bucket = |n| format!("sglang:queue_time_seconds_bucket{{tenant=\"{n}\",le=\"+Inf\"}} 1\n");
            let scrape = read((0..series).map(bucket).collect());
            (scrape.histograms.len(), scrape.left_out_histograms)
        };
        assert_eq!(buckets(MOST_HISTOGRAMS), (MOST_HISTOGRAMS, None));
        assert_eq!(buckets(MOST_HISTOGRAMS + 1), (0, Some(MOST_HISTOGRAMS + 1)));
    }

    proptest! {
        #[test]
        fn sums_keep_what_each_role_counts_at_each_place(
            raw in proptest::collection::vec((0_u16..3, any::<bool>(), 0_u32..100, 0_u8..4), 0..40),
        ) {
            let counters: Vec<_> = raw.iter().map(|(rank, is_cached, value, label)| ServerCounter {
                name: "n".into(),
                labels: BTreeMap::from([("l".into(), label.to_string())]),
                role: if *is_cached { CounterRole::CachedTokens } else { CounterRole::ComputedTokens },
                place: Some(Place::Rank(Rank(*rank))),
                node: None,
                value: f64::from(*value),
            }).collect();
            let of = |counters: &[ServerCounter], role, rank| {
                let meant = |counter: &&ServerCounter| counter.role == role && counter.place == Some(Place::Rank(Rank(rank)));
                counters.iter().filter(meant).map(|counter| counter.value).sum::<f64>()
            };
            let sums = summed(counters.clone());
            prop_assert!(sums.len() <= 6);
            for rank in 0..3 {
                for role in [CounterRole::CachedTokens, CounterRole::ComputedTokens] {
                    prop_assert!((of(&sums, role, rank) - of(&counters, role, rank)).abs() < 1e-9);
                }
            }
        }
    }

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
