//! The plan's shape.

use std::time::Duration;

use crate::profile::{KeySpec, RequestSpec, WorkloadSpec};

/// Every turn of a run, in send order.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub workload: WorkloadSpec,
    pub key: KeySpec,
    pub request: RequestSpec,
    /// Tokens of each group's system prompt.
    pub system_tokens: Vec<u32>,
    /// In send order.
    pub sessions: Vec<SessionPlan>,
    /// xxh3-128 in hex over what the server gets to see; equal digests mean equal workloads.
    pub digest: String,
}

/// One conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionPlan {
    pub group: u32,
    /// Within the group.
    pub session: u32,
    /// Offset from the start of the run; absent in a closed loop.
    pub arrival: Option<Duration>,
    pub turns: Vec<TurnPlan>,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnPlan {
    pub question_tokens: u32,
    pub output_tokens: u32,
}
