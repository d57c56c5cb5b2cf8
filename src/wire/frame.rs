//! One SSE event of each API, read into what a turn needs. Shapes: `facts` of SGLang 0.5.23 and vLLM 0.32, llama.cpp,
//! Dynamo.

use std::borrow::Cow;

use serde_json::Value;

use super::fields::{Choice, Chunk, Generated, MetaInfo, has_text};
use super::json::{Length, Number, Text};
use super::place::{Spans, Stamps, Workers};

/// What one event says.
#[derive(Debug, Default, PartialEq)]
pub struct Frame<'a> {
    /// Answer text that this event adds; for [`Generate`](parse_generate) the whole text so far.
    pub text: Option<Cow<'a, str>>,
    /// Reasoning text that this event adds.
    pub reasoning: Option<Cow<'a, str>>,
    /// Output that is neither: a refusal, a piece of a tool call, or anything of a choice beyond the first.
    pub other_output: bool,
    /// Part of that output is a refusal.
    pub refusal: bool,
    /// The event speaks of a choice beyond the first, which no turn asks for.
    pub other_choice: bool,
    /// Token ids in this event, where the native route lists them: of the whole reply, or of this event alone.
    pub listed_ids: Option<u32>,
    /// The event speaks of a choice, so its usage is that of a stream under way, not a closing sum.
    pub has_choice: bool,
    pub finish: Option<Cow<'a, str>>,
    pub prompt_tokens: Option<u32>,
    /// Output tokens so far.
    pub completion_tokens: Option<u32>,
    pub cached_tokens: Option<u32>,
    pub reasoning_tokens: Option<u32>,
    /// The data-parallel rank that served the request.
    pub dp_rank: Option<u16>,
    /// Dynamo's workers.
    pub workers: Option<Workers>,
    /// Where the server says that the time to first token went.
    pub spans: Spans,
    /// The id that the server gave the request.
    pub id: Option<Cow<'a, str>>,
    pub model: Option<Cow<'a, str>>,
    /// What the server says went wrong.
    pub error: Option<String>,
}

impl Frame<'_> {
    /// Whether it carries output by itself, whatever its counts say.
    #[must_use]
    pub fn carries_output(&self) -> bool {
        self.text.is_some() || self.reasoning.is_some() || self.other_output
    }
}

/// Why an event could not be read.
#[derive(Debug, thiserror::Error)]
#[error("an event is no JSON of this API: {0}")]
pub struct FrameError(#[from] serde_json::Error);

/// Reads an event of `/v1/chat/completions` or `/v1/completions`.
///
/// # Errors
/// When the data is no JSON, or a known field has a type that no server gives it.
pub fn parse_openai(data: &[u8]) -> Result<Frame<'_>, FrameError> {
    // `data: null` is legal: llama.cpp opens some streams with it.
    let Some(chunk) = serde_json::from_slice::<Option<Chunk<'_>>>(data)? else { return Ok(Frame::default()) };
    let mut frame = Frame {
        id: chunk.id.and_then(|id| id.0),
        model: chunk.model.and_then(|model| model.0),
        error: error_text(chunk.error),
        ..Frame::default()
    };
    if frame.error.is_none() && chunk.object.and_then(|object| object.0).is_some_and(|object| object == "error") {
        let message = chunk.message.and_then(|message| message.0);
        frame.error = Some(message.map_or_else(|| "object: error".to_owned(), Cow::into_owned));
    }
    for choice in chunk.choices.unwrap_or_default().into_iter() {
        add_choice(&mut frame, choice);
    }
    if let Some(usage) = chunk.usage {
        frame.prompt_tokens = usage.prompt_tokens;
        frame.completion_tokens = usage.completion_tokens;
        frame.cached_tokens = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
        frame.reasoning_tokens =
            usage.completion_tokens_details.and_then(|details| details.reasoning_tokens).or(usage.reasoning_tokens);
    }
    if let Some(nvext) = chunk.nvext {
        frame.workers = Workers::told_in(&nvext);
        frame.spans = Spans::told_in(&nvext);
    }
    if let Some(details) = chunk.sglext.and_then(|ext| ext.cached_tokens_details) {
        frame.cached_tokens =
            Some([details.device, details.host, details.storage].into_iter().flatten().fold(0, u32::saturating_add));
    }
    Ok(frame)
}

