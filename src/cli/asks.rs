//! What is asked of a server beside the plan's turns: fields that one kind of server has, and that others may refuse.

use crate::client::{Asks, CachedDetails};
use crate::profile::{Api, RequestSpec};
use crate::target::ServerFacts;

/// What to ask of this server on this route.
pub(super) fn of(server: &ServerFacts, api: Api) -> Asks {
    if api == Api::Generate {
        return Asks::default();
    }
    let kind = server.kind.as_deref().unwrap_or_default();
    let told = server.info.as_ref().and_then(|info| info.get("enable_cache_report")?.as_bool());
    let is_silent = matches!(kind, "sglang" | "gspbench sim") && told == Some(false);
    Asks {
        cached_details: if is_silent { CachedDetails::Asked } else { CachedDetails::NotAsked },
        nvext: kind.eq_ignore_ascii_case("dynamo"),
    }
}

/// The request of a probe that a rank of its own answers, so that the second of two finds what the first left.
pub(super) fn on_first_rank(request: &RequestSpec) -> RequestSpec {
    let mut request = request.clone();
    request.extra_body.insert("routed_dp_rank".to_owned(), 0.into());
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_servers_that_have_a_field_are_asked_for_it() {
        let server = |kind: &str, report: serde_json::Value| ServerFacts {
            kind: Some(kind.to_owned()),
            info: Some(serde_json::json!({ "enable_cache_report": report })),
            ..ServerFacts::default()
        };
        let details = |kind, report| of(&server(kind, report), Api::Chat).cached_details;
        assert_eq!(details("sglang", false.into()), CachedDetails::Asked);
        assert_eq!(details("sglang", true.into()), CachedDetails::NotAsked);
        assert_eq!(details("vllm", false.into()), CachedDetails::NotAsked);
        assert_eq!(of(&server("sglang", false.into()), Api::Generate), Asks::default());
        assert!(of(&server("dynamo", false.into()), Api::Completions).nvext);
        assert_eq!(of(&ServerFacts::default(), Api::Chat), Asks::default());
    }
}
