//! What a server does not tell, and what would make it.

use crate::profile::Api;
use crate::record::TurnRecord;
use crate::report::{Fact, Untold};
use crate::target::Kind;

/// What is known after the probe.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub kind: Option<Kind>,
    pub api: Api,
    /// Whether any address shows counters.
    pub shows_metrics: bool,
    pub turn: &'a TurnRecord,
    pub ranks: Option<u32>,
    /// Whether keys are sent and nothing shows them.
    pub misses_keys: bool,
}

/// In the order in which they are shown.
#[must_use]
pub(crate) fn untold(asked: &Asked<'_>) -> Vec<Untold> {
    let facts = [
        (Fact::CachedTokens, asked.turn.cached_tokens.is_none().then(|| cached(asked))),
        // One rank needs no name.
        (Fact::Place, (asked.turn.place.is_none() && asked.ranks != Some(1)).then(|| place(asked))),
        (Fact::Counters, (!asked.shows_metrics).then(|| counters(asked))),
        (Fact::Usage, asked.turn.prompt_tokens.is_none().then_some(USAGE)),
        (Fact::Ranks, asked.ranks.is_none().then_some(RANKS)),
        (Fact::Key, asked.misses_keys.then(|| keys(asked))),
    ];
    facts.into_iter().filter_map(|(fact, remedy)| Some(Untold { fact, remedy: remedy?.to_owned() })).collect()
}

const USAGE: &str = "it sends no usage with a stream: see whether it, or a proxy before it, drops `stream_options`";
const RANKS: &str = "see that `server.ranks` is right: the reuse that round robin would have rests on it";

fn cached(asked: &Asked<'_>) -> &'static str {
    match asked.kind {
        Some(Kind::Sglang) => {
            "start SGLang with --enable-cache-report, take --api generate, or give --extra-request-body \
             '{\"return_cached_tokens_details\":true}' (then a reply that found nothing cached says nothing)"
        }
        Some(Kind::Vllm) => "start vLLM with --enable-prompt-tokens-details",
        Some(Kind::Pegaflow) => "its router drops them in first-token mode",
        Some(Kind::Dynamo) => "Dynamo tells them, but not in its P/D mode",
        Some(Kind::Sim | Kind::LlamaCpp | Kind::Smg | Kind::VllmRouter) | None => {
            "start the workers with --enable-cache-report (SGLang) or --enable-prompt-tokens-details (vLLM)"
        }
    }
}

fn place(asked: &Asked<'_>) -> &'static str {
    match (asked.kind, asked.api) {
        (Some(Kind::Sglang | Kind::Sim), Api::Chat | Api::Completions) => {
            "take --api generate, whose replies name their rank"
        }
        (Some(Kind::Vllm), _) => "vLLM names no rank: start one server a rank, or pin the turns",
        (Some(Kind::Smg), _) => "SMG 1.13 names the worker in x-smg-routed-worker-id; older ones count by worker only",
        (Some(Kind::VllmRouter), _) => {
            "it names its workers in P/D mode only; --metrics-url of its Prometheus port counts them"
        }
        (Some(Kind::Pegaflow), _) => "its router names no node: --metrics-url of each node counts them",
        _ => "no field or header of its replies names a place",
    }
}

fn counters(asked: &Asked<'_>) -> &'static str {
    match asked.kind {
        Some(Kind::Sglang) => "start SGLang with --enable-metrics",
        Some(Kind::LlamaCpp) => "start llama.cpp with --metrics",
        Some(Kind::Smg) => {
            "SMG has them on a port of its own: give it with --metrics-url (its --prometheus-port, 29000)"
        }
        Some(Kind::VllmRouter) => {
            "its own /metrics would take a turn of its policy and is not asked: give its Prometheus port (--prometheus-port, \
             29000) and its workers with --metrics-url"
        }
        Some(Kind::Sim | Kind::Vllm | Kind::Dynamo | Kind::Pegaflow) | None => {
            "give the addresses that have /metrics, of routers and nodes, with --metrics-url"
        }
    }
}

fn keys(asked: &Asked<'_>) -> &'static str {
    match asked.kind {
        Some(Kind::Sglang) if asked.shows_metrics => {
            "its gauge of keys still shows those of earlier requests, since only the next prefill refreshes it; on --api chat \
             and completions another one counts key headers at once"
        }
        Some(Kind::Sglang) => "start SGLang with --enable-metrics, whose gauges show the keys under way",
        Some(Kind::Smg) => {
            "its policies `manual` and `consistent_hashing` count them, at --metrics-url of its Prometheus port"
        }
        _ => "nothing of its counters shows them: give --metrics-url of the servers behind it, if they are SGLang",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Place, TurnId};
    use crate::units::{Micros, Rank};

    fn turn() -> TurnRecord {
        TurnRecord::planned("t".into(), TurnId { group: 0, session: 0, turn: 0 }, None, Micros(0), 2)
    }

    #[test]
    fn each_fact_that_is_missing_names_the_flag_that_would_tell_it() {
        let silent = turn();
        let of = |kind, api| {
            let asked =
                Asked { kind: Some(kind), api, shows_metrics: false, turn: &silent, ranks: None, misses_keys: true };
            untold(&asked).into_iter().map(|untold| untold.remedy).collect::<Vec<_>>().join("\n")
        };
        let flags = [
            (
                Kind::Sglang,
                &["--enable-cache-report", "return_cached_tokens_details", "--api generate", "--enable-metrics"][..],
            ),
            (Kind::Vllm, &["--enable-prompt-tokens-details", "server.ranks"]),
            (Kind::LlamaCpp, &["--metrics"]),
            (Kind::Smg, &["--metrics-url", "x-smg-routed-worker-id"]),
            (Kind::VllmRouter, &["--metrics-url", "--prometheus-port", "turn of its policy"]),
        ];
        for (kind, words) in flags {
            let said = of(kind, Api::Chat);
            assert!(words.iter().all(|word| said.contains(word)), "{kind:?}: {said}");
        }
    }

    #[test]
    fn a_server_that_tells_all_is_asked_for_nothing() {
        let place = Some(Place::Rank(Rank(0)));
        let told = TurnRecord { cached_tokens: Some(0), prompt_tokens: Some(9), place, ..turn() };
        let asked = Asked {
            kind: Some(Kind::Sglang),
            api: Api::Generate,
            shows_metrics: true,
            turn: &told,
            ranks: Some(8),
            misses_keys: false,
        };
        assert_eq!(untold(&asked), []);
    }
}
