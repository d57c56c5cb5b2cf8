//! What is asked of a server beside the plan's turns: fields that one kind of server has, and that others may refuse.

use crate::client::{Asks, CachedDetails};
use crate::profile::{Api, RequestSpec};
use crate::target::{Kind, ServerFacts};
use crate::units::Rank;

/// What to ask of this server, given what the profile's own headers and fields ask.
pub(crate) fn of(server: &ServerFacts, request: &RequestSpec) -> Asks {
    let Some(kind) = server.kind else { return Asks::default() };
    let rank = rank(kind, request).filter(|rank| server.ranks.is_none_or(|ranks| u32::from(rank.0) < ranks));
    if request.api == Api::Generate {
        return Asks { rank, ..Asks::default() };
    }
    let told = server.info.as_ref().and_then(|info| info.get("enable_cache_report")?.as_bool());
    let is_silent = is_sglang(kind) && told == Some(false);
    Asks {
        cached_details: if is_silent { CachedDetails::Asked } else { CachedDetails::NotAsked },
        nvext: kind == Kind::Dynamo,
        rank,
    }
}

fn is_sglang(kind: Kind) -> bool {
    matches!(kind, Kind::Sglang | Kind::Sim)
}

/// The rank that the whole run is pinned to: SGLang reads a header on the OpenAI routes, which beats a field of the body,
/// and the field on every route; vLLM reads the header alone.
fn rank(kind: Kind, request: &RequestSpec) -> Option<Rank> {
    let is_native = request.api == Api::Generate;
    let header = request.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-data-parallel-rank"));
    let header = header.filter(|_| !is_native && (is_sglang(kind) || kind == Kind::Vllm));
    let field =
        || ["routed_dp_rank", "data_parallel_rank"].iter().find_map(|name| request.extra_body.get(*name)?.as_u64());
    let field = || field().filter(|_| is_sglang(kind)).and_then(|rank| u16::try_from(rank).ok());
    header.and_then(|(_, rank)| rank.trim().parse().ok()).or_else(field).map(Rank)
}

/// The request of a probe that one rank answers, so that the second of two finds what the first left.
pub(crate) fn on_one_rank(request: &RequestSpec) -> RequestSpec {
    let mut request = request.clone();
    request.extra_body.entry("routed_dp_rank").or_insert_with(|| 0.into());
    request
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::profile::{Context, load, run_spec};

    fn server(kind: Kind, report: bool) -> ServerFacts {
        ServerFacts {
            kind: Some(kind),
            ranks: Some(4),
            info: Some(json!({ "enable_cache_report": report })),
            ..ServerFacts::default()
        }
    }

    fn request(api: Api, headers: &[(&str, &str)], body: &Value) -> RequestSpec {
        let context = Context { name: "t".into(), drawn_seed: 1, compares_arms: false };
        let request = run_spec(&load("t", "", &[]).unwrap(), &context).unwrap().request;
        let headers: BTreeMap<_, _> = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        RequestSpec { api, headers, extra_body: body.as_object().unwrap().clone(), ..request }
    }

    #[test]
    fn only_servers_that_have_a_field_are_asked_for_it() {
        let chat = request(Api::Chat, &[], &json!({}));
        let details = |kind, report| of(&server(kind, report), &chat).cached_details;
        assert_eq!(details(Kind::Sglang, false), CachedDetails::Asked);
        assert_eq!(details(Kind::Sglang, true), CachedDetails::NotAsked);
        assert_eq!(details(Kind::Vllm, false), CachedDetails::NotAsked);
        assert_eq!(of(&server(Kind::Sglang, false), &request(Api::Generate, &[], &json!({}))), Asks::default());
        assert!(of(&server(Kind::Dynamo, false), &chat).nvext);
        assert_eq!(of(&ServerFacts::default(), &chat), Asks::default());
    }

    #[test]
    fn a_pin_of_the_whole_run_is_believed_where_the_server_reads_it() {
        let pinned = |kind, api, headers: &[(&str, &str)], body| {
            of(&server(kind, true), &request(api, headers, &body)).rank.map(|rank| rank.0)
        };
        let header = [("X-Data-Parallel-Rank", "2")];
        let (none, field) = (json!({}), json!({"routed_dp_rank": 1}));
        assert_eq!(pinned(Kind::Sglang, Api::Chat, &header, field.clone()), Some(2), "the header beats the field");
        assert_eq!(pinned(Kind::Sglang, Api::Generate, &header, field.clone()), Some(1), "where it is read");
        assert_eq!(pinned(Kind::Sglang, Api::Completions, &[], json!({"data_parallel_rank": 3})), Some(3));
        assert_eq!(pinned(Kind::Vllm, Api::Chat, &header, none.clone()), Some(2));
        assert_eq!(pinned(Kind::Vllm, Api::Chat, &[], field.clone()), None);
        assert_eq!(pinned(Kind::Smg, Api::Chat, &header, field), None, "a router may drop it");
        assert_eq!(
            pinned(Kind::Sglang, Api::Chat, &[("x-data-parallel-rank", "7")], none),
            None,
            "there is no such rank"
        );
    }
}
