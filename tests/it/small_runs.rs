//! Small servers whose routes a test chooses, and short runs against them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

use serde_json::Value;

use crate::bad_input::{gspbench, small};
use crate::scripted::{Answer, Scripted, Seen, chat_stream};

pub(crate) fn run_json(dir: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir.join("out/run.json")).unwrap()).unwrap()
}

/// A chat server that answers the routes that `also` knows, besides its turns.
pub(crate) fn server(also: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static) -> Scripted {
    Scripted::start(move |seen| {
        also(seen).unwrap_or_else(|| match seen.method.as_str() {
            "POST" if seen.path.starts_with("/v1/") => {
                Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12))
            }
            _ => Answer::Whole(404, "application/json", "{}".to_owned()),
        })
    })
}

/// A router over llama.cpp by its words, with this word on a flush.
pub(crate) fn router(health: &'static str, flush: (u16, &'static str)) -> Scripted {
    server(move |seen| {
        let json = |body: &str| Some(Answer::Whole(200, "application/json", body.to_owned()));
        match seen.path.split('?').next().unwrap_or_default() {
            "/readiness" => json("{\"status\":\"ready\",\"healthy_workers\":3,\"total_workers\":3}"),
            "/health" => json(health),
            // The page of whichever worker it is.
            "/metrics" => json("llamacpp:prompt_tokens_total 5\n"),
            "/flush_cache" => Some(Answer::Whole(flush.0, "application/json", flush.1.to_owned())),
            _ => None,
        }
    })
}

/// A proxy: what `asked` answers itself, and everything else passed to `upstream` without the header `dropped`.
pub(crate) fn proxy(
    upstream: &str,
    dropped: &'static str,
    asked: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static,
) -> Scripted {
    let address = upstream.strip_prefix("http://").unwrap().to_owned();
    Scripted::start(move |seen| asked(seen).unwrap_or_else(|| Answer::Raw(passed_on(&address, seen, dropped))))
}

/// The whole reply of the server behind.
pub(crate) fn passed_on(address: &str, seen: &Seen, dropped: &str) -> Vec<u8> {
    let kept = seen.headers.iter().filter(|(name, _)| name != dropped && name != "connection");
    let headers: String = kept.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let Seen { method, path, body, .. } = seen;
    let request = format!("{method} {path} HTTP/1.1\r\n{headers}connection: close\r\n\r\n{body}");
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(request.as_bytes()).unwrap();
    let mut reply = vec![];
    socket.read_to_end(&mut reply).unwrap();
    reply
}

/// The kinds of the findings in this list, but for what a busy host does to the client.
pub(crate) fn kinds(run: &Value, list: &str) -> Vec<String> {
    let findings = run["validity"][list].as_array().unwrap().iter();
    findings.map(|finding| finding["kind"].as_str().unwrap().to_owned()).filter(|kind| kind != "client").collect()
}

/// A short run on a chat server: run.json, and all that was printed.
#[track_caller]
pub(crate) fn short_run(server: &Scripted, more: &[&str]) -> (Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let (exit, stdout, stderr) =
        gspbench(&small(&[&["--target", &server.url, "--out", "out"], more].concat()), dir.path());
    let printed = stdout + &stderr;
    assert!(matches!(exit, 0 | 4), "{exit}: {printed}");
    (run_json(dir.path()), printed)
}

/// The same of a run that is to be valid.
#[track_caller]
pub(crate) fn valid_run(server: &Scripted, more: &[&str]) -> (Value, String) {
    let (report, printed) = short_run(server, more);
    assert_eq!(kinds(&report, "voids"), Vec::<String>::new(), "{printed}");
    (report, printed)
}

/// Eight sessions, one after the other, whose prompts are long enough to be told apart in a cache.
pub(crate) const LONG: [&str; 8] = [
    "--gsp-num-groups=2",
    "--gsp-prompts-per-group=4",
    "--gsp-system-prompt-len=256",
    "--gsp-question-len=32",
    "--gsp-output-len=3",
    "--max-concurrency=1",
    "--seed=7",
    "--api=generate",
];

/// Runs against `url` in a directory of its own: exit code, run.json, and all that was printed.
#[track_caller]
pub(crate) fn run(url: &str, more: &[&str]) -> (i32, Value, String) {
    let dir = tempfile::tempdir().unwrap();
    let args = [&["run", "--target", url, "--out", "out"], &LONG[..], more].concat();
    let (exit, stdout, stderr) = gspbench(&args, dir.path());
    let printed = stdout + &stderr;
    assert!(dir.path().join("out/run.json").exists(), "{exit}: {printed}");
    (exit, run_json(dir.path()), printed)
}
