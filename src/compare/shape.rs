//! The shape of `comparison.json`, schema 1.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Doubt, Setting};
use crate::report::{Attribution, Better, Finding, GateOutcome, HitRate, PlaceRow, WithFailures};

/// The version of this shape.
pub const SCHEMA: u32 = 1;

/// Arms side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub schema: u32,
    /// What was measured, with what, when and where.
    #[serde(default)]
    pub setting: Option<Setting>,
    pub baseline: String,
    /// Key of the metric that was declared before the runs.
    pub primary: String,
    /// Smallest relative change that matters, such as 0.02.
    pub threshold: f64,
    /// The baseline first.
    pub arms: Vec<Arm>,
    pub rounds: Vec<u32>,
    /// Present when rounds are missing that the experiment was to run.
    #[serde(default)]
    pub interrupted: Option<Interrupted>,
    /// Whether the arms ran the same work; if not, `differences` says why, and no ratio means anything.
    pub comparable: bool,
    /// The arms are one and the same server twice: whatever lies between them is noise.
    #[serde(default)]
    pub aa: bool,
    /// How far such arms are apart; absent where they are not, and where no round has both.
    #[serde(default)]
    pub noise_floor: Option<NoiseFloor>,
    /// The reader asked for ratios and verdicts although the arms are not comparable.
    #[serde(default)]
    pub mismatch_allowed: bool,
    pub differences: Vec<Difference>,
    /// What may differ and does, such as the host: it takes nothing away from comparability.
    #[serde(default)]
    pub remarks: Vec<Difference>,
    /// Every field in which the servers' own descriptions differ.
    #[serde(default)]
    pub server_info: Vec<InfoDifference>,
    /// Doubts about the design of the experiment as a whole, such as an order that a drift can imitate.
    #[serde(default)]
    pub doubts: Vec<Doubt>,
    pub metrics: Vec<MetricRow>,
    /// What the servers' own counters say of prefill work: one entry per arm after the baseline.
    #[serde(default)]
    pub costs: Vec<Cost>,
    /// One line a gate and arm, in the order in which the gates were given.
    #[serde(default)]
    pub gates: Vec<GateOutcome>,
    /// How to run it again: the command line of each arm's first block, in the order of the arms, without repetition; with the
    /// seed where it was drawn, and without `--out`.
    #[serde(default)]
    pub commands: Vec<String>,
}

/// How far two runs of one and the same arm are apart in the primary metric.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct NoiseFloor {
    /// Rounds that have a ratio.
    pub rounds: u64,
    /// The ratios as they came out.
    pub least_ratio: f64,
    pub most_ratio: f64,
    /// The largest change, as a share, inside the interval; absent where the rounds are too few for one.
    pub change: Option<f64>,
}

/// How far an experiment came that did not end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupted {
    /// Rounds in which no block is missing.
    pub rounds_done: u32,
    pub rounds_planned: u32,
    /// Its directory, with which it goes on.
    pub dir: String,
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
    /// As the server tells it: caches behind one address, and what they hold together.
    #[serde(default)]
    pub ranks_told: Option<u32>,
    #[serde(default)]
    pub kv_tokens_total: Option<u64>,
    /// Null, like those below, where the program that wrote a result does not count them.
    pub planned: Option<u64>,
    pub complete: u64,
    pub failed: Option<u64>,
    pub cancelled: Option<u64>,
    pub skipped: Option<u64>,
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
    /// Means by the server's own clock over the requests of all valid rounds that tell it.
    #[serde(default)]
    pub server_ttft_ms: Option<f64>,
    #[serde(default)]
    pub server_queue_ms: Option<f64>,
    /// Percentiles with every failed turn as one that never ended, by latency: `ttft_ms`, `e2e_ms`. Empty without failures.
    #[serde(default)]
    pub with_failures: BTreeMap<String, WithFailures>,
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

/// A field of the servers' own descriptions that differs between an arm and the baseline of its round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InfoDifference {
    pub round: u32,
    pub arm: String,
    /// Its path, such as `attn_dp_size`.
    pub field: String,
    /// As JSON; absent where that server does not name the field.
    pub baseline: Option<String>,
    pub other: Option<String>,
    /// It was named as what the arms differ in, or is different on any two servers, as a port is.
    pub may_differ: bool,
}

/// Prefill work of one arm and the baseline over the rounds that both counted, as the servers' counters say it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    pub arm: String,
    /// Prompt tokens that had to be computed.
    pub computed_tokens: Option<Pair>,
    /// Time spent in prefill, added up over the ranks.
    pub prefill_busy_ms: Option<Pair>,
}

/// The baseline and an arm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    pub baseline: f64,
    pub other: f64,
}

/// One metric of all arms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricRow {
    pub key: String,
    pub label: String,
    pub unit: String,
    pub better: Better,
    pub least_samples: u64,
    /// Judged: the primary metric, or one of the few headlines.
    #[serde(default)]
    pub judged: bool,
    pub pooling: Pooling,
    /// In the order of the arms.
    pub arms: Vec<ArmValue>,
    /// One per arm after the baseline.
    pub contrasts: Vec<Contrast>,
}

impl MetricRow {
    /// The label without its unit, which a ratio of two values does not have.
    #[must_use]
    pub fn name(&self) -> &str {
        self.label.split(" (").next().unwrap_or(&self.label)
    }
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

/// One arm against the baseline. It has a verdict, or says why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contrast {
    pub arm: String,
    /// arm / baseline of the same round; rounds where either is void or silent have none.
    pub ratios: Vec<RoundRatio>,
    pub geometric_mean: Option<f64>,
    pub interval: Option<Interval>,
    pub verdict: Option<Verdict>,
    #[serde(default)]
    pub unjudged: Option<Unjudged>,
    /// Of the primary metric only.
    #[serde(default)]
    pub sign_flip: Option<SignFlip>,
    /// The smallest true change, as a share such as 0.03, that these rounds would call better or worse four times in five.
    #[serde(default)]
    pub smallest_effect: Option<f64>,
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
    pub basis: Basis,
}

/// What an interval was computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The ratios of three rounds or more.
    Rounds,
    /// Groups and sessions inside fewer rounds, drawn again and again: it says nothing of how runs differ.
    WithinOneRun,
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

/// Why there is no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unjudged {
    /// A control arm is shown, never judged.
    Control,
    NotComparable,
    /// An arm lacks the metric, or has no round in common with the baseline where it is above zero.
    NotMeasured,
    /// Too few samples for this quantile.
    FewSamples,
    /// Fewer than three rounds, and nothing inside them that could be drawn again.
    FewRounds,
    /// One of the many metrics that are shown beside the judged ones.
    Descriptive,
}

/// The exact sign-flip test of the ratios of all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SignFlip {
    pub p: f64,
    /// The smallest that so many rounds can give, 2 / 2ⁿ.
    pub floor: f64,
}
