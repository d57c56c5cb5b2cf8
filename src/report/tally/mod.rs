//! What the turns of a run add up to: counts and distributions that merge in any order.

mod goodput;
mod span;
mod totals;
pub(super) mod windows;

use std::collections::BTreeMap;

use super::cold::Beginnings;
use super::latency::{Latencies, Latency, millis};
use super::shape::{HitRate, Metrics, State, Totals, Window, WithFailures};
use super::{add, join, per_second, ratio};
use crate::profile::{Connections, Slo};
use crate::record::{Outcome, TurnRecord};
use crate::stats::{Distribution, Quantile, quantile_with_failures, rounded};
use crate::units::Micros;

use goodput::Goodput;
use span::{Span, Starts};
use windows::WindowTally;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tally {
    pub(super) totals: Totals,
    /// Prompt tokens of the turns that report cached tokens too.
    pub(super) covered_prompt_tokens: u64,
    /// Output tokens that arrived before the end of the run cut their turns.
    pub(super) cut_tokens: u64,
    span: Option<Span>,
    /// Σ (done − sent): over the span, the mean number of turns in flight.
    busy_us: u64,
    connections: Connections,
    pub(super) send_lag: Distribution,
    /// The part of it that neither a cap nor the opening of a turn's own connection explains.
    pub(super) own_lag: Distribution,
    pub(super) cap_wait: Distribution,
    starts: Option<Starts>,
    /// Done − sent of the failed turns, by kind.
    failed: BTreeMap<String, Distribution>,
    /// Of the turns that were not sent in the steady window; the others are in there.
    outside: Latencies,
    pub(super) windows: WindowTally,
    goodput: Goodput,
    pub(super) beginnings: Beginnings<u32>,
}

/// Of the latencies that users feel, where any turn failed.
fn with_failures(failed: u64, latencies: &Latencies) -> BTreeMap<String, WithFailures> {
    let felt = [Latency::Ttft, Latency::E2e].into_iter().filter(|_| failed > 0);
    felt.map(|latency| (latency.key().to_owned(), WithFailures::of(latencies.of(latency), failed))).collect()
}

impl WithFailures {
    /// In ms, of a distribution in µs.
    #[must_use]
    pub fn of(samples: &Distribution, failed: u64) -> Self {
        let quantile = |q| {
            let us = quantile_with_failures(samples, failed, q).filter(|us| us.is_finite())?;
            Some(rounded(us / 1e3))
        };
        Self {
            count: samples.count() + failed,
            failed,
            p50: quantile(Quantile::P50),
            p90: quantile(Quantile::P90),
            p95: quantile(Quantile::P95),
            p99: quantile(Quantile::P99),
        }
    }
}

impl Tally {
    pub(super) fn new(slo: Option<Slo>, connections: Connections) -> Self {
        Self {
            totals: Totals::default(),
            covered_prompt_tokens: 0,
            cut_tokens: 0,
            span: None,
            busy_us: 0,
            connections,
            send_lag: Distribution::default(),
            own_lag: Distribution::default(),
            cap_wait: Distribution::default(),
            starts: None,
            failed: BTreeMap::new(),
            outside: Latencies::default(),
            windows: WindowTally::default(),
            goodput: Goodput::new(slo),
            beginnings: Beginnings::default(),
        }
    }

