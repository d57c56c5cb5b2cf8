//! What of a turn is worth keeping when a run's turns are drawn again and again.

use super::latency::Latency;
use crate::record::TurnRecord;
use crate::units::Micros;

/// One complete turn in a few words: its cluster, and the figures that a metric is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TurnSample {
    pub group: u32,
    /// Within its group.
    pub session: u32,
    ttft: Option<Micros>,
    answer: Option<Micros>,
    e2e: Option<Micros>,
    ttft_from_due: Option<Micros>,
    e2e_from_due: Option<Micros>,
    tpot_us: Option<f64>,
    /// Cached and prompt tokens, where the turn reports both.
    cached: Option<(u32, u32)>,
}

impl TurnSample {
    /// None of a turn that did not complete: it has no latency.
    #[must_use]
    pub fn of(turn: &TurnRecord) -> Option<Self> {
        turn.outcome.is_complete().then(|| Self {
            group: turn.group,
            session: turn.session,
            ttft: turn.ttft(),
            answer: turn.answer(),
            e2e: turn.e2e(),
            ttft_from_due: turn.ttft_from_due(),
            e2e_from_due: turn.e2e_from_due(),
            tpot_us: turn.tpot_us(),
            cached: turn.cached_tokens.zip(turn.prompt_tokens),
        })
    }

    /// In µs. Gaps between tokens and frames are none of a turn's single figures.
    #[must_use]
    pub fn latency(&self, latency: Latency) -> Option<f64> {
        let micros = |span: Option<Micros>| Some(span?.as_secs() * 1e6);
        match latency {
            Latency::Ttft => micros(self.ttft),
            Latency::Answer => micros(self.answer),
            Latency::E2e => micros(self.e2e),
            Latency::TtftFromDue => micros(self.ttft_from_due),
            Latency::E2eFromDue => micros(self.e2e_from_due),
            Latency::Tpot => self.tpot_us,
            Latency::Itl | Latency::Icl => None,
        }
    }

    /// Cached and prompt tokens.
    #[must_use]
    pub fn cached(&self) -> Option<(u32, u32)> {
        self.cached
    }
}
