//! Cases that need a socket (B29–B48, B71–B83, B85): the client against a scripted server. Outcome, counts, text and the requests
//! seen are checked, no times.

use std::net::ToSocketAddrs as _;
use std::time::Duration;

use gspbench::record::{Failure, Oddity, Outcome, TurnRecord};
use gspbench::units::Micros;
use gspbench::workload::Api;

use crate::play::{DONE, content, counted, ending, role};
use crate::scripted::{Answer, BREATH, Scripted, Seen, Step, chunk, end, head, stream};
use crate::wire_client::{Bench, Sender, chat_turn};

/// A server that answers every request with these steps.
fn steps(make: impl Fn() -> Vec<Step> + Send + Sync + 'static) -> Scripted {
    Scripted::start(move |_| Answer::Steps(make()))
}

fn good() -> Answer {
    stream([role(), content("a"), content("b"), content("c"), ending(10, 3)])
}

fn outcome(turn: &TurnRecord) -> (Outcome, u32) {
    (turn.outcome, turn.frames)
}

fn chat(base: &str) -> Bench {
    Sender::new(Api::Chat, base).build()
}

/// B29, B30, B33, B35: text and counts do not depend on where writes or chunks end.
#[test]
fn text_arrives_byte_exact_however_it_is_written() {
    let wire = role() + &content("a ") + &content(" x y\n") + &ending(10, 2);
    let crlf = wire.replace('\n', "\r\n");
    for wire in [wire, crlf] {
        for cut in [5, 7, wire.len() / 3, wire.find("x y").unwrap() - 1, wire.len() - 1] {
            let (first, second) = (wire[..cut].to_owned(), wire[cut..].to_owned());
            let server = steps(move || vec![head(), chunk(&first), BREATH, chunk(&second), end()]);
            let (turn, text) = chat_turn(&server.url);
            assert_eq!((outcome(&turn), text.as_str()), ((Outcome::Complete, 2), "a  x y\n"), "cut at {cut}");
            assert_eq!((turn.output_tokens, turn.status), (Some(2), Some(200)));
        }
    }
}

/// B36, B37
#[test]
fn a_huge_event_in_tiny_writes_is_one_event() {
    let server = steps(|| {
        let event = content(&"a".repeat(1_000_000));
        let pieces = event.as_bytes().chunks(64).map(chunk);
        [head()].into_iter().chain(pieces).chain([chunk(ending(10, 250_000)), end()]).collect()
    });
    let (turn, text) = chat_turn(&server.url);
    assert_eq!((outcome(&turn), text.len()), ((Outcome::Complete, 1), 1_000_000));
}

/// B38
#[test]
fn done_ends_a_turn_whose_connection_stays_open_and_is_not_used_again() {
    let server = steps(|| vec![head(), chunk(content("a") + &ending(10, 1)), Step::Hold]);
    let bench = chat(&server.url);
    for number in 0..2 {
        assert_eq!(outcome(&bench.turn(number).0), (Outcome::Complete, 1));
    }
    let connections: Vec<usize> = server.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 1]);
    let late = steps(|| vec![head(), chunk(content("a") + &ending(10, 1) + &content("late")), end()]);
    let (turn, text) = chat_turn(&late.url);
    assert_eq!((turn.outcome, turn.oddities, text.as_str()), (Outcome::Complete, vec![Oddity::AfterDone], "a"));
}

/// B38: what the end waits for is not the server's next word.
#[test]
fn done_ends_a_turn_long_before_its_silence_would() {
    let server = steps(|| vec![head(), chunk(content("a") + &ending(10, 1)), Step::Hold]);
    let mut sender = Sender::new(Api::Chat, &server.url);
    sender.settings.idle_timeout = Duration::from_secs(24 * 3_600);
    let bench = sender.build();
    let ended = bench.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), bench.send(0)).await });
    assert_eq!(outcome(&ended.expect("ends by itself").0), (Outcome::Complete, 1));
}

