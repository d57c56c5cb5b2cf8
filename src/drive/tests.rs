//! The loop on the virtual clock: exact times, no socket.

use std::sync::Mutex;

use super::*;
use crate::clock::run_virtual;
use crate::profile::{self, raw};
use crate::record::Failure;
use crate::text::Vocabulary;
use crate::workload;

/// A load of tiny sessions from lines of a profile.
fn load(toml: &str, limits: Limits, clock: &Clock) -> Load {
    let sizes = "workload.system_tokens = 4\nworkload.question_tokens = 3\nworkload.output_tokens = 5";
    let text = format!("{toml}\n{sizes}");
    let raw: raw::Profile = profile::load("test", &text, &[]).unwrap();
    let context = profile::Context { name: "test".into(), drawn_seed: 7, compares_arms: false };
    let spec = profile::run_spec(&raw, &context).unwrap();
    let vocabulary = Arc::new(Vocabulary::words());
    let plan = Arc::new(workload::plan(&spec, &vocabulary).unwrap());
    Load {
        run_id: "t".into(),
        prompter: Arc::new(Prompter::new(plan, vocabulary)),
        limits,
        clock: clock.clone(),
        cancel: CancellationToken::new(),
        in_flight: Arc::default(),
    }
}

const MS: Duration = Duration::from_millis(1);

fn sessions(groups: u32, sessions: u32, turns: u32) -> String {
    format!("workload.groups = {groups}\nworkload.sessions_per_group = {sessions}\nworkload.turns = {turns}")
}

/// Runs a load against a server that serves each turn as `serve` says, in virtual time.
fn run<F>(
    make: impl FnOnce(&Clock) -> Load,
    serve: impl Fn(Clock, TurnRecord) -> F + Clone + Send + Sync + 'static,
) -> (Driven, Vec<TurnRecord>)
where
    F: Future<Output = TurnRecord> + Send + 'static,
{
    run_virtual(|clock| async move {
        let load = make(&clock);
        let (sender, mut receiver) = mpsc::channel(1024);
        let send = move |turn: TurnRecord, _: Bytes| {
            let (clock, serve) = (clock.clone(), serve.clone());
            async move { (serve(clock, turn).await, "reply".to_owned()) }
        };
        let driven = drive(load, |_, _| Bytes::new(), send, sender).await;
        let mut records = vec![];
        while let Some(record) = receiver.recv().await {
            records.push(record);
        }
        (driven, records)
    })
    .unwrap()
}

/// A server that takes `span` for every turn.
fn steady(
    span: Duration,
) -> impl Fn(Clock, TurnRecord) -> std::pin::Pin<Box<dyn Future<Output = TurnRecord> + Send>> + Clone + Send + Sync + 'static
{
    move |clock, mut turn| {
        Box::pin(async move {
            turn.sent_us = Some(clock.now().into());
            clock.sleep_until(clock.now() + span).await;
            turn.done_us = Some(clock.now().into());
            turn.outcome = Outcome::Complete;
            turn
        })
    }
}

fn limits(sessions: Option<usize>, turns: Option<usize>, think: Duration) -> Limits {
    Limits { sessions, turns, think }
}

#[test]
fn a_closed_loop_refills_a_slot_the_instant_it_is_free() {
    let (driven, records) =
        run(|clock| load(&sessions(2, 5, 1), limits(Some(4), None, Duration::ZERO), clock), steady(100 * MS));
    assert_eq!((driven.max_in_flight, driven.ended.since(driven.started)), (4, Micros(300_000)));
    let mut due: Vec<u64> = records.iter().map(|turn| turn.due_us.0 / 1000).collect();
    due.sort_unstable();
    assert_eq!(due, [0, 0, 0, 0, 100, 100, 100, 100, 200, 200]);
    assert!(records.iter().all(|turn| turn.sent_us == Some(turn.due_us)));
}

#[test]
fn turns_of_a_session_are_sequential_and_wait_for_their_user() {
    let (_, mut records) =
        run(|clock| load(&sessions(1, 1, 3), limits(Some(4), None, 50 * MS), clock), steady(100 * MS));
    records.sort_by_key(|turn| turn.turn);
    let due: Vec<u64> = records.iter().map(|turn| turn.due_us.0 / 1000).collect();
    assert_eq!(due, [0, 150, 300]);
    assert!(records.iter().all(|turn| turn.key == records[0].key), "one key a session");
}

