//! What a comparison must say, whatever its numbers are.

use super::comparison_tests::{arm, row, side_by_side};
use super::tests::warning;
use super::*;
use crate::compare::{
    self, Arm, Comparison, Contrast, Difference, Doubt, Interrupted, Interval, MetricRow, NoiseFloor, RoundRatio,
    Unjudged,
};
use crate::report::{Finding, FindingKind, GateOutcome, WithFailures};

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

#[test]
fn arms_that_are_one_and_the_same_have_no_verdict_but_a_noise_floor() {
    for (verdict, alarm) in [(compare::Verdict::Better, true), (compare::Verdict::Same, false)] {
        let noise = NoiseFloor { rounds: 6, least_ratio: 0.98, most_ratio: 1.02, change: Some(0.025) };
        let mut same = Comparison { aa: true, noise_floor: Some(noise), ..side_by_side() };
        let primary = same.metrics.iter_mut().find(|row| row.key == "ttft_ms.mean").unwrap();
        primary.contrasts[0].verdict = Some(verdict);
        let page = comparison(&same);
        let Some(Section::Claims(claims)) = page.sections.first() else { panic!("{page:?}") };
        let [head, rest] = &claims[0];
        let said =
            "prefix_affinity is the same server as round_robin, and any difference between them is noise: Mean TTFT";
        assert!(head.starts_with(said), "{head}");
        assert_eq!(head.ends_with("false alarm."), alarm, "{head}");
        assert!(rest.starts_with("Others, by noise alone: "), "{rest}");
        let text = terminal(&page).split_whitespace().collect::<Vec<_>>().join(" ");
        let floor = "ratios of 0.980 to 1.020; a change of 2.5 % is within the interval";
        assert!(text.contains(floor), "{text}");
    }
}

#[test]
fn an_arm_without_a_valid_block_has_the_cause_in_the_headline() {
    let head_of = |why: Unjudged, voids: [&[u32]; 2], unfinished: &[u32], is_measured: bool| {
        let mut silent = side_by_side();
        for (arm, rounds) in silent.arms.iter_mut().zip(voids) {
            arm.void_rounds = rounds.to_vec();
            let void = |round: &u32| (*round, Finding { kind: FindingKind::Errors, ..warning() });
            arm.voids = rounds.iter().map(void).collect();
        }
        silent.arms[1].unfinished_rounds = unfinished.to_vec();
        silent.metrics.iter_mut().flat_map(|row| &mut row.contrasts).for_each(|contrast| {
            contrast.verdict = None;
            contrast.unjudged = Some(why);
        });
        if !is_measured {
            silent.metrics.clear();
        }
        let page = comparison(&silent);
        let Some(Section::Claims(claims)) = page.sections.first() else { panic!("{page:?}") };
        claims[0][0].strip_prefix("prefix_affinity against round_robin is not judged: ").unwrap().to_owned()
    };
    let head = |voids, unfinished, is_measured| head_of(Unjudged::NotMeasured, voids, unfinished, is_measured);
    let unlike = head_of(Unjudged::NotComparable, [&[], &[1]], &[2], true);
    assert_eq!(unlike, "no block of prefix_affinity can be used: void (errors) or not at their end.");
    assert_eq!(head([&[], &[1, 2]], &[], true), "all blocks of prefix_affinity are void: errors.");
    assert_eq!(
        head([&[1, 2], &[1, 2]], &[], false),
        "all blocks of round_robin are void: errors; all blocks of prefix_affinity are void: errors."
    );
    assert_eq!(head([&[], &[]], &[1, 2], true), "no block of prefix_affinity has ended.");
    assert_eq!(head([&[1], &[2]], &[], true), "no round has a valid block of both.");
    assert!(head([&[], &[]], &[], true).contains("no round of both arms has it above zero"));
}
