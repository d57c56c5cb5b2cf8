//! One number for everything of a plan that the server gets to see.

use std::collections::BTreeSet;

use xxhash_rust::xxh3::Xxh3Default;

use super::plan::Plan;
use super::prompt::{Seat, question_family, system_family};
use crate::profile::{Api, ChatLayout, PromptAs};
use crate::text::Vocabulary;

/// xxh3-128, as 32 hex digits, over these bytes. Numbers are little-endian; a *text* is its length in bytes as u64 and its
/// UTF-8 bytes. Sessions in send order:
///
/// - once for each group, before its first session: `1` u8 · group u32 · system prompt, text;
/// - for each turn: `2` u8 · group u32 · session u32 · turn u32 · key (`0` u8, or `1` u8 and a text) · when (`0` u8 for
///   the first turn in a closed loop; `1` u8 and the arrival in ns, u64; `2` u8 and the think time in ns, u64, for later
///   turns) · output limit u32 · question, text.
///
/// Then the shape of a request: `3` u8 · api, text · `prompt_as`, text · chat layout, text · temperature, the bits of an
/// f64 · `ignore_eos` u8 · `extra_body` as JSON with sorted keys, text.
///
/// Left out: model, URL, arm, request ids, headers, whether keys are sent, assistant text.
pub(super) fn digest(plan: &Plan, vocabulary: &Vocabulary) -> String {
    let mut bytes = Bytes::default();
    let mut text = String::new();
    let mut groups = BTreeSet::new();
    for session in &plan.sessions {
        let (group, seat) = (session.group, Seat { group: session.group, session: session.session });
        if groups.insert(group) {
            text.clear();
            system_family(plan).write(vocabulary, &mut text, group.into(), plan.system_tokens[group as usize]);
            bytes.u8(1).u32(group).text(&text);
        }
        for (turn, planned) in (0u32..).zip(&session.turns) {
            bytes.u8(2).u32(group).u32(session.session).u32(turn);
            match plan.key(group, session.session, turn) {
                None => bytes.u8(0),
                Some(key) => bytes.u8(1).text(&key),
            };
            match (turn, session.arrival) {
                (0, None) => bytes.u8(0),
                (0, Some(arrival)) => bytes.u8(1).nanos(arrival),
                _ => bytes.u8(2).nanos(plan.think),
            };
            text.clear();
            question_family(plan, turn).write(vocabulary, &mut text, seat.ordinal(), planned.question_tokens);
            bytes.u32(planned.output_tokens).text(&text);
        }
    }
    request(plan, &mut bytes);
    format!("{:032x}", bytes.0.digest128())
}

fn request(plan: &Plan, bytes: &mut Bytes) {
    let request = &plan.request;
    let api = match request.api {
        Api::Chat => "chat",
        Api::Completions => "completions",
        Api::Generate => "generate",
    };
    let prompt_as = match request.prompt_as {
        PromptAs::Text => "text",
        PromptAs::Ids => "ids",
    };
    let layout = match request.chat_layout {
        ChatLayout::System => "system",
        ChatLayout::Merged => "merged",
    };
    let extra = serde_json::to_string(&request.extra_body).expect("JSON values are JSON");
    bytes.u8(3).text(api).text(prompt_as).text(layout);
    bytes.u64(request.temperature.to_bits()).u8(request.ignore_eos.into()).text(&extra);
}

/// The byte stream under the hash.
#[derive(Default)]
struct Bytes(Xxh3Default);

impl Bytes {
    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(bytes);
        self
    }

    fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn nanos(&mut self, span: std::time::Duration) -> &mut Self {
        self.u64(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.u64(text.len() as u64).raw(text.as_bytes())
    }
}
