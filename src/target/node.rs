//! What a node does where prefill and decode are apart, as its server describes itself.

use std::time::Duration;

use serde_json::Value;

use super::join;
use crate::units::NodeRole;

/// Asked once a block, outside the measured time; few servers have the route.
const PATIENCE: Duration = Duration::from_secs(2);
/// A description as deep as this describes nothing that is looked for.
const DEPTH: u32 = 8;

/// Asks `/server_info` of the server at `source`, which may name its `/metrics`; none where it does not tell.
pub async fn node_role(http: &reqwest::Client, source: &str) -> Option<NodeRole> {
    let base = source.strip_suffix("/metrics").unwrap_or(source);
    // The word that vLLM's route, which it has in its development mode, needs to answer with fields.
    let url = join(base, "/server_info");
    let url = format!("{url}{}config_format=json", if url.contains('?') { '&' } else { '?' });
    let reply = http.get(url).timeout(PATIENCE).send().await.ok()?;
    if !reply.status().is_success() {
        return None;
    }
    told(&serde_json::from_slice(&super::reply::bytes(reply).await.ok()?).ok()?, DEPTH)
}

/// SGLang's `disaggregation_mode` (`null` where both are one), vLLM's `kv_role`, at whatever depth. A vLLM that is
/// `kv_both` may be either.
fn told(info: &Value, depth: u32) -> Option<NodeRole> {
    let deeper = depth.checked_sub(1)?;
    match info {
        Value::Object(fields) => {
            let word = |key: &str| fields.get(key).and_then(Value::as_str);
            let by_kv = || match word("kv_role")? {
                "kv_producer" => Some(NodeRole::Prefill),
                "kv_consumer" => Some(NodeRole::Decode),
                _ => None,
            };
            let own = word("disaggregation_mode").and_then(NodeRole::named).or_else(by_kv);
            own.or_else(|| fields.values().find_map(|field| told(field, deeper)))
        }
        Value::Array(items) => items.iter().find_map(|item| told(item, deeper)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn descriptions_tell_the_role_and_what_is_both_is_neither() {
        let of = |info: Value| told(&info, DEPTH);
        assert_eq!(of(json!({"disaggregation_mode": "prefill"})), Some(NodeRole::Prefill));
        assert_eq!(of(json!({"disaggregation_mode": "null", "internal_states": [{"a": 1}]})), None);
        let vllm = |role: &str| of(json!({"vllm_config": {"kv_transfer_config": {"kv_role": role}}}));
        assert_eq!((vllm("kv_producer"), vllm("kv_consumer")), (Some(NodeRole::Prefill), Some(NodeRole::Decode)));
        assert_eq!((vllm("kv_both"), of(json!("decode")), of(json!([]))), (None, None, None));
        let deep = (0..64).fold(json!({"kv_role": "kv_consumer"}), |inner, _| json!([inner]));
        assert_eq!(of(deep), None);
    }
}
