//! What kind of server answers, from what its routes and its exposition show.
//!
//! A router passes much of its workers through, so its own marks are looked for first. Sources: replies of SGLang 0.5.23,
//! vLLM 0.32, Dynamo 1.6, llama.cpp, sglang-router 0.3.2 and vllm-router 0.1.17.

use std::collections::BTreeSet;

use serde_json::Value;

use super::dialect::{Dialect, dialects};
use crate::units::MOST_RANKS;
use crate::wire::Exposition;

/// A server that this program knows something about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Sim,
    Sglang,
    Vllm,
    Dynamo,
    LlamaCpp,
    /// SMG, and the sglang-router that it grew from.
    Smg,
    VllmRouter,
    Pegaflow,
}

impl Kind {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sim => "gspbench sim",
            Self::Sglang => "sglang",
            Self::Vllm => "vllm",
            Self::Dynamo => "dynamo",
            Self::LlamaCpp => "llama.cpp",
            Self::Smg => "smg",
            Self::VllmRouter => "vllm-router",
            Self::Pegaflow => "pegaflow",
        }
    }

    /// Whether it serves nothing itself, so that what it repeats of a worker is not said of all.
    #[must_use]
    pub fn is_router(self) -> bool {
        matches!(self, Self::Smg | Self::VllmRouter | Self::Pegaflow)
    }

    /// Whether `/metrics` at its own address may be read. A vllm-router passes the question on to the worker whose turn it is
    /// by its policy: each answer is another worker's, and the next request goes elsewhere than it would have.
    #[must_use]
    pub fn may_be_scraped(self) -> bool {
        self != Self::VllmRouter
    }

    /// Whether a request can be pinned to one of its ranks.
    #[must_use]
    pub fn pins(self) -> bool {
        matches!(self, Self::Sim | Self::Sglang | Self::Vllm)
    }
}

/// What was seen of a server.
#[derive(Debug, Default)]
pub(super) struct Marks<'a> {
    /// `/server_info`.
    pub info: Option<&'a Value>,
    /// `/v1/models`.
    pub models: Option<&'a Value>,
    /// The words of the routes that say that it is ready.
    pub readiness: &'a str,
    pub health: &'a str,
    pub exposition: Option<&'a Exposition>,
}

/// The kind that these marks point to.
#[must_use]
pub(super) fn kind(marks: &Marks<'_>) -> Option<Kind> {
    let info = |key: &str| marks.info.is_some_and(|info| info.get(key).is_some());
    let writes = marks.exposition.map(dialects).unwrap_or_default();
    let owner = marks.models.and_then(|models| models.pointer("/data/0/owned_by")).and_then(Value::as_str);
    // All routers count their workers there; the vllm-router says so in its health, too.
    let counts_workers = marks.readiness.contains("healthy_workers");
    let says_servers = marks.health.contains("servers healthy");
    let shows = |dialect| writes.contains(&dialect);
    Some(match owner {
        _ if info("gspbench_sim") => Kind::Sim,
        _ if says_servers || shows(Dialect::VllmRouter) => Kind::VllmRouter,
        _ if counts_workers || shows(Dialect::Smg) => Kind::Smg,
        _ if info("dp_size") || info("internal_states") => Kind::Sglang,
        Some("sglang") => Kind::Sglang,
        Some("vllm") => Kind::Vllm,
        Some("nvidia") => Kind::Dynamo,
        Some("llamacpp") => Kind::LlamaCpp,
        _ if marks.health.contains("dyn://") || shows(Dialect::Dynamo) => Kind::Dynamo,
        _ if shows(Dialect::Sglang) => Kind::Sglang,
        _ if shows(Dialect::Vllm) => Kind::Vllm,
        _ if shows(Dialect::LlamaCpp) => Kind::LlamaCpp,
        _ if shows(Dialect::Pegaflow) => Kind::Pegaflow,
        _ => return None,
    })
}

/// Ranks by their labels, where the server has no description: vLLM labels each of its engines.
#[must_use]
pub(super) fn labelled_ranks(exposition: &Exposition) -> Option<u32> {
    let engines: BTreeSet<&String> = exposition
        .samples
        .iter()
        .filter(|sample| sample.name == "vllm:num_requests_running")
        .filter_map(|sample| sample.labels.get("engine"))
        .collect();
    u32::try_from(engines.len()).ok().filter(|ranks| (1..=MOST_RANKS).contains(ranks))
}

