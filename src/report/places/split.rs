//! Where the time to first token went, by the server's own account.

use serde::{Deserialize, Serialize};

use crate::record::TurnRecord;
use crate::report::latency::millis;
use crate::stats::{Distribution, Summary};
use crate::units::Micros;

/// The parts of the time to first token, over the complete turns whose server tells them. Each part is a distribution of
/// its own: quantiles of parts do not add up to that of the whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TtftSplit {
    /// Turns that tell at least one part.
    pub turns: u64,
    /// Before the queue: reading, tokenizing, dispatch.
    pub intake_ms: Option<Summary>,
    /// In the scheduler's queue.
    pub queue_ms: Option<Summary>,
    /// From the first forward pass to the end of the prefill.
    pub prefill_ms: Option<Summary>,
    /// From there until the first token was handed to the connection.
    pub return_ms: Option<Summary>,
    /// TTFT as the client saw it without all of these: the network, connections, proxies, the client.
    pub outside_ms: Option<Summary>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SplitTally {
    turns: u64,
    parts: [Distribution; 4],
    outside: Distribution,
}

impl SplitTally {
    /// Adds a complete turn.
    pub(super) fn add(&mut self, turn: &TurnRecord) {
        let Some(times) = &turn.server_times else { return };
        self.turns += 1;
        for (part, us) in self.parts.iter_mut().zip(times.spans()) {
            us.into_iter().for_each(|us| part.record(us.into(), 1));
        }
        if let (Some(ttft), Some(inside)) = (turn.ttft(), times.total_us()) {
            self.outside.record(ttft.since(Micros(inside)).0, 1);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        let Self { turns, parts, outside } = other;
        self.turns += turns;
        self.parts.iter_mut().zip(parts).for_each(|(mine, part)| mine.merge(part));
        self.outside.merge(outside);
    }

    /// None where no turn tells.
    pub(super) fn finish(&self) -> Option<TtftSplit> {
        let [intake, queue, prefill, back] = &self.parts;
        (self.turns > 0).then(|| TtftSplit {
            turns: self.turns,
            intake_ms: millis(intake),
            queue_ms: millis(queue),
            prefill_ms: millis(prefill),
            return_ms: millis(back),
            outside_ms: millis(&self.outside),
        })
    }
}
