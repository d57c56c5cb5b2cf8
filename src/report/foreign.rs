//! What another program left behind, in the shape of a report. What it does not write down is not there, and is named.

use serde::{Deserialize, Serialize};

use super::audit::finding::{Finding, FindingKind};
use super::shape::RunReport;

/// Where a result comes from that this program did not measure. Of `manifest.spec` nothing is known then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// The program.
    pub tool: String,
    /// Load and route in its words, where they are recorded.
    pub load: Option<String>,
    pub backend: Option<String>,
    /// Counts of turns, by our name, that its file does not tell.
    pub uncounted: Vec<String>,
    /// What no comparison can check.
    pub unchecked: Vec<String>,
}

impl Foreign {
    /// The doubt that goes with every such result.
    #[must_use]
    pub fn finding(&self) -> Finding {
        let uncounted = self.uncounted.iter().map(|name| format!("{name} turns"));
        let missing: Vec<_> = self.unchecked.iter().cloned().chain(uncounted).collect();
        Finding {
            kind: FindingKind::Foreign,
            seen: format!("a result of {}, which does not record: {}", self.tool, missing.join(", ")),
            limit: None,
            effect: "nobody can check that both sides ran the same work from the same cold cache, and its latencies \
                     follow its own definitions"
                .into(),
            advice: "to be sure, run both sides with gspbench".into(),
        }
    }
}

impl RunReport {
    /// A count of turns; none where the program that wrote the result does not tell it.
    #[must_use]
    pub fn counted(&self, name: &str, turns: u64) -> Option<u64> {
        let is_told = |foreign: &Foreign| !foreign.uncounted.iter().any(|uncounted| uncounted == name);
        self.foreign.as_ref().is_none_or(is_told).then_some(turns)
    }
}
