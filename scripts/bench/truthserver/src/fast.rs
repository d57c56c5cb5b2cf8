//! An event rendered once: each later one takes its bytes and replaces what differs, so that asking for usage in every
//! event (`continuous_usage_stats`) costs the server about as little as not asking.
use crate::render;

pub enum Fast {
    /// A whole HTTP chunk, and the offset of its text. The buffer is lent out as a write's bytes and taken back after it.
    Text(Vec<u8>, usize),
    Counted(Counted),
}

/// One SSE event in three parts; between them stand the total and the completion tokens.
pub struct Counted {
    parts: [Vec<u8>; 3],
    text_at: usize,
    prompt_tokens: u64,
}

impl Counted {
    /// Of an event as the plain way renders it. None where its text or its counts are not found.
    pub fn of(sse: &[u8], text: &str, prompt_tokens: u64) -> Option<Self> {
        const TOTAL: &[u8] = b"\"total_tokens\":";
        const DONE: &[u8] = b"\"completion_tokens\":";
        let after = |from: usize, what: &[u8]| Some(from + find(&sse[from..], what)? + what.len());
        let digits = |from: usize| from + sse[from..].iter().take_while(|b| b.is_ascii_digit()).count();
        let text_at = find(sse, text.as_bytes())?;
        let total = after(text_at + text.len(), TOTAL)?;
        let done = after(total, DONE)?;
        let parts = [&sse[..total], &sse[digits(total)..done], &sse[digits(done)..]].map(<[u8]>::to_vec);
        Some(Self { parts, text_at, prompt_tokens })
    }

    /// The HTTP chunk of the event with tokens [from, from + n).
    pub fn write(&mut self, out: &mut Vec<u8>, from: usize, n: usize) {
        let done = (from + n) as u64;
        let (mut a, mut b) = ([0; 20], [0; 20]);
        let (total, done) = (decimal(&mut a, self.prompt_tokens + done), decimal(&mut b, done));
        let [head, mid, end] = &mut self.parts;
        for j in 0..n { head[self.text_at + j * 5..self.text_at + j * 5 + 5].copy_from_slice(&render::token(from + j)); }
        let mut c = [0; 16];
        let length = hex(&mut c, head.len() + total.len() + mid.len() + done.len() + end.len());
        for part in [length, b"\r\n", head, total, mid, done, end, b"\r\n"] { out.extend_from_slice(part) }
    }
}

fn decimal(room: &mut [u8; 20], mut n: u64) -> &[u8] {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 { return &room[at..] }
    }
}

fn hex(room: &mut [u8; 16], mut n: usize) -> &[u8] {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b"0123456789abcdef"[n % 16];
        n /= 16;
        if n == 0 { return &room[at..] }
    }
}

pub fn find(h: &[u8], n: &[u8]) -> Option<usize> { h.windows(n.len()).position(|w| w == n) }
