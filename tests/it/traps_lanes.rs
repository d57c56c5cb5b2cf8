//! What the streams of one lane do to each other (B37, B70): over a socket, by what happened and not by how long it took.

use std::time::Duration;

use gspbench::lanes::Lanes;
use gspbench::units::Micros;
use gspbench::workload::Api;
use tokio::task::JoinSet;

use crate::play::{content, ending};
use crate::scripted::{Answer, BREATH, Scripted, Step, chunk, end, head};
use crate::wire_client::Sender;

/// Chunks of so many events: reading one is work.
const EVENTS: usize = 500;

/// B37: a stream whose next chunk is always there, and timers on its lane, as those of other turns are.
#[test]
fn a_stream_that_pours_leaves_its_lane_time_for_others() {
    const TIMERS: usize = 10;
    let server = Scripted::start(|_| {
        let pour = std::iter::repeat_with(|| chunk(content("x").repeat(EVENTS))).take(20_000);
        Answer::Pour(Box::new([head()].into_iter().chain(pour)))
    });
    let lanes = Lanes::threads(1).unwrap();
    let bench = Sender { lanes: lanes.clone(), ..Sender::new(Api::Chat, &server.url) }.build();
    let (turn, timed) = bench.runtime.block_on(async {
        let (mut turns, mut timers) = (JoinSet::new(), JoinSet::new());
        lanes.spawn(0, &mut turns, bench.send(0));
        let (clock, cancel) = (bench.clock.clone(), bench.cancel.clone());
        lanes.spawn(0, &mut timers, async move {
            // Under way by then, as a rule; nothing depends on it.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let from = Micros::from(clock.now());
            for _ in 0..TIMERS {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let to = Micros::from(clock.now());
            cancel.cancel();
            (from, to)
        });
        let timed = timers.join_next().await.unwrap().unwrap();
        (turns.join_next().await.unwrap().unwrap().0, timed)
    });
    // Events of one chunk have one stamp.
    let mut at = turn.first_us.unwrap();
    let stamps = turn.gaps.iter().filter(|gap| gap.us > 0).map(|gap| {
        at = Micros(at.0 + u64::from(gap.us));
        at
    });
    let chunks = stamps.filter(|at| (timed.0..timed.1).contains(at)).count();
    assert!(chunks < TIMERS * 128, "{chunks} chunks in the time of {TIMERS} timers");
}

/// Stamps on a lane: none before what it stands for was written.
#[test]
fn no_stamp_is_before_its_cause() {
    const WRITES: usize = 20;
    let server = Scripted::start(|_| {
        let tokens = (0..WRITES).flat_map(|_| [BREATH, Step::Note, chunk(content("x"))]);
        Answer::Steps([head()].into_iter().chain(tokens).chain([chunk(ending(10, 20)), end()]).collect())
    });
    let lanes = Lanes::threads(1).unwrap();
    let bench = Sender { lanes: lanes.clone(), ..Sender::new(Api::Chat, &server.url) }.build();
    let turn = bench.runtime.block_on(async {
        let mut turns = JoinSet::new();
        lanes.spawn(0, &mut turns, bench.send(0));
        turns.join_next().await.unwrap().unwrap().0
    });
    let seen = Micros::from(bench.clock.at(server.turns()[0].at));
    assert!(turn.sent_us.unwrap() <= seen && seen <= turn.head_us.unwrap());
    let gaps = turn.gaps.iter().map(|gap| u64::from(gap.us));
    let stamps: Vec<u64> = std::iter::once(turn.first_us.unwrap().0)
        .chain(gaps)
        .scan(0, |at, step| {
            *at += step;
            Some(*at)
        })
        .collect();
    let written: Vec<u64> = server.noted().into_iter().map(|at| Micros::from(bench.clock.at(at)).0).collect();
    assert_eq!((stamps.len(), written.len()), (WRITES, WRITES));
    assert!(stamps.iter().zip(&written).all(|(stamp, written)| stamp >= written), "{stamps:?} {written:?}");
}