/// Lays a choice over the frame. Texts of several choices would be one garbled text, so only the first gives any.
fn add_choice<'a>(frame: &mut Frame<'a>, choice: Choice<'a>) {
    frame.has_choice = true;
    frame.finish = choice.finish_reason.map(Into::into).or(frame.finish.take());
    if frame.error.is_none() && choice.matched_stop.is_some_and(|matched| matched.0.as_deref() == Some(NAN)) {
        frame.error = Some(NAN.to_owned());
    }
    if choice.index.is_some_and(|index| index > 0) {
        frame.other_choice = true;
        let delta_has_output = choice.delta.or(choice.message).is_some_and(|delta| delta.has_output());
        frame.other_output |= has_text(choice.text.as_ref()) || delta_has_output;
        return;
    }
    add(&mut frame.text, choice.text);
    let Some(delta) = choice.delta.or(choice.message) else { return };
    add(&mut frame.text, delta.content);
    add(&mut frame.reasoning, delta.reasoning_content);
    add(&mut frame.reasoning, delta.reasoning);
    frame.refusal |= has_text(delta.refusal.as_ref());
    frame.other_output |= frame.refusal || delta.tool_calls.is_some_and(|calls| !calls.is_empty());
}

/// Reads an event of SGLang's `/generate`, whose text is cumulative unless the server was told otherwise.
///
/// # Errors
/// As [`parse_openai`].
pub fn parse_generate(data: &[u8]) -> Result<Frame<'_>, FrameError> {
    let Some(chunk) = serde_json::from_slice::<Option<Generated<'_>>>(data)? else { return Ok(Frame::default()) };
    let mut frame = Frame {
        text: chunk.text.map(Into::into),
        error: error_text(chunk.error),
        other_choice: chunk.index.is_some_and(|index| index > 0),
        listed_ids: chunk.output_ids.map(|Length(ids)| ids),
        ..Frame::default()
    };
    if let Some(meta) = chunk.meta_info {
        frame.has_choice = true;
        add_meta_info(&mut frame, meta);
    }
    Ok(frame)
}

/// Reads a line of SGLang's request log (`--export-metrics-to-file`): the `meta_info` of one reply, streamed or not and of
/// any route, beside the parameters of its request. It tells the rank also where the reply did not.
///
/// # Errors
/// As [`parse_openai`].
pub fn parse_export(line: &[u8]) -> Result<Frame<'_>, FrameError> {
    let mut frame = Frame::default();
    add_meta_info(&mut frame, serde_json::from_slice(line)?);
    Ok(frame)
}

fn add_meta_info<'a>(frame: &mut Frame<'a>, meta: MetaInfo<'a>) {
    frame.id = meta.id.and_then(|id| id.0);
    frame.prompt_tokens = meta.prompt_tokens;
    frame.completion_tokens = meta.completion_tokens;
    frame.cached_tokens = meta.cached_tokens;
    frame.reasoning_tokens = meta.reasoning_tokens;
    frame.dp_rank = meta.dp_rank;
    let number = |number: Option<Number>| number.and_then(|number| number.0);
    let stamps = Stamps {
        received: number(meta.request_received_ts),
        queue: number(meta.queue_time),
        entered: number(meta.forward_entry_time),
        prefilled: number(meta.prefill_finished_time),
        sent: number(meta.response_sent_to_client_ts),
    };
    frame.spans = stamps.spans();
    if let Some(finish) = meta.finish_reason {
        if frame.error.is_none() {
            let message = finish.message.filter(|_| finish.kind.0 == "abort").map(|text| text.0.into_owned());
            let is_nan = finish.matched.is_some_and(|matched| matched.0.as_deref() == Some(NAN));
            frame.error = message.or_else(|| is_nan.then(|| NAN.to_owned()));
        }
        frame.finish = Some(finish.kind.into());
    }
}

/// What SGLang says it stopped at when the logits were no numbers: the text before it is noise.
const NAN: &str = "NaN happened";

/// The text of an `error` field, which servers send as an object or as a bare string.
fn error_text(error: Option<Value>) -> Option<String> {
    match error? {
        Value::Null | Value::Bool(false) => None,
        Value::String(text) => Some(text),
        Value::Object(fields) => match fields.get("message") {
            Some(Value::String(text)) => Some(text.clone()),
            _ => Some(Value::Object(fields).to_string()),
        },
        other => Some(other.to_string()),
    }
}

