//! From a request's bytes to a checked [`Ask`]: which fields each route reads, and which it refuses.
//!
//! The routes differ in what routes: the OpenAI ones read the key and the rank from headers and drop a body `routing_key`,
//! `/generate` reads the body alone. What the simulator cannot do is refused, never ignored.

use std::sync::Arc;

use axum::http::HeaderMap;
use serde_json::{Map, Value};
use xxhash_rust::xxh3::xxh3_64;

use crate::units::Rank;

use super::App;
use super::error::Refusal;

/// The generation routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Chat,
    Completions,
    Generate,
}

impl Route {
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Generate => "/generate",
        }
    }
}

/// Which token counts the reply carries.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extras {
    /// A usage frame at the end of a stream.
    pub(super) usage: bool,
    /// Usage on every frame of a stream.
    pub(super) continuous_usage: bool,
    /// SGLang's `sglext` frame with the cached tokens.
    pub(super) cached_details: bool,
    /// `choices[0].meta_info` on a chat that is not streamed.
    pub(super) meta_info: bool,
}

/// A request that can be served.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) route: Route,
    pub(super) rid: Option<String>,
    pub(super) model: String,
    pub(super) prompt: Arc<[u32]>,
    pub(super) max_new: u32,
    pub(super) is_streaming: bool,
    pub(super) key: Option<String>,
    pub(super) pin: Option<Rank>,
    /// A hash of what keeps cached prefixes apart; 0 without it.
    pub(super) salt: u32,
    pub(super) extras: Extras,
}

/// A validation failure of a stream on `/generate` is a frame in a 200, so the refusal alone does not say what to send.
#[derive(Debug)]
pub(super) enum Bad {
    /// Before anything else.
    Schema(Refusal),
    /// The request is understood and cannot be served.
    Request { message: String, is_streaming: bool },
}

impl From<Refusal> for Bad {
    fn from(refusal: Refusal) -> Self {
        Self::Schema(refusal)
    }
}

/// Reads a request of `route`.
///
/// # Errors
/// When it does not fit the route's schema, or asks for what this server cannot do.
pub(super) fn read(app: &App, route: Route, headers: &HeaderMap, body: &[u8]) -> Result<Ask, Bad> {
    let fields = Fields { route, map: object(body)? };
    let is_streaming = fields.bool("stream")?.unwrap_or(false);
    let bad = |message: String| Bad::Request { message, is_streaming };
    let sampling = fields.sampling()?;
    let numbers = if route == Route::Generate { &sampling } else { &fields };
    numbers.check_numbers()?;
    if let Some(what) = fields.unsupported().or_else(|| sampling.unsupported()) {
        return Err(bad(format!("{what} is not supported by the gspbench simulator")));
    }
    let prompt = match route {
        Route::Chat => fields.chat_prompt(app)?,
        Route::Completions => fields.prompt(app, "prompt")?,
        Route::Generate if fields.has("input_ids") => fields.prompt(app, "input_ids")?,
        Route::Generate => fields.prompt(app, "text")?,
    };
    if prompt.is_empty() {
        return Err(bad("Prompt cannot be empty".to_owned()));
    }
    if let (Some(size), Some(id)) = (app.tokens.vocabulary(), prompt.iter().max())
        && *id >= size
    {
        return Err(bad(format!("token id {id} is outside the vocabulary of {size} tokens")));
    }
    let max_new = fields.max_new(&sampling)?;
    let max_new = app.fit(route, prompt.len(), max_new).map_err(bad)?;
    let pin = fields.pin(headers)?;
    if let Some(rank) = pin.filter(|&rank| rank < 0 || rank >= i64::from(app.settings.ranks)) {
        return Err(bad(format!(
            "routed_dp_rank={rank} is out of range: there are ranks 0 to {}",
            app.settings.ranks - 1
        )));
    }
    let extras = fields.extras()?;
    if extras.meta_info && is_streaming {
        return Err(bad("return_meta_info needs stream: false".to_owned()));
    }
    let key = match route {
        Route::Generate => fields.str("routing_key")?.map(str::to_owned),
        Route::Chat | Route::Completions => header(headers, "x-smg-routing-key"),
    };
    Ok(Ask {
        route,
        rid: fields.str("rid")?.map(str::to_owned),
        model: fields.str("model")?.unwrap_or(&app.settings.model).to_owned(),
        prompt: prompt.into(),
        max_new,
        is_streaming,
        key,
        pin: pin.and_then(|rank| u16::try_from(rank).ok()).map(Rank),
        salt: fields.salt()?,
        extras,
    })
}

