//! Units as types. Times are integers of microseconds from the start of the run, so that a record is exact, small and
//! the same on every machine; milliseconds appear only where a number is shown.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Microseconds from the start of the run (or a span of that unit).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Micros(pub u64);

impl Micros {
    /// The span from `earlier` to `self`; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Milliseconds, for display and for JSON keys that end in `_ms`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "2^53 µs are 285 years")]
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// Seconds, for rates.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "2^53 µs are 285 years")]
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl From<Duration> for Micros {
    /// Rounds to the nearest microsecond; saturates after 584,000 years.
    fn from(span: Duration) -> Self {
        Self(u64::try_from((span.as_nanos() + 500) / 1000).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Self {
        Self::from_micros(span.0)
    }
}

impl std::ops::Add for Micros {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// One data-parallel KV cache behind one address, by the stable id that its server gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u16);

/// Most ranks of one server that are believed, or simulated: some things take memory for each. The largest deployments
/// have hundreds.
pub const MOST_RANKS: u32 = 4096;

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_never_goes_below_zero_and_rounds_to_the_nearest_microsecond() {
        assert_eq!(Micros(5).since(Micros(7)), Micros(0));
        assert_eq!(Micros::from(Duration::from_nanos(1499)), Micros(1));
        assert_eq!(Micros::from(Duration::from_nanos(1500)), Micros(2));
        assert!((Micros(1500).as_ms() - 1.5).abs() < 1e-12);
    }
}
