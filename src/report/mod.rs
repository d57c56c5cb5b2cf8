//! From turns to a [`RunReport`]: one accumulator, the registry of metrics, and what makes a run void.
//!
//! Everything is derived here from records, counters and the plan's facts, and nothing is measured here. Percentiles come
//! from merged histograms, never from averages.
//!
//! What comes in: turns (`tally`, and `places` for what depends on where they were served) and the server's side
//! (`server`), joined by the `accumulator` into the shape of `run.json` (`shape`). What reads it: `audit`, `gate`,
//! `bench_serving`, and `metric`, the registry.

mod accumulator;
mod audit;
mod bench_serving;
mod closing;
mod cold;
mod command;
mod foreign;
mod gate;
mod latency;
mod metric;
mod places;
mod redact;
mod sample;
mod server;
mod shape;
mod simulated;
mod survivors;
mod tally;

pub use accumulator::{Accumulator, Context, Live};
pub use audit::{Finding, FindingKind, Validity, Verdict};
pub use bench_serving::{Arrays, BenchServing};
pub use closing::{ClientSide, Closing, ServerSide};
pub use cold::ColdEvidence;
pub use foreign::Foreign;
pub use gate::{GateOutcome, check_gate, judge_run};
pub use latency::Latency;
pub use metric::{Better, Metric, Source, Stat, metric, metrics};
pub use places::affinity::{
    Affinity, Attribution, Band, Cached, CachedBand, HotKey, KeptConnections, Side, Sides, Spilled, SpilledAt,
    SplitSession,
};
pub use places::{Attributing, GroupPlaces, PlaceSlices, Placement, Slice, Timeline, TtftSplit};
pub use redact::{HIDDEN, PublicSweep, hide_fields, public_experiment, public_sweep};
pub use sample::TurnSample;
pub use server::{
    Between, CounterDelta, Cut, Fact, FlushBy, FlushFacts, FlushProof, HistogramDelta, KeySeen, Level, LoadRow,
    ServerClock, ServerFacts, TimeBucket, Unread, Untold, When, loads,
};
pub use shape::{
    Client, Drain, HitRate, Host, InFlight, Manifest, Metrics, ObservedOracle, Oracle, PlaceRow, RoundRobinOracle,
    RunReport, SCHEMA, StartRate, State, Totals, Window, Windows, WithFailures, WorkloadFacts,
};
pub use simulated::Simulated;
pub use survivors::Survivors;

pub use crate::profile::RunSpec;
pub use crate::profile::{
    Condition, Gate, KeyScope, KeySpec, Length, PRIMARY, Popularity, RequestSpec, Slo, THRESHOLD, Target, TimeoutSpec,
    WorkloadSpec, what_may_differ,
};
pub use crate::record::{CounterRole, EndedBy, HistogramRole, Place, PlaceLoad, PlaceSource};
pub use crate::stats::{Distribution, Summary};

use crate::stats::rounded;
use crate::units::Micros;

/// `part` of `whole`; none of nothing.
#[expect(clippy::cast_precision_loss, reason = "turns and tokens stay below 2^53")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| rounded(part as f64 / whole as f64))
}

/// A rate; none over no time.
#[expect(clippy::cast_precision_loss, reason = "turns and tokens stay below 2^53")]
fn per_second(amount: u64, span: Micros) -> Option<f64> {
    (span.0 > 0).then(|| rounded(amount as f64 / span.as_secs()))
}

/// Adds what was reported; a sum of nothing stays absent.
fn add(sum: &mut Option<u64>, value: Option<u32>) {
    if let Some(value) = value {
        *sum.get_or_insert(0) += u64::from(value);
    }
}

fn sum(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    join(a, b, |a, b| a + b)
}

/// What is there of two things; both joined, where there are two.
fn join<T>(a: Option<T>, b: Option<T>, both: impl FnOnce(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(both(a, b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
pub(crate) mod tests;
