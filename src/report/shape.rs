//! The shape of `run.json`, schema 1. Nothing is computed here.
//!
//! Absent is null, never 0 and never NaN. Times end in `_us` (integers from the start of the run) or `_ms` (floats), tokens
//! are integers, ratios lie in 0…1. Unknown keys are ignored, so that an older program reads a newer file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::audit::finding::Validity;
use super::foreign::Foreign;
use super::latency::Latency;
use super::places::Placement;
use super::places::Timeline;
use super::places::TtftSplit;
use super::places::affinity::Affinity;
use super::server::ServerFacts;
use crate::profile::{RunSpec, Target};
use crate::record::{EndedBy, Place};
use crate::stats::{Distribution, Summary};
use crate::units::Micros;
use crate::workload::{Aliasing, RouterKey};

/// The version of this shape; raised when a key changes its meaning.
pub const SCHEMA: u32 = 1;

/// One run of one arm: everything that tables and comparisons need, and what it was made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    pub schema: u32,
    pub state: State,
    /// Null while the run is under way, or when it was killed.
    pub ended_by: Option<EndedBy>,
    /// Absent of our own runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub foreign: Option<Foreign>,
    pub manifest: Manifest,
    pub workload: WorkloadFacts,
    pub server: ServerFacts,
    pub totals: Totals,
    pub windows: Windows,
    pub metrics: Metrics,
    /// One row a place, idle ranks too where the server tells how many there are; empty when no turn has a known place.
    pub ranks: Vec<PlaceRow>,
    pub affinity: Affinity,
    /// Null where no reply tells of it.
    #[serde(default)]
    pub ttft_split: Option<TtftSplit>,
    #[serde(default)]
    pub placement: Placement,
    #[serde(default)]
    pub timeline: Timeline,
    pub client: Client,
    pub validity: Validity,
    /// Name of a latency in µs, such as `ttft_us` → HDR V2 deflate, base64.
    pub histograms: BTreeMap<String, String>,
}

/// How far the run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Under way; or the program was killed, which no one can write down.
    Running,
    Complete,
    /// Ended before its plan, by a signal.
    Interrupted,
}

/// What was run, by which program, where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub version: String,
    pub argv: Vec<String>,
    pub spec: RunSpec,
    /// Where the requests went.
    pub target: Option<Target>,
    pub host: Host,
    /// RFC 3339.
    pub started_utc: String,
    /// Numbers from a debug build are not to be published.
    pub debug_build: bool,
    pub arm: Option<String>,
    pub round: Option<u32>,
}

impl Manifest {
    /// Of a run of which nothing but its specification is known yet.
    #[must_use]
    pub fn of(spec: RunSpec) -> Self {
        Self {
            version: String::new(),
            argv: vec![],
            spec,
            target: None,
            host: Host::default(),
            started_utc: String::new(),
            debug_build: false,
            arm: None,
            round: None,
        }
    }
}

/// The machine that the client ran on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub cores: Option<u32>,
    pub memory_bytes: Option<u64>,
    pub kernel: Option<String>,
}

/// What the plan says, as plain facts: the report needs no plan at hand.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadFacts {
    pub digest: String,
    pub groups: u32,
    pub sessions: u64,
    pub turns: u64,
    /// Planned; with real history, without the replies.
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub distinct_prompts: u64,
    /// What a router that looks at the prompt makes of it; null where none does.
    #[serde(default)]
    pub router_key: Option<RouterKey>,
    pub oracle: Oracle,
}

/// What the workload alone implies about reuse, as shares of prompt tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Oracle {
    /// One infinite cache.
    pub ideal_reuse: Option<f64>,
    pub round_robin: Option<RoundRobinOracle>,
    /// Infinite caches at the places where turns were in fact served.
    pub observed: Option<ObservedOracle>,
    /// Cycles that keep step with the ranks.
    #[serde(default)]
    pub aliasing: Vec<Aliasing>,
}

/// Turns spread evenly over the ranks, with no regard to prefixes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundRobinOracle {
    pub ranks: u32,
    pub reuse: f64,
    /// Expected (rank, group) pairs, each of which reads the group's prompt once.
    pub cold_pairs: f64,
    /// Expected share of sessions on more than one rank; absent for single turns.
    pub split_share: Option<f64>,
}

/// Reuse that the observed places allow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObservedOracle {
    pub reuse: f64,
    pub cold_pairs: u64,
}

