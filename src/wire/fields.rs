//! The fields that servers write into an event, as far as a turn needs them. Any may be absent or null; others are ignored.

use serde::Deserialize;
use serde_json::Value;

use super::json::{Length, Loose, Number, Text, count};

#[derive(Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow)]
    pub(super) id: Option<Loose<'a>>,
    #[serde(borrow)]
    pub(super) object: Option<Loose<'a>>,
    #[serde(borrow)]
    pub(super) model: Option<Loose<'a>>,
    #[serde(borrow)]
    pub(super) message: Option<Loose<'a>>,
    #[serde(borrow)]
    pub(super) choices: Option<Choices<'a>>,
    pub(super) usage: Option<Usage>,
    pub(super) sglext: Option<SglExt>,
    pub(super) nvext: Option<Value>,
    pub(super) error: Option<Value>,
}

/// The choices of an event, nearly always one: in its place, since a vector would be an allocation of four for each event.
#[derive(Default)]
pub(super) struct Choices<'a> {
    first: Option<Choice<'a>>,
    others: Vec<Choice<'a>>,
}

impl<'a> Choices<'a> {
    /// In their order.
    pub(super) fn into_iter(self) -> impl Iterator<Item = Choice<'a>> {
        self.first.into_iter().chain(self.others)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Choices<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Choices<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of choices")
            }

            fn visit_seq<S: serde::de::SeqAccess<'de>>(self, mut seq: S) -> Result<Self::Value, S::Error> {
                let mut choices = Choices::default();
                while let Some(choice) = seq.next_element::<Option<Choice<'de>>>()? {
                    match choice {
                        Some(choice) if choices.first.is_none() => choices.first = Some(choice),
                        choice => choices.others.extend(choice),
                    }
                }
                Ok(choices)
            }
        }
        deserializer.deserialize_seq(Visitor)
    }
}

#[derive(Deserialize)]
pub(super) struct Choice<'a> {
    pub(super) index: Option<u32>,
    #[serde(borrow)]
    pub(super) text: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) delta: Option<Delta<'a>>,
    /// In place of `delta` when the whole reply is one body.
    #[serde(borrow)]
    pub(super) message: Option<Delta<'a>>,
    #[serde(borrow)]
    pub(super) matched_stop: Option<Loose<'a>>,
    #[serde(borrow)]
    pub(super) finish_reason: Option<Text<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(borrow)]
    pub(super) content: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) reasoning_content: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) reasoning: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) refusal: Option<Text<'a>>,
    pub(super) tool_calls: Option<Vec<Value>>,
}

impl Delta<'_> {
    pub(super) fn has_output(&self) -> bool {
        [&self.content, &self.reasoning_content, &self.reasoning, &self.refusal]
            .into_iter()
            .any(|t| has_text(t.as_ref()))
            || self.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty())
    }
}

#[derive(Deserialize)]
pub(super) struct Usage {
    #[serde(default, deserialize_with = "count")]
    pub(super) prompt_tokens: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    pub(super) completion_tokens: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    pub(super) reasoning_tokens: Option<u32>,
    pub(super) prompt_tokens_details: Option<PromptDetails>,
    pub(super) completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Deserialize)]
pub(super) struct PromptDetails {
    #[serde(default, deserialize_with = "count")]
    pub(super) cached_tokens: Option<u32>,
}

#[derive(Deserialize)]
pub(super) struct CompletionDetails {
    #[serde(default, deserialize_with = "count")]
    pub(super) reasoning_tokens: Option<u32>,
}

#[derive(Deserialize)]
pub(super) struct SglExt {
    pub(super) cached_tokens_details: Option<CachedDetails>,
}

#[derive(Deserialize)]
pub(super) struct CachedDetails {
    #[serde(default, deserialize_with = "count")]
    pub(super) device: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    pub(super) host: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    pub(super) storage: Option<u32>,
}

#[derive(Deserialize)]
pub(super) struct Generated<'a> {
    #[serde(borrow)]
    pub(super) text: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) meta_info: Option<MetaInfo<'a>>,
    pub(super) output_ids: Option<Length>,
    pub(super) index: Option<u32>,
    pub(super) error: Option<Value>,
}

#[derive(Deserialize)]
pub(super) struct MetaInfo<'a> {
    #[serde(borrow)]
    pub(super) id: Option<Loose<'a>>,
    #[serde(borrow)]
    pub(super) finish_reason: Option<FinishReason<'a>>,
    #[serde(default, deserialize_with = "count")]
    pub(super) prompt_tokens: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    pub(super) completion_tokens: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    pub(super) cached_tokens: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    pub(super) reasoning_tokens: Option<u32>,
    #[serde(default, deserialize_with = "count")]
    pub(super) dp_rank: Option<u16>,
    pub(super) queue_time: Option<Number>,
    pub(super) forward_entry_time: Option<Number>,
    pub(super) prefill_finished_time: Option<Number>,
    pub(super) request_received_ts: Option<Number>,
    pub(super) response_sent_to_client_ts: Option<Number>,
}

#[derive(Deserialize)]
pub(super) struct FinishReason<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) kind: Text<'a>,
    #[serde(borrow)]
    pub(super) message: Option<Text<'a>>,
    #[serde(borrow)]
    pub(super) matched: Option<Loose<'a>>,
}

pub(super) fn has_text(text: Option<&Text<'_>>) -> bool {
    text.is_some_and(|text| !text.0.is_empty())
}
