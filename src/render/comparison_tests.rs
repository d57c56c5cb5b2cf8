//! Snapshots of one hand-written comparison, in both forms, and what it must say whatever its numbers are.

use std::collections::BTreeMap;

use super::tests::{report, summary, warning, widest};
use super::*;
use crate::compare::{
    self, Arm, ArmValue, Basis, Comparison, Contrast, Cost, Difference, Doubt, InfoDifference, Interrupted, Interval,
    MetricRow, Pair, Pooling, RoundRatio, SCHEMA, Servers, Setting, SignFlip, Unjudged, Work,
};
use crate::report::tests::context;
use crate::report::{GateOutcome, HitRate, PlaceRow, Simulated, WithFailures, metric};

fn arm(name: &str, hit_rate: f64, ttft: f64) -> Arm {
    let report = report();
    Arm {
        name: name.into(),
        control: false,
        rounds: vec![1, 2],
        model: None,
        load_balance_method: Some(name.into()),
        ranks_told: Some(8),
        kv_tokens_total: Some(8_400_000),
        planned: Some(4_096),
        complete: 4_096,
        failed: Some(0),
        cancelled: Some(0),
        skipped: Some(0),
        prompt_tokens: Some(17_293_056),
        planned_prompt_tokens: Some(17_293_056),
        hit_rate: HitRate { value: Some(hit_rate), coverage: Some(1.0) },
        ideal_reuse: Some(0.9394),
        round_robin_reuse: Some(0.7307),
        expected_reuse: Some(hit_rate + 0.0003),
        attribution: report.affinity.attribution.clone(),
        stickiness: None,
        load_max_over_mean: Some(1.01),
        with_failures: BTreeMap::new(),
        ranks: vec![PlaceRow { ttft_ms: Some(summary(512, ttft)), ..report.ranks[0].clone() }],
        unfinished_rounds: vec![],
        void_rounds: vec![],
        voids: vec![],
        warnings: vec![(1, warning()), (2, warning())],
    }
}

/// A row of six rounds whose ratios lie around that of the values, with an interval of ± 2.5 % around it.
fn row(key: &str, values: [f64; 2], samples: u64, verdict: Option<compare::Verdict>) -> MetricRow {
    let metric = metric(key).unwrap();
    let mean = values[1] / values[0];
    let ratios = (1..).zip([0.99, 1.01, 1.0, 0.98, 1.02, 1.0]);
    let is_primary = key == "ttft_ms.mean";
    MetricRow {
        key: key.into(),
        label: metric.label.clone(),
        unit: metric.unit.into(),
        better: metric.better,
        least_samples: metric.least_samples,
        judged: metric.headline,
        pooling: Pooling::MergedHistograms,
        arms: values.map(|value| ArmValue { value: Some(value), samples }).to_vec(),
        contrasts: vec![Contrast {
            arm: "prefix_affinity".into(),
            ratios: ratios.map(|(round, of)| RoundRatio { round, ratio: Some(mean * of) }).collect(),
            geometric_mean: Some(mean),
            interval: Some(Interval {
                low: mean * 0.975,
                high: mean * 1.025,
                level: if is_primary { 0.95 } else { 0.993_75 },
                basis: Basis::Rounds,
            }),
            verdict,
            unjudged: verdict.is_none().then_some(Unjudged::FewSamples),
            sign_flip: is_primary.then_some(SignFlip { p: 0.031_25, floor: 0.031_25 }),
            smallest_effect: Some(0.061),
        }],
    }
}

fn setting() -> Setting {
    Setting {
        work: Some(Work {
            name: "small".into(),
            workload: context(1, 3).manifest.spec.workload,
            load: "closed loop, 32 sessions in flight".into(),
            digest: "00ff".into(),
        }),
        servers: vec![Servers {
            arms: vec!["round_robin".into(), "prefix_affinity".into()],
            kind: Some("gspbench sim".into()),
            version: Some("0.1.0".into()),
            model: Some("sim".into()),
            ranks: Some(8),
            simulated: Some(Simulated { preset: Some("generic-8xh100".into()), time_scale: Some(1.0) }),
        }],
        client: "gspbench 0.1.0".into(),
        debug_build: false,
        started_utc: "2026-01-02T03:04:05Z".into(),
        host: "2 cores, 23 GiB, Linux 6.1".into(),
    }
}

