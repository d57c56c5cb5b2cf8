//! Replies that never end, over a socket: each costs its turn, whose record names the limit, and the connection is closed.

use std::time::Duration;

use gspbench::record::{Failure, Outcome};
use gspbench::workload::Api;

use crate::scripted::{Answer, Scripted, Step, chunk, end, head, stream};
use crate::wire_client::Sender;

fn reply() -> String {
    let words = "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}";
    format!("data: {words}\n\ndata: [DONE]\n\n")
}

/// A server that says this again and again, in chunks as large as given, until nobody listens any more; then, good replies.
fn endless(said: String) -> Scripted {
    endless_after(String::new(), said)
}

fn endless_after(first: String, said: String) -> Scripted {
    Scripted::start(move |seen| {
        if seen.connection > 0 {
            return stream([reply()]);
        }
        let said = said.clone();
        let begun = std::iter::once(head()).chain((!first.is_empty()).then(|| chunk(&first)));
        let pour = std::iter::repeat_with(move || chunk(&said));
        Answer::Pour(Box::new(begun.chain(pour)) as Box<dyn Iterator<Item = Step>>)
    })
}

#[test]
fn a_reply_without_an_end_fails_at_its_limit_and_the_next_turn_goes_on() {
    let long = "x".repeat(1 << 16);
    let text = format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{long}\"}}}}]}}\n\n");
    let cases = [
        ("text", text, "the reply's text is longer than 1677"),
        ("events without output", "data:\n\n".repeat(1 << 13), "the reply has more than 104"),
        ("one line", long.clone(), "a line or event of the reply is longer than 67108864 bytes"),
        ("lines of one event", format!("data: {long}\n"), "a line or event of the reply is longer than 67108864 bytes"),
        ("no event stream", format!("{long}\n"), "the reply has more than 4194304 bytes that are no events"),
        (
            "comments",
            format!(": {long}\n\n"),
            "the reply has more than 67108864 bytes of comments and blank lines in a row",
        ),
    ];
    for (what, said, words) in cases {
        let server = endless(said);
        let bench = Sender::new(Api::Chat, &server.url).build();
        let (turn, _) = bench.turn(0);
        assert_eq!(turn.outcome, Outcome::Failed(Failure::Protocol), "{what}: {:?}", turn.detail);
        assert!(turn.detail.as_deref().is_some_and(|detail| detail.starts_with(words)), "{what}: {:?}", turn.detail);
        assert_eq!((bench.turn(1).0.outcome, server.connections()), (Outcome::Complete, 2), "{what}");
    }
}

/// What comes after `[DONE]` is read for a moment, so that the connection can be used again, and then left.
#[test]
fn a_server_that_goes_on_after_its_end_is_left() {
    for said in [": x\n\n", "\n", "data: x\n\n", "x"] {
        let server = endless_after(reply(), said.to_owned());
        let bench = Sender::new(Api::Chat, &server.url).build();
        let (turn, text) = bench.turn(0);
        assert_eq!((turn.outcome, text.as_str()), (Outcome::Complete, "a"), "{said:?}: {:?}", turn.detail);
        assert_eq!((bench.turn(1).0.outcome, server.connections()), (Outcome::Complete, 2), "{said:?}");
    }
}

/// Comments keep a long prefill alive: each is a byte of the reply, so that neither silence nor the first byte is at fault
/// while they come, however much longer than both timeouts that takes.
#[test]
fn comments_put_off_the_idle_timeout_and_their_end_does_not() {
    const IDLE: Duration = Duration::from_secs(3);
    let server = Scripted::start(|seen| {
        let pings = (0..24).flat_map(|_| [chunk(": ping\n\n"), Step::Pause(IDLE / 20)]);
        let last = if seen.connection == 0 { vec![chunk(reply()), end()] } else { vec![Step::Hold] };
        Answer::Steps([head()].into_iter().chain(pings).chain(last).collect())
    });
    let mut sender = Sender::new(Api::Chat, &server.url);
    sender.settings.idle_timeout = IDLE;
    let (turn, text) = sender.build().turn(0);
    assert_eq!((turn.outcome, text.as_str()), (Outcome::Complete, "a"), "{:?}", turn.detail);
    assert!(turn.ttft().is_some_and(|ttft| ttft >= IDLE.into()), "a comment is no first token: {turn:?}");
    let mut sender = Sender::new(Api::Chat, &server.url);
    sender.settings.idle_timeout = IDLE;
    let (turn, _) = sender.build().turn(1);
    assert_eq!((turn.outcome, turn.detail.as_deref()), (Outcome::Failed(Failure::IdleTimeout), Some("silence for 3s")));
}
