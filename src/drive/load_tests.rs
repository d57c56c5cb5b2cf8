//! Load shapes with exact instants: the rows of `traps.md` on rate, refill, ramp and cut-off (B59 to B69), on the virtual
//! clock.

use super::tests::{MS, Ran, load, run, sessions, taking};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn limits() -> Limits {
    Limits { sessions: None, turns: None, ramp_up: Duration::ZERO, duration: None, think: Duration::ZERO }
}

fn closed(sessions: usize) -> Limits {
    Limits { sessions: Some(sessions), ..limits() }
}

fn open(rate: f64, sessions_: u32) -> String {
    format!("{}\nload.rate = {rate:?}\nload.burstiness = inf", sessions(1, sessions_, 1))
}

fn sent(records: &[TurnRecord]) -> Vec<u64> {
    let mut sent: Vec<u64> = records.iter().filter_map(|turn| turn.sent_us).map(|at| at.0).collect();
    sent.sort_unstable();
    sent
}

/// Row B59: 200 a second, 2,000 turns, the last at 9.995 s, not a gap later each time.
#[test]
fn a_constant_rate_does_not_drift() {
    let Ran { records, .. } = run(|clock| load(&open(200.0, 2_000), limits(), clock), taking(|_| MS));
    let expected: Vec<u64> = (0..2_000).map(|at| at * 5_000).collect();
    assert_eq!(sent(&records), expected);
    assert!(records.iter().all(|turn| turn.send_lag() == Some(Micros(0))));
}

/// Row B60: 5,000 a second; a stall of the sender is caught up, not forgiven.
#[test]
fn a_backlog_is_caught_up() {
    let stalled = |clock: Clock, mut turn: TurnRecord| async move {
        // The host takes no request between 0.5 s and 0.7 s.
        let stall = (500 * MS..700 * MS).contains(&clock.now());
        clock.sleep_until(if stall { 700 * MS } else { clock.now() }).await;
        turn.sent_us = Some(clock.now().into());
        turn.done_us = turn.sent_us;
        turn.outcome = Outcome::Complete;
        turn
    };
    let Ran { driven, records, .. } = run(|clock| load(&open(5_000.0, 10_000), limits(), clock), stalled);
    let sent = sent(&records);
    assert_eq!((sent.len(), sent[9_999]), (10_000, 1_999_800));
    assert_eq!(
        sent.iter().filter(|at| **at == 700_000).count(),
        1_001,
        "all that was due in the stall, and one on time"
    );
    assert_eq!(driven.ended.since(driven.started), Micros(1_999_800));
}

/// Row B62: the server stands still from 2 s to 4 s; those who came then waited, and all of them are counted.
#[test]
fn a_frozen_server_shows_in_the_latencies_of_all_who_came() {
    let frozen = taking(|_| 5 * MS);
    let serve = move |clock: Clock, turn: TurnRecord| {
        let frozen = frozen.clone();
        async move {
            let (due, now) = (turn.due_us, clock.now());
            clock.sleep_until(if (2 * SECOND..4 * SECOND).contains(&now) { 4 * SECOND } else { now }).await;
            TurnRecord { sent_us: Some(due), ..frozen(clock, turn).await }
        }
    };
    let Ran { records, .. } = run(|clock| load(&open(100.0, 600), limits(), clock), serve);
    let mut took: Vec<u64> = records.iter().map(|turn| turn.done_us.unwrap().since(turn.due_us).0 / 1_000).collect();
    took.sort_unstable();
    assert_eq!((took.len(), took.iter().filter(|ms| **ms > 5).count()), (600, 200));
    assert_eq!((took[539], took[599]), (1_405, 2_005), "p90 and maximum");
    assert_eq!(took.iter().sum::<u64>() / 600, 340, "mean");
}

/// Row B63: users who think from end to end; the offered load falls by what replies take, and the plan's definition says so.
#[test]
fn think_time_runs_from_the_end_of_a_turn() {
    let limits = Limits { think: 8 * SECOND, ..closed(20) };
    let Ran { records, .. } = run(|clock| load(&sessions(1, 20, 12), limits, clock), taking(|_| 2 * SECOND));
    // A cycle of 10 s, 20 users: two turns a second.
    let by = |at: Duration| records.iter().filter(|turn| Duration::from(turn.sent_us.unwrap()) < at).count();
    assert_eq!(by(100 * SECOND), 200);
    assert_eq!(by(120 * SECOND), 240);
}

