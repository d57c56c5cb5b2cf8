//! Snapshots of one hand-written report and one hand-written comparison, in both forms.

use std::collections::BTreeMap;

use super::*;
use crate::compare::{Arm, ArmValue, Comparison, Contrast, Difference, MetricRow, Pooling, RoundRatio, SCHEMA};
use crate::report::tests::{context, failed, served};
use crate::report::{
    Accumulator, Better, Closing, Drain, EndedBy, Finding, FindingKind, HitRate, InFlight, ObservedOracle, PlaceRow,
    RoundRobinOracle, RunReport, State, Summary, Validity, Verdict, Window, Windows, metric,
};
use crate::units::Micros;

fn summary(count: u64, mean: f64) -> Summary {
    let p = |factor: f64| mean * factor;
    let (std, min, p50, p90, p95, p99, max) = (p(0.3), p(0.5), p(0.9), p(1.5), p(1.8), p(2.6), p(3.0));
    Summary { count, mean, std, min, p50, p90, p95, p99, max }
}

fn warning() -> Finding {
    Finding {
        kind: FindingKind::OutputLength,
        seen: "mean output 63.2 tokens, planned 64.0".into(),
        limit: Some("2 %, warning above 0.5 %".into()),
        effect: "decode work differs".into(),
        advice: "check `ignore_eos`".into(),
    }
}

/// The shape comes from two turns, every number that is shown is written here.
fn report() -> RunReport {
    let mut accumulator = Accumulator::new(context(1, 3));
    [served(0, 0, 0, 0), served(1, 0, 1, 90), failed(2)].iter().for_each(|turn| accumulator.add(turn));
    let mut report = accumulator.finish(Closing::plain(State::Complete));
    report.manifest.arm = Some("prefix_affinity".into());
    report.manifest.round = Some(2);
    report.server.kind = Some("sglang".into());
    report.server.version = Some("0.5.23".into());
    report.server.model = Some("org/some_model".into());
    report.server.load_balance_method = Some("prefix_affinity".into());
    report.workload.oracle.ideal_reuse = Some(0.9394);
    report.workload.oracle.observed = Some(ObservedOracle { reuse: 0.9394, cold_pairs: 16 });
    report.workload.oracle.round_robin =
        Some(RoundRobinOracle { ranks: 8, reuse: 0.7307, cold_pairs: 126.2, split_share: None });
    let totals = &mut report.totals;
    (totals.planned, totals.complete, totals.failed) = (2_048, 2_047, 1);
    (totals.prompt_tokens, totals.planned_prompt_tokens) = (Some(8_646_528), Some(8_646_528));
    (totals.output_tokens, totals.planned_output_tokens) = (Some(129_408), 131_008);
    let metrics = &mut report.metrics;
    metrics.duration_s = Some(91.07);
    metrics.request_throughput = Some(22.48);
    metrics.input_throughput = Some(94_943.4);
    metrics.output_throughput = Some(1_420.9);
    metrics.total_throughput = Some(96_364.3);
    metrics.cache_hit_rate = HitRate { value: Some(0.9391), coverage: Some(1.0) };
    metrics.ttft_ms = Some(summary(2_047, 182.44));
    metrics.itl_ms = Some(summary(128_961, 12.31));
    metrics.icl_ms = None;
    metrics.tpot_ms = Some(summary(512, 12.34));
    metrics.e2e_ms = Some(summary(2_047, 960.1));
    metrics.ttft_from_due_ms = Some(summary(2_047, 183.0));
    metrics.e2e_from_due_ms = Some(summary(2_047, 961.0));
    report.ranks[0] = PlaceRow { turns: 1_024, ttft_ms: Some(summary(1_024, 170.0)), ..report.ranks[0].clone() };
    report.affinity.load_max_over_mean = Some(1.0005);
    report.affinity.load_cv = Some(0.0005);
    report.ended_by = Some(EndedBy::Plan);
    let steady = |mean: f64| BTreeMap::from([("ttft_ms".to_owned(), summary(1_800, mean))]);
    report.windows = Windows {
        whole: Window { to_us: Micros(91_070_000), ..Window::default() },
        steady: Some(Window {
            from_us: Micros(210_000),
            to_us: Micros(80_000_000),
            request_throughput: Some(24.4),
            output_throughput: Some(1_560.2),
            total_throughput: Some(104_400.7),
            latency: steady(175.1),
        }),
        steady_reason: None,
        drain: Some(Drain { from_us: Micros(80_000_000), seconds: 11.07, share: 0.1216 }),
    };
    report.client.runtime_lag_ms = Some(summary(9_000, 0.6));
    report.client.cpu_cores = Some(0.84);
    report.client.in_flight = InFlight { mean: Some(31.4), max: Some(32) };
    report.client.littles_law_ratio = Some(0.987);
    report.validity = Validity { verdict: Verdict::Valid, voids: vec![], warnings: vec![warning()] };
    report
}

