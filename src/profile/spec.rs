//! The checked specification of a run: what every later stage trusts. It is built once, from a profile and flags, and is
//! stored whole in `run.json`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{MetricsUrl, Slo};
use crate::units::{grouped, plural};

/// One arm, one block: everything that a run needs to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// The profile's name, or `flags` when there was none.
    pub name: String,
    pub workload: WorkloadSpec,
    pub key: KeySpec,
    pub request: RequestSpec,
    pub load: LoadSpec,
    pub timeout: TimeoutSpec,
    pub server: ServerSpec,
    pub sim: SimSpec,
    /// What a turn must meet to count for goodput; absent, no turn is judged.
    #[serde(default)]
    pub slo: Option<Slo>,
}

/// Generated shared prefixes: groups of sessions that share one system prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadSpec {
    pub groups: NonZeroU32,
    pub sessions_per_group: NonZeroU32,
    pub turns: NonZeroU32,
    pub system_tokens: Length,
    pub question_tokens: Length,
    pub output_tokens: Length,
    pub popularity: Popularity,
    pub order: Order,
    pub history: History,
    pub seed: u64,
}

/// A length in tokens, drawn uniformly from `min..=max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Length {
    pub min: u32,
    pub max: u32,
}

/// How often each group is asked. In both cases there are groups × sessions_per_group sessions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Popularity {
    /// Every group has the same number of sessions.
    Uniform,
    /// Each session draws its group with probability ∝ (group + 1)^−exponent.
    Zipf(f64),
}

/// The order in which sessions leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Ascending hash of (seed, group, session): adding a session moves no other.
    Shuffled,
    /// Group by group.
    Grouped,
}

/// What stands as assistant text in the prompts of later turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// The server's own replies.
    Real,
    /// Text derived from the seed, of the planned output length.
    Synthetic,
    /// Replies that the baseline gave in a block that is not measured: the same text in every arm.
    Recorded,
}

/// Which turns share a routing key, and how they carry it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeySpec {
    pub by: KeyScope,
    /// Another salt gives other keys, and so another placement, for the same prompts.
    pub salt: u64,
    pub headers: Vec<String>,
    /// Body field on `/generate`, which reads no header.
    pub body_field: Option<String>,
}

/// The scope of one routing key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyScope {
    Group,
    Session,
    Turn,
    None,
}

/// The shape of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestSpec {
    pub api: Api,
    pub chat_layout: ChatLayout,
    pub prompt_as: PromptAs,
    /// Absent: words, which the simulator counts one to one.
    pub tokenizer: Option<PathBuf>,
    /// Absent: asked of the server.
    pub model: Option<String>,
    pub temperature: f64,
    pub ignore_eos: bool,
    pub extra_body: serde_json::Map<String, serde_json::Value>,
    pub headers: BTreeMap<String, String>,
    /// PEM file of the certificates to trust, in place of the host's store.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// Whether any TLS certificate will do.
    #[serde(default)]
    pub insecure: bool,
    /// A field of the replies that names the worker; absent, only what names one by itself does.
    #[serde(default)]
    pub place_field: Option<PlaceField>,
    /// Most MiB of one line or event of a reply.
    #[serde(default = "largest_event")]
    pub largest_event_mib: NonZeroU32,
}

/// Many times the longest reply, which some servers repeat in every event.
pub(super) const fn largest_event() -> NonZeroU32 {
    NonZeroU32::new(64).expect("64 is not 0")
}

/// A field of a reply that says where it was made, where the user knows that it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceField {
    /// `model`: each worker serves under a name of its own.
    Model,
}

/// The route in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// SGLang's native `/generate`
    Generate,
}

/// Where the group's prompt stands in a chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChatLayout {
    /// `messages[0]`, role system.
    System,
    /// At the head of the first user message, as bench_serving does it.
    Merged,
}

/// Prompts as text, or as ids of the tokenizer in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PromptAs {
    Text,
    Ids,
}

/// When turns leave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadSpec {
    pub pacing: Pacing,
    pub max_turns_in_flight: Option<NonZeroU32>,
    #[serde(default)]
    pub connections: Connections,
    /// How long the load takes to reach its height. Closed: the slots open evenly over it. Open: the rate grows linearly.
    #[serde(default)]
    pub ramp_up: Duration,
    /// Nothing is sent after it, and what is under way is cut. The run ends with its plan if that comes first: no prompt is
    /// ever sent again to fill the time.
    #[serde(default)]
    pub duration: Option<Duration>,
    /// Pause between the end of a turn and the next turn of its session.
    pub think: Duration,
    /// Sessions of their own prompts and keys that run first and are not counted.
    pub warmup_sessions: u32,
}

