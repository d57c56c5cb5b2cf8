//! A server that says exactly what a test tells it to: raw TCP, one thread a connection, no code of the client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// One request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
    /// Which connection it came on, from 0.
    pub(crate) connection: usize,
    /// How many requests came before it on this connection.
    pub(crate) before: usize,
    /// When all of it was read.
    pub(crate) at: Instant,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).expect("the client sends JSON")
    }
}

/// What to answer.
pub(crate) enum Answer {
    /// Status, content type, body; the connection stays open.
    Whole(u16, &'static str, String),
    /// These bytes, then the connection is closed without a word.
    Raw(Vec<u8>),
    /// Step by step; after the last one the next request is read.
    Steps(Vec<Step>),
    /// The same, made as they are taken.
    Pour(Box<dyn Iterator<Item = Step>>),
}

/// One step of an answer.
pub(crate) enum Step {
    Write(Vec<u8>),
    /// Lets what was written go out by itself.
    Pause(Duration),
    /// Notes the time, for [`Scripted::noted`].
    Note,
    /// Closes with a reset.
    Reset,
    /// Closes as a server does that has said all.
    Close,
    /// Says nothing more and keeps the connection until the client closes it.
    Hold,
}

/// A pause long enough for two writes to be two reads, as a rule; nothing may depend on it.
pub(crate) const BREATH: Step = Step::Pause(Duration::from_millis(5));

/// The head of a chunked event stream.
pub(crate) fn head() -> Step {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    Step::Write(head.into())
}

/// One HTTP chunk.
pub(crate) fn chunk(bytes: impl AsRef<[u8]>) -> Step {
    let bytes = bytes.as_ref();
    Step::Write([format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat())
}

/// The end of a chunked body.
pub(crate) fn end() -> Step {
    Step::Write(b"0\r\n\r\n".to_vec())
}

/// A whole event stream, a chunk an item.
pub(crate) fn stream<T: AsRef<[u8]>>(items: impl IntoIterator<Item = T>) -> Answer {
    Answer::Steps(std::iter::once(head()).chain(items.into_iter().map(chunk)).chain([end()]).collect())
}

/// A running server; it ends with the test's process.
pub(crate) struct Scripted {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    connections: Arc<AtomicUsize>,
    noted: Arc<Mutex<Vec<Instant>>>,
}

impl Scripted {
    /// Starts a server on a free port of 127.0.0.1.
    pub(crate) fn start(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0", answer).unwrap()
    }

    /// Starts a server at an address that this host may not have.
    pub(crate) fn start_at(
        address: &str,
        answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(vec![]));
        let connections = Arc::new(AtomicUsize::new(0));
        let (log, answer, counter) = (Arc::clone(&seen), Arc::new(answer), Arc::clone(&connections));
        let noted = Arc::new(Mutex::new(vec![]));
        let notes = Arc::clone(&noted);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer, notes) = (Arc::clone(&log), Arc::clone(&answer), Arc::clone(&notes));
                let connection = counter.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || serve(stream, connection, (&log, &notes), &*answer));
            }
        });
        Ok(Self { url, seen, connections, noted })
    }

    /// Connections accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The instants of [`Step::Note`] so far.
    pub(crate) fn noted(&self) -> Vec<Instant> {
        self.noted.lock().unwrap().clone()
    }

    /// The generation requests among them.
    pub(crate) fn turns(&self) -> Vec<Seen> {
        let is_turn = |seen: &Seen| {
            let cache = ["/flush", "/reset"].iter().any(|route| seen.path.starts_with(route));
            seen.method == "POST" && !cache
        };
        self.seen().into_iter().filter(is_turn).collect()
    }
}

type Logs<'a> = (&'a Mutex<Vec<Seen>>, &'a Mutex<Vec<Instant>>);

fn serve(stream: TcpStream, connection: usize, (log, notes): Logs<'_>, answer: &dyn Fn(&Seen) -> Answer) {
    stream.set_nodelay(true).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    let mut before = 0;
    while let Some(seen) = read_request(&mut reader) {
        let seen = Seen { connection, before, ..seen };
        before += 1;
        log.lock().unwrap().push(seen.clone());
        let sent = match answer(&seen) {
            Answer::Whole(status, kind, body) => {
                let length = body.len();
                let head = format!("HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n");
                writer.write_all((head + &body).as_bytes())
            }
            Answer::Raw(bytes) => {
                let _ = writer.write_all(&bytes);
                return;
            }
            Answer::Steps(steps) => match take(steps, &mut writer, notes) {
                Some(sent) => sent,
                None => return,
            },
            Answer::Pour(steps) => match take(steps, &mut writer, notes) {
                Some(sent) => sent,
                None => return,
            },
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Takes the steps of an answer; nothing when they closed the connection.
fn take(
    steps: impl IntoIterator<Item = Step>,
    writer: &mut TcpStream,
    notes: &Mutex<Vec<Instant>>,
) -> Option<std::io::Result<()>> {
    for step in steps {
        match step {
            Step::Write(bytes) => {
                if let Err(why) = writer.write_all(&bytes) {
                    return Some(Err(why));
                }
            }
            Step::Pause(span) => std::thread::sleep(span),
            Step::Note => notes.lock().unwrap().push(Instant::now()),
            Step::Reset => {
                socket2::SockRef::from(&*writer).set_linger(Some(Duration::ZERO)).unwrap();
                return None;
            }
            Step::Close => return None,
            Step::Hold => {
                let _ = writer.read(&mut [0]);
                return None;
            }
        }
    }
    Some(Ok(()))
}

pub(crate) fn read_request(reader: &mut impl BufRead) -> Option<Seen> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = vec![];
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let length =
        headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, n)| n.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8_lossy(&body).into_owned();
    Some(Seen { method, path, headers, body, connection: 0, before: 0, at: Instant::now() })
}

/// A chat stream of these words, with usage, in one body.
pub(crate) fn chat_stream(words: &[&str], prompt_tokens: usize) -> String {
    let pieces = words.iter().map(|word| {
        format!("data: {{\"id\":\"x\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{word}\"}},\"finish_reason\":null}}]}}\n\n")
    });
    let end = format!(
        "data: {{\"choices\":[{{\"index\":0,\"delta\":{{}},\"finish_reason\":\"length\"}}]}}\n\n\
         data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt_tokens},\"completion_tokens\":{}}}}}\n\ndata: [DONE]\n\n",
        words.len()
    );
    pieces.chain([end]).collect()
}
