//! Captured replies of real servers and routers, cut at every byte: text, counts, place and outcome must be those that
//! `tests/data/captures/table.txt` gives. HTTP is taken apart here, by code that the client does not share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use gspbench::client::{End, Machine};
use gspbench::record::{Failure, Oddity, Outcome, Place, TurnId, TurnRecord};
use gspbench::units::{Micros, Rank};
use gspbench::workload::Api;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/captures")
}

/// A reply without its HTTP.
#[derive(Clone)]
struct Reply {
    api: Api,
    status: u16,
    body: Vec<u8>,
    end: End,
}

fn reply(name: &str) -> Reply {
    let raw = std::fs::read(folder().join(format!("{name}.raw"))).unwrap();
    let head_end = raw.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(raw[..head_end].to_vec()).unwrap().to_lowercase();
    let rest = &raw[head_end + 4..];
    let (body, is_whole) = if head.contains("transfer-encoding: chunked") {
        dechunk(rest)
    } else {
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length:")).map(|n| n.trim().parse().unwrap());
        (rest.to_vec(), length.is_none_or(|length: usize| length == rest.len()))
    };
    let cut = || End::Failed(Failure::Truncated, "the body lacks its end".to_owned());
    Reply {
        api: if name.contains("generate") { Api::Generate } else { Api::Chat },
        status: head.split_whitespace().nth(1).unwrap().parse().unwrap(),
        body,
        end: if is_whole { End::Clean } else { cut() },
    }
}

/// The body of a chunked reply, and whether it had its end.
fn dechunk(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = vec![];
    while let Some(line_end) = rest.windows(2).position(|window| window == b"\r\n") {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..line_end]).unwrap().trim(), 16).unwrap();
        if length == 0 {
            return (body, true);
        }
        rest = &rest[line_end + 2..];
        body.extend_from_slice(&rest[..length.min(rest.len())]);
        rest = rest.get(length + 2..).unwrap_or_default();
    }
    (body, false)
}

impl Reply {
    /// Feeds these pieces of the body, all at 20 ms.
    fn read<'a>(&'a self, pieces: impl IntoIterator<Item = &'a [u8]>) -> (TurnRecord, String) {
        let id = TurnId { group: 0, session: 0, turn: 0 };
        let mut machine = Machine::new(self.api, TurnRecord::planned("r".into(), id, None, Micros(0), 8));
        machine.record().sent_us = Some(Micros(0));
        machine.record().status = Some(self.status);
        for piece in pieces {
            machine.feed(piece, Micros(20_000));
        }
        machine.finish(self.end.clone(), Micros(30_000))
    }

    /// Whole, byte by byte, and cut once at each byte: always the same.
    fn read_at_every_cut(&self, name: &str) -> (TurnRecord, String) {
        let whole = self.read([&*self.body]);
        assert_eq!(self.read(self.body.chunks(1)), whole, "{name}: byte by byte");
        for cut in 1..self.body.len() {
            let (head, tail) = self.body.split_at(cut);
            assert_eq!(self.read([head, tail]), whole, "{name}: cut at {cut}");
        }
        whole
    }
}

/// A row of the table.
#[derive(Debug, PartialEq)]
struct Row {
    outcome: String,
    prompt: Option<u32>,
    output: Option<u32>,
    cached: Option<u32>,
    rank: Option<u16>,
    finish: Option<String>,
    words: String,
}

