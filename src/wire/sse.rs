//! Server-sent events from bytes, however the network cut them.
//!
//! Lines end in LF, CRLF or CR; comments and unknown fields are skipped; several `data` lines join by LF; a byte order mark
//! at the start is dropped (WHATWG HTML, "Interpreting an event stream"). An event that lies whole in one chunk is handed
//! out without a copy, so the work is linear in bytes. One departure from the standard: an event that the end of the stream
//! leaves without its blank line is delivered, since servers exist that omit it.

/// What of lines that are no SSE field is kept: an error body, or the whole reply of a server that does not stream.
const STRAY_LIMIT: usize = 4 << 20;

/// Bytes of a line, of an event, and of what is none between two events, where nobody says: many times the longest reply, which some servers
/// repeat in every event. Comments that keep a waiting connection alive would take months to fill it.
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
    /// Bytes since the last event of lines that are part of none.
    eventless: usize,
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
    /// Comments, blank lines and fields without output, between two events.
    NoEvent { limit: usize },
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
            eventless: 0,
            #[cfg(test)]
            work: 0,
        }
    }
}

impl SseDecoder {
    /// One for lines and events of at most so many bytes.
    #[must_use]
    pub fn within(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

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
            Line::Skipped => self.skip(line.len()),
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
            Line::Skipped => self.skip(line.len()),
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
        } else {
            return self.skip(0);
        }
        self.eventless = 0;
    }

    /// Counts a line, and its end, that is part of no event.
    fn skip(&mut self, bytes: usize) {
        self.eventless += bytes + 1;
        if self.eventless > self.limit {
            self.exceed(Excess::NoEvent { limit: self.limit });
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
#[path = "sse_tests.rs"]
mod tests;