#[test]
fn a_limit_of_turns_moves_due_times_only_without_a_rate() {
    let closed = sessions(1, 3, 1);
    let (driven, records) =
        run(|clock| load(&closed, limits(Some(3), Some(1), Duration::ZERO), clock), steady(100 * MS));
    assert_eq!(driven.max_in_flight, 1);
    assert!(records.iter().all(|turn| turn.sent_us == Some(turn.due_us)), "due is the permit's instant");
    let open = format!("{closed}\nload.rate = 1000.0");
    let (driven, records) = run(|clock| load(&open, limits(None, Some(1), Duration::ZERO), clock), steady(100 * MS));
    assert_eq!(driven.max_in_flight, 1);
    let lag: Vec<u64> = records.iter().map(|turn| turn.send_lag().unwrap().0 / 1000).collect();
    assert!(lag[2] >= 190, "waiting for a permit is send lag under a rate: {lag:?}");
}

#[test]
fn a_slow_server_delays_no_arrival_of_an_open_loop() {
    let open = format!("{}\nload.rate = 100.0", sessions(1, 50, 1));
    let make = |span| run(|clock| load(&open, limits(None, None, Duration::ZERO), clock), steady(span)).1;
    let due = |records: Vec<TurnRecord>| {
        let mut due: Vec<(u32, u64)> = records.iter().map(|turn| (turn.session, turn.due_us.0)).collect();
        due.sort_unstable();
        assert!(records.iter().all(|turn| turn.sent_us == Some(turn.due_us)));
        due
    };
    assert_eq!(due(make(MS)), due(make(10_000 * MS)));
}

#[test]
fn a_failed_turn_ends_its_session_and_every_planned_turn_has_one_record() {
    let serve = |clock: Clock, mut turn: TurnRecord| async move {
        turn.sent_us = Some(clock.now().into());
        clock.sleep_until(clock.now() + MS).await;
        turn.done_us = Some(clock.now().into());
        let fails = turn.turn == 1 && turn.session == 0;
        turn.outcome = if fails { Outcome::Failed(Failure::Http(500)) } else { Outcome::Complete };
        turn
    };
    let (_, records) = run(|clock| load(&sessions(1, 2, 4), limits(Some(2), None, Duration::ZERO), clock), serve);
    let of = |session| {
        let mut turns: Vec<_> = records.iter().filter(|turn| turn.session == session).collect();
        turns.sort_by_key(|turn| turn.turn);
        turns.into_iter().map(|turn| turn.outcome.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(of(0), ["complete", "http_500", "skipped", "skipped"]);
    assert_eq!(of(1), ["complete"; 4]);
    assert!(records.iter().filter(|turn| turn.outcome == Outcome::Skipped).all(|turn| turn.sent_us.is_none()));
}

#[test]
fn an_interrupt_cancels_what_is_left_and_loses_no_record() {
    let cancelled = Arc::new(Mutex::new(None::<CancellationToken>));
    let token = Arc::clone(&cancelled);
    let serve = move |clock: Clock, mut turn: TurnRecord| {
        let cancel = token.lock().unwrap().clone().unwrap();
        async move {
            turn.sent_us = Some(clock.now().into());
            clock.sleep_until(clock.now() + MS).await;
            turn.done_us = Some(clock.now().into());
            turn.outcome = Outcome::Complete;
            if clock.now() >= 3 * MS {
                cancel.cancel();
            }
            turn
        }
    };
    let make = |clock: &Clock| {
        let load = load(&sessions(2, 5, 2), limits(Some(1), None, Duration::ZERO), clock);
        *cancelled.lock().unwrap() = Some(load.cancel.clone());
        load
    };
    let (driven, records) = run(make, serve);
    assert!(driven.interrupted);
    let count = |outcome| records.iter().filter(|turn| turn.outcome == outcome).count();
    assert_eq!((count(Outcome::Complete), count(Outcome::Cancelled)), (3, 17));
}

#[test]
fn a_session_that_panics_is_counted_and_ends_no_other() {
    let serve = |clock: Clock, mut turn: TurnRecord| async move {
        assert!(turn.session != 1, "this panic is part of the test");
        turn.done_us = Some(clock.now().into());
        turn.outcome = Outcome::Complete;
        turn
    };
    let (driven, records) = run(|clock| load(&sessions(1, 3, 1), limits(Some(3), None, Duration::ZERO), clock), serve);
    assert_eq!((driven.lost_sessions, records.len()), (1, 2));
}
