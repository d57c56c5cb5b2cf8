//! What others may see of a running load without waiting for it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::record::Marks;
use crate::units::Micros;

/// Stands for an instant that has not come.
const NEVER: u64 = u64::MAX;

/// Turns in flight, and the instants that bound the full load.
#[derive(Debug)]
pub struct Watch {
    in_flight: AtomicUsize,
    max_in_flight: AtomicUsize,
    full_us: AtomicU64,
    last_start_us: AtomicU64,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            in_flight: AtomicUsize::new(0),
            max_in_flight: AtomicUsize::new(0),
            full_us: AtomicU64::new(NEVER),
            last_start_us: AtomicU64::new(NEVER),
        }
    }
}

impl Watch {
    /// Turns under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Most turns under way at once.
    #[must_use]
    pub fn max_in_flight(&self) -> usize {
        self.max_in_flight.load(Ordering::Relaxed)
    }

    /// The bounds of the full load as far as they are known. An instant is set before any turn that lies behind it is sent.
    #[must_use]
    pub fn marks(&self) -> Marks {
        let instant = |at: &AtomicU64| Some(at.load(Ordering::Acquire)).filter(|at| *at != NEVER).map(Micros);
        Marks { full: instant(&self.full_us), last_start: instant(&self.last_start_us) }
    }

    /// A turn is under way until this is dropped.
    pub(super) fn turn(&self) -> UnderWay<'_> {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.max_in_flight.fetch_max(now, Ordering::Relaxed);
        UnderWay(self)
    }

    /// The load is full; only the first time counts.
    pub(super) fn mark_full(&self, at: Micros) {
        self.full_us.fetch_min(at.0, Ordering::Release);
    }

    /// Nothing starts after this; the earliest counts.
    pub(super) fn mark_last_start(&self, at: Micros) {
        self.last_start_us.fetch_min(at.0, Ordering::Release);
    }
}

pub(super) struct UnderWay<'a>(&'a Watch);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
