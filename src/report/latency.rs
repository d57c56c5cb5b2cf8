//! The latencies of a run as distributions, one definition each.
//!
//! The subtle thing is a frame without new tokens: it moves no clock, so its silence belongs to the next frame that has
//! some. Only complete turns come here.

use std::collections::BTreeMap;

use crate::record::{Gap, TurnRecord};
use crate::report::shape::Metrics;
use crate::stats::{Distribution, Summary};
use crate::units::Micros;

/// A latency, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Latency {
    /// Sent to first output.
    Ttft,
    /// Sent to first output after reasoning.
    Answer,
    /// Between tokens.
    Itl,
    /// Between output frames.
    Icl,
    /// (last − first) over the tokens after the first frame, one figure a turn.
    Tpot,
    /// Sent to last output.
    E2e,
    /// Due to first output.
    TtftFromDue,
    /// Due to last output.
    E2eFromDue,
}

impl Latency {
    /// In the order of tables.
    pub const ALL: [Self; 8] =
        [Self::Ttft, Self::Answer, Self::Itl, Self::Icl, Self::Tpot, Self::E2e, Self::TtftFromDue, Self::E2eFromDue];

    /// The key in `metrics`; the unit is milliseconds.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Ttft => "ttft_ms",
            Self::Answer => "answer_ms",
            Self::Itl => "itl_ms",
            Self::Icl => "icl_ms",
            Self::Tpot => "tpot_ms",
            Self::E2e => "e2e_ms",
            Self::TtftFromDue => "ttft_from_due_ms",
            Self::E2eFromDue => "e2e_from_due_ms",
        }
    }

    /// The key in `histograms`, whose unit is microseconds.
    #[must_use]
    pub fn histogram_key(self) -> String {
        self.key().replace("_ms", "_us")
    }

    /// The name in tables, in bench_serving's words where it has one.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Ttft => "TTFT",
            Self::Answer => "Time to answer",
            Self::Itl => "ITL",
            Self::Icl => "ICL",
            Self::Tpot => "TPOT",
            Self::E2e => "E2E Latency",
            Self::TtftFromDue => "TTFT from due",
            Self::E2eFromDue => "E2E from due",
        }
    }

    /// The summary in a report; none when nothing was measured.
    #[must_use]
    pub fn of(self, metrics: &Metrics) -> Option<&Summary> {
        match self {
            Self::Ttft => metrics.ttft_ms.as_ref(),
            Self::Answer => metrics.answer_ms.as_ref(),
            Self::Itl => metrics.itl_ms.as_ref(),
            Self::Icl => metrics.icl_ms.as_ref(),
            Self::Tpot => metrics.tpot_ms.as_ref(),
            Self::E2e => metrics.e2e_ms.as_ref(),
            Self::TtftFromDue => metrics.ttft_from_due_ms.as_ref(),
            Self::E2eFromDue => metrics.e2e_from_due_ms.as_ref(),
        }
    }
}

/// One distribution a [`Latency`].
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Latencies {
    ttft: Distribution,
    answer: Distribution,
    itl: Distribution,
    icl: Distribution,
    tpot: Distribution,
    e2e: Distribution,
    ttft_from_due: Distribution,
    e2e_from_due: Distribution,
}

impl Latencies {
    /// Adds one complete turn.
    pub(super) fn add(&mut self, turn: &TurnRecord) {
        let record = |into: &mut Distribution, span: Option<Micros>| {
            if let Some(Micros(us)) = span {
                into.record(us, 1);
            }
        };
        record(&mut self.ttft, turn.ttft());
        record(&mut self.answer, turn.answer());
        record(&mut self.e2e, turn.e2e());
        record(&mut self.ttft_from_due, turn.ttft_from_due());
        record(&mut self.e2e_from_due, turn.e2e_from_due());
        if let Some(us) = turn.tpot_us() {
            self.tpot.record_nanos(nanos(us), 1);
        }
        self.add_gaps(&turn.gaps);
    }

