//! The loop on the virtual clock: exact times, no socket.

use super::*;
use crate::clock::run_virtual;
use crate::profile::{self, raw};
use crate::record::{Failure, Marks};
use crate::text::Vocabulary;
use crate::workload;

/// A load of tiny sessions from lines of a profile.
pub(super) fn load(toml: &str, limits: Limits, clock: &Clock) -> Load {
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
        lanes: Lanes::default(),
        stop: Stop::default(),
        watch: Arc::default(),
    }
}

pub(super) const MS: Duration = Duration::from_millis(1);

pub(super) fn sessions(groups: u32, sessions: u32, turns: u32) -> String {
    format!("workload.groups = {groups}\nworkload.sessions_per_group = {sessions}\nworkload.turns = {turns}")
}

/// What a run left behind.
pub(super) struct Ran {
    pub(super) driven: Driven,
    pub(super) records: Vec<TurnRecord>,
    pub(super) max_in_flight: usize,
    pub(super) marks: Marks,
}

/// Runs a load against a server that serves each turn as `serve` says, in virtual time.
pub(super) fn run<F>(
    make: impl FnOnce(&Clock) -> Load,
    serve: impl Fn(Clock, TurnRecord) -> F + Clone + Send + Sync + 'static,
) -> Ran
where
    F: Future<Output = TurnRecord> + Send + 'static,
{
    run_virtual(|clock| async move {
        let load = make(&clock);
        let (watch, cut) = (Arc::clone(&load.watch), load.stop.cut.clone());
        let (sender, mut receiver) = mpsc::channel(4);
        let send = move |turn: TurnRecord, (), ()| {
            let (cut, started, now) = (cut.clone(), turn.clone(), clock.clone());
            let serving = serve(clock.clone(), turn);
            async move {
                let turn = tokio::select! {
                    biased;
                    turn = serving => turn,
                    () = cut.cancelled() => {
                        let sent_us = Some(started.due_us);
                        TurnRecord { outcome: Outcome::Cancelled, sent_us, done_us: Some(now.now().into()), ..started }
                    },
                };
                (turn, "reply".to_owned())
            }
        };
        let collecting = async {
            let mut records = vec![];
            while let Some(record) = receiver.recv().await {
                records.push(record);
            }
            records
        };
        let (driven, records) = tokio::join!(drive(load, |_, _| (), |_, ()| (), send, sender), collecting);
        Ran { driven, records, max_in_flight: watch.max_in_flight(), marks: watch.marks() }
    })
    .unwrap()
}

pub(super) type Serving = std::pin::Pin<Box<dyn Future<Output = TurnRecord> + Send>>;

/// A server that takes for each turn as long as `span` says.
pub(super) fn taking(
    span: impl Fn(&TurnRecord) -> Duration + Clone + Send + Sync + 'static,
) -> impl Fn(Clock, TurnRecord) -> Serving + Clone + Send + Sync + 'static {
    move |clock, mut turn| {
        let span = span(&turn);
        Box::pin(async move {
            turn.sent_us = Some(clock.now().into());
            clock.sleep_until(clock.now() + span).await;
            turn.done_us = Some(clock.now().into());
            turn.outcome = Outcome::Complete;
            turn
        })
    }
}

/// A server that takes `span` for every turn.
fn steady(span: Duration) -> impl Fn(Clock, TurnRecord) -> Serving + Clone + Send + Sync + 'static {
    taking(move |_| span)
}

fn limits(sessions: Option<usize>, turns: Option<usize>, think: Duration) -> Limits {
    Limits { sessions, turns, ramp_up: Duration::ZERO, duration: None, think }
}

#[test]
fn a_closed_loop_refills_a_slot_the_instant_it_is_free() {
    let Ran { driven, records, max_in_flight, .. } =
        run(|clock| load(&sessions(2, 5, 1), limits(Some(4), None, Duration::ZERO), clock), steady(100 * MS));
    assert_eq!((max_in_flight, driven.ended.since(driven.started)), (4, Micros(300_000)));
    let mut due: Vec<u64> = records.iter().map(|turn| turn.due_us.0 / 1000).collect();
    due.sort_unstable();
    assert_eq!(due, [0, 0, 0, 0, 100, 100, 100, 100, 200, 200]);
    assert!(records.iter().all(|turn| turn.sent_us == Some(turn.due_us)));
}

#[test]
fn turns_of_a_session_are_sequential_and_wait_for_their_user() {
    let Ran { mut records, .. } =
        run(|clock| load(&sessions(1, 1, 3), limits(Some(4), None, 50 * MS), clock), steady(100 * MS));
    records.sort_by_key(|turn| turn.turn);
    let due: Vec<u64> = records.iter().map(|turn| turn.due_us.0 / 1000).collect();
    assert_eq!(due, [0, 150, 300]);
    assert!(records.iter().all(|turn| turn.key == records[0].key), "one key a session");
}

