//! One accumulator for everything: live progress, the report at the end, a report from saved lines, a merge of shards.
//!
//! Adding all turns to one accumulator, or to several that are merged, gives the same report. State grows with ranks,
//! sessions and keys, never with turns.

use super::audit;
use super::closing::Closing;
use super::cold;
use super::latency::{Latencies, Latency, millis};
use super::places::affinity::Attribution;
use super::places::{Parts, Places};
use super::redact::redacted;
use super::server::{Fact, ServerFacts};
use super::shape::{Client, InFlight, Manifest, RunReport, SCHEMA, StartRate, Totals, Windows, WorkloadFacts};
use super::tally::Tally;
use crate::profile::{LoadSpec, Pacing, RunSpec};
use crate::record::{EndedBy, Marks, TurnRecord};
use crate::stats::{Quantile, rounded};

/// What is known before the first turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    pub manifest: Manifest,
    pub workload: WorkloadFacts,
    pub server: ServerFacts,
}

/// A glance at a run under way.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Live {
    pub complete: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub skipped: u64,
    pub output_tokens: u64,
    pub ttft_p50_ms: Option<f64>,
    pub ttft_p99_ms: Option<f64>,
    pub hit_rate: Option<f64>,
}

/// Turns so far, as counts and distributions.
#[derive(Debug, Clone, PartialEq)]
pub struct Accumulator {
    context: Context,
    tally: Tally,
    /// Of the complete turns.
    places: Places,
}

impl Context {
    /// The context that a saved report was made in, to make it again from its turns.
    #[must_use]
    pub fn of(report: &RunReport) -> Self {
        Self { manifest: report.manifest.clone(), workload: report.workload.clone(), server: report.server.clone() }
    }
}

impl Accumulator {
    #[must_use]
    pub fn new(context: Context) -> Self {
        let RunSpec { slo, load, .. } = &context.manifest.spec;
        let tally = Tally::new(*slo, load.connections);
        Self { tally, places: Places::new(&context.manifest.spec, context.server.page_tokens), context }
    }

    /// Says when the load was full and when its last session started, as far as that is known. It must be said before
    /// the turns are added that were sent, or ended, after these instants.
    pub fn mark(&mut self, marks: Marks) {
        self.tally.windows.mark(marks);
    }

    /// Adds one turn, however it ended.
    pub fn add(&mut self, turn: &TurnRecord) {
        self.tally.add(turn);
        if turn.outcome.is_complete() {
            self.places.add(turn);
        }
    }

    /// Adds all turns of another part of the same run.
    pub fn merge(&mut self, other: Self) {
        let Self { context: _, tally, places } = other;
        self.tally.merge(tally);
        self.places.merge(places);
    }

    /// Cheap enough for ten calls a second.
    #[must_use]
    pub fn live(&self) -> Live {
        let Totals { complete, failed, cancelled, skipped, output_tokens, .. } = &self.tally.totals;
        let ttfts = self.tally.latency(Latency::Ttft);
        let ttft = |q| Some(ttfts.quantile(q)? / 1e3);
        Live {
            complete: *complete,
            failed: *failed,
            cancelled: *cancelled,
            skipped: *skipped,
            output_tokens: output_tokens.unwrap_or(0) + self.tally.cut_tokens,
            ttft_p50_ms: ttft(Quantile::P50),
            ttft_p99_ms: ttft(Quantile::P99),
            hit_rate: self.tally.hit_rate(),
        }
    }

    /// The report. It may be asked for at any time: a run under way is a state like any other.
    #[must_use]
    pub fn finish(&self, closing: Closing) -> RunReport {
        let Closing { state, ended_by, observed, spilled, server, client } = closing;
        let Context { manifest, mut workload, server: probed } = self.context.clone();
        workload.oracle.observed = observed;
        let totals = self.tally.totals(workload.turns, state);
        let latencies = self.tally.latencies();
        let windows = self.windows(&latencies, ended_by);
        let metrics = self.tally.metrics(&totals, &windows.whole, &latencies);
        let mut server = self.with_cold_evidence(server.beside(probed));
        let Parts { ranks, affinity, ttft_split, placement, timeline } =
            self.places.finish(server.ranks, &server.counters, spilled);
        forget_what_was_told(&mut server, &totals, &affinity.attribution);
        let client = client.beside(self.client(workload.sessions, &totals, &windows));
        let mut report = RunReport {
            schema: SCHEMA,
            state,
            ended_by,
            foreign: None,
            manifest: redacted(manifest),
            workload,
            server,
            totals,
            windows,
            metrics,
            placement,
            timeline,
            ranks,
            affinity,
            ttft_split,
            client,
            validity: audit::Validity::default(),
            histograms: latencies.encoded(),
        };
        report.validity = audit::judge(&report);
        report
    }

