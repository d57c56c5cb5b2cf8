//! Small results in the shape of the real ones.

use super::*;
use crate::report::tests::context;
use crate::report::{Latency, Stat, metric};

fn read(name: &str, text: &str) -> Result<Option<Vec<RunReport>>, StoreError> {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(name);
    std::fs::write(&path, text).unwrap();
    read_foreign(&path, &context(1, 2).manifest.spec)
}

fn value(report: &RunReport, key: &str) -> Option<f64> {
    metric(key).unwrap().value(report)
}

const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/foreign/");

fn sample(name: &str) -> Vec<RunReport> {
    let path = Path::new(SAMPLES).join(name);
    read_foreign(&path, &context(1, 2).manifest.spec).unwrap().unwrap()
}

#[test]
fn every_line_of_bench_serving_is_a_run_and_what_it_lacks_is_absent() {
    let runs = sample("bench_serving.jsonl");
    assert_eq!(runs.len(), 2);
    let (plain, detailed) = (&runs[0], &runs[1]);
    assert_eq!(plain.manifest.arm.as_deref(), Some("rr"));
    assert_eq!(value(plain, "ttft_ms.mean"), Some(412.5));
    assert_eq!((value(plain, "ttft_ms.p95"), value(plain, "ttft_ms.p99")), (None, Some(1_900.25)));
    assert_eq!((plain.counted("failed", plain.totals.failed), plain.totals.complete), (None, 512));
    assert_eq!(plain.foreign.as_ref().unwrap().load.as_deref(), Some("request_rate inf, max_concurrency 64"));
    assert_eq!((plain.server.ranks, plain.metrics.cache_hit_rate.value), (Some(8), None));
    // Per token on `/generate`, per frame elsewhere.
    assert!(value(plain, "itl_ms.mean").is_some() && value(plain, "icl_ms.mean").is_none());
    assert!(value(detailed, "itl_ms.mean").is_none() && value(detailed, "icl_ms.mean").is_some());
    assert_eq!(detailed.counted("failed", detailed.totals.failed), Some(1), "the details tell it");
    assert_eq!(detailed.metrics.ttft_ms.unwrap().count, 3, "a failed turn has no TTFT");
    assert!(detailed.distribution(Latency::Ttft).is_some() && plain.distribution(Latency::Ttft).is_none());
    assert_eq!(detailed.metrics.cache_hit_rate.value, Some(0.75));
    assert_eq!((detailed.totals.prompt_tokens, value(detailed, "input_throughput")), (None, None), "0 is not counted");
}

#[test]
fn a_result_of_vllm_is_one_run() {
    let runs = sample("vllm.json");
    let [run] = &runs[..] else { panic!("{} runs", runs.len()) };
    assert_eq!(run.server.model.as_deref(), Some("meta-llama/Llama-3.1-8B-Instruct"));
    assert_eq!((run.totals.complete, run.counted("failed", run.totals.failed)), (198, Some(2)));
    assert_eq!((value(run, "total_throughput"), value(run, "e2e_ms.p99")), (Some(9_123.4), Some(4_100.0)));
    assert_eq!((value(run, "cache_hit_rate.value"), value(run, "ttft_ms.p90")), (None, None));
    assert_eq!(run.manifest.started_utc, "2026-01-02");
}

#[test]
fn records_of_aiperf_make_up_a_run_without_warm_up_and_failures() {
    let runs = sample("aiperf.jsonl");
    let run = &runs[0];
    assert_eq!((run.totals.complete, run.totals.failed, run.totals.cancelled), (2, 1, 1));
    assert_eq!((run.totals.prompt_tokens, run.totals.output_tokens), (Some(300), Some(30)));
    assert_eq!(Latency::Ttft.of(&run.metrics).map(|ttft| Stat::Mean.of(ttft)), Some(25.0));
    assert_eq!((run.metrics.duration_s, value(run, "request_throughput")), (Some(2.0), Some(1.0)));
    assert!(run.metrics.tpot_ms.is_none(), "an unknown unit is an unknown value");
    assert_eq!(run.counted("planned", run.totals.planned), None);
}

#[test]
fn what_none_of_them_wrote_is_refused_with_its_line_and_our_own_is_left_alone() {
    let said = |text: &str| read("x.json", text).unwrap_err().to_string();
    assert!(said("{\"a\": 1}").contains("bench_serving"));
    assert!(said("").contains("bench_serving"));
    assert!(said("{\"completed\": 1, \"mean_ttft_ms\": 1}\n{\"comp").contains("line 2"));
    assert!(read("run.json", "{\"schema\": 1}").unwrap().is_none());
}

/// DP attention: `--dp-size 8 --enable-dp-attention` is told as `dp_size` 1 and `attn_dp_size` 8.
#[test]
fn the_ranks_of_dp_attention_are_those_of_each_group_times_the_groups() {
    let ranks = |sizes: &str| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        let lines = std::fs::read_to_string(Path::new(SAMPLES).join("bench_serving.jsonl")).unwrap();
        std::fs::write(&path, lines.replace("\"dp_size\": 8", sizes)).unwrap();
        read_foreign(&path, &context(1, 2).manifest.spec).unwrap().unwrap()[0].server.ranks
    };
    assert_eq!(ranks(r#""dp_size": 1, "attn_dp_size": 8"#), Some(8));
    assert_eq!(ranks(r#""dp_size": 2, "attn_dp_size": 1"#), Some(2));
    assert_eq!((ranks(r#""dp_size": 4"#), ranks(r#""tp_size": 4"#)), (Some(4), None));
}

#[test]
fn numbers_that_only_python_knows_are_words_outside_of_strings() {
    assert_eq!(
        fields::strict(r#"{"a":Infinity,"b":[-Infinity,NaN],"c":"NaN \" Infinity"}"#),
        r#"{"a":"Infinity","b":["-Infinity","NaN"],"c":"NaN \" Infinity"}"#
    );
}
