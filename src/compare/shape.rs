//! The shape of `comparison.json`, schema 1.

use serde::{Deserialize, Serialize};

use crate::report::{Attribution, Better, Finding, HitRate, PlaceRow};

/// The version of this shape.
pub const SCHEMA: u32 = 1;

/// Arms side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub schema: u32,
    pub baseline: String,
    /// The baseline first.
    pub arms: Vec<Arm>,
    pub rounds: Vec<u32>,
    /// Whether the arms ran the same work; if not, `differences` says why, and no ratio means anything.
    pub comparable: bool,
    pub differences: Vec<Difference>,
    pub metrics: Vec<MetricRow>,
}

/// One arm over all its blocks. Counts of turns are of all blocks; everything else is of the valid ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Arm {
    pub name: String,
    /// Shown, never judged.
    pub control: bool,
    /// In which the arm ran.
    pub rounds: Vec<u32>,
    pub model: Option<String>,
    pub load_balance_method: Option<String>,
    pub planned: u64,
    pub complete: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub skipped: u64,
    pub prompt_tokens: Option<u64>,
    pub planned_prompt_tokens: Option<u64>,
    /// Means over rounds, as are all ratios here.
    pub hit_rate: HitRate,
    pub ideal_reuse: Option<f64>,
    pub round_robin_reuse: Option<f64>,
    /// Reuse that the observed places allow.
    pub expected_reuse: Option<f64>,
    /// Sums over rounds, with the first reason why places are unknown.
    pub attribution: Attribution,
    pub stickiness: Option<f64>,
    pub load_max_over_mean: Option<f64>,
    /// Sums over rounds; the TTFT from merged histograms.
    pub ranks: Vec<PlaceRow>,
    /// Rounds whose block was interrupted, or still runs: none of its numbers is used.
    #[serde(default)]
    pub unfinished_rounds: Vec<u32>,
    /// Rounds whose block is void: none of its numbers is used.
    pub void_rounds: Vec<u32>,
    /// What was found in the blocks, with their rounds.
    pub voids: Vec<(u32, Finding)>,
    pub warnings: Vec<(u32, Finding)>,
}

impl Arm {
    /// Whether the numbers of any block may be used.
    #[must_use]
    pub fn has_valid_round(&self) -> bool {
        self.rounds.iter().any(|round| !self.void_rounds.contains(round) && !self.unfinished_rounds.contains(round))
    }
}

/// Two arms that did not run the same work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub round: u32,
    pub arm: String,
    /// What differs, such as `digest`.
    pub field: String,
    pub baseline: String,
    pub other: String,
}

/// One metric of all arms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricRow {
    pub key: String,
    pub label: String,
    pub unit: String,
    pub better: Better,
    pub least_samples: u64,
    pub pooling: Pooling,
    /// In the order of the arms.
    pub arms: Vec<ArmValue>,
    /// One per arm after the baseline.
    pub contrasts: Vec<Contrast>,
}

/// How the value of an arm came from several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    MeanOfRounds,
    MergedHistograms,
}

/// The value of one arm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ArmValue {
    pub value: Option<f64>,
    pub samples: u64,
}

/// One arm against the baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contrast {
    pub arm: String,
    /// arm / baseline of the same round; rounds where either is void or silent have none.
    pub ratios: Vec<RoundRatio>,
    pub geometric_mean: Option<f64>,
    /// Absent until intervals are computed.
    pub interval: Option<Interval>,
    /// Absent until verdicts are given.
    pub verdict: Option<Verdict>,
}

/// One round's ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RoundRatio {
    pub round: u32,
    pub ratio: Option<f64>,
}

/// An interval on a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
    /// Such as 0.95.
    pub level: f64,
}

/// The whole interval against ± threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Better,
    Worse,
    Same,
    Unclear,
}
