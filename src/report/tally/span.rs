//! From when to when: of a run, and of the starts of its sessions.

use crate::record::TurnRecord;
use crate::report::per_second;
use crate::units::Micros;

/// From the first request sent to the last reply ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::report) struct Span {
    pub(in crate::report) from: Micros,
    pub(in crate::report) to: Micros,
}

/// First turns that were sent: how many, and over which times they were due and sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Starts {
    pub(super) sessions: u64,
    pub(super) due: Span,
    pub(super) sent: Span,
}

impl Span {
    /// From sent to the end of the stream, or the last that was heard of it; none of a turn that was not sent.
    pub(in crate::report) fn of(turn: &TurnRecord) -> Option<Self> {
        let from = turn.sent_us?;
        Some(Self { from, to: turn.done_us.or(turn.last_us).unwrap_or(from) })
    }

    pub(super) fn instant(at: Micros) -> Self {
        Self { from: at, to: at }
    }

    pub(in crate::report) fn length(self) -> Micros {
        self.to.since(self.from)
    }

    pub(super) fn join(self, other: Self) -> Self {
        Self { from: self.from.min(other.from), to: self.to.max(other.to) }
    }
}

impl Starts {
    /// Sessions a second: as they were due, and as they were sent. None of a single one.
    pub(super) fn rates(self) -> (Option<f64>, Option<f64>) {
        let Self { sessions, due, sent } = self;
        let rate = |span: Span| per_second(sessions - 1, span.length()).filter(|_| sessions > 1);
        (rate(due), rate(sent))
    }

    pub(super) fn join(self, other: Self) -> Self {
        Self {
            sessions: self.sessions + other.sessions,
            due: self.due.join(other.due),
            sent: self.sent.join(other.sent),
        }
    }
}
