//! The plan's shape, and what can be read off it without making any text.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::profile::{ArmKeys, ArmPrompts, KeyScope, KeySpec, RequestSpec, WorkloadSpec};

/// A turn by its group, its session within the group, and its place in the conversation, each from 0.
pub type TurnIndex = (u32, u32, u32);

/// Every turn of a run, in send order.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub workload: WorkloadSpec,
    pub key: KeySpec,
    pub request: RequestSpec,
    /// Pause between the end of a turn and the next turn of its session.
    pub think: Duration,
    /// Tokens of each group's system prompt.
    pub system_tokens: Vec<u32>,
    /// In send order.
    pub sessions: Vec<SessionPlan>,
    pub prompts: ArmPrompts,
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

/// What a plan amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Groups that have a session.
    pub groups: u64,
    pub sessions: u64,
    pub turns: u64,
    /// By [`Plan::prompt_tokens`].
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// Prompts that differ from each other: all of them, since a plan is refused in which the first questions of two sessions
    /// that share their system prompt are the same text.
    pub distinct_prompts: u64,
}

impl Plan {
    /// Tokens of the prompt of turn `turn` of the session at index `at`; `None` when the plan has no such turn.
    ///
    /// Exact for first turns and for synthetic history. With the server's own replies as history it takes each earlier
    /// reply at its planned output length, though a reply that is encoded again may come out longer or shorter.
    #[must_use]
    pub fn prompt_tokens(&self, at: usize, turn: u32) -> Option<u32> {
        let session = self.sessions.get(at)?;
        let turn = usize::try_from(turn).ok()?;
        let question = session.turns.get(turn)?.question_tokens;
        let earlier = session.turns[..turn].iter().map(|t| t.question_tokens.saturating_add(t.output_tokens));
        let system = self.system_tokens[session.group as usize];
        Some(earlier.fold(system.saturating_add(question), u32::saturating_add))
    }

    /// The plan as an arm sends it that carries other keys or prompts than the workload has. The digest stays where only
    /// keys differ: it does not say whether they are sent.
    #[must_use]
    pub fn for_arm(mut self, keys: ArmKeys, prompts: ArmPrompts) -> Self {
        self.key.by = sent_keys(self.key.by, keys);
        if prompts == ArmPrompts::ZeroReuse {
            self.prompts = prompts;
            self.digest = format!("{:032x}", xxh3_128(format!("zero_reuse {}", self.digest).as_bytes()));
        }
        self
    }

    /// The plan in numbers.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut totals =
            Totals { groups: 0, sessions: 0, turns: 0, prompt_tokens: 0, output_tokens: 0, distinct_prompts: 0 };
        let mut groups = BTreeSet::new();
        for session in &self.sessions {
            groups.insert(session.group);
            totals.sessions += 1;
            let mut prompt = u64::from(self.system_tokens[session.group as usize]);
            for turn in &session.turns {
                prompt += u64::from(turn.question_tokens);
                totals.turns += 1;
                totals.distinct_prompts += 1;
                totals.prompt_tokens += prompt;
                totals.output_tokens += u64::from(turn.output_tokens);
                prompt += u64::from(turn.output_tokens);
            }
        }
        totals.groups = groups.len() as u64;
        totals
    }
}

/// The scope of the keys that an arm sends, where the workload has keys of `scope`.
#[must_use]
pub fn sent_keys(scope: KeyScope, keys: ArmKeys) -> KeyScope {
    match keys {
        ArmKeys::Plan => scope,
        ArmKeys::None => KeyScope::None,
        ArmKeys::PerTurn => KeyScope::Turn,
    }
}

/// A count as a float; exact.
#[expect(clippy::cast_precision_loss, reason = "counts and token sums stay below 2^53")]
pub(super) fn precise(count: u64) -> f64 {
    count as f64
}
