//! From a TOML profile and flags to a checked [`RunSpec`].

mod spec;

pub use spec::{
    Api, ArmSpec, ChatLayout, ExperimentSpec, History, KeyScope, KeySpec, Length, LoadSpec, Order, Pacing, Popularity,
    PromptAs, RequestSpec, RunSpec, ServerSpec, SimSpec, Target, TimeoutSpec, WorkloadSpec,
};
