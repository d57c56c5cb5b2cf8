//! The TOML schema as it is written: every key optional, unknown keys refused. Nothing here is checked beyond its type;
//! [`super::run_spec`] turns it into a specification.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A whole profile. Flags are laid over the same shape, so one place knows every key.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    pub schema: Option<u32>,
    pub workload: Workload,
    pub key: Key,
    pub request: Request,
    pub load: Load,
    pub timeout: Timeout,
    pub server: Server,
    pub sim: Sim,
    pub slo: Slo,
    pub experiment: Experiment,
    pub arm: Vec<Arm>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    pub kind: Option<String>,
    pub groups: Option<u32>,
    pub sessions_per_group: Option<u32>,
    pub turns: Option<u32>,
    pub system_tokens: Option<Length>,
    pub question_tokens: Option<Length>,
    pub output_tokens: Option<Length>,
    pub range_ratio: Option<f64>,
    pub popularity: Option<Popularity>,
    pub order: Option<super::Order>,
    pub history: Option<String>,
    pub seed: Option<u64>,
}

/// A number of tokens, or a table of the least and the most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Length {
    Exactly(u32),
    Between { min: u32, max: u32 },
}

/// A word, or `{ zipf = 1.1 }`.
#[derive(Debug, Clone, PartialEq)]
pub enum Popularity {
    Word(String),
    Zipf(f64),
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Key {
    pub by: Option<super::KeyScope>,
    pub salt: Option<u64>,
    pub headers: Option<Vec<String>>,
    pub body_field: Option<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Request {
    pub api: Option<super::Api>,
    pub chat_layout: Option<super::ChatLayout>,
    pub prompt_as: Option<super::PromptAs>,
    pub tokenizer: Option<String>,
    pub model: Option<String>,
    pub temperature: Option<f64>,
    pub ignore_eos: Option<bool>,
    pub extra_body: toml::Table,
    pub headers: BTreeMap<String, String>,
    pub ca_file: Option<String>,
    pub insecure: Option<bool>,
    pub place_field: Option<super::PlaceField>,
    pub largest_event_mib: Option<u32>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Load {
    pub max_concurrency: Option<u32>,
    pub max_turns_in_flight: Option<u32>,
    pub connections: Option<super::Connections>,
    pub rate: Option<f64>,
    pub burstiness: Option<f64>,
    pub duration: Option<String>,
    pub ramp_up: Option<String>,
    pub think: Option<String>,
    pub warmup_sessions: Option<u32>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeout {
    pub connect: Option<String>,
    pub first_byte: Option<String>,
    pub idle: Option<String>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    pub metrics_urls: Option<Vec<String>>,
    pub flush: Option<bool>,
    pub flush_timeout: Option<String>,
    pub flush_command: Option<String>,
    pub isolate: Option<super::Isolate>,
    pub sample_interval: Option<String>,
    pub ranks: Option<u32>,
    pub kv_tokens_per_rank: Option<u64>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sim {
    pub preset: Option<String>,
    pub guard: Option<String>,
    pub time_scale: Option<f64>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slo {
    pub ttft_ms: Option<f64>,
    pub tpot_ms: Option<f64>,
    pub e2el_ms: Option<f64>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Experiment {
    pub rounds: Option<u32>,
    pub primary: Option<String>,
    pub threshold: Option<f64>,
    pub fail_if: Option<Vec<String>>,
    pub server_info_may_differ: Option<Vec<String>>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Arm {
    pub name: Option<String>,
    pub target: Option<String>,
    pub control: Option<bool>,
    pub keys: Option<String>,
    pub prompts: Option<String>,
    pub metrics: Option<String>,
    pub launch: Option<String>,
    pub ready_timeout: Option<String>,
    pub stop_timeout: Option<String>,
}

/// Written by hand so that a wrong value is told what a length looks like, which serde's untagged enums cannot say.
impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Between {
            min: u32,
            max: u32,
        }
        match toml::Value::deserialize(deserializer)? {
            toml::Value::Integer(n) => u32::try_from(n)
                .map(Self::Exactly)
                .map_err(|_| serde::de::Error::custom(format!("{n} is no length: give 0 to {}", u32::MAX))),
            table @ toml::Value::Table(_) => {
                let Between { min, max } = table.try_into().map_err(serde::de::Error::custom)?;
                Ok(Self::Between { min, max })
            }
            other => Err(serde::de::Error::custom(format!(
                "a length is a number of tokens or {{ min = N, max = N }}, not {}",
                other.type_str()
            ))),
        }
    }
}

impl<'de> Deserialize<'de> for Popularity {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Zipf {
            zipf: f64,
        }
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(word) => Ok(Self::Word(word)),
            table @ toml::Value::Table(_) => {
                let Zipf { zipf } = table.try_into().map_err(serde::de::Error::custom)?;
                Ok(Self::Zipf(zipf))
            }
            other => Err(serde::de::Error::custom(format!(
                "popularity is \"uniform\" or {{ zipf = 1.1 }}, not {}",
                other.type_str()
            ))),
        }
    }
}