/// Row B63 again: with a rate of sessions the arrivals do not care how long replies take.
#[test]
fn a_rate_of_sessions_does_not_fall_as_latency_rises() {
    let Ran { records, max_in_flight, .. } =
        run(|clock| load(&open(2.0, 240), limits(), clock), taking(|_| 2 * SECOND));
    assert_eq!((sent(&records)[239], max_in_flight), (119_500_000, 4));
}

/// Row B65: nothing but the plan's own limit holds turns back.
#[test]
fn as_many_turns_as_asked_for_are_in_flight() {
    let Ran { driven, records, max_in_flight, .. } =
        run(|clock| load(&sessions(1, 4_096, 1), closed(4_096), clock), taking(|_| SECOND));
    assert_eq!((max_in_flight, records.len()), (4_096, 4_096));
    assert_eq!(driven.ended.since(driven.started), SECOND.into());
}

/// Row B67: 20 in flight, turns of 100 ms and of 1 s; a slot is taken again the instant it is free.
#[test]
fn a_slow_turn_holds_up_no_other_slot() {
    let serve = taking(|turn| if turn.session.is_multiple_of(2) { 100 * MS } else { SECOND });
    let Ran { driven, records, marks, .. } = run(|clock| load(&sessions(1, 200, 1), closed(20), clock), serve);
    let wall = Duration::from(driven.ended.since(driven.started));
    assert!((5_500 * MS..6_500 * MS).contains(&wall), "{wall:?}");
    // Until the last session starts, every start but the first 20 is the end of another turn, in the same instant.
    let mut starts = sent(&records);
    let mut ends: Vec<u64> = records.iter().map(|turn| turn.done_us.unwrap().0).collect();
    ends.sort_unstable();
    assert_eq!(starts.split_off(20), ends[..180]);
    assert_eq!(marks, crate::record::Marks { full: Some(Micros(0)), last_start: Some(Micros(ends[179])) });
}

/// Row B69: 10 in flight, the last turn of 100 takes 20 s.
#[test]
fn the_marks_bound_the_full_load_and_leave_out_the_tail() {
    let slowest = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let serve = move |clock: Clock, turn: TurnRecord| {
        let is_last = slowest.fetch_add(1, Ordering::Relaxed) == 99;
        taking(move |_| if is_last { 20 * SECOND } else { SECOND })(clock, turn)
    };
    let Ran { driven, marks, .. } = run(|clock| load(&sessions(1, 100, 1), closed(10), clock), serve);
    assert_eq!((marks.full, marks.last_start), (Some(Micros(0)), Some(Micros(9_000_000))));
    assert_eq!((driven.ended, driven.ended_by), (Micros(29_000_000), EndedBy::Plan));
}

#[test]
fn the_slots_of_a_closed_loop_open_evenly_over_the_ramp() {
    let limits = Limits { ramp_up: 10 * SECOND, ..closed(10) };
    let Ran { records, marks, .. } = run(|clock| load(&sessions(1, 40, 1), limits, clock), taking(|_| 3_500 * MS));
    let starts = sent(&records);
    // Slots open at 0, 1, 2 … s; the first is free again at 3.5 s and taken in that instant.
    assert_eq!(starts[..6], [0, 1_000_000, 2_000_000, 3_000_000, 3_500_000, 4_000_000]);
    assert_eq!(marks.full, Some(Micros(9_000_000)));
    assert!(records.iter().all(|turn| turn.send_lag() == Some(Micros(0))));
}

#[test]
fn an_open_loop_is_full_after_its_ramp_until_the_last_arrival() {
    let toml = format!("{}\nload.ramp_up = \"10s\"", open(10.0, 200));
    let limits = Limits { ramp_up: 10 * SECOND, ..limits() };
    let Ran { records, marks, .. } = run(|clock| load(&toml, limits, clock), taking(|_| SECOND));
    let sent = sent(&records);
    assert_eq!((marks.full, marks.last_start), (Some(Micros(10_000_000)), Some(Micros(sent[199]))));
    assert_eq!(sent[199], 24_900_000, "half of the ramp is missing, and nothing else");
}

