//! A server that keeps an exact schedule and says when it wrote what: what a client's clocks are held against.
//!
//! It simulates nothing. Each request gets its tokens at fixed intervals after it has arrived, one event and one write a
//! token, by a thread that sleeps until the next write is due (the runtime's timer would add a millisecond). What counts is
//! not the schedule but the stamp before each write, so a busy host makes this server late, never wrong.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};

/// When tokens are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// From the request's last byte to the first token.
    pub first: Duration,
    /// From each token to the next.
    pub interval: Duration,
}

/// What was written for one request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The request's `X-Request-ID`.
    pub id: String,
    /// From the request's arrival in this process to the write of the first token.
    pub first_us: u64,
    /// From the write of each token to that of the next.
    pub gaps_us: Vec<u64>,
    /// How late the latest write was.
    pub late_us: u64,
}

/// Most bytes that a request may have.
const REQUEST_LIMIT: usize = 1 << 20;
/// How long a write waits that the client's full buffer held up.
const RETRY: Duration = Duration::from_millis(1);
const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n";
const END: &[u8] = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

/// Answers every request on `listener` by the schedule; `log` gets each reply when it is written, on a thread of its own.
///
/// # Errors
/// When the socket fails.
pub async fn serve_schedule(
    listener: TcpListener,
    schedule: Schedule,
    log: impl FnMut(Written) + Send + 'static,
) -> io::Result<()> {
    let (replies, due) = channel();
    let (written, to_log) = channel();
    std::thread::Builder::new().name("truth-writer".to_owned()).spawn(move || write_on_time(&due, &written))?;
    std::thread::Builder::new().name("truth-log".to_owned()).spawn(move || to_log.into_iter().for_each(log))?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        tokio::spawn(requests(Arc::new(socket), schedule, replies.clone()));
    }
}