/// Counts over the whole run. Tokens are those of complete turns, as the server counted them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// = complete + failed + cancelled + skipped once the run has ended.
    pub planned: u64,
    pub complete: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub skipped: u64,
    pub failed_by_kind: BTreeMap<String, u64>,
    pub prompt_tokens: Option<u64>,
    /// What the plan said of the complete turns, where it could.
    pub planned_prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub cached_reported_turns: u64,
    /// Those of them that report more cached tokens than their prompt had: no cache can do that.
    #[serde(default)]
    pub cached_above_prompt_turns: u64,
    pub output_tokens: Option<u64>,
    /// What the plan said of the complete turns.
    pub planned_output_tokens: u64,
    /// Complete turns with fewer output tokens than the plan said of them.
    #[serde(default)]
    pub short_output_turns: u64,
    /// Complete turns whose output count is our estimate.
    pub output_estimated_turns: u64,
    pub reasoning_tokens: Option<u64>,
    pub resends: u64,
    /// Requests that were sent and brought no complete turn: those of failed and of cut turns, and the first ones of turns
    /// that were sent again. The server may have counted each of them.
    #[serde(default)]
    pub unheard_requests: u64,
    /// Planned prompt tokens of these; null where the plan did not know them, or there are none.
    #[serde(default)]
    pub unheard_prompt_tokens: Option<u64>,
    /// Output tokens that these asked for; null where there are none.
    #[serde(default)]
    pub unheard_output_tokens: Option<u64>,
    /// Turns whose connection was refused: nothing listened at the address any more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused_turns: u64,
    /// Complete turns by what their replies did beside the protocol; `came_at_once`: several output frames in one read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub oddities: BTreeMap<String, u64>,
}

/// What did not happen need not be written.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Rates and latencies of parts of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Windows {
    /// From the first request sent to the last reply ended.
    pub whole: Window,
    /// From the first request sent to the end (`done`) of the last complete turn: without the time that turns took which
    /// failed or were cut after it. Tokens of cut turns count by their arrival, in bins of 100 ms. Null where nothing
    /// completed, and in reports of earlier versions.
    #[serde(default)]
    pub to_last_success: Option<Window>,
    /// Full load. Closed loop: from the first instant at the limit to the start of the plan's last session. Open loop: from
    /// the end of the ramp-up to the last due. Either ends with the sending, if a duration or a signal ended that before.
    /// Latencies of turns sent inside; requests by done; tokens by arrival, in the bins of 100 ms that lie inside.
    pub steady: Option<Window>,
    /// Why there is no steady window: it needs 20 % of the run, and two turns for each that may be in flight.
    pub steady_reason: Option<String>,
    pub drain: Option<Drain>,
}

/// The tail of a run: from the last start, when load begins to fall, to the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Drain {
    pub from_us: Micros,
    pub seconds: f64,
    /// Of the whole window.
    pub share: f64,
}

/// One span of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    pub from_us: Micros,
    pub to_us: Micros,
    pub request_throughput: Option<f64>,
    /// Prompt tokens of the turns that are counted. Absent in reports of earlier versions: total − output.
    #[serde(default)]
    pub input_throughput: Option<f64>,
    pub output_throughput: Option<f64>,
    pub total_throughput: Option<f64>,
    /// By name: `ttft_ms`, `itl_ms`, …
    pub latency: BTreeMap<String, Summary>,
}

/// What people quote.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Complete turns a second, from the first request sent to the last reply ended.
    pub request_throughput: Option<f64>,
    pub input_throughput: Option<f64>,
    /// Also counts tokens of turns that the end of the run cut.
    pub output_throughput: Option<f64>,
    /// Of complete turns alone, over the same span.
    #[serde(default)]
    pub finished_output_throughput: Option<f64>,
    pub total_throughput: Option<f64>,
    pub duration_s: Option<f64>,
    pub ttft_ms: Option<Summary>,
    pub answer_ms: Option<Summary>,
    pub itl_ms: Option<Summary>,
    pub icl_ms: Option<Summary>,
    pub tpot_ms: Option<Summary>,
    pub e2e_ms: Option<Summary>,
    pub ttft_from_due_ms: Option<Summary>,
    pub e2e_from_due_ms: Option<Summary>,
    pub cache_hit_rate: HitRate,
    /// Good turns a second: those that met every limit of the specification's `slo`. Absent without one.
    #[serde(default)]
    pub goodput: Option<f64>,
    /// Good turns of all turns but those that the end of the run cut before they were late.
    #[serde(default)]
    pub slo_attainment: Option<f64>,
    /// Percentiles with every failed turn as one that never ended: `ttft_ms`, `e2e_ms`. Empty without failures.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub with_failures: BTreeMap<String, WithFailures>,
    /// By kind of failure: done − sent of the turns that failed so, which are in no other latency. Empty without failures.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed_ms: BTreeMap<String, Summary>,
}