/// Row B51: four in flight, 2.05 s; nothing is sent after it, what is under way is cut, and no turn is lost or invented.
#[test]
fn the_duration_cuts_what_is_under_way_and_sends_nothing_more() {
    let limits = Limits { duration: Some(2_050 * MS), ..closed(4) };
    let Ran { driven, records, marks, .. } =
        run(|clock| load(&sessions(1, 100, 2), limits, clock), taking(|_| 1_500 * MS));
    assert_eq!((driven.ended_by, driven.ended), (EndedBy::Duration, Micros(2_050_000)));
    let outcomes = |outcome| records.iter().filter(|turn| turn.outcome == outcome).count();
    assert_eq!((outcomes(Outcome::Complete), outcomes(Outcome::Cancelled), records.len()), (4, 4, 8));
    assert_eq!(sent(&records).last(), Some(&1_500_000));
    assert_eq!(marks.last_start, Some(Micros(2_050_000)), "the loop was full until it was cut");
}

/// Row B95: a plan that is done before its duration is done; no prompt is sent twice to fill the time.
#[test]
fn a_plan_that_ends_first_ends_the_run() {
    let limits = Limits { duration: Some(60 * SECOND), ..closed(4) };
    let Ran { driven, records, .. } = run(|clock| load(&sessions(1, 8, 1), limits, clock), taking(|_| SECOND));
    assert_eq!((driven.ended_by, driven.ended, records.len()), (EndedBy::Plan, Micros(2_000_000), 8));
}

#[test]
fn a_session_that_thinks_when_the_run_ends_is_cut_there() {
    let limits = Limits { duration: Some(3 * SECOND), think: 10 * SECOND, ..closed(1) };
    let Ran { driven, records, .. } = run(|clock| load(&sessions(1, 1, 3), limits, clock), taking(|_| SECOND));
    let outcomes: Vec<_> = records.iter().map(|turn| turn.outcome).collect();
    assert_eq!(outcomes, [Outcome::Complete, Outcome::Cancelled, Outcome::Cancelled]);
    assert_eq!(driven.ended, Micros(3_000_000));
    assert!(records[1].sent_us.is_none());
}

#[test]
fn a_cap_under_a_rate_delays_and_is_told_apart_from_lag() {
    let limits = Limits { sessions: Some(1), ..limits() };
    let Ran { records, .. } = run(|clock| load(&open(10.0, 4), limits, clock), taking(|_| 250 * MS));
    let of = |get: fn(&TurnRecord) -> Option<Micros>| -> Vec<u64> {
        let mut turns: Vec<_> = records.iter().collect();
        turns.sort_by_key(|turn| turn.due_us);
        turns.into_iter().filter_map(get).map(|at| at.0 / 1_000).collect()
    };
    assert_eq!(of(|turn| Some(turn.due_us)), [0, 100, 200, 300]);
    assert_eq!(of(|turn| turn.sent_us), [0, 250, 500, 750]);
    assert_eq!(of(|turn| turn.cap_wait_us), [0, 150, 300, 450]);
}

/// What a slow recorder holds back is this program's own lag: a slot counts as free since its turn was done.
#[test]
fn a_record_that_waits_to_be_taken_makes_the_next_turn_late_and_that_is_seen() {
    let lag = crate::clock::run_virtual(|clock| async move {
        let load = load(&sessions(1, 20, 1), closed(1), &clock);
        let (sender, mut receiver) = mpsc::channel::<TurnRecord>(1);
        let serve = taking(|_| MS);
        let now = clock.clone();
        let send = move |turn: TurnRecord, (), ()| {
            let serving = serve(now.clone(), turn);
            async move { (serving.await, String::new()) }
        };
        let recording = async {
            let mut lag = vec![];
            while let Some(turn) = receiver.recv().await {
                lag.extend(turn.send_lag());
                clock.sleep_until(clock.now() + 10 * MS).await;
            }
            lag
        };
        tokio::join!(drive(load, |_, _| (), |_, ()| (), send, sender), recording).1
    })
    .unwrap();
    assert_eq!(lag[0], Micros(0));
    assert!(lag[10..].iter().all(|lag| *lag == Micros(9_000)), "{lag:?}");
}
