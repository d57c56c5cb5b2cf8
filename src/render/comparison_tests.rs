//! One hand-written comparison, and snapshots of it in both forms.

use std::collections::BTreeMap;

use super::tests::{report, summary, warning, widest};
use super::*;
use crate::compare::{
    self, Arm, ArmValue, Basis, Comparison, Contrast, Cost, InfoDifference, Interval, MetricRow, Pair, Pooling,
    RoundRatio, SCHEMA, Servers, Setting, SignFlip, Unjudged, Work,
};
use crate::report::tests::context;
use crate::report::{HitRate, PlaceRow, Simulated, metric};

pub(super) fn arm(name: &str, hit_rate: f64, ttft: f64) -> Arm {
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
        server_ttft_ms: Some(ttft - 4.2),
        server_queue_ms: Some(7.25),
        with_failures: BTreeMap::new(),
        ranks: vec![PlaceRow { ttft_ms: Some(summary(512, ttft)), ..report.ranks[0].clone() }],
        unfinished_rounds: vec![],
        void_rounds: vec![],
        voids: vec![],
        warnings: vec![(1, warning()), (2, warning())],
    }
}

/// A row of six rounds whose ratios lie around that of the values, with an interval of ± 2.5 % around it.
pub(super) fn row(key: &str, values: [f64; 2], samples: u64, verdict: Option<compare::Verdict>) -> MetricRow {
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

pub(super) fn side_by_side() -> Comparison {
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
        aa: false,
        noise_floor: None,
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
    │ Server's mean TTFT (ms)                   428.8            177.8                       │
    │ Server's mean queue time (ms)              7.25             7.25                       │
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
    | Server's mean TTFT (ms) | 428.8 | 177.8 |  |  |
    | Server's mean queue time (ms) | 7.25 | 7.25 |  |  |
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
