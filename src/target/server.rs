//! What a server says of itself: identity, ranks, capacity, models, counters. Every question may go unanswered; only a
//! server that cannot be reached at all is an error.

use std::time::Duration;

use serde_json::Value;

use super::reply::bytes;
use super::{TargetError, dialect, join};
use crate::record::ServerCounter;
use crate::units::MOST_RANKS;
use crate::wire::Exposition;

/// One question may take this long; all of them lie outside the measured time.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is known of a server.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct ServerFacts {
    pub kind: Option<String>,
    pub version: Option<String>,
    pub ranks: Option<u32>,
    pub load_balance_method: Option<String>,
    pub kv_tokens_per_rank: Option<u64>,
    pub page_tokens: Option<u32>,
    /// `/server_info` as it came; none when it is too large to be kept.
    pub info: Option<Value>,
    /// What could not be read or kept, for the reader of the report.
    pub notes: Vec<String>,
}

/// Largest `/server_info` that goes into the report; SGLang's has some 30 kB.
const MOST_INFO: usize = 1 << 20;

/// One scrape of `/metrics`.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Scrape {
    pub raw: String,
    /// Those that a dialect table knows.
    pub counters: Vec<ServerCounter>,
}

/// Asks for `/server_info`; a server that has none leaves all facts open.
pub async fn ask(http: &reqwest::Client, base: &str) -> ServerFacts {
    let url = join(base, "/server_info");
    let Ok(reply) = http.get(&url).timeout(PATIENCE).send().await else { return ServerFacts::default() };
    if !reply.status().is_success() {
        return ServerFacts::default();
    }
    let body = match bytes(reply).await {
        Ok(body) => body,
        Err(why) => return ServerFacts { notes: vec![format!("{url}: {why}")], ..ServerFacts::default() },
    };
    let Ok(info) = serde_json::from_slice(&body) else { return ServerFacts::default() };
    kept(&url, body.len(), facts(info))
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
    let is_simulated = info.get("gspbench_sim").is_some();
    let is_sglang = number("dp_size").is_some() || info.get("internal_states").is_some();
    ServerFacts {
        kind: match (is_simulated, is_sglang) {
            (true, _) => Some("gspbench sim".to_owned()),
            (false, true) => Some("sglang".to_owned()),
            (false, false) => None,
        },
        version: text("version"),
        // A server that claims none, or more than there are anywhere, has not told.
        ranks: ranks.and_then(|ranks| u32::try_from(ranks).ok()).filter(|ranks| (1..=MOST_RANKS).contains(ranks)),
        load_balance_method: text("load_balance_method"),
        kv_tokens_per_rank: number("max_total_num_tokens"),
        page_tokens: number("page_size").and_then(|tokens| u32::try_from(tokens).ok()),
        info: Some(info),
        notes: vec![],
    }
}

/// The model names that `/v1/models` lists; none when the server has no such list.
///
/// # Errors
/// When nothing answers at this address, or it asks for credentials.
pub async fn models(http: &reqwest::Client, base: &str) -> Result<Vec<String>, TargetError> {
    let url = join(base, "/v1/models");
    let reply = http.get(&url).timeout(PATIENCE).send().await.map_err(|why| unreachable(&url, &why))?;
    if matches!(reply.status().as_u16(), 401 | 403) {
        let why = format!("{}: put the server's key into OPENAI_API_KEY", reply.status());
        return Err(TargetError::refused(&url, why));
    }
    let Ok(Value::Object(list)) = serde_json::from_slice(&bytes(reply).await.unwrap_or_default()) else {
        return Ok(Vec::new());
    };
    let ids = list.get("data").and_then(Value::as_array).into_iter().flatten();
    Ok(ids.filter_map(|model| model.get("id")?.as_str().map(str::to_owned)).collect())
}

/// Reads `/metrics` of `base`; `None` when there is none.
pub async fn scrape(http: &reqwest::Client, base: &str) -> Option<Scrape> {
    let reply = http.get(metrics_url(base)).timeout(PATIENCE).send().await.ok()?;
    if !reply.status().is_success() {
        return None;
    }
    let raw = String::from_utf8_lossy(&bytes(reply).await.ok()?).into_owned();
    let counters = dialect::counters(&Exposition::parse(&raw));
    Some(Scrape { raw, counters })
}

/// Where an address shows its counters; it may be given with the route or without.
pub(super) fn metrics_url(base: &str) -> String {
    if base.ends_with("/metrics") { base.to_owned() } else { join(base, "/metrics") }
}

fn unreachable(url: &str, why: &reqwest::Error) -> TargetError {
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
        assert_eq!((attention.ranks, attention.kind.as_deref()), (Some(8), Some("sglang")));
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