/// Reads one connection's requests; a request that cannot be understood ends it.
async fn requests(socket: Arc<TcpStream>, schedule: Schedule, replies: Sender<Reply>) {
    let mut bytes = Vec::new();
    while let Ok(Some(request)) = next_request(&socket, &mut bytes).await {
        let reply = Reply::new(Arc::clone(&socket), request, schedule, Instant::now());
        if replies.send(reply).is_err() {
            return;
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Request {
    id: String,
    tokens: u32,
}

async fn next_request(socket: &TcpStream, bytes: &mut Vec<u8>) -> io::Result<Option<Request>> {
    loop {
        if let Some((request, length)) = parse(bytes)? {
            bytes.drain(..length);
            return Ok(Some(request));
        }
        if bytes.len() > REQUEST_LIMIT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        socket.readable().await?;
        match socket.try_read_buf(bytes) {
            Ok(0) => return Ok(None),
            Ok(_) => {}
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(why) => return Err(why),
        }
    }
}

/// The request at the head of `bytes` and its length, once it is whole.
fn parse(bytes: &[u8]) -> io::Result<Option<(Request, usize)>> {
    let Some(head_length) = bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4) else {
        return Ok(None);
    };
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let head = str::from_utf8(&bytes[..head_length]).map_err(|_| invalid())?;
    let header = |name: &str| {
        let of_name = |line: &str| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        };
        head.lines().find_map(of_name)
    };
    let body_length: usize = header("content-length").and_then(|length| length.parse().ok()).ok_or_else(invalid)?;
    let Some(body) = bytes.get(head_length..head_length + body_length) else { return Ok(None) };
    #[derive(Deserialize)]
    struct Body {
        max_tokens: u32,
    }
    let Body { max_tokens } = serde_json::from_slice(body).map_err(|_| invalid())?;
    let request = Request { id: header("x-request-id").unwrap_or_default(), tokens: max_tokens.max(1) };
    Ok(Some((request, head_length + body_length)))
}

/// A reply under way.
#[derive(Debug)]
struct Reply {
    socket: Arc<TcpStream>,
    id: String,
    tokens: u32,
    schedule: Schedule,
    arrived: Instant,
    /// Tokens written.
    count: u32,
    due: Instant,
    /// Of the last token.
    wrote: Instant,
    written: Written,
    /// What a full buffer did not take.
    unsent: Vec<u8>,
}

impl Reply {
    fn new(socket: Arc<TcpStream>, Request { id, tokens }: Request, schedule: Schedule, arrived: Instant) -> Self {
        let gaps_us = Vec::with_capacity(tokens as usize);
        let written = Written { id: id.clone(), first_us: 0, gaps_us, late_us: 0 };
        let due = arrived + schedule.first;
        Self { socket, id, tokens, schedule, arrived, count: 0, due, wrote: arrived, written, unsent: Vec::new() }
    }

    /// Writes what is due. Whether the reply is finished; an error means that the client has gone.
    fn step(&mut self) -> io::Result<bool> {
        if self.unsent.is_empty() {
            self.note_write(Instant::now());
            self.unsent = self.event();
        }
        match self.socket.try_write(&self.unsent) {
            Ok(length) => drop(self.unsent.drain(..length)),
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(why) => return Err(why),
        }
        if !self.unsent.is_empty() {
            self.due = Instant::now() + RETRY;
            return Ok(false);
        }
        self.due = self.arrived + self.schedule.first + self.schedule.interval * self.count;
        Ok(self.count == self.tokens)
    }

    fn note_write(&mut self, now: Instant) {
        let since = |earlier: Instant| u64::try_from((now - earlier).as_micros()).unwrap_or(u64::MAX);
        if self.count == 0 {
            self.written.first_us = since(self.arrived);
        } else {
            self.written.gaps_us.push(since(self.wrote));
        }
        self.written.late_us = self.written.late_us.max(since(self.due.min(now)));
        self.wrote = now;
        self.count += 1;
    }

    /// The event of the token just counted, with the head before the first and the end after the last.
    fn event(&self) -> Vec<u8> {
        let Self { id, count, tokens, .. } = self;
        let finish = if count == tokens { "\"length\"" } else { "null" };
        let event = format!(
            "data: {{\"id\":\"{id}\",\"object\":\"text_completion\",\"created\":0,\"model\":\"schedule\",\"choices\":[{{\"index\":0,\
             \"text\":\" word\",\"logprobs\":null,\"finish_reason\":{finish}}}],\"usage\":{{\"prompt_tokens\":1,\
             \"total_tokens\":{},\"completion_tokens\":{count}}}}}\n\n",
            count + 1
        );
        let mut bytes = if *count == 1 { HEAD.to_vec() } else { Vec::new() };
        bytes.extend_from_slice(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes());
        if count == tokens {
            bytes.extend_from_slice(END);
        }
        bytes
    }
}

/// Writes each token when it is due, until nobody can ask for more.
fn write_on_time(replies: &Receiver<Reply>, log: &Sender<Written>) {
    // By due time, then in order of arrival.
    let mut queue: BTreeMap<(Instant, u64), Box<Reply>> = BTreeMap::new();
    let mut arrivals = 0;
    loop {
        let next = queue.first_key_value().map(|((due, _), _)| *due);
        match arrival(replies, next) {
            Ok(reply) => {
                arrivals += 1;
                queue.insert((reply.due, arrivals), Box::new(reply));
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let Some(((_, number), mut reply)) = queue.pop_first() else { continue };
        match reply.step() {
            Ok(false) => drop(queue.insert((reply.due, number), reply)),
            Ok(true) => drop(log.send(reply.written)),
            // The client has gone: nobody will compare.
            Err(_) => {}
        }
    }
}

/// A reply that arrives before `next` is due.
fn arrival(replies: &Receiver<Reply>, next: Option<Instant>) -> Result<Reply, RecvTimeoutError> {
    let Some(next) = next else { return replies.recv().map_err(|_| RecvTimeoutError::Disconnected) };
    match next.checked_duration_since(Instant::now()) {
        Some(wait) => replies.recv_timeout(wait),
        None => replies.try_recv().map_err(|why| match why {
            TryRecvError::Empty => RecvTimeoutError::Timeout,
            TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_when_it_is_whole() {
        let whole =
            b"POST /v1/completions HTTP/1.1\r\nX-Request-Id: r7\r\ncontent-length: 16\r\n\r\n{\"max_tokens\":3}GET";
        for cut in 0..whole.len() - 3 {
            assert_eq!(parse(&whole[..cut]).unwrap(), None, "{cut}");
        }
        let (request, length) = parse(whole).unwrap().unwrap();
        assert_eq!((request, length), (Request { id: "r7".into(), tokens: 3 }, whole.len() - 3));
        assert!(parse(b"GET / HTTP/1.1\r\n\r\n").is_err());
    }
}