    /// A frame with k > 0 new tokens gives k samples of a k-th of the time since the last frame that had any.
    ///
    /// A frame of unknown size gives none, and ends what was carried: nobody knows which token that time belongs to.
    fn add_gaps(&mut self, gaps: &[Gap]) {
        let mut carried = 0;
        for gap in gaps {
            self.icl.record(gap.us.into(), 1);
            carried += u64::from(gap.us);
            match gap.tokens() {
                Some(0) => {}
                Some(tokens) => self.itl.record_split(std::mem::take(&mut carried), tokens.into()),
                None => carried = 0,
            }
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        let Self { ttft, answer, itl, icl, tpot, e2e, ttft_from_due, e2e_from_due } = other;
        self.ttft.merge(ttft);
        self.answer.merge(answer);
        self.itl.merge(itl);
        self.icl.merge(icl);
        self.tpot.merge(tpot);
        self.e2e.merge(e2e);
        self.ttft_from_due.merge(ttft_from_due);
        self.e2e_from_due.merge(e2e_from_due);
    }

    pub(super) fn of(&self, latency: Latency) -> &Distribution {
        match latency {
            Latency::Ttft => &self.ttft,
            Latency::Answer => &self.answer,
            Latency::Itl => &self.itl,
            Latency::Icl => &self.icl,
            Latency::Tpot => &self.tpot,
            Latency::E2e => &self.e2e,
            Latency::TtftFromDue => &self.ttft_from_due,
            Latency::E2eFromDue => &self.e2e_from_due,
        }
    }

    /// In milliseconds, by key; what was not measured has no entry.
    pub(super) fn summaries(&self) -> BTreeMap<String, Summary> {
        let summary = |latency: Latency| Some((latency.key().to_owned(), millis(self.of(latency))?));
        Latency::ALL.into_iter().filter_map(summary).collect()
    }

    /// Encoded histograms by key; what was not measured has no entry.
    pub(super) fn encoded(&self) -> BTreeMap<String, String> {
        let measured = Latency::ALL.into_iter().filter(|latency| self.of(*latency).count() > 0);
        measured.map(|latency| (latency.histogram_key(), self.of(latency).encode())).collect()
    }
}

/// The summary of a distribution in µs, in milliseconds.
pub(super) fn millis(distribution: &Distribution) -> Option<Summary> {
    Some(distribution.summary()?.scaled(1e-3))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a span is positive; casts saturate")]
fn nanos(us: f64) -> u64 {
    (us * 1e3).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn itl_of(gaps: &[(u32, Option<u32>)]) -> Option<(u64, f64)> {
        let gaps: Vec<Gap> = gaps.iter().map(|&(us, tokens)| Gap::new(us, tokens)).collect();
        let mut latencies = Latencies::default();
        latencies.add_gaps(&gaps);
        let summary = latencies.of(Latency::Itl).summary()?;
        Some((summary.count, summary.mean))
    }

    #[test]
    fn a_frame_of_k_tokens_gives_k_samples_of_a_kth_of_its_gap() {
        assert_eq!(itl_of(&[(10_000, Some(1)), (20_000, Some(4))]), Some((5, 6_000.0)));
    }

    #[test]
    fn a_frame_without_tokens_moves_no_clock() {
        assert_eq!(itl_of(&[(7_000, Some(0)), (3_000, Some(1))]), Some((1, 10_000.0)));
        assert_eq!(itl_of(&[(3_000, Some(1)), (7_000, Some(0))]), Some((1, 3_000.0)));
    }

    #[test]
    fn frames_of_unknown_size_have_a_chunk_latency_and_no_token_latency() {
        assert_eq!(itl_of(&[(7_000, None), (3_000, None)]), None);
        assert_eq!(itl_of(&[(7_000, Some(0)), (5_000, None), (3_000, Some(1))]), Some((1, 3_000.0)));
        let mut latencies = Latencies::default();
        latencies.add_gaps(&[Gap::new(7_000, None), Gap::new(3_000, Some(0))]);
        assert_eq!(latencies.of(Latency::Icl).count(), 2);
    }

    #[test]
    fn tokens_that_arrive_at_once_are_not_lost() {
        assert_eq!(itl_of(&[(0, Some(1)), (10_000, Some(1))]), Some((2, 5_000.0)));
    }
}