/// B39, B48, B72: one turn is one request, and requests share a connection.
#[test]
fn a_turn_is_one_request_and_connections_are_kept() {
    let server = Scripted::start(|_| good());
    let bench = chat(&server.url);
    let turns: Vec<TurnRecord> = (0..50).map(|number| bench.turn(number).0).collect();
    assert!(turns.iter().all(|turn| outcome(turn) == (Outcome::Complete, 3) && turn.resends == 0));
    assert_eq!((server.turns().len(), server.connections()), (50, 1));
    let dialed = turns.iter().filter(|turn| turn.reused_connection == Some(false)).count();
    assert_eq!((dialed, turns[0].reused_connection), (1, Some(false)));
    let busy = Scripted::start(|_| {
        Answer::Raw(b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 4\r\n\r\nbusy".to_vec())
    });
    let (turn, _) = chat_turn(&busy.url);
    assert_eq!((turn.outcome, turn.detail.as_deref()), (Outcome::Failed(Failure::Http(429)), Some("busy")));
    assert_eq!((busy.turns().len(), turn.resends), (1, 0));
}

/// B12(a), B42, B47
#[test]
fn bodies_that_are_no_stream_are_told_apart() {
    let cases: [(u16, &str, &str, Outcome); 5] = [
        (
            200,
            "application/json",
            "{\"error\":{\"message\":\"too long\",\"code\":400}}",
            Outcome::Failed(Failure::InBandError),
        ),
        (503, "text/html", "<html>busy</html>", Outcome::Failed(Failure::Http(503))),
        (400, "text/event-stream", "{\"error\":{\"message\":\"no\"}}", Outcome::Failed(Failure::Http(400))),
        (
            200,
            "application/json",
            "{\"choices\":[{\"message\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}]}",
            Outcome::Complete,
        ),
        (302, "text/html", "", Outcome::Failed(Failure::Http(302))),
    ];
    for (status, kind, body, expected) in cases {
        let server = Scripted::start(move |_| Answer::Whole(status, kind, body.to_owned()));
        let (turn, _) = chat_turn(&server.url);
        assert_eq!((turn.outcome, turn.first_us, server.turns().len()), (expected, None, 1), "{status} {body}");
    }
}

/// B38, B45, B46
#[test]
fn a_reply_that_breaks_off_is_no_success_however_it_breaks() {
    let three = || chunk(content("a") + &content("b") + &content("c"));
    let truncated = (Outcome::Failed(Failure::Truncated), 3);
    let cut = steps(move || vec![head(), three(), Step::Close]);
    assert_eq!(outcome(&chat_turn(&cut.url).0), truncated);
    let clean_but_endless = steps(move || vec![head(), three(), end()]);
    assert_eq!(outcome(&chat_turn(&clean_but_endless.url).0), truncated);
    let bare = |more: &'static str| {
        steps(move || {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{more}\r\n");
            vec![
                Step::Write(head.into()),
                Step::Write((content("a") + &content("b") + &content("c")).into()),
                Step::Close,
            ]
        })
    };
    assert_eq!(outcome(&chat_turn(&bare("").url).0), truncated, "ended by closing");
    assert_eq!(outcome(&chat_turn(&bare("content-length: 5000\r\n").url).0), truncated, "short of its length");
    let trailer =
        steps(move || vec![head(), three(), chunk(ending(10, 3)), Step::Write(b"0\r\n".to_vec()), Step::Close]);
    let turn = chat_turn(&trailer.url).0;
    assert_eq!((outcome(&turn), turn.oddities), ((Outcome::Complete, 3), vec![Oddity::BrokenAfterDone]));
    let reset = steps(|| {
        let tokens = (1..=5).map(|n| chunk(counted("x", 10, n)));
        [head()].into_iter().chain(tokens).chain([Step::Pause(Duration::from_millis(50)), Step::Reset]).collect()
    });
    let (turn, text) = chat_turn(&reset.url);
    assert_eq!(
        (outcome(&turn), turn.output_tokens, text.as_str()),
        ((Outcome::Failed(Failure::Reset), 5), Some(5), "xxxxx")
    );
}

/// B71
#[test]
fn a_kept_connection_that_was_closed_costs_one_resend_and_no_failure() {
    for api in [Api::Chat, Api::Generate] {
        let native = "data: {\"text\":\"a\",\"meta_info\":{\"completion_tokens\":1,\"finish_reason\":{\"type\":\"length\"}}}\n\n";
        let server = Scripted::start(move |seen: &Seen| match seen.before {
            0 if api == Api::Generate => stream([native, DONE]),
            0 => good(),
            // Used again: gone, before a byte of the reply.
            _ => Answer::Steps(vec![Step::Close]),
        });
        let bench = Sender::new(api, &server.url).build();
        let turns: Vec<TurnRecord> = (0..4).map(|number| bench.turn(number).0).collect();
        assert!(turns.iter().all(|turn| turn.outcome == Outcome::Complete));
        // The first two turns share the pool's connection, which is gone then; so do the next two.
        assert_eq!(turns.iter().map(|turn| turn.resends).collect::<Vec<_>>(), [0, 1, 0, 1]);
        assert_eq!(server.turns().len(), 6);
        let mut ids: Vec<String> =
            server.turns().iter().filter_map(|seen| seen.header("x-request-id").map(str::to_owned)).collect();
        if api == Api::Generate {
            assert!(server.turns().iter().all(|seen| seen.json()["rid"] == *seen.header("x-request-id").unwrap()));
        }
        assert!(server.turns().iter().all(|seen| seen.header("x-session-id") == Some("g1")), "the key stays");
        ids.dedup();
        assert_eq!(ids.len(), 6, "a server that saw the first refuses its id");
        // The second turn is the server's second and third request: its clock runs from the first of them.
        let (seen, sent) = (server.turns(), turns[1].sent_us.unwrap());
        assert!(sent <= bench.clock.at(seen[1].at).into(), "what the lost attempt took is not left out");
        assert!(turns[1].head_us.unwrap() >= bench.clock.at(seen[2].at).into());
    }
}

