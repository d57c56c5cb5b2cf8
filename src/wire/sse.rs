//! Server-sent events from bytes, however the network cut them.
//!
//! Lines end in LF, CRLF or CR; comments and unknown fields are skipped; several `data` lines join by LF; a byte order mark
//! at the start is dropped (WHATWG HTML, "Interpreting an event stream"). An event that lies whole in one chunk is handed
//! out without a copy, so the work is linear in bytes. One departure from the standard: an event that the end of the stream
//! leaves without its blank line is delivered, since servers exist that omit it.

/// What of lines that are no SSE field is kept: an error body, or the whole reply of a server that does not stream.
const STRAY_LIMIT: usize = 4 << 20;

/// Bytes of a line, and of an event: many times the longest reply, which some servers repeat in every event.
const EVENT_LIMIT: usize = 64 << 20;

const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// Decodes one stream.
#[derive(Debug)]
pub struct SseDecoder {
    limit: usize,
    excess: Option<Excess>,
    /// The line under way, when a chunk ended inside it.
    line: Vec<u8>,
    /// Data of the event under way, unless it is borrowed from the chunk at hand.
    data: Option<Vec<u8>>,
    /// A CR ended the last chunk: an LF at the head of the next belongs to it.
    swallow_lf: bool,
    /// Bytes of the byte order mark seen so far; beyond its length once it cannot come any more.
    mark: usize,
    stray: Vec<u8>,
    /// Bytes looked at or copied: the measure of the claim that decoding is linear.
    #[cfg(test)]
    work: usize,
}

/// What a stream had too much of, and the bytes that there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excess {
    /// One line, or the lines of one event.
    Event { limit: usize },
    /// Lines that are no SSE field, all together.
    Stray { limit: usize },
}

impl Default for SseDecoder {
    fn default() -> Self {
        Self {
            limit: EVENT_LIMIT,
            excess: None,
            line: vec![],
            data: None,
            swallow_lf: false,
            mark: 0,
            stray: vec![],
            #[cfg(test)]
            work: 0,
        }
    }
}

impl SseDecoder {
    /// Takes the next bytes and hands the data of each finished event to `emit`. Nothing of what follows an excess.
    pub fn push(&mut self, chunk: &[u8], mut emit: impl FnMut(&[u8])) {
        if self.excess.is_some() {
            return;
        }
        self.spend(chunk.len());
        let mut rest = self.skip_mark(chunk);
        // The only data line of the event under way, while it is a slice of this chunk.
        let mut held: Option<&[u8]> = None;
        if self.swallow_lf && !rest.is_empty() {
            self.swallow_lf = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            let (head, tail) = rest.split_at(end);
            rest = &tail[1..];
            if tail[0] == b'\r' {
                match rest.first() {
                    Some(b'\n') => rest = &rest[1..],
                    Some(_) => {}
                    None => self.swallow_lf = true,
                }
            }
            if self.line.len() + head.len() > self.limit {
                return self.exceed(Excess::Event { limit: self.limit });
            }
            if self.line.is_empty() {
                self.end_line(head, &mut held, &mut emit);
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(head);
                self.spend(head.len());
                self.end_own_line(&line, &mut held, &mut emit);
                line.clear();
                self.line = line;
            }
            if self.excess.is_some() {
                return;
            }
        }
        if self.line.len() + rest.len() > self.limit {
            return self.exceed(Excess::Event { limit: self.limit });
        }
        if let Some(data) = held {
            self.keep(data);
        }
        self.line.extend_from_slice(rest);
        self.spend(rest.len());
    }

    /// What there was too much of: the rest of the stream is not looked at.
    #[must_use]
    pub fn excess(&self) -> Option<Excess> {
        self.excess
    }

    fn exceed(&mut self, excess: Excess) {
        (self.line, self.data) = (vec![], None);
        self.excess.get_or_insert(excess);
    }

    /// Notes work where a test asks for it.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "only tests count work"))]
    fn spend(&mut self, _bytes: usize) {
        #[cfg(test)]
        {
            self.work += _bytes;
        }
    }

    /// Ends the stream: a last line or event that lacks its end is delivered.
    pub fn finish(&mut self, mut emit: impl FnMut(&[u8])) {
        let line = std::mem::take(&mut self.line);
        let mut held = None;
        if !line.is_empty() {
            self.end_own_line(&line, &mut held, &mut emit);
        }
        self.dispatch(&mut held, &mut emit);
    }

