//! The simulated multi-rank server: engine step (pure), prefix cache, cost model, DP fleet, HTTP front.
//!
//! It writes its own wire bytes by hand, from captures of a real server, and counts its own tokens: code shared with the
//! client would hide a symmetric mistake.
mod actor;
mod cache;
mod cost;
mod engine;
mod fleet;
pub mod histogram;
mod http;
mod job;
mod log;
mod rank;
mod settings;
mod tokens;
mod truth;

pub use actor::{Flushed, Handle, Report, Stopped, Ticket, Update, start};
pub use cost::{Costs, Preset, PresetError};
pub use engine::Engine;
pub use fleet::{Fleet, Submission};
pub use http::{Setup, serve, start_unix};
pub use job::{Event, Job, JobId};
pub use log::Log;
pub use rank::{Counts, Limits, Snapshot};
pub use settings::{Settings, SettingsError};
pub use tokens::{Reply, Tokens, TokensError};
pub use truth::{Schedule, Written, serve_schedule};