fn arm(name: &str, hit_rate: f64, ttft: f64) -> Arm {
    let report = report();
    Arm {
        name: name.into(),
        control: false,
        rounds: vec![1, 2],
        model: None,
        load_balance_method: Some(name.into()),
        planned: 4_096,
        complete: 4_096,
        failed: 0,
        cancelled: 0,
        skipped: 0,
        prompt_tokens: Some(17_293_056),
        planned_prompt_tokens: Some(17_293_056),
        hit_rate: HitRate { value: Some(hit_rate), coverage: Some(1.0) },
        ideal_reuse: Some(0.9394),
        round_robin_reuse: Some(0.7307),
        expected_reuse: Some(hit_rate + 0.0003),
        attribution: report.affinity.attribution.clone(),
        stickiness: None,
        load_max_over_mean: Some(1.01),
        ranks: vec![PlaceRow { ttft_ms: Some(summary(512, ttft)), ..report.ranks[0].clone() }],
        unfinished_rounds: vec![],
        void_rounds: vec![],
        voids: vec![],
        warnings: vec![(1, warning()), (2, warning())],
    }
}

fn row(key: &str, values: [f64; 2], samples: u64, ratios: [Option<f64>; 2]) -> MetricRow {
    let metric = metric(key).unwrap();
    let ratios = [1, 2].into_iter().zip(ratios).map(|(round, ratio)| RoundRatio { round, ratio }).collect();
    MetricRow {
        key: key.into(),
        label: metric.label.clone(),
        unit: metric.unit.into(),
        better: Better::Lower,
        least_samples: metric.least_samples,
        pooling: Pooling::MergedHistograms,
        arms: values.map(|value| ArmValue { value: Some(value), samples }).to_vec(),
        contrasts: vec![Contrast {
            arm: "prefix_affinity".into(),
            ratios,
            geometric_mean: Some(values[1] / values[0]),
            interval: None,
            verdict: None,
        }],
    }
}

fn side_by_side() -> Comparison {
    Comparison {
        schema: SCHEMA,
        baseline: "round_robin".into(),
        arms: vec![arm("round_robin", 0.7303, 433.0), arm("prefix_affinity", 0.9391, 182.0)],
        rounds: vec![1, 2],
        comparable: true,
        differences: vec![],
        metrics: vec![
            row("output_throughput", [1_015.2, 1_420.9], 4_096, [Some(1.41), Some(1.389)]),
            row("cache_hit_rate.value", [0.7303, 0.9391], 4_096, [Some(1.286), Some(1.286)]),
            row("ttft_ms.mean", [433.1, 182.4], 960, [Some(0.4211), None]),
            row("ttft_ms.p99", [1_812.0, 474.3], 960, [Some(0.2617), None]),
            row("itl_ms.mean", [12.6, 12.3], 60_000, [Some(0.98), Some(0.972)]),
            row("icl_ms.mean", [12.6, 12.3], 60_000, [Some(0.98), Some(0.972)]),
        ],
    }
}

fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn a_run_on_the_terminal() {
    let text = terminal(&run(&report()));
    assert!(widest(&text) <= 110, "{}", widest(&text));
    insta::assert_snapshot!(text, @r"
    gspbench run · small · arm prefix_affinity · round 2 · complete
    server: sglang 0.5.23 · org/some_model · 2 ranks · prefix_affinity
    workload: 2 groups, 3 sessions, 3 turns · 300 prompt + 12 output tokens planned · closed loop, 2 sessions in
        flight · digest 00ff
    windows: steady from 0.210 to 80.00 s (87.6 % of the run) · 11.07 s from the last start to the end (12.2 %)
    ┌──────────────────────────────────────────────────────────────────────────┐
    │ metric                                               whole run    steady │
    ╞══════════════════════════════════════════════════════════════════════════╡
    │ Successful requests                             2,047 of 2,048           │
    │ Failed requests                                    1 (reset 1)           │
    │ Benchmark duration (s)                                   91.07     79.79 │
    │ Request throughput (req/s)                               22.48     24.40 │
    │ Input token throughput (tok/s)                          94,943         – │
    │ Output token throughput (tok/s)                          1,421     1,560 │
    │ Total token throughput (tok/s)                          96,364   104,401 │
    │ Prompt tokens planned / served           8,646,528 / 8,646,528           │
    │ Output tokens planned / served               131,008 / 129,408           │
    │ Cache hit rate (%)                                        93.9           │
    │ Ideal reuse, one endless cache (%)                        93.9           │
    │ Expected reuse at the places seen (%)                     93.9           │
    │ Expected reuse, round robin over 8 (%)                    73.1           │
    └──────────────────────────────────────────────────────────────────────────┘
    ┌──────────────────────────────────────────────────────────────────┐
    │ latency (ms)     mean     p50     p90     p95      p99   samples │
    ╞══════════════════════════════════════════════════════════════════╡
    │ TTFT            182.4   164.2   273.7   328.4    474.3     2,047 │
    │ ITL             12.31   11.08   18.46   22.16    32.01   128,961 │
    │ ICL                 –       –       –       –        –         0 │
    │ TPOT            12.34   11.11   18.51   22.21   ~32.08       512 │
    │ E2E Latency     960.1   864.1   1,440   1,728    2,496     2,047 │
    │ TTFT from due   183.0   164.7   274.5   329.4    475.8     2,047 │
    │ E2E from due    961.0   864.9   1,442   1,730    2,499     2,047 │
    └──────────────────────────────────────────────────────────────────┘
    Per rank
    ┌───────────────────────────────────────────────────────────────────────────────────────────────┐
    │ place    turns   prompt tok   cached tok   hit %   output tok   TTFT p50 (ms)   TTFT p99 (ms) │
    ╞═══════════════════════════════════════════════════════════════════════════════════════════════╡
    │ rank 0   1,024          100            0     0.0            4           153.0           442.0 │
    │ rank 1       1          100           90    90.0            4           100.0          ~100.0 │
    └───────────────────────────────────────────────────────────────────────────────────────────────┘
    Turns sent in the steady window
    ┌───────────────────────────────────────────────────────────────┐
    │ steady (ms)    mean     p50     p90     p95     p99   samples │
    ╞═══════════════════════════════════════════════════════════════╡
    │ TTFT          175.1   157.6   262.6   315.2   455.3     1,800 │
    └───────────────────────────────────────────────────────────────┘
    Keys per place
    ┌──────────────────────────────────────────────────────────────────┐
    │ place    keys   turns off their key's main place   spilled turns │
    ╞══════════════════════════════════════════════════════════════════╡
    │ rank 0      1                                  0               – │
    │ rank 1      1                                  0               – │
    └──────────────────────────────────────────────────────────────────┘
    Keys of most turns
    ┌────────────────────────────────────────────────────────────┐
    │ key   turns   share %   places   main place   turns off it │
    ╞════════════════════════════════════════════════════════════╡
    │ g0        1      50.0        1       rank 0              0 │
    │ g1        1      50.0        1       rank 1              0 │
    └────────────────────────────────────────────────────────────┘
    affinity: key by group, 2 keys · 2 sessions · 0 turns off their key's main place
    balance: turns max/mean 1.00 · CV 0.0005 · keys per place 1 1
    places known for 2 of 2 turns (from meta_info)
    client: send lag p99 0.00 ms · runtime lag p99 1.56 ms · CPU 0.840 cores · 31.40 turns in flight (max 32) ·
        Little's law ratio 0.987
    ~: from fewer than 1,000 samples, so a matter of luck
    warning(output_length): mean output 63.2 tokens, planned 64.0 (limit 2 %, warning above 0.5 %); decode work
        differs; check `ignore_eos`
    ");
}

#[test]
fn a_run_as_markdown() {
    insta::assert_snapshot!(markdown(&run(&report())), @r"
    ### gspbench run · small · arm prefix\_affinity · round 2 · complete

    - server: sglang 0.5.23 · org/some\_model · 2 ranks · prefix\_affinity
    - workload: 2 groups, 3 sessions, 3 turns · 300 prompt + 12 output tokens planned · closed loop, 2 sessions in flight · digest 00ff
    - windows: steady from 0.210 to 80.00 s (87.6 % of the run) · 11.07 s from the last start to the end (12.2 %)

    | metric | whole run | steady |
    |---|--:|--:|
    | Successful requests | 2,047 of 2,048 |  |
    | Failed requests | 1 (reset 1) |  |
    | Benchmark duration (s) | 91.07 | 79.79 |
    | Request throughput (req/s) | 22.48 | 24.40 |
    | Input token throughput (tok/s) | 94,943 | – |
    | Output token throughput (tok/s) | 1,421 | 1,560 |
    | Total token throughput (tok/s) | 96,364 | 104,401 |
    | Prompt tokens planned / served | 8,646,528 / 8,646,528 |  |
    | Output tokens planned / served | 131,008 / 129,408 |  |
    | Cache hit rate (%) | 93.9 |  |
    | Ideal reuse, one endless cache (%) | 93.9 |  |
    | Expected reuse at the places seen (%) | 93.9 |  |
    | Expected reuse, round robin over 8 (%) | 73.1 |  |

    | latency (ms) | mean | p50 | p90 | p95 | p99 | samples |
    |---|--:|--:|--:|--:|--:|--:|
    | TTFT | 182.4 | 164.2 | 273.7 | 328.4 | 474.3 | 2,047 |
    | ITL | 12.31 | 11.08 | 18.46 | 22.16 | 32.01 | 128,961 |
    | ICL | – | – | – | – | – | 0 |
    | TPOT | 12.34 | 11.11 | 18.51 | 22.21 | \~32.08 | 512 |
    | E2E Latency | 960.1 | 864.1 | 1,440 | 1,728 | 2,496 | 2,047 |
    | TTFT from due | 183.0 | 164.7 | 274.5 | 329.4 | 475.8 | 2,047 |
    | E2E from due | 961.0 | 864.9 | 1,442 | 1,730 | 2,499 | 2,047 |

    <details><summary>Per rank</summary>

    | place | turns | prompt tok | cached tok | hit % | output tok | TTFT p50 (ms) | TTFT p99 (ms) |
    |---|--:|--:|--:|--:|--:|--:|--:|
    | rank 0 | 1,024 | 100 | 0 | 0.0 | 4 | 153.0 | 442.0 |
    | rank 1 | 1 | 100 | 90 | 90.0 | 4 | 100.0 | \~100.0 |

    </details>

    <details><summary>Turns sent in the steady window</summary>

    | steady (ms) | mean | p50 | p90 | p95 | p99 | samples |
    |---|--:|--:|--:|--:|--:|--:|
    | TTFT | 175.1 | 157.6 | 262.6 | 315.2 | 455.3 | 1,800 |

    </details>

    <details><summary>Keys per place</summary>

    | place | keys | turns off their key's main place | spilled turns |
    |---|--:|--:|--:|
    | rank 0 | 1 | 0 | – |
    | rank 1 | 1 | 0 | – |

    </details>

    <details><summary>Keys of most turns</summary>

    | key | turns | share % | places | main place | turns off it |
    |---|--:|--:|--:|--:|--:|
    | g0 | 1 | 50.0 | 1 | rank 0 | 0 |
    | g1 | 1 | 50.0 | 1 | rank 1 | 0 |

    </details>

    - affinity: key by group, 2 keys · 2 sessions · 0 turns off their key's main place
    - balance: turns max/mean 1.00 · CV 0.0005 · keys per place 1 1
    - places known for 2 of 2 turns (from meta\_info)
    - client: send lag p99 0.00 ms · runtime lag p99 1.56 ms · CPU 0.840 cores · 31.40 turns in flight (max 32) · Little's law ratio 0.987

    - \~: from fewer than 1,000 samples, so a matter of luck
    - warning(output\_length): mean output 63.2 tokens, planned 64.0 (limit 2 %, warning above 0.5 %); decode work differs; check \`ignore\_eos\`
    ");
}

#[test]
fn a_comparison_on_the_terminal() {
    let text = terminal(&comparison(&side_by_side()));
    assert!(widest(&text) <= 110, "{}", widest(&text));
    insta::assert_snapshot!(text, @r"
    gspbench compare · prefix_affinity against baseline round_robin · 2 rounds
    ┌────────────────────────────────────────────────────────────────────────────────────────────────┐
    │ metric                                     round_robin   prefix_affinity   ratio      by round │
    ╞════════════════════════════════════════════════════════════════════════════════════════════════╡
    │ Output token throughput (tok/s)                  1,015             1,421   1.400   1.410 1.389 │
    │ Cache hit rate (%)                                73.0              93.9   1.286   1.286 1.286 │
    │ Mean TTFT (ms)                                   433.1             182.4   0.421       0.421 – │
    │ P99 TTFT (ms)                                   ~1,812            ~474.3   0.262       0.262 – │
    │ Mean ITL (ms)                                    12.60             12.30   0.976   0.980 0.972 │
    │ Ideal reuse, one endless cache (%)                93.9              93.9                       │
    │ Expected reuse, round robin (%)                   73.1              73.1                       │
    │ Expected reuse at the places seen (%)             73.1              93.9                       │
    │ Turns per place, max/mean                         1.01              1.01                       │
    │ Prompt tokens planned                       17,293,056        17,293,056                       │
    │ Prompt tokens served                        17,293,056        17,293,056                       │
    │ Successful requests                     4,096 of 4,096    4,096 of 4,096                       │
    │ Failed requests                                      0                 0                       │
    └────────────────────────────────────────────────────────────────────────────────────────────────┘
    ~: from fewer than 1,000 samples, so a matter of luck
    ratio: arm over the baseline of the same round; over rounds, the geometric mean. Nothing is claimed: this
        version computes no interval and gives no verdict.
    Per rank: round_robin
    ┌───────────────────────────────────────────────────────────────────────────────────────────────┐
    │ place    turns   prompt tok   cached tok   hit %   output tok   TTFT p50 (ms)   TTFT p99 (ms) │
    ╞═══════════════════════════════════════════════════════════════════════════════════════════════╡
    │ rank 0   1,024          100            0     0.0            4           389.7          ~1,126 │
    └───────────────────────────────────────────────────────────────────────────────────────────────┘
    Per rank: prefix_affinity
    ┌───────────────────────────────────────────────────────────────────────────────────────────────┐
    │ place    turns   prompt tok   cached tok   hit %   output tok   TTFT p50 (ms)   TTFT p99 (ms) │
    ╞═══════════════════════════════════════════════════════════════════════════════════════════════╡
    │ rank 0   1,024          100            0     0.0            4           163.8          ~473.2 │
    └───────────────────────────────────────────────────────────────────────────────────────────────┘
    round_robin, rounds 1, 2: warning(output_length): mean output 63.2 tokens, planned 64.0 (limit 2 %, warning
        above 0.5 %); decode work differs; check `ignore_eos`
    prefix_affinity, rounds 1, 2: warning(output_length): mean output 63.2 tokens, planned 64.0 (limit 2 %,
        warning above 0.5 %); decode work differs; check `ignore_eos`
    ");
}

#[test]
fn a_comparison_as_markdown() {
    insta::assert_snapshot!(markdown(&comparison(&side_by_side())), @r"
    ### gspbench compare · prefix\_affinity against baseline round\_robin · 2 rounds

    | metric | round\_robin | prefix\_affinity | ratio | by round |
    |---|--:|--:|--:|--:|
    | Output token throughput (tok/s) | 1,015 | 1,421 | 1.400 | 1.410 1.389 |
    | Cache hit rate (%) | 73.0 | 93.9 | 1.286 | 1.286 1.286 |
    | Mean TTFT (ms) | 433.1 | 182.4 | 0.421 | 0.421 – |
    | P99 TTFT (ms) | \~1,812 | \~474.3 | 0.262 | 0.262 – |
    | Mean ITL (ms) | 12.60 | 12.30 | 0.976 | 0.980 0.972 |
    | Ideal reuse, one endless cache (%) | 93.9 | 93.9 |  |  |
    | Expected reuse, round robin (%) | 73.1 | 73.1 |  |  |
    | Expected reuse at the places seen (%) | 73.1 | 93.9 |  |  |
    | Turns per place, max/mean | 1.01 | 1.01 |  |  |
    | Prompt tokens planned | 17,293,056 | 17,293,056 |  |  |
    | Prompt tokens served | 17,293,056 | 17,293,056 |  |  |
    | Successful requests | 4,096 of 4,096 | 4,096 of 4,096 |  |  |
    | Failed requests | 0 | 0 |  |  |

    - \~: from fewer than 1,000 samples, so a matter of luck
    - ratio: arm over the baseline of the same round; over rounds, the geometric mean. Nothing is claimed: this version computes no interval and gives no verdict.

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

    - round\_robin, rounds 1, 2: warning(output\_length): mean output 63.2 tokens, planned 64.0 (limit 2 %, warning above 0.5 %); decode work differs; check \`ignore\_eos\`
    - prefix\_affinity, rounds 1, 2: warning(output\_length): mean output 63.2 tokens, planned 64.0 (limit 2 %, warning above 0.5 %); decode work differs; check \`ignore\_eos\`
    ");
}

#[test]
fn more_rounds_than_fit_are_shown_as_their_range() {
    let mut many = side_by_side();
    many.metrics[0].contrasts[0].ratios =
        (1..=12).map(|round| RoundRatio { round, ratio: Some(1.0 + f64::from(round) / 10.0) }).collect();
    assert!(terminal(&comparison(&many)).contains("1.100 … 2.200"));
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
    let second = text.lines().nth(1).unwrap();
    insta::assert_snapshot!(second, @"NOT COMPARABLE: digest of prefix_affinity is beef, of the baseline 00ff (round 1)");
}

#[test]
fn a_run_of_which_nothing_is_known_has_dashes_and_no_zero_latency() {
    let empty = Accumulator::new(context(1, 0)).finish(Closing::plain(State::Interrupted));
    let text = terminal(&run(&empty));
    let ttft = text.lines().find(|line| line.contains("TTFT ")).unwrap();
    assert_eq!(ttft.matches('–').count(), 5, "{ttft}");
    assert!(text.contains("Failed requests") && !text.contains("NaN"), "{text}");
}
