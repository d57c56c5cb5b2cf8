//! The plan: which turns exist, of which lengths, under which keys, in which order. A pure function of spec and seed.
//!
//! A plan holds seeds and lengths, not text; a [`Prompter`] makes the text of a turn when it is needed, always the same.

mod arrival;
mod build;
mod digest;
mod key;
mod oracle;
mod placement;
mod plan;
mod prompt;
mod router_key;
mod seed;
mod summary;
mod warmup;

pub use build::{PlanError, plan};
pub use oracle::{Aliasing, Observed, Observing, Reuse, RoundRobin, aliasing, ideal, observed, round_robin};
pub use placement::{Placement, oracle_places};
pub use plan::{Plan, SessionPlan, Totals, TurnIndex, TurnPlan, sent_keys};
pub use prompt::{Message, Prompt, Prompter, Replies, Role};
pub use router_key::{RouterKey, RouterRule};
pub use summary::{PlanSummary, PlanWarning, RunTime, StepCost, WorkingSet};

/// What later stages need of a profile's words, so that they need no other room for them.
pub use crate::profile::{Api, ChatLayout, Connections, Length, Pacing, PlaceField, PromptAs, RequestSpec};
pub use crate::text::JOINT;