#[test]
fn a_limit_of_turns_moves_due_times_only_without_a_rate() {
    let closed = sessions(1, 3, 1);
    let Ran { records, max_in_flight, .. } =
        run(|clock| load(&closed, limits(Some(3), Some(1), Duration::ZERO), clock), steady(100 * MS));
    assert_eq!(max_in_flight, 1);
    assert!(
        records.iter().all(|turn| turn.cap_wait_us.is_none() && turn.sent_us == Some(turn.due_us)),
        "due is the permit's instant"
    );
    let open = format!("{closed}\nload.rate = 1000.0");
    let Ran { records, max_in_flight, .. } =
        run(|clock| load(&open, limits(None, Some(1), Duration::ZERO), clock), steady(100 * MS));
    assert_eq!(max_in_flight, 1);
    assert!(records.iter().all(|turn| turn.cap_wait_us == turn.send_lag()), "and is told apart");
    let lag: Vec<u64> = records.iter().map(|turn| turn.send_lag().unwrap().0 / 1000).collect();
    assert!(lag[2] >= 190, "waiting for a permit is send lag under a rate: {lag:?}");
}

#[test]
fn a_slow_server_delays_no_arrival_of_an_open_loop() {
    let open = format!("{}\nload.rate = 100.0", sessions(1, 50, 1));
    let make = |span| run(|clock| load(&open, limits(None, None, Duration::ZERO), clock), steady(span)).records;
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
    let Ran { records, .. } =
        run(|clock| load(&sessions(1, 2, 4), limits(Some(2), None, Duration::ZERO), clock), serve);
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
fn an_interrupt_lets_what_is_under_way_end_and_sends_nothing_more() {
    let stop = Stop::default();
    let ending = stop.clone();
    let serve = taking(|_| 2 * MS);
    let serve = move |clock: Clock, turn: TurnRecord| {
        if clock.now() >= 4 * MS {
            ending.sending.cancel();
        }
        serve(clock, turn)
    };
    let make = |clock: &Clock| Load {
        stop: stop.clone(),
        ..load(&sessions(2, 5, 2), limits(Some(1), None, Duration::ZERO), clock)
    };
    let Ran { driven, records, .. } = run(make, serve);
    assert_eq!(driven.ended_by, EndedBy::Interrupt);
    let outcomes: Vec<_> = records.iter().map(|turn| (turn.turn, turn.outcome)).collect();
    // The session under way is accounted for; those that never started leave nothing.
    let expected = [(0, Outcome::Complete), (1, Outcome::Complete), (0, Outcome::Complete), (1, Outcome::Cancelled)];
    assert_eq!(outcomes, expected);
}

/// Of five sessions, two at a time, any may panic: early, so that the loop still starts others, or last.
#[test]
fn sessions_that_panic_are_counted_and_end_no_other() {
    for panicking in 0_u32..32 {
        let serve = move |clock: Clock, mut turn: TurnRecord| async move {
            clock.sleep_until(clock.now() + MS).await;
            assert!(panicking & (1 << turn.session) == 0, "this panic is part of the test");
            turn.done_us = Some(clock.now().into());
            turn.outcome = Outcome::Complete;
            turn
        };
        let Ran { driven, records, .. } =
            run(|clock| load(&sessions(1, 5, 1), limits(Some(2), None, Duration::ZERO), clock), serve);
        let lost = panicking.count_ones() as usize;
        assert_eq!((driven.lost_sessions, records.len()), (lost, 5 - lost), "{panicking:b}");
    }
}

/// Row B93: lanes are what workers are elsewhere. However many send, each prompt is sent once, and all are the same.
#[tokio::test]
async fn the_prompts_do_not_depend_on_the_lanes_that_send_them() {
    let sent = async |lanes: usize| {
        let clock = Clock::wall();
        let lanes = Lanes::threads(lanes).unwrap();
        let load = Load { lanes, ..load(&sessions(4, 25, 1), limits(Some(8), None, Duration::ZERO), &clock) };
        let (sender, mut receiver) = mpsc::channel(4);
        let texts = Arc::new(std::sync::Mutex::new(vec![]));
        let log = Arc::clone(&texts);
        let send = move |turn: TurnRecord, text: String, ()| {
            log.lock().unwrap().push(text);
            let now = Some(clock.now().into());
            async move { (TurnRecord { sent_us: now, done_us: now, outcome: Outcome::Complete, ..turn }, String::new()) }
        };
        let receiving = async { while receiver.recv().await.is_some() {} };
        tokio::join!(drive(load, |_, prompt| prompt.text(), |_, _: &String| (), send, sender), receiving);
        let mut texts = std::mem::take(&mut *texts.lock().unwrap());
        texts.sort_unstable();
        texts
    };
    let one = sent(1).await;
    let mut distinct = one.clone();
    distinct.dedup();
    assert_eq!((one.len(), distinct.len()), (100, 100));
    for lanes in [2, 4] {
        assert_eq!(sent(lanes).await, one, "{lanes} lanes");
    }
}
