//! Request bodies of the three routes. The prompt is written first and once, straight from the shared passages; the small
//! fields follow, with the profile's `extra_body` laid over them.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::record::TurnRecord;
use crate::units::Rank;
use crate::workload::{Api, ChatLayout, Message, Prompt, PromptAs, RequestSpec, Role};

/// What every request of a run has in common.
#[derive(Debug, Clone)]
pub struct Shape {
    pub request: RequestSpec,
    /// The model to name; routes that need none are sent none.
    pub model: Option<String>,
    /// Body field of the routing key on `/generate`, which reads no header.
    pub key_field: Option<String>,
    /// Whether the server takes `continuous_usage_stats`, the only way to know the tokens of a frame on OpenAI routes.
    pub continuous_usage: bool,
    pub asks: Asks,
}

/// What is asked of the servers that have it, and of no other: some refuse what they do not know.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Asks {
    /// SGLang's `return_cached_tokens_details`, for servers whose usage does not tell cached tokens.
    pub cached_details: CachedDetails,
    /// Dynamo's `nvext`: which workers served, and how long they queued and prefilled.
    pub nvext: bool,
    /// The rank that a header or body field of every request asks for, and that this server heeds.
    pub rank: Option<Rank>,
}

/// Whether replies end with details of cached tokens.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum CachedDetails {
    #[default]
    NotAsked,
    /// Asked for; nothing shows that the server knows the field.
    Asked,
    /// The server has answered it. It is silent about replies that found nothing, so that silence is a count of 0.
    Answered,
}

/// The body of one turn.
#[must_use]
pub fn encode(shape: &Shape, turn: &TurnRecord, prompt: &Prompt) -> Bytes {
    let mut fields = match shape.request.api {
        Api::Chat | Api::Completions => openai_fields(shape, turn),
        Api::Generate => generate_fields(shape, turn),
    };
    merge(&mut fields, &shape.request.extra_body);
    let mut body = Vec::with_capacity(512 + prompt.messages.iter().map(|m| m.passage.text.len() + 64).sum::<usize>());
    body.push(b'{');
    write_prompt(&mut body, &shape.request, prompt);
    for (name, value) in &fields {
        body.push(b',');
        write_json(&mut body, name);
        body.push(b':');
        write_json(&mut body, value);
    }
    body.push(b'}');
    // Bodies wait by the thousand for their turns.
    body.shrink_to_fit();
    Bytes::from(body)
}

fn openai_fields(shape: &Shape, turn: &TurnRecord) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    if let Some(model) = &shape.model {
        set("model", json!(model));
    }
    set("max_tokens", json!(turn.planned_output_tokens));
    set("temperature", json!(shape.request.temperature));
    set("stream", json!(true));
    let usage = if shape.continuous_usage {
        json!({"include_usage": true, "continuous_usage_stats": true})
    } else {
        json!({"include_usage": true})
    };
    set("stream_options", usage);
    if shape.request.ignore_eos {
        set("ignore_eos", json!(true));
    }
    if shape.asks.cached_details != CachedDetails::NotAsked {
        set("return_cached_tokens_details", json!(true));
    }
    if shape.asks.nvext {
        set("nvext", json!({"extra_fields": ["worker_id", "timing"]}));
    }
    fields
}

fn generate_fields(shape: &Shape, turn: &TurnRecord) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| fields.insert(name.to_owned(), value);
    set("rid", json!(turn.id));
    set("stream", json!(true));
    let sampling = json!({
        "max_new_tokens": turn.planned_output_tokens,
        "temperature": shape.request.temperature,
        "ignore_eos": shape.request.ignore_eos,
    });
    set("sampling_params", sampling);
    if let (Some(field), Some(key)) = (&shape.key_field, &turn.key) {
        set(field, json!(key));
    }
    fields
}

/// Lays `extra` over `fields`; tables are merged, everything else is replaced.
fn merge(fields: &mut Map<String, Value>, extra: &Map<String, Value>) {
    for (name, value) in extra {
        match (fields.get_mut(name), value) {
            (Some(Value::Object(inner)), Value::Object(more)) => merge(inner, more),
            _ => {
                fields.insert(name.clone(), value.clone());
            }
        }
    }
}

fn write_prompt(body: &mut Vec<u8>, request: &RequestSpec, prompt: &Prompt) {
    match request.api {
        Api::Chat => {
            body.extend_from_slice(b"\"messages\":[");
            for (at, (role, text)) in chat_messages(request.chat_layout, &prompt.messages).into_iter().enumerate() {
                body.extend_from_slice(if at == 0 { b"{\"role\":\"" } else { b",{\"role\":\"" });
                body.extend_from_slice(role.as_bytes());
                body.extend_from_slice(b"\",\"content\":");
                write_json(body, &*text);
                body.push(b'}');
            }
            body.push(b']');
        }
        Api::Completions => write_flat(body, request, prompt, ["prompt", "prompt"]),
        Api::Generate => write_flat(body, request, prompt, ["text", "input_ids"]),
    }
}

/// The prompt as one text or one list of ids, under the route's name for each.
fn write_flat(body: &mut Vec<u8>, request: &RequestSpec, prompt: &Prompt, [text, ids]: [&str; 2]) {
    let listed = if request.prompt_as == PromptAs::Ids { prompt.ids() } else { None };
    write_json(body, if listed.is_some() { ids } else { text });
    body.push(b':');
    match listed {
        Some(listed) => write_json(body, &listed),
        None => write_json(body, &prompt.text()),
    }
}

type Spoken<'a> = (&'static str, std::borrow::Cow<'a, str>);

fn chat_messages(layout: ChatLayout, messages: &[Message]) -> Vec<Spoken<'_>> {
    match (layout, messages) {
        (ChatLayout::Merged, [system, question, rest @ ..]) if system.role == Role::System => {
            let merged = format!("{}{}{}", system.passage.text, crate::workload::JOINT, question.passage.text);
            std::iter::once(("user", merged.into())).chain(rest.iter().map(spoken)).collect()
        }
        _ => messages.iter().map(spoken).collect(),
    }
}

fn spoken(message: &Message) -> Spoken<'_> {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
    };
    (role, (&*message.passage.text).into())
}

fn write_json<T: serde::Serialize + ?Sized>(body: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(body, value).expect("text, numbers and ids always serialise into memory");
}
