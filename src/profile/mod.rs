//! From a TOML profile and flags to a checked [`RunSpec`]. A flag is a key and a value laid over the profile's table, so
//! there is one schema, one set of defaults and one place that checks.

mod builtin;
mod error;
mod load;
pub mod raw;
mod resolve;
mod spec;
mod target;

pub use builtin::{builtin, builtins};
pub use error::ProfileError;
pub use load::{Override, load};
pub use resolve::{Context, experiment_spec, run_spec};
pub use spec::{
    Api, ArmSpec, ChatLayout, ExperimentSpec, Gaps, History, KeyScope, KeySpec, Length, LoadSpec, Order, Pacing,
    PlaceField, Popularity, PromptAs, RequestSpec, RunSpec, ServerSpec, SimSpec, Target, TimeoutSpec, WorkloadSpec,
};
