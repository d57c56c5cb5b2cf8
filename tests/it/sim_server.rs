//! A simulated server in a thread of its own, and a client of raw sockets that shares no code with the product's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread::JoinHandle;

use gspbench::clock::Clock;
use gspbench::sim::{Log, Preset, Settings, Setup, Tokens, serve, start_unix};
use serde_json::Value;

pub(crate) struct Sim {
    pub(crate) address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    files: tempfile::TempDir,
}

/// Two ranks, and a model so fast that no test waits.
pub(crate) fn quick() -> Settings {
    Settings { ranks: 2, time_scale: 1000.0, model: "tiny".to_owned(), ..Settings::from(Preset::default()) }
}

/// In real time, so that a reply of 100,000 tokens outlives any test.
pub(crate) fn slow() -> Settings {
    Settings { time_scale: 1.0, ..quick() }
}

impl Sim {
    pub(crate) fn start(settings: Settings) -> Self {
        Self::with_tokens(settings, Tokens::words())
    }

    pub(crate) fn with_tokens(settings: Settings, tokens: Tokens) -> Self {
        let files = tempfile::tempdir().unwrap();
        let path = files.path().join("log.jsonl");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (told, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                let clock = Clock::wall();
                let start_unix = start_unix(&clock);
                let log = Some(Log::create(&path, &settings, start_unix).unwrap());
                let setup = Setup { settings, tokens, log, clock, start_unix };
                let stopped = async {
                    stopped.await.ok();
                };
                serve(listener, setup, stopped).await.unwrap();
            });
        });
        Self { address: address.recv().unwrap(), stop: Some(stop), thread: Some(thread), files }
    }

    pub(crate) fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Exchange {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
        Exchange { reader: BufReader::new(stream), status: 0, head: String::new() }
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.open("GET", path, &[], "").finish()
    }

    /// A JSON post to a route.
    pub(crate) fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let json = [&[("content-type", "application/json")], headers].concat();
        self.open("POST", path, &json, body).finish()
    }

    /// The value of a series, by the start of its line.
    pub(crate) fn metric(&self, series: &str) -> Option<f64> {
        let text = self.get("/metrics").body;
        let line = text.lines().find(|line| line.starts_with(series))?;
        Some(line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// Stops the server and gives its log, head line first.
    pub(crate) fn log(mut self) -> Vec<Value> {
        self.end();
        let text = std::fs::read_to_string(self.log_path()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn log_path(&self) -> PathBuf {
        self.files.path().join("log.jsonl")
    }

    pub(crate) fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// A request that has been sent.
pub(crate) struct Exchange {
    reader: BufReader<TcpStream>,
    status: u16,
    head: String,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
    /// Of a chunked body.
    pub(crate) chunks: Vec<String>,
    /// Whether the body came to its proper end.
    pub(crate) is_whole: bool,
}

impl Exchange {
    /// Reads up to the empty line.
    pub(crate) fn head(&mut self) -> u16 {
        while !self.head.ends_with("\r\n\r\n") {
            assert!(self.reader.read_line(&mut self.head).unwrap() > 0, "no head, only {:?}", self.head);
        }
        self.status = self.head.split(' ').nth(1).unwrap().parse().unwrap();
        self.status
    }

    /// One chunk of a chunked body; none at its end, or where the connection ends.
    pub(crate) fn chunk(&mut self) -> Option<String> {
        let mut size = String::new();
        self.reader.read_line(&mut size).ok()?;
        let size = usize::from_str_radix(size.trim_end(), 16).ok().filter(|size| *size > 0)?;
        let mut chunk = vec![0; size + 2];
        self.reader.read_exact(&mut chunk).ok()?;
        chunk.truncate(size);
        Some(String::from_utf8(chunk).unwrap())
    }

    pub(crate) fn finish(mut self) -> Reply {
        if self.status == 0 {
            self.head();
        }
        let mut chunks = vec![];
        let (body, is_whole) = if self.head.contains("transfer-encoding: chunked") {
            while let Some(chunk) = self.chunk() {
                chunks.push(chunk);
            }
            let mut rest = String::new();
            (chunks.concat(), self.reader.read_to_string(&mut rest).is_ok() && rest == "\r\n")
        } else {
            let mut body = String::new();
            self.reader.read_to_string(&mut body).unwrap();
            (body, true)
        };
        Reply { status: self.status, head: self.head, body, chunks, is_whole }
    }
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The frames' data without `[DONE]`, which must be the last.
    pub(crate) fn frames(&self) -> Vec<Value> {
        let mut data: Vec<&str> =
            self.body.split_terminator("\n\n").map(|frame| frame.strip_prefix("data: ").unwrap()).collect();
        assert_eq!(data.pop(), Some("[DONE]"));
        assert!(self.is_whole);
        data.into_iter().map(|frame| serde_json::from_str(frame).unwrap()).collect()
    }
}
