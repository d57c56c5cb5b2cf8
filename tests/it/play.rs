//! Scripts of writes at known instants, played through the client's turn machine at every cut, in the notation of the cases:
//! `(100, content("a"))` is a write 100 ms after the request was read.

use gspbench::client::{End, Machine};
use gspbench::record::{Outcome, TurnId, TurnRecord};
use gspbench::units::Micros;
use gspbench::workload::Api;
use serde_json::{Value, json};

pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// Writes: milliseconds from the start, bytes.
pub(crate) type Script = Vec<(u64, Vec<u8>)>;

/// A script of texts.
pub(crate) fn script<T: Into<Vec<u8>>>(writes: impl IntoIterator<Item = (u64, T)>) -> Script {
    writes.into_iter().map(|(ms, bytes)| (ms, bytes.into())).collect()
}

/// One event, framed as most servers do it.
pub(crate) fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// A chat chunk with this delta, finish reason and further top-level fields.
pub(crate) fn chunk(delta: &Value, finish: Option<&str>, more: &Value) -> Value {
    let mut chunk = json!({
        "id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    });
    let fields = chunk.as_object_mut().unwrap();
    fields.extend(more.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())));
    chunk
}

pub(crate) fn counts(prompt: u32, completion: u32) -> Value {
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion})
}

/// ROLE
pub(crate) fn role() -> String {
    event(&chunk(&json!({"role": "assistant", "content": ""}), None, &Value::Null))
}

/// C(s)
pub(crate) fn content(text: &str) -> String {
    field("content", text)
}

/// K(f, s)
pub(crate) fn field(name: &str, text: &str) -> String {
    event(&chunk(&json!({name: text}), None, &Value::Null))
}

/// Cu(s, p, c)
pub(crate) fn counted(text: &str, prompt: u32, completion: u32) -> String {
    event(&chunk(&json!({"content": text}), None, &json!({"usage": counts(prompt, completion)})))
}

/// FIN(r)
pub(crate) fn finish(reason: &str) -> String {
    event(&chunk(&json!({}), Some(reason), &Value::Null))
}

/// U(p, c)
pub(crate) fn usage(prompt: u32, completion: u32) -> String {
    event(&json!({"id": "x", "choices": [], "usage": counts(prompt, completion)}))
}

/// FIN, U, DONE
pub(crate) fn ending(prompt: u32, completion: u32) -> String {
    finish("stop") + &usage(prompt, completion) + DONE
}

/// Sends at 0 and plays a chat reply of status 200 that ends cleanly with its last write.
pub(crate) fn chat(script: &Script) -> (TurnRecord, String) {
    play(Api::Chat, 200, script, &End::Clean)
}

/// Plays a reply at every cut: whole, in equal pieces, and (short scripts) with one write cut at each of its bytes. Record
/// and text must not depend on the cut.
pub(crate) fn play(api: Api, status: u16, script: &Script, end: &End) -> (TurnRecord, String) {
    let whole = once(api, status, script, end, |_, _| usize::MAX);
    for size in [1, 2, 7, 64] {
        assert_eq!(once(api, status, script, end, |_, _| size), whole, "pieces of {size}");
    }
    let bytes: usize = script.iter().map(|(_, bytes)| bytes.len()).sum();
    if bytes <= 8192 {
        for (at, (_, bytes)) in script.iter().enumerate() {
            for cut in 1..bytes.len() {
                let piece = |write: usize, fed: usize| if write == at && fed == 0 { cut } else { usize::MAX };
                assert_eq!(once(api, status, script, end, piece), whole, "write {at} cut at {cut}");
            }
        }
    }
    whole
}

/// Plays once; `piece(write, fed)` is the most bytes of a write to feed next, of which `fed` have been fed.
fn once(
    api: Api,
    status: u16,
    script: &Script,
    end: &End,
    piece: impl Fn(usize, usize) -> usize,
) -> (TurnRecord, String) {
    let id = TurnId { group: 0, session: 0, turn: 0 };
    let mut machine = Machine::new(api, TurnRecord::planned("r".into(), id, None, Micros(0), 512));
    machine.record().sent_us = Some(Micros(0));
    machine.record().status = Some(status);
    for (at, (ms, bytes)) in script.iter().enumerate() {
        let mut fed = 0;
        while fed < bytes.len() {
            let next = fed + piece(at, fed).min(bytes.len() - fed);
            machine.feed(&bytes[fed..next], Micros(ms * 1000));
            fed = next;
        }
    }
    machine.finish(end.clone(), Micros(script.last().map_or(0, |(ms, _)| ms * 1000)))
}

/// What the rows speak of, in milliseconds.
pub(crate) trait Figures {
    fn ttft_ms(&self) -> Option<f64>;
    fn e2e_ms(&self) -> Option<f64>;
    fn tpot_ms(&self) -> Option<f64>;
    fn gaps_ms(&self) -> Vec<u32>;
    /// Asserts that the turn is complete.
    fn complete(self) -> Self;
}

impl Figures for TurnRecord {
    fn ttft_ms(&self) -> Option<f64> {
        self.ttft().map(Micros::as_ms)
    }

    fn e2e_ms(&self) -> Option<f64> {
        self.e2e().map(Micros::as_ms)
    }

    fn tpot_ms(&self) -> Option<f64> {
        self.tpot_us().map(|us| us / 1e3)
    }

    fn gaps_ms(&self) -> Vec<u32> {
        self.gaps.iter().map(|gap| gap.us / 1000).collect()
    }

    #[track_caller]
    fn complete(self) -> Self {
        assert_eq!((self.outcome, self.detail.as_deref().filter(|d| *d != "not streamed")), (Outcome::Complete, None));
        self
    }
}
