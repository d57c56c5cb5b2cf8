//! When a lane rests before it waits for its sockets again.
//!
//! A server that hands over each token by itself and at once can wake a lane for every one of them, and then the waking
//! costs more than the reading, on both sides. A lane that waits very often therefore rests first, so that its next wait
//! finds several. What arrives meanwhile is stamped late by the rest at most, less than the queue of such a burst would cost.

use std::time::{Duration, Instant};

/// How long one rest is.
const REST: Duration = Duration::from_micros(100);
/// So many waits …
const WAITS: u32 = 128;
/// … within this time make a burst: 20,000 a second, which streams at the pace of a reader do not reach.
const WITHIN: Duration = Duration::from_micros(6_400);
/// Chunks that a rest must have gathered for the burst to go on. Fewer would have woken the lane hardly more often than it
/// wakes from its rests.
const WORTH: u32 = 3;

/// Watches how often one lane waits. A value, so that a `Cell` holds it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pace {
    /// Waits since then.
    Plain { since: Instant, waits: u32 },
    /// Chunks since the last rest.
    Burst { chunks: u32 },
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self::Plain { since: now, waits: 0 }
    }

    /// A chunk of a stream was read.
    pub(super) fn chunk(self) -> Self {
        match self {
            Self::Burst { chunks } => Self::Burst { chunks: chunks.saturating_add(1) },
            plain @ Self::Plain { .. } => plain,
        }
    }

    /// The lane is about to wait: how long it shall rest before. The clock is asked only when it matters.
    pub(super) fn before_wait(self, now: impl FnOnce() -> Instant) -> (Self, Option<Duration>) {
        match self {
            Self::Burst { chunks } if chunks >= WORTH => (Self::Burst { chunks: 0 }, Some(REST)),
            Self::Burst { .. } => (Self::new(now()), None),
            Self::Plain { since, waits } if waits + 1 < WAITS => (Self::Plain { since, waits: waits + 1 }, None),
            Self::Plain { since, .. } => match now() {
                now if now.duration_since(since) < WITHIN => (Self::Burst { chunks: 0 }, Some(REST)),
                now => (Self::new(now), None),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Waits that come `every` so often, with `chunks` read before each: how many of them were preceded by a rest.
    fn rests(waits: u32, every: Duration, chunks: u32) -> u32 {
        let mut now = Instant::now();
        let mut pace = Pace::new(now);
        let mut rests = 0;
        for _ in 0..waits {
            now += every;
            pace = (0..chunks).fold(pace, |pace, _| pace.chunk());
            let (next, rest) = pace.before_wait(|| now);
            rests += u32::from(rest.is_some());
            now += rest.unwrap_or_default();
            pace = next;
        }
        rests
    }

    #[test]
    fn a_burst_rests_from_the_128th_wait_on_for_as_long_as_rests_gather_chunks() {
        let every = Duration::from_micros(10);
        assert_eq!(rests(127, every, WORTH), 0);
        assert_eq!(rests(1_127, every, WORTH), 1_000);
    }

    #[test]
    fn a_rest_that_gathered_little_ends_the_burst() {
        // One rest in each 129 waits: the burst is noticed, tried, and left.
        assert_eq!(rests(1_290, Duration::from_micros(10), WORTH - 1), 10);
    }

    proptest! {
        #[test]
        fn waits_slower_than_20_000_a_second_never_rest(every in 50_u64..1_000_000, chunks in 0_u32..500) {
            prop_assert_eq!(rests(2_000, Duration::from_micros(every), chunks), 0);
        }
    }
}
