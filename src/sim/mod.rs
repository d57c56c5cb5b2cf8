//! The simulated multi-rank server: engine step (pure), prefix cache, cost model, DP fleet, HTTP front.
mod cache;
mod cost;
mod engine;
mod rank;

pub use cost::{Costs, Preset, PresetError};
pub use engine::Engine;
pub use rank::{Counts, Event, Job, JobId, Limits, Snapshot};
