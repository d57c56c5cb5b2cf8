//! What a page must have, whatever it is made from.

use super::*;
use crate::compare::{Interval, Settings, Verdict, compare};
use crate::report::tests::{context, failed, served};
use crate::report::{Accumulator, Closing, State};

fn run_of(turns: u32) -> RunReport {
    let mut accumulator = Accumulator::new(context(1, turns.into()));
    for session in 0..turns {
        let rank = u16::from(session % 3 == 0);
        accumulator.add(&served(session, u64::from(session) * 30, rank, 40 + session % 50));
    }
    accumulator.finish(Closing::plain(State::Complete))
}

fn drawings(page: &str) -> (usize, usize) {
    (page.matches("<svg ").count(), page.matches("Not drawn").count())
}

/// A comparison of two rounds, the second arm named as given.
fn comparison(arm: &str) -> (Comparison, Vec<BlockResult>) {
    let block = |round, arm: &str, turns| {
        let mut report = run_of(turns);
        report.manifest.arm = Some(arm.to_owned());
        BlockResult { round, arm: arm.to_owned(), report, dir: None }
    };
    let blocks = vec![block(1, "base", 20), block(1, arm, 20), block(2, arm, 24), block(2, "base", 24)];
    (compare(&blocks, &Settings::new("base"), &|_| None).unwrap(), blocks)
}

#[test]
fn a_run_has_every_plot_with_its_description_and_its_table() {
    let page = html_run(&run_of(40));
    assert_eq!(drawings(&page), (7, 0), "{page}");
    for part in ["<title>", "<desc>", "role=\"img\"", "as a table</summary>"] {
        assert!(page.matches(part).count() >= 7, "{part}");
    }
    for title in
        ["TTFT by share", "ITL by share", "E2E Latency by share", "TTFT over time", "Hit rate", "Where keys went"]
    {
        assert!(page.contains(title), "{title}");
    }
}

#[test]
fn a_run_without_a_turn_says_of_each_plot_why_it_is_not_there() {
    let mut accumulator = Accumulator::new(context(1, 1));
    for report in [accumulator.finish(Closing::plain(State::Running)), {
        accumulator.add(&failed(0));
        accumulator.finish(Closing::plain(State::Complete))
    }] {
        let page = html_run(&report);
        assert_eq!(drawings(&page), (0, 7), "{page}");
        assert!(!page.contains("NaN") && !page.contains("inf"), "{page}");
    }
}

#[test]
fn no_name_becomes_markup_and_nothing_is_fetched() {
    let evil = "</style><script src=http://h/x>\"'<img src=x onerror=y>";
    let (comparison, blocks) = comparison(evil);
    let mut report = run_of(30);
    report.server.model = Some(evil.into());
    report.manifest.arm = Some(evil.into());
    report.manifest.spec.name = evil.into();
    for page in [html_run(&report), html_comparison(&comparison, &blocks)] {
        let names = page.matches("&lt;/style&gt;&lt;script src=http://h/x&gt;&quot;&#39;&lt;img").count();
        assert!(names >= 3, "{page}");
        for markup in ["<script", "<img", "<link", "<iframe", "@import", "url(", "href=", "<style><"] {
            assert!(!page.contains(markup), "{markup} in {page}");
        }
        assert_eq!((page.matches("</style>").count(), page.matches("default-src 'none'").count()), (1, 0));
        assert!(page.contains("default-src &#39;none&#39;"));
    }
}

#[test]
fn the_load_of_places_is_the_servers_own_where_it_was_sampled() {
    let mut report = run_of(30);
    assert!(html_run(&report).contains("Turns sent to each place"));
    let place = report.ranks[0].place.clone();
    let sample = |at: u64, running| crate::report::PlaceLoad {
        t_us: crate::units::Micros(at * 10_000),
        place: place.clone(),
        running: Some(running),
        waiting: Some(1),
        kv_used: None,
        kv_usage: None,
        hit_rate: None,
    };
    report.server.series = (0..90).map(|at| sample(at, at % 7)).collect();
    let page = html_run(&report);
    assert!(page.contains("Load of each place") && !page.contains("Turns sent to each place"));
}