    pub(super) fn add(&mut self, turn: &TurnRecord) {
        self.totals.planned += 1;
        self.totals.resends += u64::from(turn.resends);
        let is_unheard = turn.sent_us.is_some() && !turn.outcome.is_complete();
        let unheard = u64::from(turn.resends) + u64::from(is_unheard);
        let of = |tokens: u32| unheard * u64::from(tokens);
        self.totals.add_unheard(unheard, turn.planned_prompt_tokens.map(of), Some(of(turn.planned_output_tokens)));
        self.add_span(turn);
        self.beginnings.add(turn.group, turn);
        self.goodput.add(turn);
        let latencies = self.windows.add(turn);
        if turn.outcome.is_complete() {
            latencies.unwrap_or(&mut self.outside).add(turn);
        }
        match turn.outcome {
            Outcome::Complete => self.add_complete(turn),
            Outcome::Cancelled => {
                self.totals.cancelled += 1;
                self.cut_tokens += u64::from(turn.output_tokens.unwrap_or(turn.frames));
            }
            Outcome::Skipped => self.totals.skipped += 1,
            Outcome::Failed(kind) => {
                self.totals.failed += 1;
                self.totals.refused_turns += u64::from(turn.is_refused());
                *self.totals.failed_by_kind.entry(kind.to_string()).or_default() += 1;
                if let Some(span) = Span::of(turn) {
                    self.failed.entry(kind.to_string()).or_default().record(span.length().0, 1);
                }
            }
        }
    }

    /// What every turn that was sent tells about the client, whatever became of it.
    fn add_span(&mut self, turn: &TurnRecord) {
        let Some(span) = Span::of(turn) else { return };
        let sent = span.from;
        self.busy_us += span.length().0;
        self.span = join(self.span, Some(span), Span::join);
        if let Some(lag) = turn.send_lag() {
            self.send_lag.record(lag.0, 1);
            self.own_lag.record(lag.since(self.not_its_own(turn)).0, 1);
        }
        if let Some(Micros(wait)) = turn.cap_wait_us {
            self.cap_wait.record(wait, 1);
        }
        if turn.turn == 0 {
            let start = Starts { sessions: 1, due: Span::instant(turn.due_us), sent: Span::instant(sent) };
            self.starts = join(self.starts, Some(start), Starts::join);
        }
    }

    /// The part of a turn's send lag that is neither this program's fault nor this host's: the wait for a cap, and the
    /// opening of its connection where it was to have one of its own.
    fn not_its_own(&self, turn: &TurnRecord) -> Micros {
        let connect = turn.connect_us.filter(|_| self.connections == Connections::PerTurn);
        Micros([turn.cap_wait_us, connect].into_iter().flatten().map(|Micros(us)| us).sum())
    }

