//! When the chunks of one reply arrived.
//!
//! A lane learns in one wait of all its sockets that have something, and serves them one after the other: who is served last
//! is read late, but did not arrive late. The first chunk after a wait is therefore stamped by the end of that wait, and
//! what is read beyond it by the reading, since it may have arrived meanwhile.

use std::time::{Duration, Instant};

/// A wait that ended longer ago says little: the lane is so busy that it looked at its sockets again in between.
const MOST: Duration = Duration::from_millis(1);

/// Stamps in the order of reading; each is at or after the one before.
#[derive(Debug)]
pub(super) struct Arrivals {
    last: Instant,
}

impl Arrivals {
    /// Of a reply to a request that left at `sent`.
    pub(super) fn after(sent: Instant) -> Self {
        Self { last: sent }
    }

    /// The stamp of what was read just `now` by a lane whose last wait ended at `woke`.
    pub(super) fn stamp(&mut self, now: Instant, woke: Option<Instant>) -> Instant {
        let found = woke.filter(|woke| *woke > self.last && now.saturating_duration_since(*woke) <= MOST);
        self.last = found.unwrap_or(now);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn the_first_chunk_after_a_wait_has_its_stamp_and_the_next_ones_their_own() {
        let sent = Instant::now();
        let [woke, first, second] = [100, 300, 310].map(|us| sent + us * US);
        let mut arrivals = Arrivals::after(sent);
        assert_eq!(arrivals.stamp(first, Some(woke)), woke);
        assert_eq!(arrivals.stamp(second, Some(woke)), second);
        let again = sent + 5_000 * US;
        assert_eq!(arrivals.stamp(again + 7 * US, Some(again)), again);
    }

    #[test]
    fn a_wait_before_the_request_or_long_ago_says_nothing() {
        let start = Instant::now();
        let [sent, soon, late] = [10, 20, 2_000].map(|us| start + us * US);
        assert_eq!(Arrivals::after(sent).stamp(soon, Some(start)), soon, "the server answered within one pass");
        assert_eq!(Arrivals::after(sent).stamp(late, Some(soon)), late);
        assert_eq!(Arrivals::after(sent).stamp(soon, None), soon);
    }

    proptest! {
        #[test]
        fn stamps_never_go_back_nor_beyond_the_reading_nor_a_millisecond_before_it(
            steps in prop::collection::vec((0_u32..3_000, prop::option::of(0_u32..3_000)), 1..50),
        ) {
            let sent = Instant::now();
            let (mut now, mut last, mut woke, mut arrivals) = (sent, sent, None, Arrivals::after(sent));
            for (step, wait) in steps {
                now += step * US;
                woke = wait.map(|ago| now - (ago.min(step)) * US).or(woke);
                let stamp = arrivals.stamp(now, woke);
                prop_assert!(stamp >= last && stamp <= now && now - stamp <= MOST);
                last = stamp;
            }
        }
    }
}