impl std::fmt::Display for LoadSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pacing, max_turns_in_flight, connections, ramp_up, duration, think, warmup_sessions: _ } = self;
        match pacing {
            Pacing::Closed { sessions } => {
                write!(f, "closed loop, {} in flight", plural(sessions.get().into(), "session"))?;
            }
            Pacing::Open { per_second, gaps, sessions } => {
                write!(f, "open loop, {per_second} sessions/s, {gaps}")?;
                sessions.map_or(Ok(()), |cap| write!(f, ", at most {} in flight", grouped(cap.get().into())))?;
            }
        }
        max_turns_in_flight
            .map_or(Ok(()), |turns| write!(f, ", at most {} in flight", plural(turns.get().into(), "turn")))?;
        let spans = [("think time", Some(*think)), ("ramp-up", Some(*ramp_up)), ("at most", *duration)];
        for (what, span) in spans {
            span.filter(|span| !span.is_zero())
                .map_or(Ok(()), |span| write!(f, ", {what} {} s", span.as_secs_f64()))?;
        }
        match connections {
            Connections::Kept => Ok(()),
            Connections::PerTurn => f.write_str(", a new connection for each turn"),
        }
    }
}

/// Which connection a turn goes over.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connections {
    /// One that earlier turns have left open, as long as there is one that no other turn uses.
    #[default]
    Kept,
    /// One of its own, which is closed after it: whatever places connections, as a balancer on layer 4 does, places each turn.
    PerTurn,
}

/// Closed: a session starts when another ends. Open: sessions start by a schedule; a cap delays them but moves no due time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pacing {
    Closed {
        sessions: NonZeroU32,
    },
    Open {
        /// Mean sessions a second.
        per_second: f64,
        gaps: Gaps,
        /// Most sessions in flight at once.
        sessions: Option<NonZeroU32>,
    },
}

/// How the gaps between arrivals are spread around their mean.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gaps {
    /// All equal: `burstiness = inf`.
    Even,
    /// Gamma distributed with this shape: 1 is a Poisson process, larger is more even.
    Gamma(f64),
}

impl std::fmt::Display for Gaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Even => f.write_str("evenly spaced"),
            Self::Gamma(shape) => write!(f, "burstiness {shape}"),
        }
    }
}

/// There is no total timeout: it would remove just the slow replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeoutSpec {
    pub connect: Duration,
    /// From sent to the first byte of the body.
    pub first_byte: Duration,
    /// Longest silence between bytes after that.
    pub idle: Duration,
}

/// What is known of the server beforehand, and how its cache is emptied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerSpec {
    /// Further addresses to scrape, beside the target's own.
    pub metrics_urls: Vec<MetricsUrl>,
    /// Whether the run is to begin with an empty cache.
    pub flush: bool,
    pub flush_timeout: Duration,
    /// A shell command that empties the cache, in place of the server's own route.
    #[serde(default)]
    pub flush_command: Option<String>,
    /// In place of a flush: what keeps this run from finding what others have left.
    #[serde(default)]
    pub isolate: Option<Isolate>,
    /// Between two looks at the load of every place; 0: it is not looked at.
    #[serde(default = "every_second")]
    pub sample_interval: Duration,
    /// For plan and oracle when the server does not tell.
    pub ranks: NonZeroU32,
    pub kv_tokens_per_rank: u64,
}

/// How a run begins cold on a server whose cache cannot be emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolate {
    /// Every request carries the same fresh `cache_salt`, so that no prefix of an earlier run is found. SGLang and vLLM
    /// honour it; what earlier runs have left still fills the cache.
    CacheSalt,
}

const fn every_second() -> Duration {
    Duration::from_secs(1)
}

impl ServerSpec {
    /// Whether the run is to begin with nothing cached, by whatever means.
    #[must_use]
    pub fn begins_cold(&self) -> bool {
        self.flush || self.isolate.is_some()
    }
}

/// Settings of simulated servers that this run starts itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimSpec {
    pub preset: String,
    pub guard: String,
    /// How many times faster than real time.
    pub time_scale: f64,
}
