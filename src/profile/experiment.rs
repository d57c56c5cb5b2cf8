//! The checked specification of an experiment: one run, the arms that take turns at it, and how they are judged.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Gate, MetricsUrl, RunSpec};

/// Arms, rounds, and how they are judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExperimentSpec {
    pub run: RunSpec,
    pub rounds: NonZeroU32,
    /// Key of the metric that was declared before the run.
    pub primary: String,
    /// Smallest relative change that matters.
    pub threshold: f64,
    #[serde(default)]
    pub fail_if: Vec<Gate>,
    /// Fields of the servers' own descriptions in which the arms are meant to differ.
    #[serde(default = "what_may_differ")]
    pub server_info_may_differ: Vec<String>,
    /// The first is the baseline.
    pub arms: Vec<ArmSpec>,
    /// Whether both arms are one and the same, so that what lies between them is noise.
    #[serde(default)]
    pub aa: bool,
}

/// The routing policy is what arms differ in, where nothing else is named.
#[must_use]
pub fn what_may_differ() -> Vec<String> {
    vec!["load_balance_method".to_owned()]
}

/// One server configuration under test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArmSpec {
    pub name: String,
    pub target: Target,
    /// Shown, never judged.
    pub control: bool,
    #[serde(default)]
    pub keys: ArmKeys,
    #[serde(default)]
    pub prompts: ArmPrompts,
    /// Further addresses whose counters are read in this arm only.
    #[serde(default)]
    pub metrics_urls: Vec<MetricsUrl>,
    /// Present when this program starts and stops the server itself, for each block anew.
    #[serde(default)]
    pub launch: Option<LaunchSpec>,
}

/// A server as a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchSpec {
    /// For `sh -c`.
    pub command: String,
    /// From its start until it answers.
    pub ready_timeout: Duration,
    /// From SIGTERM to SIGKILL.
    pub stop_timeout: Duration,
}

/// Which keys the turns of an arm carry.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArmKeys {
    /// Those of the workload.
    #[default]
    Plan,
    None,
    /// One of its own for each turn, as from callers that send a fresh id as key.
    PerTurn,
}

/// Which prompts an arm sends.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArmPrompts {
    /// Those of the workload.
    #[default]
    Plan,
    /// As long as those, and no two with a common beginning.
    ZeroReuse,
}

/// Where an arm's requests go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A server that someone else runs; the base URL without a trailing slash.
    Url(String),
    /// A simulated server that this program starts as a child process.
    Sim {
        policy: String,
        /// Further settings, as flags of `gspbench sim` without the dashes.
        settings: BTreeMap<String, String>,
    },
    /// Servers that someone else runs, over whose ranks (one address) or among which (several) this program itself spreads
    /// the turns.
    Pin {
        policy: String,
        /// Settings of the policy, by the names of the simulator's flags without the dashes.
        settings: BTreeMap<String, String>,
        /// Base URLs without trailing slashes; at least one.
        urls: Vec<String>,
    },
}

impl Target {
    /// The addresses of servers that someone else runs; none of a simulated one.
    #[must_use]
    pub fn urls(&self) -> &[String] {
        match self {
            Self::Url(url) => std::slice::from_ref(url),
            Self::Pin { urls, .. } => urls,
            Self::Sim { .. } => &[],
        }
    }
}
