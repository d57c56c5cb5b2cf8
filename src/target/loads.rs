//! What SGLang counts in `/v1/loads` alone: the time that each rank has spent in prefill.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::reply::ReplyError;
use crate::record::{CounterRole, Place, ServerCounter};
use crate::units::Rank;

/// Outside the measured time, and answered from shared memory.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
pub(super) const ROUTE: &str = "/v1/loads";
const NAME: &str = "total_prefill_busy_us";

/// The counters that `url` shows, which is none where there is no such route; nothing where it does not answer in time.
pub(super) async fn counters(http: &reqwest::Client, url: &str, patience: Duration) -> Option<Vec<ServerCounter>> {
    let reply = match http.get(url).timeout(patience).send().await {
        Err(why) if why.is_timeout() => return None,
        Err(_) => return Some(vec![]),
        Ok(reply) if !reply.status().is_success() => return Some(vec![]),
        Ok(reply) => reply,
    };
    let body = match super::reply::bytes(reply).await {
        Err(ReplyError::Broken(why)) if why.is_timeout() => return None,
        body => body.unwrap_or_default(),
    };
    Some(serde_json::from_slice(&body).map_or_else(|_| vec![], |loads| read(&loads)))
}

/// An entry a rank, each with its own `dp_rank`.
fn read(loads: &Value) -> Vec<ServerCounter> {
    let entries = loads.get("loads").and_then(Value::as_array).into_iter().flatten();
    let counter = |entry: &Value| {
        let rank = entry.get("dp_rank")?.as_u64().and_then(|rank| u16::try_from(rank).ok())?;
        Some(ServerCounter {
            name: NAME.to_owned(),
            labels: BTreeMap::from([("dp_rank".to_owned(), rank.to_string())]),
            role: CounterRole::PrefillBusyUs,
            place: Some(Place::Rank(Rank(rank))),
            node: None,
            value: entry.get(NAME)?.as_f64()?,
        })
    };
    entries.filter_map(counter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefill_time_of_a_real_server_is_read_by_rank() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/sglang/dp2.loads.json");
        let loads = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let read: Vec<_> = read(&loads).into_iter().map(|counter| (counter.place, counter.value)).collect();
        let rank = |rank| Some(Place::Rank(Rank(rank)));
        assert_eq!(read, [(rank(0), 890_367.0), (rank(1), 795_240.0)]);
    }

    #[test]
    fn other_answers_hold_no_counter() {
        for text in
            ["{}", "[]", "{\"loads\": [{}]}", "{\"loads\": [{\"dp_rank\": 99999999, \"total_prefill_busy_us\": 1}]}"]
        {
            assert_eq!(read(&serde_json::from_str(text).unwrap()), []);
        }
    }
}