/// B71: what is no stale connection is not sent again.
#[test]
fn a_fresh_connection_or_a_begun_reply_is_not_resent() {
    let fresh = Scripted::start(|_| Answer::Steps(vec![Step::Close]));
    let turn = chat_turn(&fresh.url).0;
    assert_eq!((turn.outcome, turn.resends, fresh.turns().len()), (Outcome::Failed(Failure::Reset), 0, 1));
    let begun = Scripted::start(|seen| match seen.before {
        0 => good(),
        _ => Answer::Steps(vec![head(), chunk(content("a")), Step::Close]),
    });
    let bench = chat(&begun.url);
    bench.turn(0);
    let turn = bench.turn(1).0;
    assert_eq!((outcome(&turn), turn.resends), ((Outcome::Failed(Failure::Truncated), 1), 0));
    // Sent again only once.
    let gone = Scripted::start(|seen| {
        if seen.connection == 0 && seen.before == 0 { good() } else { Answer::Steps(vec![Step::Reset]) }
    });
    let bench = chat(&gone.url);
    bench.turn(0);
    let turn = bench.turn(1).0;
    assert_eq!((turn.outcome, turn.resends, gone.turns().len()), (Outcome::Failed(Failure::Reset), 1, 3));
}

/// B76, B77
#[test]
fn silence_is_a_timeout_and_length_is_none() {
    let timed = |server: &Scripted, first_byte: u64, idle: u64| {
        let mut sender = Sender::new(Api::Chat, &server.url);
        sender.settings.first_byte_timeout = Duration::from_millis(first_byte);
        sender.settings.connect_timeout = Duration::from_millis(first_byte);
        sender.settings.idle_timeout = Duration::from_millis(idle);
        sender.build().turn(0).0
    };
    let slow = steps(|| {
        let tokens = (0..12).flat_map(|_| [chunk(content("x")), Step::Pause(Duration::from_millis(100))]);
        [head()].into_iter().chain(tokens).chain([chunk(ending(10, 12)), end()]).collect()
    });
    assert_eq!(outcome(&timed(&slow, 1_000, 1_000)), (Outcome::Complete, 12), "longer than any of its timeouts");
    let silent =
        steps(|| [head()].into_iter().chain((0..5).map(|_| chunk(content("x")))).chain([Step::Hold]).collect());
    let timed_out = timed(&silent, 60_000, 100);
    assert_eq!(outcome(&timed_out), (Outcome::Failed(Failure::IdleTimeout), 5));
    assert!(timed_out.done_us.unwrap().since(timed_out.last_us.unwrap()) >= Micros(100_000), "{timed_out:?}");
    let headers_only = steps(|| vec![head(), Step::Hold]);
    assert_eq!(outcome(&timed(&headers_only, 50, 60_000)), (Outcome::Failed(Failure::FirstByteTimeout), 0));
    let mute = steps(|| vec![Step::Hold]);
    assert_eq!(outcome(&timed(&mute, 50, 60_000)), (Outcome::Failed(Failure::FirstByteTimeout), 0));
}

/// B76: what ends a stream is silence; a healthy one may last longer than all of the time-outs in a row.
#[test]
fn a_stream_may_outlast_the_sum_of_its_timeouts() {
    let (pause, connect, first_byte, idle) = (100, 500, 1_000, 2_000);
    let tokens: u32 = 40;
    assert!(u64::from(tokens) * pause > connect + first_byte + idle);
    let slow = steps(move || {
        let tokens = (0..tokens).flat_map(|_| [Step::Pause(Duration::from_millis(pause)), chunk(content("x"))]);
        [head()].into_iter().chain(tokens).chain([chunk(ending(10, 40)), end()]).collect()
    });
    let mut sender = Sender::new(Api::Chat, &slow.url);
    sender.settings.connect_timeout = Duration::from_millis(connect);
    sender.settings.first_byte_timeout = Duration::from_millis(first_byte);
    sender.settings.idle_timeout = Duration::from_millis(idle);
    let (turn, text) = sender.build().turn(0);
    assert_eq!((outcome(&turn), turn.output_tokens), ((Outcome::Complete, tokens), Some(tokens)));
    assert_eq!(text.len(), 40);
}