pub(super) fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
}

fn object(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(Refusal::invalid("'body',", "Input should be a valid dictionary", &other.to_string())),
        Err(cause) => {
            let at = format!("'body', {}", cause.column());
            Err(Refusal::invalid(&at, "JSON decode error", &format!("{{}}, 'ctx': {{'error': '{cause}'}}")))
        }
    }
}

/// The body's fields. A null is an absent field.
struct Fields {
    route: Route,
    map: Map<String, Value>,
}

impl Fields {
    fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn wrong(name: &str, message: &str, value: &Value) -> Refusal {
        Refusal::invalid(&format!("'body', '{name}'"), message, &value.to_string())
    }

    fn str(&self, name: &str) -> Result<Option<&str>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| Self::wrong(name, "Input should be a valid string", value))
    }

    fn bool(&self, name: &str) -> Result<Option<bool>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| Self::wrong(name, "Input should be a valid boolean", value))
    }

    fn int(&self, name: &str) -> Result<Option<i64>, Refusal> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match (value.as_i64(), self.route) {
            (Some(number), _) => Ok(Some(number)),
            (None, Route::Generate) => {
                Err(Refusal::native_type(&format!("invalid type: {}, expected i64", kind(value))))
            }
            (None, _) => Err(Self::wrong(name, "Input should be a valid integer", value)),
        }
    }

    fn object(&self, name: &str) -> Result<Self, Refusal> {
        let map = match self.get(name) {
            None => Map::new(),
            Some(Value::Object(map)) => map.clone(),
            Some(value) => return Err(Self::wrong(name, "Input should be a valid dictionary", value)),
        };
        Ok(Self { route: self.route, map })
    }

    /// Where the route keeps its sampling parameters.
    fn sampling(&self) -> Result<Self, Refusal> {
        match self.route {
            Route::Generate => self.object("sampling_params"),
            Route::Chat | Route::Completions => Ok(Self { route: self.route, map: Map::new() }),
        }
    }

    /// Sampling changes nothing here, but a wrong type is refused as SGLang refuses it.
    fn check_numbers(&self) -> Result<(), Refusal> {
        for name in ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"] {
            if let Some(value) = self.get(name).filter(|value| !value.is_number()) {
                return Err(Self::wrong(name, "Input should be a valid number", value));
            }
        }
        Ok(())
    }

    /// What would change the reply or the stream in a way that is not simulated.
    fn unsupported(&self) -> Option<&'static str> {
        let is_nothing = |value: &Value| *value == Value::Bool(false) || value.as_array().is_some_and(Vec::is_empty);
        let asks = |name: &str| self.get(name).is_some_and(|value| !is_nothing(value));
        if self.get("n").is_some_and(|n| n.as_i64() != Some(1)) {
            return Some("n other than 1");
        }
        if self.get("stream_interval").is_some_and(|every| every.as_i64() != Some(1)) {
            return Some("stream_interval other than 1");
        }
        let refused =
            ["logprobs", "return_logprob", "echo", "lora_path", "session_params", "return_token_ids", "tools"];
        refused.into_iter().find(|name| asks(name))
    }

    /// One prompt: text, or ids of tokens; a batch of one counts as one.
    fn prompt(&self, app: &App, name: &'static str) -> Result<Vec<u32>, Bad> {
        let Some(value) = self.get(name) else {
            let present = Value::Object(self.map.clone());
            return Err(Self::wrong(name, "Field required", &present).into());
        };
        let wrong = || Self::wrong(name, "Input should be a valid string or a list of token ids", value);
        let one = match value {
            Value::Array(items) if items.iter().any(|item| item.is_string() || item.is_array()) => match &items[..] {
                [one] => one,
                _ => {
                    let message = "a batch of prompts is not supported by the gspbench simulator".to_owned();
                    return Err(Bad::Request { message, is_streaming: false });
                }
            },
            one => one,
        };
        match one {
            Value::String(text) if name != "input_ids" => Ok(app.encode([text.as_str()])?),
            Value::Array(ids) if name != "text" => {
                ids.iter().map(token).collect::<Option<_>>().ok_or_else(|| wrong().into())
            }
            _ => Err(wrong().into()),
        }
    }

    fn chat_prompt(&self, app: &App) -> Result<Vec<u32>, Bad> {
        let messages = match self.get("messages") {
            Some(Value::Array(messages)) => messages,
            Some(value) => return Err(Self::wrong("messages", "Input should be a valid list", value).into()),
            None => return Err(Self::wrong("messages", "Field required", &Value::Object(self.map.clone())).into()),
        };
        if self.has("input_ids") {
            return self.prompt(app, "input_ids");
        }
        let mut pieces = vec![];
        for message in messages {
            match message.get("content") {
                Some(Value::String(text)) => pieces.push(text.as_str()),
                Some(Value::Array(parts)) => pieces.extend(parts.iter().filter_map(|part| part.get("text")?.as_str())),
                Some(Value::Null) | None if message.is_object() => {}
                _ => return Err(Self::wrong("messages", "Input should be a valid message", message).into()),
            }
        }
        Ok(app.encode(pieces)?)
    }

    /// The output limit, as each route spells and defaults it.
    fn max_new(&self, sampling: &Self) -> Result<Option<u32>, Refusal> {
        let (name, given, default) = match self.route {
            Route::Generate => ("max_new_tokens", sampling.int("max_new_tokens")?, Some(128)),
            Route::Completions => ("max_tokens", self.int("max_tokens")?, Some(16)),
            Route::Chat => match self.int("max_completion_tokens")? {
                Some(limit) => ("max_completion_tokens", Some(limit), None),
                None => ("max_tokens", self.int("max_tokens")?, None),
            },
        };
        let Some(limit) = given else { return Ok(default) };
        match u32::try_from(limit) {
            Ok(limit) if limit > 0 => Ok(Some(limit)),
            Ok(_) | Err(_) if limit > 0 => Ok(Some(u32::MAX)),
            _ if self.route == Route::Generate => {
                Err(Refusal::native(&format!("max_new_tokens must be at least 1 here, got {limit}.")))
            }
            _ => {
                let message = format!("Value error, {name} must be positive");
                Err(Self::wrong(name, &message, &limit.into()))
            }
        }
    }

    fn pin(&self, headers: &HeaderMap) -> Result<Option<i64>, Refusal> {
        let asked = match self.int("routed_dp_rank")? {
            Some(rank) => Some(rank),
            None => self.int("data_parallel_rank")?,
        };
        match (self.route, header(headers, "x-data-parallel-rank")) {
            (Route::Chat | Route::Completions, Some(given)) => match given.trim().parse() {
                Ok(rank) => Ok(Some(rank)),
                Err(_) => Err(Refusal::header(&format!("Invalid X-Data-Parallel-Rank header: {given}"))),
            },
            _ => Ok(asked),
        }
    }

    /// SGLang's cache is keyed by `extra_key` and `cache_salt` together.
    fn salt(&self) -> Result<u32, Refusal> {
        let parts = [self.str("extra_key")?.unwrap_or_default(), self.str("cache_salt")?.unwrap_or_default()];
        if parts == ["", ""] {
            return Ok(0);
        }
        let hash = xxh3_64(parts.join("\0").as_bytes());
        // Never 0, which stands for no salt.
        Ok(u32::try_from(hash >> 32).unwrap_or(u32::MAX) | 1)
    }

    fn extras(&self) -> Result<Extras, Refusal> {
        let options = self.object("stream_options")?;
        Ok(Extras {
            usage: options.bool("include_usage")?.unwrap_or(false),
            continuous_usage: options.bool("continuous_usage_stats")?.unwrap_or(false),
            cached_details: self.bool("return_cached_tokens_details")?.unwrap_or(false),
            meta_info: self.route == Route::Chat && self.bool("return_meta_info")?.unwrap_or(false),
        })
    }
}

fn token(id: &Value) -> Option<u32> {
    id.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn kind(value: &Value) -> String {
    match value {
        Value::String(text) => format!("string {text:?}"),
        Value::Bool(flag) => format!("boolean `{flag}`"),
        Value::Number(number) => format!("floating point `{number}`"),
        Value::Array(_) => "sequence".to_owned(),
        Value::Object(_) | Value::Null => "map".to_owned(),
    }
}
