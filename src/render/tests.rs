//! Snapshots of one hand-written report, in both forms.

use std::collections::BTreeMap;

use super::*;
use crate::report::tests::{context, failed, served};
use crate::report::{
    Accumulator, Closing, Drain, EndedBy, Finding, FindingKind, HitRate, InFlight, ObservedOracle, Place, PlaceRow,
    RoundRobinOracle, RunReport, Spilled, SpilledAt, State, Summary, Validity, Verdict, Window, Windows,
};
use crate::units::{Micros, Rank};

pub(super) fn summary(count: u64, mean: f64) -> Summary {
    let p = |factor: f64| mean * factor;
    let (std, min, p50, p90, p95, p99, max) = (p(0.3), p(0.5), p(0.9), p(1.5), p(1.8), p(2.6), p(3.0));
    Summary { count, mean, std, min, p50, p90, p95, p99, max }
}

pub(super) fn warning() -> Finding {
    Finding {
        kind: FindingKind::OutputLength,
        seen: "mean output 63.2 tokens, planned 64.0".into(),
        limit: Some("2 %, warning above 0.5 %".into()),
        effect: "decode work differs".into(),
        advice: "check `ignore_eos`".into(),
    }
}

/// Row B49, on the page: only where turns failed.
#[test]
fn failed_turns_have_a_table_where_there_are_any() {
    let shown = |turns: &[crate::record::TurnRecord]| {
        let mut accumulator = Accumulator::new(context(1, turns.len() as u64));
        turns.iter().for_each(|turn| accumulator.add(turn));
        markdown(&run(&accumulator.finish(Closing::plain(State::Complete))))
    };
    let page = shown(&[served(0, 0, 0, 0), failed(1)]);
    for part in ["1 of 2", "| failed turns, done − sent (ms) |", "| reset | 1 | 131.0 | \\~131.0 | 131.0 |"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!shown(&[served(0, 0, 0, 0)]).contains("failed turns"));
}

