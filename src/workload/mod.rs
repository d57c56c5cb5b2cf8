//! The plan: which turns exist, of which lengths, under which keys, in which order. A pure function of spec and seed.
//!
//! A plan holds seeds and lengths, not text; [`Prompter`] makes the text of a turn when it is needed.

mod plan;

pub use crate::profile::{Api, ChatLayout, PromptAs, RequestSpec};
pub use plan::{Plan, SessionPlan, TurnPlan};