/// The run's own end is no failure of the server.
#[test]
fn a_turn_that_the_run_cuts_is_cancelled_and_keeps_what_came() {
    let server = steps(|| vec![head(), chunk(content("x")), Step::Hold]);
    let bench = chat(&server.url);
    let cancel = bench.cancel.clone();
    let (turn, _) = bench.runtime.block_on(async {
        let cutting = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            cancel.cancel();
        };
        tokio::join!(bench.send(0), cutting).0
    });
    assert_eq!(turn.outcome, Outcome::Cancelled);
}

/// B78
#[test]
fn compression_is_not_asked_for_and_is_undone_and_noted() {
    use std::io::Write as _;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let mut pieces = vec![];
    for event in [content("a"), content("b"), ending(10, 2)] {
        gzip.write_all(event.as_bytes()).unwrap();
        gzip.flush().unwrap();
        pieces.push(std::mem::take(gzip.get_mut()));
    }
    pieces.push(gzip.finish().unwrap());
    let server = steps(move || {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n";
        [Step::Write(head.into())].into_iter().chain(pieces.iter().map(chunk)).chain([end()]).collect()
    });
    let (turn, text) = chat_turn(&server.url);
    assert_eq!(
        (outcome(&turn), text.as_str(), turn.oddities),
        ((Outcome::Complete, 2), "ab", vec![Oddity::Compressed])
    );
    assert_eq!(server.turns()[0].header("accept-encoding"), Some("identity"));
    let odd = Scripted::start(|_| {
        Answer::Raw(b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 1\r\n\r\nx".to_vec())
    });
    let turn = chat_turn(&odd.url).0;
    assert_eq!(turn.outcome, Outcome::Failed(Failure::Protocol));
    assert!(turn.detail.unwrap().contains("`br`"));
}

/// B82
#[test]
fn ipv6_is_reached_with_its_brackets() {
    let Ok(server) = Scripted::start_at("[::1]:0", |_| good()) else {
        eprintln!("skipped: this host has no ::1");
        return;
    };
    for base in [server.url.clone(), format!("{}/v1", server.url)] {
        assert_eq!(chat_turn(&base).0.outcome, Outcome::Complete);
    }
    let port = server.url.rsplit(':').next().unwrap().to_owned();
    if ("localhost", 0).to_socket_addrs().is_ok_and(|mut found| found.any(|address| address.is_ipv6())) {
        assert_eq!(chat_turn(&format!("http://localhost:{port}")).0.outcome, Outcome::Complete);
    } else {
        eprintln!("skipped in part: localhost is not ::1 here");
    }
    let host = format!("[::1]:{port}");
    assert_eq!(server.turns()[0].header("host"), Some(host.as_str()));
}

/// B83
#[test]
fn a_base_url_may_have_a_path_a_slash_and_a_query() {
    let server = Scripted::start(|_| good());
    for (tail, path) in [
        ("", "/v1/chat/completions"),
        ("/api/v1", "/api/v1/chat/completions"),
        ("/api/v1/", "/api/v1/chat/completions"),
        ("/api/v1?k=1", "/api/v1/chat/completions?k=1"),
    ] {
        assert_eq!(chat_turn(&format!("{}{tail}", server.url)).0.outcome, Outcome::Complete);
        assert_eq!(server.turns().last().unwrap().path, path);
    }
}

/// B85
#[test]
fn a_key_is_sent_as_it_is_and_none_is_sent_without() {
    let server = Scripted::start(|_| good());
    for (key, header) in [(None, None), (Some("abc"), Some("Bearer abc"))] {
        let mut sender = Sender::new(Api::Chat, &server.url);
        sender.settings.api_key = key.map(str::to_owned);
        assert_eq!(sender.build().turn(0).0.outcome, Outcome::Complete);
        assert_eq!(server.turns().last().unwrap().header("authorization"), header);
    }
}

/// Nobody listens, and a name that is none.
#[test]
fn no_connection_is_a_failure_to_connect() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let turn = chat_turn(&format!("http://127.0.0.1:{port}")).0;
    assert_eq!((turn.outcome, turn.sent_us), (Outcome::Failed(Failure::Connect), None));
}