/// Appends non-empty text.
fn add<'a>(to: &mut Option<Cow<'a, str>>, text: Option<Text<'a>>) {
    let Some(Text(text)) = text.filter(|text| !text.0.is_empty()) else { return };
    match to {
        None => *to = Some(text),
        Some(before) => before.to_mut().push_str(&text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_missing_fields_are_nothing() {
        for data in [r"null", r"{}", r#"{"object":null}"#, r#"{"choices":null,"usage":null}"#, r#"{"choices":[]}"#] {
            assert_eq!(parse_openai(data.as_bytes()).unwrap(), Frame::default(), "{data}");
        }
        let role = br#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
        assert_eq!(parse_openai(role).unwrap(), Frame { has_choice: true, ..Frame::default() });
    }

    #[test]
    fn every_kind_of_output_is_seen() {
        let with = |delta: &str| format!(r#"{{"choices":[{{"index":0,"delta":{{{delta}}}}}]}}"#);
        let content = with(r#""content":"a\n""#);
        assert_eq!(parse_openai(content.as_bytes()).unwrap().text.as_deref(), Some("a\n"));
        for name in ["reasoning", "reasoning_content"] {
            let event = with(&format!(r#""{name}":"hm","content":null"#));
            assert_eq!(parse_openai(event.as_bytes()).unwrap().reasoning.as_deref(), Some("hm"));
        }
        for other in [r#""refusal":"no""#, r#""tool_calls":[{"index":0}]"#] {
            let event = with(other);
            let frame = parse_openai(event.as_bytes()).unwrap();
            assert_eq!((frame.other_output, frame.refusal), (true, other.contains("refusal")));
        }
        let completion = br#"{"choices":[{"index":0,"text":"b","finish_reason":"length"}],"usage":null}"#;
        let frame = parse_openai(completion).unwrap();
        assert_eq!((frame.text.as_deref(), frame.finish.as_deref()), (Some("b"), Some("length")));
    }

    #[test]
    fn cached_tokens_absent_null_and_zero_differ() {
        let usage =
            |details: &str| format!(r#"{{"choices":[],"usage":{{"prompt_tokens":9,"completion_tokens":2{details}}}}}"#);
        let cached = |details: &str| parse_openai(usage(details).as_bytes()).unwrap().cached_tokens;
        assert_eq!(cached(""), None);
        assert_eq!(cached(r#","prompt_tokens_details":null"#), None);
        assert_eq!(cached(r#","prompt_tokens_details":{"cached_tokens":0}"#), Some(0));
        assert_eq!(cached(r#","prompt_tokens_details":{"cached_tokens":8}"#), Some(8));
    }

    #[test]
    fn an_error_is_an_object_or_a_string_and_keeps_its_words() {
        let cases = [
            (r#"{"error":{"message":"too long","code":400}}"#, "too long"),
            (r#"{"error":"too long"}"#, "too long"),
            (r#"{"object":"error","message":"too long","code":400}"#, "too long"),
        ];
        for (data, words) in cases {
            assert_eq!(parse_openai(data.as_bytes()).unwrap().error.as_deref(), Some(words), "{data}");
        }
        assert_eq!(parse_openai(br#"{"error":null,"choices":[]}"#).unwrap().error, None);
        let abort = br#"{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"queue is full","status_code":503}}}"#;
        let frame = parse_generate(abort).unwrap();
        assert_eq!((frame.finish.as_deref(), frame.error.as_deref()), (Some("abort"), Some("queue is full")));
    }

    #[test]
    fn a_count_may_be_a_float_or_a_text_and_what_is_none_is_not_told() {
        let usage = br#"{"choices":[],"usage":{"prompt_tokens":12.0,"completion_tokens":"3","prompt_tokens_details":{"cached_tokens":" 8.0 "}}}"#;
        let frame = parse_openai(usage).unwrap();
        assert_eq!((frame.prompt_tokens, frame.completion_tokens, frame.cached_tokens), (Some(12), Some(3), Some(8)));
        let odd = |value: &str| {
            let data = format!(r#"{{"text":"a","meta_info":{{"completion_tokens":{value},"dp_rank":{value}}}}}"#);
            let frame = parse_generate(data.as_bytes()).unwrap();
            (frame.completion_tokens, frame.dp_rank)
        };
        for value in ["-1", "1.5", "\"many\"", "true", "null", "[1,2]", "{\"n\":1}", "1e300", "\"\""] {
            assert_eq!(odd(value), (None, None), "{value}");
        }
        assert_eq!(odd("70000"), (Some(70_000), None), "no rank has this number");
    }

    #[test]
    fn the_native_route_tells_rank_and_counts() {
        let data = br#"{"text":"Hi","output_ids":[13],"meta_info":{"id":"r1","finish_reason":null,"prompt_tokens":2176,"completion_tokens":1,"cached_tokens":2048,"dp_rank":3}}"#;
        let frame = parse_generate(data).unwrap();
        assert_eq!((frame.dp_rank, frame.cached_tokens, frame.completion_tokens), (Some(3), Some(2048), Some(1)));
        assert!(parse_generate(b"{\"text\":\"Hi\", \"meta").is_err());
    }
}
