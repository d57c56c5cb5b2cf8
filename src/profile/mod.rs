//! From a TOML profile and flags to a checked [`RunSpec`]. A flag is a key and a value laid over the profile's table, so
//! there is one schema, one set of defaults and one place that checks.

mod arm;
mod builtin;
mod error;
mod experiment;
mod gate;
mod load;
mod metrics_url;
pub mod raw;
mod request;
mod resolve;
#[cfg(test)]
pub(crate) mod sample;
mod slo;
mod spec;
mod target;
mod workload;

pub use builtin::{builtin, builtins};
pub use error::ProfileError;
pub use experiment::{ArmKeys, ArmPrompts, ArmSpec, ExperimentSpec, LaunchSpec, Target, what_may_differ};
pub use gate::{Condition, GRAMMAR as GATE_GRAMMAR, Gate, Relation};
pub use load::{Override, by_flag, load};
pub use metrics_url::MetricsUrl;
pub use resolve::{
    Context, PRIMARY, THRESHOLD, check_stored, check_sweep_arms, experiment_spec, gates, run_spec, sweep_arms,
};
pub use slo::Slo;
pub use spec::{
    Api, ChatLayout, Connections, Gaps, History, Isolate, KeyScope, KeySpec, Length, LoadSpec, Order, Pacing,
    PlaceField, Popularity, PromptAs, RequestSpec, RunSpec, ServerSpec, SimSpec, TimeoutSpec, WorkloadSpec,
};