#[test]
fn a_comparison_shows_ratios_intervals_and_verdicts_where_they_are_known() {
    let (mut comparison, blocks) = comparison("other");
    let row = comparison.metrics.iter_mut().find(|row| row.key == "ttft_ms.mean").unwrap();
    row.contrasts[0].interval =
        Some(Interval { low: 0.5, high: 0.8, level: 0.95, basis: crate::compare::Basis::Rounds });
    row.contrasts[0].verdict = Some(Verdict::Better);
    let page = html_comparison(&comparison, &blocks);
    assert_eq!(drawings(&page), (12, 0));
    for part in ["Ratio to base: other", "[0.500, 0.800] better", "diamond better", "TTFT over time: base"] {
        assert!(page.contains(part), "{part}");
    }
    let mut void = blocks;
    void.iter_mut().for_each(|block| block.report.validity.verdict = crate::report::Verdict::Void);
    let page = html_comparison(&comparison, &void);
    assert!(page.contains("no TTFT was measured"), "a void block is in no plot");
}

#[test]
fn every_judged_row_is_in_the_plot_of_ratios_or_named_below_it_with_the_reason() {
    let (mut comparison, blocks) = comparison("other");
    let judged = |comparison: &Comparison| -> Vec<String> {
        let rows = comparison.metrics.iter().filter(|row| row.judged);
        rows.map(|row| row.label.split(" (").next().unwrap().to_owned()).collect()
    };
    let is_drawn = |page: &str, name: &str| ["→", "←"].iter().any(|arrow| page.contains(&format!("{arrow} {name}<")));
    let page = html_comparison(&comparison, &blocks);
    assert!(judged(&comparison).len() > 6);
    for name in judged(&comparison) {
        assert!(is_drawn(&page, &name), "{name}");
    }
    assert!(!page.contains("but not drawn"));
    let row = comparison.metrics.iter_mut().find(|row| row.key == "cache_hit_rate.value").unwrap();
    let contrast = &mut row.contrasts[0];
    contrast.geometric_mean = None;
    contrast.ratios[0].ratio = Some(0.0);
    let row = comparison.metrics.iter_mut().find(|row| row.key == "tpot_ms.p99").unwrap();
    let contrast = &mut row.contrasts[0];
    contrast.geometric_mean = None;
    contrast.ratios.iter_mut().for_each(|round| round.ratio = None);
    let page = html_comparison(&comparison, &blocks);
    let said = "Judged, but not drawn: Cache hit rate (it is 0 in a round, and a ratio of 0 has no place on this scale); P99 \
                TPOT (no round of both arms has it above 0).";
    assert!(page.contains(said), "{page}");
    for name in judged(&comparison) {
        let is_named = name == "Cache hit rate" || name == "P99 TPOT";
        assert_eq!(is_drawn(&page, &name), !is_named, "{name}");
    }
}

#[test]
fn every_plot_and_the_tiles_have_a_caption() {
    let (comparison, blocks) = comparison("other");
    let empty = Accumulator::new(context(1, 1)).finish(Closing::plain(State::Running));
    let ladder = crate::experiment::Ladder {
        axis: crate::experiment::Axis::Concurrency,
        levels: crate::experiment::Levels::Given(vec![1.0, 2.0]),
        attainment: None,
        arms: 1,
    };
    let mut curves = Curves::new(&ladder, None, ["a".to_owned()].into_iter());
    curves.add(&ladder, crate::experiment::StepResult { step: 1, level: 1.0, arm: 0, report: &run_of(20) });
    let pages = [html_run(&run_of(30)), html_run(&empty), html_comparison(&comparison, &blocks), html_sweep(&curves)];
    for page in pages {
        let figures = page.split("<figure").skip(1);
        for figure in figures {
            let caption = figure.split("</figcaption>").next().unwrap();
            let said = caption.split("<p>").nth(1).and_then(|rest| rest.split("</p>").next()).unwrap_or("");
            assert!(said.len() > 20, "{caption}");
        }
        assert_eq!(page.matches("<p class=\"caption\">").count(), 1, "the tiles have one");
    }
}