    fn add_complete(&mut self, turn: &TurnRecord) {
        let totals = &mut self.totals;
        totals.complete += 1;
        add(&mut totals.prompt_tokens, turn.prompt_tokens);
        add(&mut totals.planned_prompt_tokens, turn.planned_prompt_tokens);
        add(&mut totals.output_tokens, turn.output_tokens);
        add(&mut totals.reasoning_tokens, turn.reasoning_tokens);
        totals.planned_output_tokens += u64::from(turn.planned_output_tokens);
        let is_short = turn.output_tokens.is_some_and(|tokens| tokens < turn.planned_output_tokens);
        totals.short_output_turns += u64::from(is_short);
        totals.output_estimated_turns += u64::from(turn.output_estimated);
        let at_once = turn.came_at_once().then(|| "came_at_once".to_owned());
        for oddity in turn.oddities.iter().map(ToString::to_string).chain(at_once) {
            *totals.oddities.entry(oddity).or_default() += 1;
        }
        if let (Some(prompt), Some(cached)) = (turn.prompt_tokens, turn.cached_tokens) {
            totals.cached_reported_turns += 1;
            totals.cached_above_prompt_turns += u64::from(cached > prompt);
            add(&mut totals.cached_tokens, Some(cached));
            self.covered_prompt_tokens += u64::from(prompt);
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        let Self {
            totals,
            covered_prompt_tokens,
            cut_tokens,
            span,
            busy_us,
            connections: _,
            send_lag,
            own_lag,
            cap_wait,
            starts,
            failed,
            outside,
            windows,
            goodput,
            beginnings,
        } = other;
        self.totals.merge(totals);
        self.covered_prompt_tokens += covered_prompt_tokens;
        self.cut_tokens += cut_tokens;
        self.span = join(self.span, span, Span::join);
        self.busy_us += busy_us;
        self.send_lag.merge(&send_lag);
        self.own_lag.merge(&own_lag);
        self.cap_wait.merge(&cap_wait);
        self.starts = join(self.starts, starts, Starts::join);
        for (kind, latencies) in failed {
            self.failed.entry(kind).or_default().merge(&latencies);
        }
        self.outside.merge(&outside);
        self.windows.merge(windows);
        self.goodput.merge(goodput);
        self.beginnings.merge(beginnings);
    }

    /// Planned turns of which nothing was heard were cut by the end of the run, unless it still runs.
    pub(super) fn totals(&self, planned: u64, state: State) -> Totals {
        let mut totals = self.totals.clone();
        let unheard = planned.saturating_sub(totals.planned);
        totals.planned += unheard;
        totals.cancelled += if state == State::Running { 0 } else { unheard };
        totals
    }

    /// Of all complete turns.
    pub(super) fn latencies(&self) -> Latencies {
        let mut all = self.outside.clone();
        all.merge(self.windows.latencies());
        all
    }

    /// The same of one latency, for who looks ten times a second.
    pub(super) fn latency(&self, latency: Latency) -> Distribution {
        let mut all = self.outside.of(latency).clone();
        all.merge(self.windows.latencies().of(latency));
        all
    }

    pub(super) fn span(&self) -> Option<Span> {
        self.span
    }

    pub(super) fn whole_window(&self, latencies: &Latencies) -> Window {
        let whole = |span| windows::over(span, &self.totals, self.cut_tokens, latencies);
        self.span.map(whole).unwrap_or_default()
    }

    pub(super) fn to_last_success(&self, latencies: &Latencies) -> Option<Window> {
        self.windows.to_last_success(&self.totals, self.span, latencies)
    }

    pub(super) fn metrics(&self, totals: &Totals, whole: &Window, latencies: &Latencies) -> Metrics {
        let summary = |latency| millis(latencies.of(latency));
        let span = whole.to_us.since(whole.from_us);
        Metrics {
            request_throughput: whole.request_throughput,
            input_throughput: totals.prompt_tokens.and_then(|tokens| per_second(tokens, span)),
            output_throughput: whole.output_throughput,
            finished_output_throughput: totals.output_tokens.and_then(|tokens| per_second(tokens, span)),
            total_throughput: whole.total_throughput,
            duration_s: self.span.map(|_| rounded(span.as_secs())),
            ttft_ms: summary(Latency::Ttft),
            answer_ms: summary(Latency::Answer),
            itl_ms: summary(Latency::Itl),
            icl_ms: summary(Latency::Icl),
            tpot_ms: summary(Latency::Tpot),
            e2e_ms: summary(Latency::E2e),
            ttft_from_due_ms: summary(Latency::TtftFromDue),
            e2e_from_due_ms: summary(Latency::E2eFromDue),
            cache_hit_rate: HitRate {
                value: self.hit_rate(),
                coverage: ratio(totals.cached_reported_turns, totals.complete),
            },
            goodput: self.goodput.rate(span),
            slo_attainment: self.goodput.attainment(),
            with_failures: with_failures(totals.failed, latencies),
            failed_ms: self.failed.iter().filter_map(|(kind, of)| Some((kind.clone(), millis(of)?))).collect(),
        }
    }

    /// None also where a turn reports more than can be.
    pub(super) fn hit_rate(&self) -> Option<f64> {
        let cached = self.totals.cached_tokens.filter(|_| self.totals.cached_above_prompt_turns == 0)?;
        ratio(cached, self.covered_prompt_tokens)
    }

    #[expect(clippy::cast_precision_loss, reason = "2^53 µs are 285 years")]
    pub(super) fn mean_in_flight(&self) -> Option<f64> {
        let span = self.span?.length().0;
        (span > 0).then(|| rounded(self.busy_us as f64 / span as f64))
    }

    /// Session starts a second: by the schedule as it was drawn, and as they left.
    pub(super) fn start_rates(&self) -> (Option<f64>, Option<f64>) {
        self.starts.map_or((None, None), Starts::rates)
    }
}