fn side_by_side() -> Comparison {
    use compare::Verdict::{Better, Same, Unclear, Worse};
    let rank_work = Some(Pair { baseline: 589_824.0, other: 131_072.0 });
    Comparison {
        schema: SCHEMA,
        setting: Some(setting()),
        baseline: "round_robin".into(),
        primary: "ttft_ms.mean".into(),
        threshold: 0.02,
        arms: vec![arm("round_robin", 0.7303, 433.0), arm("prefix_affinity", 0.9391, 182.0)],
        rounds: (1..=6).collect(),
        interrupted: None,
        comparable: true,
        mismatch_allowed: false,
        differences: vec![],
        remarks: vec![],
        server_info: vec![InfoDifference {
            round: 1,
            arm: "prefix_affinity".into(),
            field: "load_balance_method".into(),
            baseline: Some("\"round_robin\"".into()),
            other: Some("\"prefix_affinity\"".into()),
            may_differ: true,
        }],
        doubts: vec![],
        costs: vec![Cost {
            arm: "prefix_affinity".into(),
            computed_tokens: rank_work,
            prefill_busy_ms: Some(Pair { baseline: 61_000.0, other: 17_000.0 }),
        }],
        gates: vec![],
        commands: vec!["gspbench ab dpa8-gsp --seed 7".into()],
        metrics: vec![
            row("request_throughput", [5.47, 7.88], 4_096, Some(Better)),
            row("output_throughput", [1_400.0, 2_017.0], 4_096, Some(Better)),
            row("cache_hit_rate.value", [0.7303, 0.9391], 4_096, Some(Better)),
            row("ttft_ms.mean", [3_511.0, 789.0], 4_096, Some(Better)),
            row("ttft_ms.p99", [27_466.0, 6_771.0], 4_096, Some(Better)),
            row("itl_ms.mean", [31.6, 28.4], 60_000, None),
            row("itl_ms.p99", [85.2, 87.9], 60_000, Some(Unclear)),
            row("icl_ms.mean", [31.6, 28.4], 60_000, None),
            row("tpot_ms.mean", [31.8, 31.8], 4_096, Some(Same)),
            row("tpot_ms.p99", [38.9, 41.5], 4_096, Some(Worse)),
            row("e2e_ms.p99", [35_062.0, 12_774.0], 4_096, Some(Better)),
        ],
    }
}

