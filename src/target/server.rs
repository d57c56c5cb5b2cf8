//! What a server says of itself: identity, ranks, capacity, models, counters. Every question may go unanswered; only a
//! server that cannot be reached at all is an error.

use std::time::Duration;

use serde_json::Value;

use super::identify::{Kind, Marks, kind, labelled_ranks, vllm_cache};
use super::ready::Readiness;
use super::reply::bytes;
use super::{Scraper, TargetError, join};
use crate::units::MOST_RANKS;

/// One question may take this long; all of them lie outside the measured time.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is known of a server.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct ServerFacts {
    pub kind: Option<Kind>,
    pub version: Option<String>,
    pub ranks: Option<u32>,
    pub load_balance_method: Option<String>,
    pub kv_tokens_per_rank: Option<u64>,
    pub page_tokens: Option<u32>,
    /// The names that `/v1/models` lists; none when there is no such list.
    pub models: Vec<String>,
    /// Whether its own address shows counters.
    pub shows_metrics: bool,
    /// `/server_info` as it came; none when it is too large to be kept.
    pub info: Option<Value>,
    /// What could not be read or kept, for the reader of the report.
    pub notes: Vec<String>,
}

/// Largest `/server_info` that goes into the report; SGLang's has some 30 kB.
const MOST_INFO: usize = 1 << 20;

/// Asks a server what it is; every question that goes unanswered leaves a fact open.
///
/// # Errors
/// When it asks for credentials, or stops to answer.
pub async fn ask(
    http: &reqwest::Client,
    scraper: &Scraper,
    base: &str,
    ready: &Readiness,
) -> Result<ServerFacts, TargetError> {
    let models = models(http, base).await?;
    let (info, mut facts) = describe(http, base).await;
    let (readiness, health) = match ready {
        Readiness::Ready { route: "/health", said } => ("", said.clone()),
        // Only a router tells of workers, and its health tells which router.
        Readiness::Ready { said, .. } if said.contains("workers") => (&**said, text(http, base, "/health").await),
        _ => ("", String::new()),
    };
    let words = Marks { info: info.as_ref(), models: Some(&models), readiness, health: &health, ..Marks::default() };
    let exposition = match kind(&words).is_none_or(Kind::may_be_scraped) {
        true => scraper.scrape(base).await.ok().map(|scrape| scrape.exposition),
        false => None,
    };
    facts.kind = kind(&Marks { exposition: exposition.as_ref(), ..words });
    facts.models = listed(&models);
    facts.shows_metrics = exposition.is_some();
    if facts.kind == Some(Kind::Vllm) {
        facts.version =
            json(http, base, "/version").await.and_then(|said| Some(said.get("version")?.as_str()?.to_owned()));
        let cache = exposition.as_ref().and_then(vllm_cache);
        facts.kv_tokens_per_rank = cache.map(|(tokens, _)| tokens);
        facts.page_tokens = cache.map(|(_, page)| page);
        facts.ranks = exposition.as_ref().and_then(labelled_ranks);
    }
    if facts.kind.is_some_and(Kind::is_router) {
        // What a router repeats of one worker is not said of all.
        facts = ServerFacts { kind: facts.kind, models: facts.models, notes: facts.notes, ..ServerFacts::default() };
        facts.shows_metrics = exposition.is_some();
    }
    Ok(facts)
}

/// `/server_info`, raw and read.
async fn describe(http: &reqwest::Client, base: &str) -> (Option<Value>, ServerFacts) {
    let url = join(base, "/server_info");
    let Ok(reply) = http.get(&url).timeout(PATIENCE).send().await else { return Default::default() };
    if !reply.status().is_success() {
        drop(bytes(reply).await);
        return Default::default();
    }
    let body = match bytes(reply).await {
        Ok(body) => body,
        Err(why) => return (None, ServerFacts { notes: vec![format!("{url}: {why}")], ..ServerFacts::default() }),
    };
    let Ok(info) = serde_json::from_slice::<Value>(&body) else { return Default::default() };
    (Some(info.clone()), kept(&url, body.len(), facts(info)))
}

async fn text(http: &reqwest::Client, base: &str, route: &str) -> String {
    match http.get(join(base, route)).timeout(PATIENCE).send().await {
        Ok(reply) if reply.status().is_success() => super::reply::words(reply).await,
        _ => String::new(),
    }
}

async fn json(http: &reqwest::Client, base: &str, route: &str) -> Option<Value> {
    let reply = http.get(join(base, route)).timeout(PATIENCE).send().await.ok()?;
    serde_json::from_slice(&bytes(reply).await.ok()?).ok()
}

