//! From a TOML profile and flags to a checked [`RunSpec`]. A flag is a key and a value laid over the profile's table, so
//! there is one schema, one set of defaults and one place that checks.

mod arm;
mod builtin;
mod error;
mod gate;
mod load;
pub mod raw;
mod resolve;
mod spec;
mod target;

pub use builtin::{builtin, builtins};
pub use error::ProfileError;
pub use gate::{Condition, GRAMMAR as GATE_GRAMMAR, Gate, Relation};
pub use load::{Override, load};
pub use resolve::{Context, PRIMARY, THRESHOLD, check_stored, experiment_spec, gates, run_spec};
pub use spec::{
    Api, ArmKeys, ArmPrompts, ArmSpec, ChatLayout, ExperimentSpec, Gaps, History, Isolate, KeyScope, KeySpec,
    LaunchSpec, Length, LoadSpec, Order, Pacing, PlaceField, Popularity, PromptAs, RequestSpec, RunSpec, ServerSpec,
    SimSpec, Target, TimeoutSpec, WorkloadSpec, what_may_differ,
};
