//! The findings themselves: what was seen, what it does to the numbers, and what to change.

use serde::{Deserialize, Serialize};

/// Whether the numbers of a run may be used, and with which caveats.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validity {
    pub verdict: Verdict,
    pub voids: Vec<Finding>,
    pub warnings: Vec<Finding>,
}

/// The answer in one word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    #[default]
    Valid,
    Void,
}

/// One reason for doubt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub kind: FindingKind,
    pub seen: String,
    pub limit: Option<String>,
    /// What it does to the numbers.
    pub effect: String,
    /// What to change.
    pub advice: String,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Turns failed.
    Errors,
    /// Client and server disagree on cached tokens.
    Hit,
    /// The server served others too.
    Traffic,
    /// Prompts are not as long as planned.
    PromptLength,
    /// Replies are not as long as planned.
    OutputLength,
    /// The client was late or short of resources.
    Client,
    /// The cache held prompts of this run before it began.
    Warm,
    /// Nothing shows that the cache was empty at the start.
    ColdUnproven,
    /// A cap held turns back under a rate.
    Cap,
    /// Sessions started at another rate than planned.
    Rate,
    /// The server started again during the run.
    Restart,
    /// Routing keys do not reach the server.
    Key,
    /// Counters of an address could not be read.
    Scrape,
    /// Counters count prompts more than once, and who tells which of them to compare is missing.
    Unreconciled,
    /// The run ended before its plan.
    Interrupted,
    /// Token counts are estimates.
    Estimated,
    /// Replies bent the protocol in ways that cost numbers or hint at something in between.
    Oddities,
    /// Replies declined to answer.
    Refusals,
    /// Far less was cached than the places served before.
    Eviction,
    /// Turns were served by a rank that the server does not have.
    Rank,
    /// Turns were served elsewhere than this program placed them.
    Pin,
    /// Connections were placed, and not turns, and the places have unlike shares.
    Skew,
    /// Round robin may keep step with the sessions.
    Aliasing,
    /// A router that takes its key from the prompt does not see the sessions.
    RouterKey,
    /// The program was built without optimisation.
    DebugBuild,
    /// Another program wrote the result, and not all that a comparison needs.
    Foreign,
}

/// A finding and whether it voids the run.
pub(super) type Judged = (Finding, Verdict);

/// Bounds of a relative difference.
pub(super) struct Limits {
    pub(super) void: f64,
    pub(super) warning: f64,
}

pub(super) fn finding(kind: FindingKind, seen: String, limit: Option<String>, effect: &str, advice: &str) -> Finding {
    Finding { kind, seen, limit, effect: effect.into(), advice: advice.into() }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.3}", share * 100.0).trim_end_matches('0').trim_end_matches('.').to_owned() + " %"
}

impl Limits {
    pub(super) fn judge(&self, difference: f64) -> Option<Verdict> {
        match difference {
            d if d > self.void => Some(Verdict::Void),
            d if d > self.warning => Some(Verdict::Valid),
            _ => None,
        }
    }

    pub(super) fn words(&self) -> Option<String> {
        Some(format!("{}, warning above {}", percent(self.void), percent(self.warning)))
    }
}
