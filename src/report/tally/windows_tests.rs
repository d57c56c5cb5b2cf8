//! Closed forms of the window, and that its parts merge.

use super::*;
use crate::record::Gap;
use crate::report::tests::{context, served};

const MS: u64 = 1_000;

fn marks(full: u64, last_start: u64) -> Marks {
    Marks { full: Some(Micros(full * MS)), last_start: Some(Micros(last_start * MS)) }
}

fn load() -> LoadSpec {
    context(1, 1).manifest.spec.load
}

fn tally(marks: Marks, turns: &[TurnRecord]) -> WindowTally {
    let mut tally = WindowTally::default();
    tally.mark(marks);
    for turn in turns {
        if let Some(latencies) = tally.add(turn) {
            latencies.add(turn);
        }
    }
    tally
}

fn run(to: u64) -> Option<Span> {
    Some(Span { from: Micros(0), to: Micros(to * MS) })
}

#[test]
fn starts_count_up_to_the_last_one_and_ends_include_it() {
    // Each turn lasts 131 ms.
    let turns: Vec<_> = [99, 100, 500, 868, 869, 870, 999, 1_000].map(|at| served(0, at, 0, 0)).to_vec();
    let window = tally(marks(100, 1_000), &turns).steady(&load(), run(1_131), Some(EndedBy::Plan)).unwrap();
    assert_eq!((window.from_us, window.to_us), (Micros(100 * MS), Micros(1_000 * MS)));
    assert_eq!(window.latency["ttft_ms"].count, 6, "sent at 100 to 999");
    // Done at 230, 231, 631, 999 and 1,000 of 900 ms.
    assert_eq!(window.request_throughput, Some(rounded(5.0 / 0.9)));
}

#[test]
fn tokens_count_where_they_arrived_and_only_in_whole_bins() {
    let even = |tokens| Gap::new(100_000, tokens);
    let turn = TurnRecord {
        first_us: Some(Micros(50 * MS)),
        gaps: vec![even(Some(1)), even(Some(3)), even(Some(0)), even(Some(4))],
        first_frame_tokens: Some(2),
        ..served(0, 0, 0, 0)
    };
    assert_eq!(arrivals(&turn, 10, BIN_US), [(0, 2), (1, 1), (2, 3), (4, 4)]);
    // Usage that says twice as much scales all frames; the sum is kept whatever it is.
    assert_eq!(arrivals(&turn, 20, BIN_US), [(0, 4), (1, 2), (2, 6), (4, 8)]);
    assert_eq!(arrivals(&turn, 7, BIN_US).iter().map(|(_, count)| count).sum::<u64>(), 7);
    let silent = TurnRecord { gaps: vec![even(None); 4], first_frame_tokens: None, ..turn.clone() };
    assert_eq!(arrivals(&silent, 10, BIN_US), [(0, 2), (1, 2), (2, 2), (3, 2), (4, 2)]);
    assert_eq!(arrivals(&TurnRecord { first_us: None, ..turn.clone() }, 10, BIN_US), []);
    let counted = TurnRecord { output_tokens: Some(10), ..turn };
    let window = tally(marks(90, 450), &[counted]).window(Micros(90 * MS), Micros(450 * MS));
    assert_eq!(window.output_throughput, Some(rounded(4.0 / 0.3)), "bins 1, 2 and 3");
}

/// Row B51, in windowed rates: 80 tokens in 2.05 s.
#[test]
fn tokens_of_a_cut_turn_count_when_they_came() {
    let frames = |from: u64, frames: usize, outcome| TurnRecord {
        outcome,
        first_us: Some(Micros((from + 100) * MS)),
        first_frame_tokens: Some(1),
        gaps: vec![Gap::new(100_000, Some(1)); frames - 1],
        output_tokens: Some(u32::try_from(frames).unwrap()),
        ..served(0, from, 0, 0)
    };
    let turns: Vec<_> =
        (0..4).flat_map(|_| [frames(0, 15, Outcome::Complete), frames(1_500, 5, Outcome::Cancelled)]).collect();
    let tally = tally(marks(0, 2_050), &turns);
    assert_eq!(tally.tokens.values().sum::<u64>(), 80);
    assert_eq!((tally.sent, tally.latencies().of(crate::report::Latency::E2e).count()), (4, 4));
}

#[test]
fn a_window_that_is_too_short_too_thin_or_never_began_is_none_with_the_reason() {
    let turns: Vec<_> = (0..10).map(|at| served(0, 100 * at, 0, 0)).collect();
    let reason = |marks, run, ended| tally(marks, &turns).steady(&load(), run, ended).unwrap_err();
    let plan = Some(EndedBy::Plan);
    assert!(reason(Marks::default(), run(1_000), plan).starts_with("never were 2 sessions in flight"));
    assert!(reason(Marks { last_start: None, ..marks(0, 0) }, run(1_000), None).contains("did not end"));
    assert!(reason(marks(500, 500), run(1_000), plan).contains("before the load was full"));
    assert!(reason(marks(0, 190), run(1_000), plan).contains("19 % of the run, and 20 %"));
    assert!(reason(marks(0, 300), run(1_000), plan).starts_with("3 turns sent under full load, and 4"));
    assert!(tally(marks(0, 400), &turns).steady(&load(), run(1_000), plan).is_ok());
}

#[test]
fn the_drain_is_what_comes_after_the_last_start() {
    let drain = tally(marks(0, 9_000), &[]).drain(run(29_000)).unwrap();
    assert_eq!(drain, Drain { from_us: Micros(9_000 * MS), seconds: 20.0, share: rounded(20.0 / 29.0) });
    assert_eq!(tally(Marks::default(), &[]).drain(run(29_000)), None);
    // All sessions were due at once, just before the first of them was sent.
    let at_once = Some(Span { from: Micros(10 * MS), to: Micros(20 * MS) });
    let drain = tally(marks(0, 9), &[]).drain(at_once).unwrap();
    assert_eq!((drain.from_us, drain.seconds, drain.share), (Micros(10 * MS), 0.01, 1.0), "a share is at most 1");
}

/// Cut turns bring what had arrived: that of the bin in which the last success ends, by the part of it that had passed.
#[test]
fn up_to_the_last_success_cut_turns_bring_what_had_arrived_by_then() {
    let cut = TurnRecord {
        outcome: Outcome::Cancelled,
        first_us: Some(Micros(50 * MS)),
        first_frame_tokens: Some(1),
        gaps: vec![Gap::new(100_000, Some(1)), Gap::new(1_000, Some(7)), Gap::new(100_000, Some(1))],
        output_tokens: Some(10),
        ..served(0, 0, 0, 0)
    };
    let tally = tally(Marks::default(), &[cut]);
    let by = |at: u64, end: u64| tally.cut_tokens_by(Micros(at * MS), Micros(end * MS));
    assert_eq!([50, 100, 150, 199, 200, 300].map(|at| by(at, 400)), [0, 1, 5, 8, 9, 10]);
    // The run ends within the bin, and so do its tokens.
    assert_eq!([by(160, 160), by(130, 160), by(200, 200)], [9, 5, 10]);
    assert_eq!(tally.to_last_success(&Totals::default(), run(400), &Latencies::default()), None, "nothing completed");
}