    /// The head of whatever was no event stream: at most 4 MiB, lines joined by LF.
    #[must_use]
    pub fn stray(&self) -> &[u8] {
        &self.stray
    }

    fn skip_mark<'a>(&mut self, chunk: &'a [u8]) -> &'a [u8] {
        let mut rest = chunk;
        while self.mark < BYTE_ORDER_MARK.len() {
            match rest.first() {
                None => break,
                Some(byte) if *byte == BYTE_ORDER_MARK[self.mark] => {
                    rest = &rest[1..];
                    self.mark += 1;
                }
                Some(_) => {
                    // The bytes that looked like a mark were text.
                    self.line.extend_from_slice(&BYTE_ORDER_MARK[..self.mark]);
                    self.mark = BYTE_ORDER_MARK.len();
                }
            }
        }
        rest
    }

    /// A whole line that is a slice of the chunk at hand.
    fn end_line<'a>(&mut self, line: &'a [u8], held: &mut Option<&'a [u8]>, emit: &mut impl FnMut(&[u8])) {
        self.spend(line.len());
        match Line::of(line) {
            Line::Blank => self.dispatch(held, emit),
            Line::Data(value) if self.data.is_none() && held.is_none() => *held = Some(value),
            Line::Data(value) => self.join(value, held),
            Line::Skipped => {}
            Line::Stray => self.keep_stray(line),
        }
    }

    /// A whole line that was put together from several chunks.
    fn end_own_line(&mut self, line: &[u8], held: &mut Option<&[u8]>, emit: &mut impl FnMut(&[u8])) {
        self.spend(line.len());
        match Line::of(line) {
            Line::Blank => self.dispatch(held, emit),
            Line::Data(value) if self.data.is_none() && held.is_none() => self.keep(value),
            Line::Data(value) => self.join(value, held),
            Line::Skipped => {}
            Line::Stray => self.keep_stray(line),
        }
    }

    fn join(&mut self, value: &[u8], held: &mut Option<&[u8]>) {
        if let Some(first) = held.take() {
            self.keep(first);
        }
        let data = self.data.get_or_insert_default();
        data.push(b'\n');
        data.extend_from_slice(value);
        if data.len() > self.limit {
            self.exceed(Excess::Event { limit: self.limit });
        }
        self.spend(value.len());
    }

    fn keep(&mut self, value: &[u8]) {
        self.data = Some(value.to_vec());
        self.spend(value.len());
    }

    fn keep_stray(&mut self, line: &[u8]) {
        let room = STRAY_LIMIT.saturating_sub(self.stray.len());
        if !self.stray.is_empty() && room > 0 {
            self.stray.push(b'\n');
        }
        let kept = line.len().min(room.saturating_sub(1));
        self.stray.extend_from_slice(&line[..kept]);
        if kept < line.len() {
            self.exceed(Excess::Stray { limit: STRAY_LIMIT });
        }
    }

    fn dispatch(&mut self, held: &mut Option<&[u8]>, emit: &mut impl FnMut(&[u8])) {
        if let Some(data) = held.take() {
            emit(data);
        } else if let Some(data) = self.data.take() {
            emit(&data);
        }
    }
}

enum Line<'a> {
    Blank,
    Data(&'a [u8]),
    /// A comment, or a field that carries no output.
    Skipped,
    /// No SSE at all.
    Stray,
}

impl<'a> Line<'a> {
    fn of(line: &'a [u8]) -> Self {
        if line.is_empty() {
            return Self::Blank;
        }
        let colon = memchr::memchr(b':', line).unwrap_or(line.len());
        match &line[..colon] {
            b"data" => {
                let value = line.get(colon + 1..).unwrap_or_default();
                Self::Data(value.strip_prefix(b" ").unwrap_or(value))
            }
            b"" | b"event" | b"id" | b"retry" => Self::Skipped,
            _ => Self::Stray,
        }
    }
}

#[cfg(test)]
mod tests {
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
                assert!(
                    decoder.work <= 5 * wire.len(),
                    "{} for {} bytes in pieces of {size}",
                    decoder.work,
                    wire.len()
                );
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
}