    fn load(&self) -> &LoadSpec {
        &self.context.manifest.spec.load
    }

    fn windows(&self, latencies: &Latencies, ended_by: Option<EndedBy>) -> Windows {
        let Tally { windows, .. } = &self.tally;
        let span = self.tally.span();
        let (steady, steady_reason) = match windows.steady(self.load(), span, ended_by) {
            Ok(window) => (Some(window), None),
            Err(reason) => (None, Some(reason)),
        };
        // A run that was killed did not drain.
        let drain = ended_by.and_then(|_| windows.drain(span));
        let whole = self.tally.whole_window(latencies);
        Windows { whole, to_last_success: self.tally.to_last_success(latencies), steady, steady_reason, drain }
    }

    fn with_cold_evidence(&self, server: ServerFacts) -> ServerFacts {
        let cold = Some(self.tally.beginnings.evidence(cold::slack(server.page_tokens)));
        ServerFacts { cold, ..server }
    }

    /// The client, as far as its turns tell of it.
    fn client(&self, sessions: u64, totals: &Totals, windows: &Windows) -> Client {
        let Tally { send_lag, own_lag, cap_wait, .. } = &self.tally;
        let law = littles_law(self.load(), sessions, totals, windows);
        Client {
            send_lag_ms: millis(send_lag),
            own_lag_ms: millis(own_lag),
            cap_wait_ms: millis(cap_wait),
            rate: start_rate(self.load(), &self.tally),
            in_flight: InFlight { mean: self.tally.mean_in_flight(), max: None },
            littles_law_ratio: law.map(|(ratio, _)| ratio),
            littles_law_edges: law.map(|(_, edges)| edges),
            ..Client::default()
        }
    }
}

/// The probe may have met a reply that tells less than most.
fn forget_what_was_told(server: &mut ServerFacts, totals: &Totals, attribution: &Attribution) {
    let ServerFacts { untold, counters, .. } = server;
    untold.retain(|untold| match untold.fact {
        Fact::CachedTokens => totals.cached_reported_turns == 0,
        Fact::Place => attribution.known == 0,
        Fact::Counters => counters.is_empty(),
        Fact::Usage => totals.prompt_tokens.is_none(),
        Fact::Ranks | Fact::Key => true,
    });
}

/// The rate of an open loop: asked for, drawn, and kept.
fn start_rate(load: &LoadSpec, tally: &Tally) -> Option<StartRate> {
    let Pacing::Open { per_second, .. } = load.pacing else { return None };
    let (planned, achieved) = tally.start_rates();
    Some(StartRate { asked: per_second, planned, achieved })
}

/// Little's law for closed loops: C sessions of one turn each in flight complete C / (TTFT + (n − 1) · TPOT) turns a
/// second, where C is the limit, or all sessions of a plan that has fewer. Of the steady window where there is one, since
/// ramp and tail are not full by design. None in an open loop, or when sessions pause.
///
/// Gives the measured rate over that, and the share by which turns that lie across an edge of the window can shift it: of the
/// turns that end inside, up to a turn's length of them began before, and as many that began inside end after.
#[expect(clippy::cast_precision_loss, reason = "tokens and turns stay below 2^53")]
fn littles_law(load: &LoadSpec, planned: u64, totals: &Totals, windows: &Windows) -> Option<(f64, f64)> {
    let Pacing::Closed { sessions } = load.pacing else { return None };
    if !load.think.is_zero() || totals.complete == 0 {
        return None;
    }
    let limit = load.max_turns_in_flight.map_or(sessions, |turns| turns.min(sessions));
    let in_flight = u64::from(limit.get()).min(planned);
    let tokens = totals.output_tokens? as f64 / totals.complete as f64;
    let window = windows.steady.as_ref().unwrap_or(&windows.whole);
    let mean = |latency: Latency| window.latency.get(latency.key()).map(|summary| summary.mean);
    let decode_ms = mean(Latency::Tpot).map_or(0.0, |tpot| (tokens - 1.0).max(0.0) * tpot);
    let turn_ms = mean(Latency::Ttft)? + decode_ms;
    let expected = in_flight as f64 / turn_ms * 1e3;
    let ratio = Some(rounded(window.request_throughput? / expected)).filter(|ratio| ratio.is_finite())?;
    Some((ratio, rounded(turn_ms / 1e3 / window.to_us.since(window.from_us).as_secs())))
}