fn table() -> BTreeMap<String, Row> {
    let text = std::fs::read_to_string(folder().join("table.txt")).unwrap();
    text.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

fn row(line: &str) -> (String, Row) {
    let (fields, words) = line.split_at(line.find('"').unwrap());
    let mut fields = fields.split_whitespace();
    let mut next = || fields.next().unwrap();
    let name = next().to_owned();
    let outcome = next().to_owned();
    let mut number = || next().parse().ok();
    let (prompt, output, cached, rank) = (number(), number(), number(), number());
    let (rank, finish) = (rank.map(|rank| u16::try_from(rank).unwrap()), Some(next().to_owned()).filter(|f| f != "-"));
    (name, Row { outcome, prompt, output, cached, rank, finish, words: serde_json::from_str(words).unwrap() })
}

/// What the client made of a reply, in the words of the table.
fn said(turn: &TurnRecord, text: &str) -> Row {
    let is_refused = matches!(turn.outcome, Outcome::Failed(Failure::Http(_) | Failure::InBandError));
    let is_body = turn.outcome.is_complete() && turn.oddities == [Oddity::NotStreamed];
    Row {
        outcome: if is_body { "not_streamed".to_owned() } else { turn.outcome.to_string() },
        prompt: turn.prompt_tokens,
        output: turn.output_tokens,
        cached: turn.cached_tokens,
        rank: turn.place.as_ref().map(|place| match place {
            Place::Rank(Rank(rank)) => *rank,
            other => panic!("{other:?}"),
        }),
        finish: turn.finish.clone(),
        words: if is_refused { turn.detail.clone().unwrap_or_default() } else { text.to_owned() },
    }
}

/// Checks the captures of these servers.
fn check(servers: &[&str]) {
    let table = table();
    let of_these = |name: &str| servers.iter().any(|server| name.starts_with(&format!("{server}.")));
    for (name, expected) in table.iter().filter(|(name, _)| of_these(name)) {
        let (turn, text) = reply(name).read_at_every_cut(name);
        assert_eq!(&said(&turn, &text), expected, "{name}");
        assert_eq!(turn.first_us.is_some(), turn.frames > 0, "{name}");
    }
}

#[test]
fn sglang_decodes_at_every_cut_to_what_it_said() {
    check(&["sglang"]);
}

#[test]
fn vllm_decodes_at_every_cut_to_what_it_said() {
    check(&["vllm"]);
}

#[test]
fn dynamo_decodes_at_every_cut_to_what_it_said() {
    check(&["dynamo"]);
}

#[test]
fn llamacpp_decodes_at_every_cut_to_what_it_said() {
    check(&["llamacpp"]);
}

#[test]
fn routers_decode_at_every_cut_to_what_they_said() {
    check(&["sglrouter_over_llamacpp", "sglrouter_pd_over_llamacpp"]);
    check(&["vllmrouter_over_llamacpp", "vllmrouter_pd_over_llamacpp"]);
}

#[test]
fn hfserve_and_faults_decode_at_every_cut_to_what_they_said() {
    check(&["hfserve", "llmock"]);
}

#[test]
fn every_capture_has_its_row() {
    let files: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| Some(entry.unwrap().file_name().to_str()?.strip_suffix(".raw")?.to_owned()))
        .collect();
    let rows: BTreeSet<String> = table().into_keys().collect();
    assert_eq!(files, rows);
    assert!(rows.len() > 200);
}

/// Running counts of four servers add up to the closing one, so every token has its place in a gap.
#[test]
fn tokens_of_all_frames_add_up_to_the_usage() {
    let names = ["sglang.chat", "sglang.cmpl", "vllm.chat", "vllm.cmpl", "dynamo.chat", "dynamo.cmpl"];
    let native = ["sglang.dp2.generate_stream.rank0", "sglang.dp2.generate_stream.rank1"].map(str::to_owned);
    for name in names.map(|name| format!("{name}.stream_cont")).into_iter().chain(native) {
        let reply = reply(&name);
        let (turn, _) = reply.read([&*reply.body]);
        let of_gaps: Option<u32> = turn.gaps.iter().map(|gap| gap.tokens()).sum();
        let sum = turn.first_frame_tokens.zip(of_gaps).map(|(first, rest)| first + rest);
        assert_eq!((sum, turn.output_tokens.is_some()), (turn.output_tokens, true), "{name}");
    }
}