/// Tokens that one rank of vLLM can hold, and those of a block, as its `cache_config_info` says them.
///
/// vLLM 0.32 says the tokens of each engine (`kv_cache_size_tokens`). Earlier versions say blocks alone, and theirs are
/// the sum over all engines that the address serves, though each engine has a series of its own.
#[must_use]
pub(super) fn vllm_cache(exposition: &Exposition) -> Option<(u64, u32)> {
    let config = exposition.samples.iter().find(|sample| sample.name == "vllm:cache_config_info")?;
    let number = |key: &str| config.labels.get(key).and_then(|value| value.parse::<u64>().ok());
    let block = number("block_size")?;
    let by_blocks = || {
        let engines = labelled_ranks(exposition).map_or(1, u64::from);
        Some(number("num_gpu_blocks")?.checked_mul(block)? / engines)
    };
    Some((number("kv_cache_size_tokens").or_else(by_blocks)?, u32::try_from(block).ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn exposition(name: &str) -> Exposition {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/metrics").join(name);
        Exposition::parse(&std::fs::read_to_string(path).unwrap())
    }

    #[test]
    fn each_server_is_known_by_its_own_words() {
        let models = |owner: &str| json!({"object": "list", "data": [{"id": "tiny", "owned_by": owner}]});
        let by_models = ["sglang", "vllm", "nvidia", "llamacpp", "someone"]
            .map(|owner| kind(&Marks { models: Some(&models(owner)), ..Marks::default() }));
        assert_eq!(by_models, [Some(Kind::Sglang), Some(Kind::Vllm), Some(Kind::Dynamo), Some(Kind::LlamaCpp), None]);
        let info = |value: &Value| kind(&Marks { info: Some(value), ..Marks::default() });
        assert_eq!(info(&json!({"dp_size": 1, "gspbench_sim": {}})), Some(Kind::Sim));
        assert_eq!(info(&json!({"dp_size": 1})), Some(Kind::Sglang));
    }

    #[test]
    fn a_router_is_not_taken_for_the_worker_whose_words_it_repeats() {
        let (models, info) = (json!({"data": [{"owned_by": "llamacpp"}]}), json!({"dp_size": 2}));
        let seen = Marks { models: Some(&models), info: Some(&info), ..Marks::default() };
        let workers = "{\"status\":\"ready\",\"healthy_workers\":3,\"total_workers\":3}";
        assert_eq!(kind(&Marks { readiness: workers, health: "OK", ..seen }), Some(Kind::Smg));
        let seen = Marks { models: Some(&models), ..Marks::default() };
        assert_eq!(kind(&Marks { readiness: workers, health: "All servers healthy", ..seen }), Some(Kind::VllmRouter));
    }

    #[test]
    fn an_exposition_tells_the_kind_where_nothing_else_does() {
        let of = |name| kind(&Marks { exposition: Some(&exposition(name)), ..Marks::default() });
        let kinds = [
            ("sglang.dp2.metrics.txt", Kind::Sglang),
            ("vllm.dp2.metrics.txt", Kind::Vllm),
            ("dynamo.metrics.txt", Kind::Dynamo),
            ("llamacpp.metrics.txt", Kind::LlamaCpp),
            ("sglrouter.metrics.txt", Kind::Smg),
            ("vllmrouter.metrics.txt", Kind::VllmRouter),
        ];
        for (name, kind) in kinds {
            assert_eq!(of(name), Some(kind), "{name}");
        }
        assert_eq!(kind(&Marks::default()), None);
    }

    #[test]
    fn vllm_tells_its_ranks_by_their_labels() {
        assert_eq!(labelled_ranks(&exposition("vllm.dp2.metrics.txt")), Some(2));
        assert_eq!(labelled_ranks(&exposition("llamacpp.metrics.txt")), None);
    }

    #[test]
    fn the_cache_of_a_rank_of_vllm_is_what_its_engine_says_or_its_part_of_all_blocks() {
        let of = |text: &str| vllm_cache(&Exposition::parse(text));
        assert_eq!(vllm_cache(&exposition("vllm.dp2.metrics.txt")), Some((2_097_152, 128)), "of each of two engines");
        let blocks = "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1100\",engine=\"0\"} 1.0\n";
        assert_eq!(of(blocks), Some((17_600, 16)));
        let engines = "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_running{engine=\"1\"} 0\n";
        assert_eq!(of(&format!("{engines}{blocks}")), Some((8_800, 16)), "half of the sum");
        assert_eq!(of("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1.0\n"), None);
        let without =
            "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"9\",kv_cache_size_tokens=\"None\"} 1\n";
        assert_eq!(of(without), Some((144, 16)));
    }
}