/// Leaves the raw description out when it is larger than a report should be.
fn kept(url: &str, size: usize, mut facts: ServerFacts) -> ServerFacts {
    if size > MOST_INFO {
        facts.info = None;
        facts.notes.push(format!("{url}: its {size} bytes are too many to be kept in the report"));
    }
    facts
}

/// SGLang 0.5.23: `--dp-size N --enable-dp-attention` resolves to `attn_dp_size` N and `dp_size` 1, so the number of ranks
/// is the product of both.
fn facts(info: Value) -> ServerFacts {
    let number = |key: &str| info.get(key).and_then(Value::as_u64);
    let text = |key: &str| info.get(key).and_then(Value::as_str).map(str::to_owned);
    let ranks = number("dp_size").and_then(|dp| dp.checked_mul(number("attn_dp_size").unwrap_or(1).max(1)));
    ServerFacts {
        version: text("version"),
        // A server that claims none, or more than there are anywhere, has not told.
        ranks: ranks.and_then(|ranks| u32::try_from(ranks).ok()).filter(|ranks| (1..=MOST_RANKS).contains(ranks)),
        load_balance_method: text("load_balance_method"),
        kv_tokens_per_rank: number("max_total_num_tokens"),
        page_tokens: number("page_size").and_then(|tokens| u32::try_from(tokens).ok()),
        info: Some(info),
        ..ServerFacts::default()
    }
}

/// `/v1/models`; null when the server has no such list.
async fn models(http: &reqwest::Client, base: &str) -> Result<Value, TargetError> {
    let url = join(base, "/v1/models");
    let reply = http.get(&url).timeout(PATIENCE).send().await.map_err(|why| unreachable(&url, &why))?;
    if matches!(reply.status().as_u16(), 401 | 403) {
        let why = format!("{}: put the server's key into OPENAI_API_KEY", reply.status());
        return Err(TargetError::refused(&url, why));
    }
    Ok(serde_json::from_slice(&bytes(reply).await.unwrap_or_default()).unwrap_or_default())
}

/// The names in a list of models.
fn listed(models: &Value) -> Vec<String> {
    let ids = models.get("data").and_then(Value::as_array).into_iter().flatten();
    ids.filter_map(|model| model.get("id")?.as_str().map(str::to_owned)).collect()
}

pub(super) fn unreachable(url: &str, why: &reqwest::Error) -> TargetError {
    let cause = std::iter::successors(std::error::Error::source(why), |cause| cause.source()).last();
    if let Some(cause) = cause.filter(|cause| cause.to_string().contains("certificate")) {
        let why = format!("{cause}: trust it with --ca-file PEM, or anyone with --insecure");
        return TargetError::Refused { url: url.to_owned(), why };
    }
    let why = if why.is_timeout() {
        format!("no answer within {}", humantime::format_duration(PATIENCE))
    } else {
        cause.map_or_else(|| why.to_string(), ToString::to_string)
    };
    TargetError::unreachable(url, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_product_of_both_sizes() {
        let attention = facts(serde_json::json!({"dp_size": 1, "attn_dp_size": 8, "version": "0.5.23"}));
        assert_eq!((attention.ranks, attention.version.as_deref()), (Some(8), Some("0.5.23")));
        let plain = facts(serde_json::json!({"dp_size": 2, "attn_dp_size": 1, "max_total_num_tokens": 200_000}));
        assert_eq!((plain.ranks, plain.kv_tokens_per_rank), (Some(2), Some(200_000)));
        assert_eq!(facts(serde_json::json!({"something": "else"})).ranks, None);
    }

    #[test]
    fn absurd_numbers_of_ranks_are_unknown() {
        let ranks =
            |dp: u64, attention: u64| facts(serde_json::json!({"dp_size": dp, "attn_dp_size": attention})).ranks;
        assert_eq!((ranks(4096, 1), ranks(1, 4096), ranks(64, 64)), (Some(4096), Some(4096), Some(4096)));
        for (dp, attention) in [(0, 8), (4097, 1), (65, 64), (65_536, 1), (1 << 40, 1 << 40), (u64::MAX, u64::MAX)] {
            assert_eq!(ranks(dp, attention), None, "{dp} × {attention}");
        }
    }

    #[test]
    fn a_description_too_large_for_the_report_is_dropped_and_that_is_said() {
        let known = || facts(serde_json::json!({"dp_size": 2}));
        assert_eq!(kept("u", MOST_INFO, known()), known());
        let large = kept("u", MOST_INFO + 1, known());
        assert_eq!((large.ranks, large.info, large.notes.len()), (Some(2), None, 1));
    }
}
