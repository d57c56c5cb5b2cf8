//! Totals of captured scrapes against a table worked out by hand (`grep` and a calculator over the captures).

use std::collections::BTreeSet;

use super::*;

fn read(name: &str) -> Exposition {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/metrics").join(name);
    Exposition::parse(&std::fs::read_to_string(path).unwrap())
}

/// Sum over a role, of one place or of all.
fn total(counters: &[ServerCounter], role: CounterRole, place: Option<&str>) -> f64 {
    let of_place = |counter: &&ServerCounter| {
        place.is_none_or(|place| counter.place.as_ref().is_some_and(|p| p.to_string() == place))
    };
    counters.iter().filter(|counter| counter.role == role).filter(of_place).map(|counter| counter.value).sum()
}

/// A role, a place (none: over all places, and those without one), and the sum.
type Row = (CounterRole, Option<&'static str>, f64);
/// A capture, whose dialects it holds, and all that is understood of it.
type Page = (&'static str, &'static [Dialect], &'static [Row]);

/// Of two captures nothing can be told, so they are not kept: hfserve's is the body of a 404, and that of sglang-router over
/// llama.cpp is empty.
#[rustfmt::skip]
const PAGES: [Page; 12] = [
    ("sglang.dp2.metrics.txt", &[Dialect::Sglang], &[
        (PromptTokens, None, 1968.0), (OutputTokens, None, 1237.0), (CachedTokensFinished, None, 1201.0),
        (Requests, None, 17.0), (AbortedRequests, None, 1.0),
        (CachedTokens, Some("rank 0"), 1138.0), (CachedTokens, Some("rank 1"), 63.0),
        (ComputedTokens, Some("rank 0"), 469.0), (ComputedTokens, Some("rank 1"), 299.0),
    ]),
    ("vllm.metrics.txt", &[Dialect::Vllm], &[
        (PromptTokens, Some("rank 0"), 4850.0), (CachedTokens, Some("rank 0"), 2304.0),
        (CachedTokensFinished, Some("rank 0"), 2304.0), (ComputedTokens, Some("rank 0"), 2546.0),
        (Fetched, Some("rank 0"), 0.0), (OutputTokens, Some("rank 0"), 1722.0), (Requests, Some("rank 0"), 27.0),
    ]),
    ("vllm.dp2.metrics.txt", &[Dialect::Vllm], &[
        (PromptTokens, Some("rank 0"), 2700.0), (PromptTokens, Some("rank 1"), 2700.0),
        (CachedTokens, Some("rank 0"), 0.0), (CachedTokens, Some("rank 1"), 256.0),
        (CachedTokensFinished, Some("rank 0"), 0.0), (CachedTokensFinished, Some("rank 1"), 256.0),
        (ComputedTokens, Some("rank 0"), 2700.0), (ComputedTokens, Some("rank 1"), 2444.0), (Fetched, None, 0.0),
        (OutputTokens, Some("rank 0"), 36.0), (OutputTokens, Some("rank 1"), 36.0),
        (Requests, Some("rank 0"), 9.0), (Requests, Some("rank 1"), 9.0),
    ]),
    ("llamacpp.metrics.txt", &[Dialect::LlamaCpp], &[
        (ComputedTokens, None, 715.0), (CachedTokens, None, 2621.0), (OutputTokens, None, 2299.0),
    ]),
    ("dynamo.metrics.txt", &[Dialect::Dynamo], &[
        (CachedTokensFinished, None, 2272.0), (PromptTokens, None, 3030.0), (OutputTokens, None, 94.0),
        (Requests, None, 16.0),
    ]),
    ("dynamo.worker.metrics.txt", &[Dialect::Dynamo], &[(Attempts, Some("12028530680228133600"), 0.0)]),
    ("dynamo.pd.metrics.txt", &[Dialect::Dynamo], &[
        (CachedTokensFinished, None, 0.0), (PromptTokens, None, 123.0), (OutputTokens, None, 6.0), (Requests, None, 3.0),
    ]),
    // Dynamo's mocker also speaks the names of the engine that it stands for.
    ("dynamo.pd.decode_worker.metrics.txt", &[Dialect::Sglang, Dialect::Dynamo], &[
        (Attempts, Some("15539238320019325766"), 3.0), (Requests, None, 3.0),
    ]),
    ("dynamo.pd.prefill_worker.metrics.txt", &[Dialect::Dynamo], &[(Attempts, Some("3060362345844770120"), 3.0)]),
    ("sglrouter.metrics.txt", &[Dialect::Smg], &[
        (Attempts, Some("http://127.0.0.1:8401"), 7.0), (Attempts, Some("http://127.0.0.1:8402"), 7.0),
        (Attempts, Some("http://127.0.0.1:8403"), 7.0),
    ]),
    ("vllmrouter.metrics.txt", &[Dialect::VllmRouter], &[
        (Attempts, Some("http://127.0.0.1:8401"), 7.0), (Attempts, Some("http://127.0.0.1:8402"), 6.0),
        (Attempts, Some("http://127.0.0.1:8403"), 11.0),
    ]),
    // That router passes the page of one of its workers on.
    ("vllmrouter_over_llamacpp.metrics.txt", &[Dialect::LlamaCpp], &[
        (ComputedTokens, None, 703.0), (CachedTokens, None, 1612.0), (OutputTokens, None, 11413.0),
    ]),
];

#[test]
fn every_captured_scrape_has_its_row() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let metrics = std::fs::read_dir(folder.join("metrics")).unwrap();
    let others = std::fs::read_dir(folder.join("captures")).unwrap();
    let names = metrics.chain(others).map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let found: BTreeSet<String> = names.filter(|name| name.ends_with("metrics.txt")).collect();
    assert_eq!(found, PAGES.iter().map(|(file, ..)| (*file).to_owned()).collect());
}

#[test]
fn every_captured_scrape_reads_without_loss_and_its_totals_are_those_of_the_table() {
    for (file, known, rows) in &PAGES {
        let read = read(file);
        assert_eq!(read.unreadable, 0, "{file}");
        assert!(read.samples.len() > 10, "{file}");
        assert_eq!(dialects(&read), *known, "{file}");
        let counters = counters(&read);
        for (role, place, value) in *rows {
            let counted = total(&counters, *role, *place);
            assert!((counted - value).abs() < 1e-9, "{file}: {role:?} {place:?}: {counted}, not {value}");
        }
        // And no counter is left out of it: what the table has of a role is all that there is.
        for counter in &counters {
            let of_role: Vec<_> = rows.iter().filter(|(role, ..)| *role == counter.role).collect();
            let known: f64 = of_role.iter().map(|(.., value)| value).sum();
            let all = total(&counters, counter.role, None);
            assert!(!of_role.is_empty() && (known - all).abs() < 1e-9, "{file}: {:?}: {all}", counter.role);
        }
        let missing = rows.iter().find(|(role, ..)| counters.iter().all(|counter| counter.role != *role));
        assert_eq!(missing, None, "{file}");
    }
}

#[test]
fn a_total_may_be_doubled_and_a_created_twin_is_no_counter() {
    let text = "pegaflow_rdma_fetch_total_total{status=\"ok\"} 3\npegaflow_rdma_fetch_created 17e8\n\
                vllm:prompt_tokens{engine=\"0\"} 5\nvllm:prompt_tokens_created{engine=\"0\"} 17e8\nsglang:num_requests_total NaN\n";
    let counters = counters(&Exposition::parse(text));
    let seen: Vec<_> = counters.iter().map(|counter| (counter.role, counter.value)).collect();
    assert_eq!(seen, [(Fetched, 3.0), (PromptTokens, 5.0)]);
}

#[test]
fn what_smg_sends_counts_once() {
    let sent = "smg_worker_requests_total{worker=\"http://w:1\",model=\"m\"} 7\n";
    let ended = "smg_worker_cb_outcomes_total{worker=\"http://w:1\",outcome=\"success\"} 6\n";
    let requests = |text: &str| total(&counters(&Exposition::parse(text)), Attempts, Some("http://w:1"));
    let active = "smg_worker_requests_active{worker=\"http://w:1\"} 3\n";
    for (text, counted) in [(format!("{sent}{ended}"), 7.0), (format!("{active}{ended}"), 6.0), (sent.to_owned(), 7.0)]
    {
        assert!((requests(&text) - counted).abs() < 1e-9, "{text}");
    }
}

#[test]
fn a_workers_id_is_that_of_replies() {
    // As seen of one server: 10776803476576610544 in its replies.
    let of = |id: &str| {
        let text = format!("dynamo_component_requests_total{{dynamo_endpoint=\"generate\",worker_id=\"{id}\"}} 1\n");
        counters(&Exposition::parse(&text))[0].place.clone()
    };
    assert_eq!(of("958ee5a9fb8b28f0"), Some(Place::Node("10776803476576610544".into())));
    assert_eq!(of("none"), None);
}

#[test]
fn what_a_node_does_is_told_by_its_labels() {
    let of = |text: &str| counters(&Exposition::parse(text))[0].node;
    let sglang = |kind: &str| of(&format!("sglang:prompt_tokens_total{{engine_type=\"{kind}\"}} 1\n"));
    assert_eq!((sglang("prefill"), sglang("decode")), (Some(NodeRole::Prefill), Some(NodeRole::Decode)));
    assert_eq!((sglang("unified"), sglang("sglang"), of("vllm:prompt_tokens_total 1\n")), (None, None, None));
    let router = |side: &str| of(&format!("vllm_router_pd_{side}_requests_total{{worker=\"http://w:1\"}} 1\n"));
    assert_eq!((router("prefill"), router("decode")), (Some(NodeRole::Prefill), Some(NodeRole::Decode)));
    let dynamo = |file: &str| counters(&read(file)).iter().map(|counter| counter.node).collect::<Vec<_>>();
    assert_eq!(dynamo("dynamo.pd.prefill_worker.metrics.txt"), [Some(NodeRole::Prefill)]);
    // `backend` is any worker that is no prefill worker.
    assert!(dynamo("dynamo.pd.decode_worker.metrics.txt").iter().all(Option::is_none));
}

#[test]
fn a_source_called_total_counts_only_when_it_stands_alone() {
    let cached = |text: &str| total(&counters(&Exposition::parse(text)), CachedTokensFinished, None);
    let row = |source: &str, value: u32| format!("sglang:cached_tokens_total{{cache_source=\"{source}\"}} {value}\n");
    let together = row("device", 90) + &row("host", 10) + &row("total", 100);
    assert!((cached(&together) - 100.0).abs() < 1e-9);
    assert!((cached(&row("total", 100)) - 100.0).abs() < 1e-9);
}
