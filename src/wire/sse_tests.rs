//! The decoder on every cut of a stream, and its limits.

use proptest::prelude::*;

use super::*;

fn decode<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<String>, String) {
    let (events, stray, excess) = decode_within(EVENT_LIMIT, chunks);
    assert!(excess.is_none_or(|excess| excess == Excess::Stray { limit: STRAY_LIMIT }));
    (events, stray)
}

fn decode_within<'a>(
    limit: usize,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<String>, String, Option<Excess>) {
    let mut decoder = SseDecoder { limit, ..SseDecoder::default() };
    let mut events = vec![];
    for chunk in chunks {
        decoder.push(chunk, |data| events.push(String::from_utf8_lossy(data).into_owned()));
    }
    decoder.finish(|data| events.push(String::from_utf8_lossy(data).into_owned()));
    (events, String::from_utf8_lossy(decoder.stray()).into_owned(), decoder.excess())
}

fn whole(wire: &str) -> Vec<String> {
    decode([wire.as_bytes()]).0
}

#[test]
fn fields_comments_and_joined_data_follow_the_standard() {
    assert_eq!(whole("data: a\n\ndata:b\n\ndata:  c\n\n"), ["a", "b", " c"]);
    assert_eq!(whole(": ping\n\nevent: x\nid: 7\nretry: 10\ndata: {\"a\":\ndata: 1}\n\n"), ["{\"a\":\n1}"]);
    assert_eq!(whole("data\n\ndata:\n\n"), ["", ""]);
    assert_eq!(whole("\u{feff}data: a\n\n"), ["a"]);
    assert_eq!(whole("\n\n\n"), Vec::<String>::new());
}

#[test]
fn a_last_event_without_its_blank_line_is_delivered() {
    assert_eq!(whole("data: a\n\ndata: [DONE]"), ["a", "[DONE]"]);
    assert_eq!(whole("data: a\n\ndata: [DONE]\n"), ["a", "[DONE]"]);
}

#[test]
fn what_is_no_event_stream_is_kept_for_the_error() {
    let (events, stray) = decode([b"{\"error\": {\"message\": \"no\"}}".as_slice()]);
    assert!(events.is_empty());
    assert_eq!(stray, "{\"error\": {\"message\": \"no\"}}");
    let (_, long) = decode([vec![b'x'; 3 << 20].as_slice(), b"\n", vec![b'y'; 3 << 20].as_slice()]);
    assert!(long.len() <= STRAY_LIMIT);
}

#[test]
fn a_line_or_an_event_beyond_the_limit_ends_the_stream() {
    let within = |wire: &str| {
        let (events, _, excess) = decode_within(9, [wire.as_bytes()]);
        (events.len(), excess)
    };
    let beyond = Some(Excess::Event { limit: 9 });
    assert_eq!(within("data: abc\n\ndata: abc\n\n"), (2, None));
    assert_eq!(within("data: a\n\ndata: abcd\n\ndata: a\n\n"), (1, beyond));
    assert_eq!(within("data: a\n\n: a long comment\n\ndata: a\n\n"), (1, beyond));
    assert_eq!(within("data: abc\ndata: abc\n\n"), (1, None));
    assert_eq!(within("data: abc\ndata: abc\ndata: abc\n\n"), (0, beyond));
    assert_eq!(within("data: abcd"), (0, beyond));
}

#[test]
fn every_chunk_size_gives_the_same_events() {
    let wire = "\u{feff}: hi\r\ndata: α β\r\n\r\ndata: a\rdata: b\r\rid: 1\ndata:c\n\n\r\ndata: [DONE]\n\n";
    let expected = whole(wire);
    assert_eq!(expected, ["α β", "a\nb", "c", "[DONE]"]);
    for size in 1..=wire.len() {
        assert_eq!(decode(wire.as_bytes().chunks(size)).0, expected, "chunks of {size}");
    }
}

/// B37: no byte is looked at or copied more than a few times, however many reads it took to come.
#[test]
fn work_is_linear_in_bytes() {
    let one = format!("data: {}\n\n", "a".repeat(4 << 20));
    let many = "data: a\ndata: b\n\n: c\r\n".repeat(1 << 16);
    for wire in [one, many] {
        for size in [1, 64, wire.len()] {
            let mut decoder = SseDecoder::default();
            let mut bytes = 0;
            for chunk in wire.as_bytes().chunks(size) {
                decoder.push(chunk, |data| bytes += data.len());
            }
            assert!(bytes > 0);
            assert!(decoder.work <= 5 * wire.len(), "{} for {} bytes in pieces of {size}", decoder.work, wire.len());
        }
    }
}

proptest! {
    #[test]
    fn events_do_not_depend_on_where_the_network_cuts(
        pieces in proptest::collection::vec(
            prop_oneof![
                Just("data: "), Just("data:"), Just("\n"), Just("\r\n"), Just("\r"), Just("x"), Just(":"), Just("é"),
                Just("id: 3"), Just(" "), Just("{\"a\":1}"), Just("\u{feff}"), Just("[DONE]"),
            ],
            0..40,
        ),
        cuts in proptest::collection::vec(0_usize..200, 0..12),
        limit in prop_oneof![Just(EVENT_LIMIT), 0_usize..30],
    ) {
        let wire = pieces.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(wire.len())).collect();
        cuts.extend([0, wire.len()]);
        cuts.sort_unstable();
        let chunks = cuts.windows(2).map(|pair| &wire.as_bytes()[pair[0]..pair[1]]);
        prop_assert_eq!(decode_within(limit, chunks), decode_within(limit, [wire.as_bytes()]));
    }
}

#[test]
fn what_is_no_event_may_go_on_between_two_events_only_so_long() {
    for eventless in [": ping\n\n", "\n", "\r\n", "id: 1\n", "event: x\n\n", "retry: 1\n"] {
        let mut decoder = SseDecoder { limit: 64, ..SseDecoder::default() };
        let mut events = 0;
        // Below the limit after each event, and far above it in all.
        for _ in 0..100 {
            let some = eventless.repeat(40 / eventless.len());
            decoder.push(some.as_bytes(), |_| events += 1);
            decoder.push(b"data: x\n\n", |_| events += 1);
        }
        assert_eq!((decoder.excess(), events), (None, 100), "{eventless:?}");
        (0..100).for_each(|_| decoder.push(eventless.as_bytes(), |_| events += 1));
        assert_eq!((decoder.excess(), events), (Some(Excess::NoEvent { limit: 64 }), 100), "{eventless:?}");
    }
}