/// Percentiles of a latency over the turns that were measured and those that failed, each of which counts as +∞.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WithFailures {
    /// Measured and failed.
    pub count: u64,
    pub failed: u64,
    /// Each is null where it falls on a failed turn.
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
}

/// Σ cached / Σ prompt tokens over the turns that report both, and which share of complete turns that is. No value where
/// a turn reports more cached tokens than its prompt had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct HitRate {
    pub value: Option<f64>,
    pub coverage: Option<f64>,
}

/// One rank, node or pair of nodes: complete turns only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlaceRow {
    pub place: Place,
    pub turns: u64,
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub hit_rate: Option<f64>,
    pub output_tokens: Option<u64>,
    pub ttft_ms: Option<Summary>,
    /// HDR V2 deflate, base64, so that places can be pooled over rounds.
    pub ttft_us: Option<String>,
}

/// How the client itself did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Client {
    /// Sent − due, of every turn that was sent.
    pub send_lag_ms: Option<Summary>,
    /// Send lag without the wait for a cap, and under `per_turn` without the opening of the turn's own connection: what this
    /// program and this host made late.
    pub own_lag_ms: Option<Summary>,
    /// How late a task that asks to be woken every 10 ms was woken. The timer itself is up to 2 ms late.
    pub runtime_lag_ms: Option<Summary>,
    /// How long caps held turns back under a rate; null without both.
    pub cap_wait_ms: Option<Summary>,
    /// Null in a closed loop.
    pub rate: Option<StartRate>,
    /// Cores kept busy by this process, on average over the measured part: user and system time over wall time.
    pub cpu_cores: Option<f64>,
    /// Share of the measured part for which the busiest of the threads that carry streams was on a core, 0…1. Null in
    /// reports of earlier versions.
    pub busiest_lane: Option<f64>,
    /// Connections opened for the turns, ahead of the first or later.
    pub connections: Option<u64>,
    /// Of these, opened beyond the most that were in use at once: an earlier one had been closed, or was not free in time.
    /// Null where each turn was to open its own.
    pub redials: Option<u64>,
    /// How long each of `connections` took to open: TCP, TLS where there is any, and for the first to a host name its look-up.
    /// It lies before sent, so in no TTFT. Null where none was opened, and in reports of earlier versions.
    pub connect_ms: Option<Summary>,
    pub in_flight: InFlight,
    /// Measured request rate over C / (TTFT + (n − 1) · TPOT), for closed loops: well below 1, the client was not full.
    pub littles_law_ratio: Option<f64>,
    /// How far the ratio may be off 1 by the edges of its window alone: mean turn over the window's length. Null with it, and
    /// in reports of earlier versions.
    #[serde(default)]
    pub littles_law_edges: Option<f64>,
}

/// Sessions a second in an open loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StartRate {
    pub asked: f64,
    /// As the schedule came out, over the sessions that were started: random gaps and a ramp-up have a rate of their own.
    pub planned: Option<f64>,
    /// As they were sent.
    pub achieved: Option<f64>,
}

/// Turns between sent and done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct InFlight {
    pub mean: Option<f64>,
    pub max: Option<u64>,
}

impl RunReport {
    /// A latency as a distribution in µs; none when it was not measured, or its histogram cannot be read.
    #[must_use]
    pub fn distribution(&self, latency: Latency) -> Option<Distribution> {
        let summary = latency.of(&self.metrics)?.scaled(1e3);
        Distribution::decode(self.histograms.get(&latency.histogram_key())?, &summary).ok()
    }
}

impl Manifest {
    /// The load that was asked for, in words.
    #[must_use]
    pub fn load(&self) -> String {
        self.spec.load.to_string()
    }
}

impl Totals {
    /// The conservation law: every planned turn ended in exactly one way.
    #[must_use]
    pub fn balanced(&self) -> bool {
        self.planned == self.complete + self.failed + self.cancelled + self.skipped
            && self.failed == self.failed_by_kind.values().sum::<u64>()
    }

    /// Failed turns as a share of the planned ones that the end of the run did not cut.
    #[must_use]
    pub fn failure_rate(&self) -> Option<f64> {
        super::ratio(self.failed, self.planned.saturating_sub(self.cancelled))
    }
}