/// The shape comes from two turns, every number that is shown is written here.
pub(super) fn report() -> RunReport {
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
    metrics.finished_output_throughput = Some(1_420.9);
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
        to_last_success: None,
        steady: Some(Window {
            from_us: Micros(210_000),
            to_us: Micros(80_000_000),
            request_throughput: Some(24.4),
            input_throughput: Some(102_840.5),
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
    (report.client.littles_law_ratio, report.client.littles_law_edges) = (Some(0.987), Some(0.02));
    report.validity = Validity { verdict: Verdict::Valid, voids: vec![], warnings: vec![warning()] };
    report
}

pub(super) fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn a_run_on_the_terminal() {
    let text = terminal(&run(&report()));
    assert!(widest(&text) <= 110, "{}", widest(&text));
    insta::assert_snapshot!(text, @r"
    gspbench run · small · arm prefix_affinity · round 2 · complete
    server: sglang 0.5.23 · org/some_model · 2 ranks · prefix_affinity
    workload: 2 groups, 3 sessions, 3 turns with 3 distinct prompts · 300 prompt + 12 output tokens
        planned · closed loop, 2 sessions in flight · seed 42 · digest 00ff
    windows: steady from 0.210 to 80.00 s (87.6 % of the run) · 11.07 s from the last start to the end
        (12.2 %)
    ┌────────────────────────────────────────────────────────────────────────┐
    │ metric                                              whole run   steady │
    ╞════════════════════════════════════════════════════════════════════════╡
    │ Successful requests                            2,047 of 2,048          │
    │ Failed requests                                   1 (reset 1)          │
    │ Benchmark duration (s)                                  91.07    79.79 │
    │ Request throughput (req/s)                              22.48    24.40 │
    │ Input token throughput (tok/s)                         94,943  102,840 │
    │ Output token throughput (tok/s)                         1,421    1,560 │
    │ Total token throughput (tok/s)                         96,364  104,401 │
    │ Prompt tokens planned / served          8,646,528 / 8,646,528          │
    │ Output tokens planned / served              131,008 / 129,408          │
    │ Cache hit rate (%)                                       93.9          │
    │ Ideal reuse, endless cache (%)                           93.9          │
    │ Expected reuse, places seen (%)                          93.9          │
    │ Expected reuse, round robin over 8 (%)                   73.1          │
    └────────────────────────────────────────────────────────────────────────┘
    ┌────────────────────────────────────────────────────────────┐
    │ latency (ms)    mean    p50    p90    p95     p99  samples │
    ╞════════════════════════════════════════════════════════════╡
    │ TTFT           182.4  164.2  273.7  328.4   474.3    2,047 │
    │ ITL            12.31  11.08  18.46  22.16   32.01  128,961 │
    │ ICL                –      –      –      –       –        0 │
    │ TPOT           12.34  11.11  18.51  22.21  ~32.08      512 │
    │ E2E Latency    960.1  864.1  1,440  1,728   2,496    2,047 │
    │ TTFT from due  183.0  164.7  274.5  329.4   475.8    2,047 │
    │ E2E from due   961.0  864.9  1,442  1,730   2,499    2,047 │
    └────────────────────────────────────────────────────────────┘
    ┌─────────────────────────────────────────────────────────────┐
    │ failed turns, done − sent (ms)  turns    p50     p99    max │
    ╞═════════════════════════════════════════════════════════════╡
    │ reset                               1  131.0  ~131.0  131.0 │
    └─────────────────────────────────────────────────────────────┘
    Per rank
    ┌────────────────────────────────────────────────────────────────────────────────────────┐
    │ place   turns  prompt tok  cached tok  hit %  output tok  TTFT p50 (ms)  TTFT p99 (ms) │
    ╞════════════════════════════════════════════════════════════════════════════════════════╡
    │ rank 0  1,024         100           0    0.0           4          153.0          442.0 │
    │ rank 1      1         100          90   90.0           4          100.0         ~100.0 │
    └────────────────────────────────────────────────────────────────────────────────────────┘
    Turns sent in the steady window
    ┌─────────────────────────────────────────────────────────┐
    │ steady (ms)   mean    p50    p90    p95    p99  samples │
    ╞═════════════════════════════════════════════════════════╡
    │ TTFT         175.1  157.6  262.6  315.2  455.3    1,800 │
    └─────────────────────────────────────────────────────────┘
    Keys per place
    ┌───────────────────────────────────────────────────────────────┐
    │ place   keys  turns off their key's main place  spilled turns │
    ╞═══════════════════════════════════════════════════════════════╡
    │ rank 0     1                                 0              – │
    │ rank 1     1                                 0              – │
    └───────────────────────────────────────────────────────────────┘
    Keys of most turns
    ┌───────────────────────────────────────────────────────┐
    │ key  turns  share %  places  main place  turns off it │
    ╞═══════════════════════════════════════════════════════╡
    │ g0       1     50.0       1      rank 0             0 │
    │ g1       1     50.0       1      rank 1             0 │
    └───────────────────────────────────────────────────────┘
    affinity: key by group, 2 keys · 2 sessions · 0 turns off their key's main place
    balance: turns max/mean 1.00, coefficient of variation 0.0005 · keys per place 1 1
    places known for 2 of 2 turns (from meta_info)
    client: send lag p99 0.00 ms · runtime lag p99 1.56 ms · CPU 0.840 cores · 31.40 turns in flight
        (max 32) · Little's law ratio 0.987 ± 0.0200
    How to run it again
        gspbench run --header 'Authorization:(hidden)' --seed 41
    ~: from fewer than 1,000 samples, so a matter of luck
    warning(output_length): mean output 63.2 tokens, planned 64.0 (limit 2 %, warning above 0.5 %);
        decode work differs; check `ignore_eos`
    ");
}

#[test]
fn spills_of_which_no_place_is_told_give_no_place_a_zero() {
    let cell = |turns, by_place: Vec<SpilledAt>| {
        let mut report = report();
        report.affinity.spilled = Some(Spilled { turns, from: "pin".into(), by_place });
        let text = markdown(&run(&report));
        text.lines().find(|line| line.starts_with("| rank 0 | 1 | 0 |")).unwrap().to_owned()
    };
    assert_eq!(cell(6, vec![]), "| rank 0 | 1 | 0 | – |");
    assert_eq!(cell(0, vec![]), "| rank 0 | 1 | 0 | 0 |");
    let elsewhere = SpilledAt { place: Place::Rank(Rank(1)), turns: 6 };
    assert_eq!(cell(6, vec![elsewhere]), "| rank 0 | 1 | 0 | 0 |");
}

#[test]
fn what_was_planned_is_known_of_a_run_that_served_nothing() {
    let mut report = report();
    (report.totals.prompt_tokens, report.totals.planned_prompt_tokens) = (None, None);
    assert!(markdown(&run(&report)).contains("| Prompt tokens planned / served | 300 / – |"));
}

#[test]
fn a_run_as_markdown() {
    insta::assert_snapshot!(markdown(&run(&report())), @r"
    ### gspbench run · small · arm prefix\_affinity · round 2 · complete

    - server: sglang 0.5.23 · org/some\_model · 2 ranks · prefix\_affinity
    - workload: 2 groups, 3 sessions, 3 turns with 3 distinct prompts · 300 prompt + 12 output tokens planned · closed loop, 2 sessions in flight · seed 42 · digest 00ff
    - windows: steady from 0.210 to 80.00 s (87.6 % of the run) · 11.07 s from the last start to the end (12.2 %)

    | metric | whole run | steady |
    |---|--:|--:|
    | Successful requests | 2,047 of 2,048 |  |
    | Failed requests | 1 (reset 1) |  |
    | Benchmark duration (s) | 91.07 | 79.79 |
    | Request throughput (req/s) | 22.48 | 24.40 |
    | Input token throughput (tok/s) | 94,943 | 102,840 |
    | Output token throughput (tok/s) | 1,421 | 1,560 |
    | Total token throughput (tok/s) | 96,364 | 104,401 |
    | Prompt tokens planned / served | 8,646,528 / 8,646,528 |  |
    | Output tokens planned / served | 131,008 / 129,408 |  |
    | Cache hit rate (%) | 93.9 |  |
    | Ideal reuse, endless cache (%) | 93.9 |  |
    | Expected reuse, places seen (%) | 93.9 |  |
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

    | failed turns, done − sent (ms) | turns | p50 | p99 | max |
    |---|--:|--:|--:|--:|
    | reset | 1 | 131.0 | \~131.0 | 131.0 |

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
    - balance: turns max/mean 1.00, coefficient of variation 0.0005 · keys per place 1 1
    - places known for 2 of 2 turns (from meta\_info)
    - client: send lag p99 0.00 ms · runtime lag p99 1.56 ms · CPU 0.840 cores · 31.40 turns in flight (max 32) · Little's law ratio 0.987 ± 0.0200

    <details><summary>How to run it again</summary>

        gspbench run --header 'Authorization:(hidden)' --seed 41

    </details>

    - \~: from fewer than 1,000 samples, so a matter of luck
    - warning(output\_length): mean output 63.2 tokens, planned 64.0 (limit 2 %, warning above 0.5 %); decode work differs; check \`ignore\_eos\`
    ");
}

#[test]
fn a_run_of_which_nothing_is_known_has_dashes_and_no_zero_latency() {
    let empty = Accumulator::new(context(1, 0)).finish(Closing::plain(State::Interrupted));
    let text = terminal(&run(&empty));
    let ttft = text.lines().find(|line| line.contains("TTFT ")).unwrap();
    assert_eq!(ttft.matches('–').count(), 5, "{ttft}");
    assert!(text.contains("Failed requests") && !text.contains("NaN"), "{text}");
}

#[test]
fn a_line_tells_of_turns_time_and_what_voids_and_leaves_open_what_is_unknown() {
    assert_eq!(line(&report()), "2,047 of 2,048 turns complete in 91.07 s, 1 failed, TTFT p50 164.2 ms");
    let mut cut = Accumulator::new(context(1, 0)).finish(Closing::plain(State::Interrupted));
    cut.validity = Validity { verdict: Verdict::Void, voids: vec![warning()], warnings: vec![] };
    assert_eq!(line(&cut), "interrupted, 0 of 0 turns complete, 0 failed, TTFT p50 – ms · VOID: output_length");
}