#[test]
fn a_comparison_on_the_terminal() {
    let text = terminal(&comparison(&side_by_side()));
    assert!(widest(&text) <= 100, "{}", widest(&text));
    insta::assert_snapshot!(text, @r#"
    gspbench compare · prefix_affinity against baseline round_robin · 6 rounds
    prefix_affinity is better than round_robin: Mean TTFT (ms) -77.5 %, 95 % interval -78.1 to -77.0 %
        over 6 rounds, sign-flip p 0.031 (the least that so many rounds can give).
    Others: better: Request throughput, Output token throughput, Cache hit rate, P99 TTFT, P99 E2E
        Latency; worse: P99 TPOT; the same: Mean TPOT; unclear: P99 ITL (slower, but perhaps by less
        than 2 %). Failed requests: 0 of 4,096 (baseline 0 of 4,096).
    workload small: 2 groups × 4 sessions × 1 turn · 90 + 10 tokens in, 4 out · closed loop, 32 sessions
        in flight · seed 42 in round 1 and one more in each round after it · digest 00ff
    servers: gspbench sim 0.1.0 · sim · 8 ranks · SIMULATED (generic-8xh100, time scale 1): figures of a
        model, not of GPUs
    measured by gspbench 0.1.0 · 2026-01-02 · 2 cores, 23 GiB, Linux 6.1
    ┌──────────────────────────────────────────────────────────────────────────────────────────────┐
    │ metric                           round_robin  prefix_affinity    Δ %     interval %  verdict │
    ╞══════════════════════════════════════════════════════════════════════════════════════════════╡
    │ Mean TTFT (ms)                         3,511            789.0  -77.5  -78.1 … -77.0   better │
    │ Request throughput (req/s)              5.47             7.88  +44.1  +40.5 … +47.7   better │
    │ Output token throughput (tok/s)        1,400            2,017  +44.1  +40.5 … +47.7   better │
    │ Cache hit rate (%)                      73.0             93.9  +28.6  +25.4 … +31.8   better │
    │ P99 TTFT (ms)                         27,466            6,771  -75.3  -76.0 … -74.7   better │
    │ P99 ITL (ms)                           85.20            87.90   +3.2    +0.6 … +5.7  unclear │
    │ Mean TPOT (ms)                         31.80            31.80   +0.0    -2.5 … +2.5     same │
    │ P99 TPOT (ms)                          38.90            41.50   +6.7    +4.0 … +9.4    worse │
    │ P99 E2E Latency (ms)                  35,062           12,774  -63.6  -64.5 … -62.7   better │
    │ Failed requests                            0                0                                │
    │ Expected reuse, places seen (%)         73.1             93.9                                │
    │ Turns per place, max/mean               1.01             1.01                                │
    └──────────────────────────────────────────────────────────────────────────────────────────────┘
    Δ: arm over the baseline of the same round, geometric mean of the rounds. Interval: Student's t on
        the logarithms of the rounds' ratios, 95 % for the primary metric, 99.4 % for the others.
        Verdict: the whole interval against ±2 %; unclear with all of it on one side of 0: there is a
        difference, but perhaps one below 2 %
    cost by the servers' counters, prefix_affinity: prompt tokens computed 589,824 → 131,072 (-77.8 %),
        458,752 avoided; time in prefill over all ranks 61.00 → 17.00 s (-72.1 %)
    All metrics: prefix_affinity against round_robin
    ┌────────────────────────────────────────────────────────────────────────────────────────┐
    │ metric                              round_robin  prefix_affinity  ratio     interval % │
    ╞════════════════════════════════════════════════════════════════════════════════════════╡
    │ Request throughput (req/s)                 5.47             7.88  1.441  +40.5 … +47.7 │
    │ Output token throughput (tok/s)           1,400            2,017  1.441  +40.5 … +47.7 │
    │ Cache hit rate (%)                         73.0             93.9  1.286  +25.4 … +31.8 │
    │ Mean TTFT (ms)                            3,511            789.0  0.225  -78.1 … -77.0 │
    │ P99 TTFT (ms)                            27,466            6,771  0.247  -76.0 … -74.7 │
    │ Mean ITL (ms)                             31.60            28.40  0.899   -12.4 … -7.9 │
    │ P99 ITL (ms)                              85.20            87.90  1.032    +0.6 … +5.7 │
    │ Mean TPOT (ms)                            31.80            31.80  1.000    -2.5 … +2.5 │
    │ P99 TPOT (ms)                             38.90            41.50  1.067    +4.0 … +9.4 │
    │ P99 E2E Latency (ms)                     35,062           12,774  0.364  -64.5 … -62.7 │
    │ KV cache in all (tokens)              8,400,000        8,400,000                       │
    │ Expected reuse, places seen (%)            73.1             93.9                       │
    │ Turns per place, max/mean                  1.01             1.01                       │
    │ Ideal reuse, endless cache (%)             93.9             93.9                       │
    │ Expected reuse, round robin (%)            73.1             73.1                       │
    │ Prompt tokens planned                17,293,056       17,293,056                       │
    │ Prompt tokens served                 17,293,056       17,293,056                       │
    │ Successful requests              4,096 of 4,096   4,096 of 4,096                       │
    └────────────────────────────────────────────────────────────────────────────────────────┘
    ┌──────────────────────────────────────────────────────────────────────┐
    │ metric                                                ratio by round │
    ╞══════════════════════════════════════════════════════════════════════╡
    │ Request throughput (req/s)       1.426 1.455 1.441 1.412 1.469 1.441 │
    │ Output token throughput (tok/s)  1.426 1.455 1.441 1.412 1.470 1.441 │
    │ Cache hit rate (%)               1.273 1.299 1.286 1.260 1.312 1.286 │
    │ Mean TTFT (ms)                   0.222 0.227 0.225 0.220 0.229 0.225 │
    │ P99 TTFT (ms)                    0.244 0.249 0.247 0.242 0.251 0.247 │
    │ P99 ITL (ms)                     1.021 1.042 1.032 1.011 1.052 1.032 │
    │ Mean TPOT (ms)                   0.990 1.010 1.000 0.980 1.020 1.000 │
    │ P99 TPOT (ms)                    1.056 1.078 1.067 1.046 1.088 1.067 │
    │ P99 E2E Latency (ms)             0.361 0.368 0.364 0.357 0.372 0.364 │
    └──────────────────────────────────────────────────────────────────────┘
    Per rank: round_robin
    ┌────────────────────────────────────────────────────────────────────────────────────────┐
    │ place   turns  prompt tok  cached tok  hit %  output tok  TTFT p50 (ms)  TTFT p99 (ms) │
    ╞════════════════════════════════════════════════════════════════════════════════════════╡
    │ rank 0  1,024         100           0    0.0           4          389.7         ~1,126 │
    └────────────────────────────────────────────────────────────────────────────────────────┘
    Per rank: prefix_affinity
    ┌────────────────────────────────────────────────────────────────────────────────────────┐
    │ place   turns  prompt tok  cached tok  hit %  output tok  TTFT p50 (ms)  TTFT p99 (ms) │
    ╞════════════════════════════════════════════════════════════════════════════════════════╡
    │ rank 0  1,024         100           0    0.0           4          163.8         ~473.2 │
    └────────────────────────────────────────────────────────────────────────────────────────┘
    Where server_info differs
    ┌────────────────────────────────────────────────────────────────────────────────────┐
    │ field                            arm       baseline           this arm  may differ │
    ╞════════════════════════════════════════════════════════════════════════════════════╡
    │ load_balance_method  prefix_affinity  "round_robin"  "prefix_affinity"         yes │
    └────────────────────────────────────────────────────────────────────────────────────┘
    How to run it again
        gspbench ab dpa8-gsp --seed 7
    round_robin, rounds 1, 2 (figures of round 1): warning(output_length): mean output 63.2 tokens,
        planned 64.0 (limit 2 %, warning above 0.5 %); decode work differs; check `ignore_eos`
    prefix_affinity, rounds 1, 2 (figures of round 1): warning(output_length): mean output 63.2 tokens,
        planned 64.0 (limit 2 %, warning above 0.5 %); decode work differs; check `ignore_eos`
    "#);
}

#[test]
fn a_comparison_as_markdown() {
    insta::assert_snapshot!(markdown(&comparison(&side_by_side())), @r#"
    ### gspbench compare · prefix\_affinity against baseline round\_robin · 6 rounds

    **prefix\_affinity is better than round\_robin: Mean TTFT (ms) -77.5 %, 95 % interval -78.1 to -77.0 % over 6 rounds, sign-flip p 0.031 (the least that so many rounds can give).**

    Others: better: Request throughput, Output token throughput, Cache hit rate, P99 TTFT, P99 E2E Latency; worse: P99 TPOT; the same: Mean TPOT; unclear: P99 ITL (slower, but perhaps by less than 2 %). Failed requests: 0 of 4,096 (baseline 0 of 4,096).

    - workload small: 2 groups × 4 sessions × 1 turn · 90 + 10 tokens in, 4 out · closed loop, 32 sessions in flight · seed 42 in round 1 and one more in each round after it · digest 00ff
    - servers: gspbench sim 0.1.0 · sim · 8 ranks · SIMULATED (generic-8xh100, time scale 1): figures of a model, not of GPUs
    - measured by gspbench 0.1.0 · 2026-01-02 · 2 cores, 23 GiB, Linux 6.1

    | metric | round\_robin | prefix\_affinity | Δ % | interval % | verdict |
    |---|--:|--:|--:|--:|--:|
    | Mean TTFT (ms) | 3,511 | 789.0 | -77.5 | -78.1 … -77.0 | ✅ better |
    | Request throughput (req/s) | 5.47 | 7.88 | +44.1 | +40.5 … +47.7 | ✅ better |
    | Output token throughput (tok/s) | 1,400 | 2,017 | +44.1 | +40.5 … +47.7 | ✅ better |
    | Cache hit rate (%) | 73.0 | 93.9 | +28.6 | +25.4 … +31.8 | ✅ better |
    | P99 TTFT (ms) | 27,466 | 6,771 | -75.3 | -76.0 … -74.7 | ✅ better |
    | P99 ITL (ms) | 85.20 | 87.90 | +3.2 | +0.6 … +5.7 | ▫️ unclear |
    | Mean TPOT (ms) | 31.80 | 31.80 | +0.0 | -2.5 … +2.5 | ▫️ same |
    | P99 TPOT (ms) | 38.90 | 41.50 | +6.7 | +4.0 … +9.4 | ⚠️ worse |
    | P99 E2E Latency (ms) | 35,062 | 12,774 | -63.6 | -64.5 … -62.7 | ✅ better |
    | Failed requests | 0 | 0 |  |  | ✅ |
    | Expected reuse, places seen (%) | 73.1 | 93.9 |  |  |  |
    | Turns per place, max/mean | 1.01 | 1.01 |  |  |  |

    - Δ: arm over the baseline of the same round, geometric mean of the rounds. Interval: Student's t on the logarithms of the rounds' ratios, 95 % for the primary metric, 99.4 % for the others. Verdict: the whole interval against ±2 %; unclear with all of it on one side of 0: there is a difference, but perhaps one below 2 %
    - cost by the servers' counters, prefix\_affinity: prompt tokens computed 589,824 → 131,072 (-77.8 %), 458,752 avoided; time in prefill over all ranks 61.00 → 17.00 s (-72.1 %)

    <details><summary>All metrics: prefix_affinity against round_robin</summary>

    | metric | round\_robin | prefix\_affinity | ratio | interval % |
    |---|--:|--:|--:|--:|
    | Request throughput (req/s) | 5.47 | 7.88 | 1.441 | +40.5 … +47.7 |
    | Output token throughput (tok/s) | 1,400 | 2,017 | 1.441 | +40.5 … +47.7 |
    | Cache hit rate (%) | 73.0 | 93.9 | 1.286 | +25.4 … +31.8 |
    | Mean TTFT (ms) | 3,511 | 789.0 | 0.225 | -78.1 … -77.0 |
    | P99 TTFT (ms) | 27,466 | 6,771 | 0.247 | -76.0 … -74.7 |
    | Mean ITL (ms) | 31.60 | 28.40 | 0.899 | -12.4 … -7.9 |
    | P99 ITL (ms) | 85.20 | 87.90 | 1.032 | +0.6 … +5.7 |
    | Mean TPOT (ms) | 31.80 | 31.80 | 1.000 | -2.5 … +2.5 |
    | P99 TPOT (ms) | 38.90 | 41.50 | 1.067 | +4.0 … +9.4 |
    | P99 E2E Latency (ms) | 35,062 | 12,774 | 0.364 | -64.5 … -62.7 |
    | KV cache in all (tokens) | 8,400,000 | 8,400,000 |  |  |
    | Expected reuse, places seen (%) | 73.1 | 93.9 |  |  |
    | Turns per place, max/mean | 1.01 | 1.01 |  |  |
    | Ideal reuse, endless cache (%) | 93.9 | 93.9 |  |  |
    | Expected reuse, round robin (%) | 73.1 | 73.1 |  |  |
    | Prompt tokens planned | 17,293,056 | 17,293,056 |  |  |
    | Prompt tokens served | 17,293,056 | 17,293,056 |  |  |
    | Successful requests | 4,096 of 4,096 | 4,096 of 4,096 |  |  |

    | metric | ratio by round |
    |---|--:|
    | Request throughput (req/s) | 1.426 1.455 1.441 1.412 1.469 1.441 |
    | Output token throughput (tok/s) | 1.426 1.455 1.441 1.412 1.470 1.441 |
    | Cache hit rate (%) | 1.273 1.299 1.286 1.260 1.312 1.286 |
    | Mean TTFT (ms) | 0.222 0.227 0.225 0.220 0.229 0.225 |
    | P99 TTFT (ms) | 0.244 0.249 0.247 0.242 0.251 0.247 |
    | P99 ITL (ms) | 1.021 1.042 1.032 1.011 1.052 1.032 |
    | Mean TPOT (ms) | 0.990 1.010 1.000 0.980 1.020 1.000 |
    | P99 TPOT (ms) | 1.056 1.078 1.067 1.046 1.088 1.067 |
    | P99 E2E Latency (ms) | 0.361 0.368 0.364 0.357 0.372 0.364 |

    </details>

    <details><summary>Per rank: round_robin</summary>

    | place | turns | prompt tok | cached tok | hit % | output tok | TTFT p50 (ms) | TTFT p99 (ms) |
    |---|--:|--:|--:|--:|--:|--:|--:|
    | rank 0 | 1,024 | 100 | 0 | 0.0 | 4 | 389.7 | \~1,126 |

    </details>

    <details><summary>Per rank: prefix_affinity</summary>

    | place | turns | prompt tok | cached tok | hit % | output tok | TTFT p50 (ms) | TTFT p99 (ms) |
    |---|--:|--:|--:|--:|--:|--:|--:|
    | rank 0 | 1,024 | 100 | 0 | 0.0 | 4 | 163.8 | \~473.2 |

    </details>

    <details><summary>Where server_info differs</summary>

    | field | arm | baseline | this arm | may differ |
    |---|--:|--:|--:|--:|
    | load\_balance\_method | prefix\_affinity | "round\_robin" | "prefix\_affinity" | yes |

    </details>

    <details><summary>How to run it again</summary>

        gspbench ab dpa8-gsp --seed 7

    </details>

    - round\_robin, rounds 1, 2 (figures of round 1): warning(output\_length): mean output 63.2 tokens, planned 64.0 (limit 2 %, warning above 0.5 %); decode work differs; check \`ignore\_eos\`
    - prefix\_affinity, rounds 1, 2 (figures of round 1): warning(output\_length): mean output 63.2 tokens, planned 64.0 (limit 2 %, warning above 0.5 %); decode work differs; check \`ignore\_eos\`
    "#);
}

#[test]
fn a_tail_of_few_samples_is_marked_and_not_judged() {
    let mut thin = side_by_side();
    thin.metrics[4] = row("ttft_ms.p99", [27_466.0, 6_771.0], 960, None);
    let text = markdown(&comparison(&thin));
    assert!(text.contains("| P99 TTFT (ms) | \\~27,466 | \\~6,771 | -75.3 | -76.0 … -74.7 | ▫️ – |"), "{text}");
    assert!(text.contains("not judged: P99 TTFT.") && text.contains("fewer than 1,000 samples"), "{text}");
}

/// The rows of the first table.
fn rows(markdown: &str) -> Vec<&str> {
    let table = markdown.lines().skip_while(|line| !line.starts_with("|---"));
    table.skip(1).take_while(|line| line.starts_with('|')).collect()
}

#[test]
fn the_block_for_a_pull_request_has_the_figures_that_authors_post_with_interval_and_verdict() {
    let text = markdown(&comparison(&side_by_side()));
    let rows = rows(&text);
    assert!(rows.len() <= 12, "{}", rows.len());
    let of_sglang_31170 = ["Request throughput", "Mean TTFT", "P99 TTFT", "P99 E2E Latency", "Mean TPOT"];
    let of_pegaflow_405 = ["Output token throughput", "P99 TPOT", "P99 ITL"];
    for figure in of_sglang_31170.into_iter().chain(of_pegaflow_405) {
        let row =
            rows.iter().find(|row| row.starts_with(&format!("| {figure} ("))).unwrap_or_else(|| panic!("{figure}"));
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        assert!(cells[5].contains(" … "), "{row}");
        let words = ["✅ better", "⚠️ worse", "▫️ same", "▫️ unclear", "▫️ –"];
        assert!(words.contains(&cells[6]), "{row}");
    }
    assert!(rows.iter().any(|row| row.starts_with("| Failed requests | 0 | 0 |")), "{rows:?}");
    assert!(
        text.lines().nth(2).unwrap().starts_with("**prefix\\_affinity is better than round\\_robin: Mean TTFT"),
        "{text}"
    );
    assert!(text.chars().count() < 65_536);
}

#[test]
fn a_topology_that_differs_has_its_capacity_in_the_first_table_and_no_row_beyond_twelve() {
    let mut other = side_by_side();
    other.arms[1].kv_tokens_total = Some(1_050_000);
    other.primary = "itl_ms.p95".into();
    other
        .metrics
        .push(MetricRow { judged: true, ..row("itl_ms.p95", [1.0, 1.0], 9_999, Some(compare::Verdict::Same)) });
    let text = markdown(&comparison(&other));
    let rows = rows(&text);
    assert!(rows[0].starts_with("| P95 ITL"), "the primary comes first: {}", rows[0]);
    assert_eq!(rows.len(), 12);
    assert!(rows.iter().any(|row| row.starts_with("| KV cache in all (tokens) | 8,400,000 | 1,050,000 |")), "{rows:?}");
}

#[test]
fn gates_doubts_and_failures_are_said() {
    let mut all = side_by_side();
    all.arms[1].failed = Some(40);
    let with =
        WithFailures { count: 4_136, failed: 40, p50: Some(170.0), p90: Some(300.0), p95: Some(500.0), p99: None };
    all.arms[1].with_failures.insert("ttft_ms".into(), with);
    let seen = "it changed by +6.7 %, interval +5.1 to +8.0 %".to_owned();
    let gate =
        GateOutcome { gate: "tpot_ms.p99 worse 5%".into(), arm: Some("prefix_affinity".into()), passed: false, seen };
    all.gates = vec![gate];
    all.doubts = vec![Doubt::FixedOrder { arm: "prefix_affinity".into(), first: "round_robin".into(), rounds: 6 }];
    let text = terminal(&comparison(&all)).split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "gate FAILED, prefix_affinity: `tpot_ms.p99 worse 5%`: it changed by +6.7 %",
        "doubt: prefix_affinity: round_robin ran first in all 6 rounds",
        "Failed requests: 40 of 4,096 (baseline 0 of 4,096)",
        "500.0",
        "∞",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(markdown(&comparison(&all)).contains("| Failed requests | 0 | 40 |  |  | ⚠️ |"));
}

#[test]
fn every_way_to_have_no_verdict_is_put_into_words() {
    let said = |verdict: Option<compare::Verdict>, unjudged: Option<Unjudged>| {
        let mut one = side_by_side();
        let contrast = &mut one.metrics[3].contrasts[0];
        (contrast.verdict, contrast.unjudged) = (verdict, unjudged);
        terminal(&comparison(&one)).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (verdict, unjudged, words) in [
        (Some(compare::Verdict::Worse), None, "prefix_affinity is worse than round_robin: Mean TTFT (ms)"),
        (Some(compare::Verdict::Same), None, "prefix_affinity is as good as round_robin, within ±2 %:"),
        (Some(compare::Verdict::Unclear), None, "these rounds would see a change of 6.1 % or more"),
        (
            None,
            Some(Unjudged::Control),
            "prefix_affinity is a control, not judged; against round_robin: Mean TTFT (ms)",
        ),
        (None, Some(Unjudged::NotComparable), "NOT COMPARABLE: see the differences; --allow-mismatch judges"),
        (None, Some(Unjudged::FewSamples), "not judged: Mean TTFT (ms): fewer than 1 samples"),
        (None, Some(Unjudged::FewRounds), "no interval: fewer than three rounds"),
        (None, Some(Unjudged::NotMeasured), "no round of both arms"),
    ] {
        let text = said(verdict, unjudged);
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// The page in every form, with each run of blanks as one.
fn forms(comparison: &Comparison) -> [String; 3] {
    let page = super::comparison(comparison);
    [terminal(&page), markdown(&page), html_comparison(comparison, &[])]
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[test]
fn an_unclear_row_whose_interval_lies_on_one_side_of_nothing_says_which() {
    let primary = |low: f64, high: f64, key: &str| {
        let mut one = side_by_side();
        one.primary = key.into();
        let row = one.metrics.iter_mut().find(|row| row.key == key).unwrap();
        let contrast = &mut row.contrasts[0];
        contrast.verdict = Some(compare::Verdict::Unclear);
        contrast.interval = contrast.interval.map(|interval| Interval { low, high, ..interval });
        // The others are not what is asked here.
        one.metrics.retain(|row| row.key == key);
        one
    };
    for (low, high, key, words) in [
        (1.01, 1.05, "ttft_ms.mean", "(slower, but perhaps by less than 2 %)"),
        (0.95, 0.99, "ttft_ms.mean", "(faster, but perhaps by less than 2 %)"),
        (1.01, 1.05, "request_throughput", "(higher, but perhaps by less than 2 %)"),
        (0.95, 0.99, "cache_hit_rate.value", "(lower, but perhaps by less than 2 %)"),
    ] {
        for text in forms(&primary(low, high, key)) {
            assert!(text.contains(&format!("is unclear {words}:")), "{words}: {text}");
            assert!(text.contains("one side of 0: there is a difference, but perhaps one below 2 %"), "{text}");
        }
    }
    for text in forms(&primary(0.99, 1.05, "ttft_ms.mean")) {
        assert!(text.contains("is unclear: ") && !text.contains("perhaps"), "{text}");
    }
}

#[test]
fn a_change_that_points_the_other_way_than_the_values_is_explained_once_in_every_form() {
    let mut crossed = side_by_side();
    assert!(forms(&crossed).iter().all(|text| !text.contains("points the other way")));
    crossed.metrics[4].arms[1].value = Some(30_000.0);
    crossed.metrics[6].contrasts[0].geometric_mean = Some(0.95);
    // What is shown as equal, or as no change, contradicts nothing.
    crossed.metrics[8].arms[1].value = Some(31.801);
    crossed.metrics[8].contrasts[0].geometric_mean = Some(0.98);
    crossed.metrics[9].contrasts[0].geometric_mean = Some(0.9999);
    for text in forms(&crossed) {
        let said = "Δ points the other way than the two values beside it for P99 TTFT, P99 ITL: values are of all rounds \
                    together, where a round with larger figures weighs more; in Δ each round's ratio weighs the same";
        let text = text.replace("&#39;", "'");
        assert_eq!(text.matches(said).count(), 1, "{text}");
        assert_eq!(text.matches("points the other way").count(), 1, "{text}");
    }
}

/// A second arm after the baseline, of the same figures, with the levels of a control.
fn with_control() -> Comparison {
    let mut three = side_by_side();
    three.arms.push(Arm { control: true, ..arm("zero", 0.0, 433.0) });
    for row in &mut three.metrics {
        row.arms.push(row.arms[1]);
        let interval = row.contrasts[0].interval.map(|interval| Interval { level: 0.95, ..interval });
        let control = Contrast {
            arm: "zero".into(),
            interval,
            verdict: None,
            unjudged: Some(Unjudged::Control),
            ..row.contrasts[0].clone()
        };
        row.contrasts.push(control);
    }
    three
}

#[test]
fn the_levels_of_every_arm_are_stated_where_they_differ() {
    for text in forms(&with_control()) {
        let levels = "95 % for the primary metric, 99.4 % for the others of prefix_affinity, 95 % for the others of zero \
                      (control). Verdict";
        assert!(text.replace("\\_", "_").contains(levels), "{text}");
    }
    let mut crossed = with_control();
    crossed.metrics[4].arms[2].value = Some(30_000.0);
    let text = &forms(&crossed)[0];
    assert!(text.contains("beside it for P99 TTFT of zero:"), "with several arms a row needs its arm: {text}");
}

#[test]
fn more_rounds_than_fit_are_shown_as_their_range() {
    let mut many = side_by_side();
    many.metrics[0].contrasts[0].ratios =
        (1..=12).map(|round| RoundRatio { round, ratio: Some(1.0 + f64::from(round) / 10.0) }).collect();
    assert!(terminal(&comparison(&many)).contains("1.100 … 2.200"));
}

#[test]
fn an_experiment_that_did_not_end_says_so_above_its_verdict_in_every_form() {
    let cut = Interrupted { rounds_done: 2, rounds_planned: 6, dir: "out".into() };
    let cut = Comparison { interrupted: Some(cut), ..side_by_side() };
    let page = comparison(&cut);
    for text in [terminal(&page), markdown(&page), html_comparison(&cut, &[])] {
        let said = text.find("INTERRUPTED after 2 of 6 rounds: go on with").unwrap();
        assert!(text[said..].contains("gspbench ab --resume out"), "{text}");
        assert!(said < text.find("is better than").unwrap(), "{text}");
    }
}

#[test]
fn what_is_not_comparable_is_said_first() {
    let differences = vec![Difference {
        round: 1,
        arm: "prefix_affinity".into(),
        field: "digest".into(),
        baseline: "00ff".into(),
        other: "beef".into(),
    }];
    let text = terminal(&comparison(&Comparison { comparable: false, differences, ..side_by_side() }));
    let table = text.find('┌').unwrap();
    let said = "NOT COMPARABLE: digest of prefix_affinity is beef, of the baseline 00ff (round 1)";
    assert!(text.find(said).is_some_and(|at| at < table), "{text}");
}
