//! Service level objectives: what a turn must meet to be a good one.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::{ProfileError, raw};

/// Up to a day, in milliseconds.
const LIMITS_MS: RangeInclusive<f64> = 1e-3..=86_400_000.0;

/// Limits in milliseconds; a turn is good when it meets all that are given. At least one is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Slo {
    /// Sent to first output.
    pub ttft_ms: Option<f64>,
    /// (last − first) over the tokens after the first frame.
    pub tpot_ms: Option<f64>,
    /// Sent to last output.
    pub e2el_ms: Option<f64>,
}

impl Slo {
    /// The limits that are given, by bench_serving's names, in milliseconds.
    pub fn limits(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let Self { ttft_ms, tpot_ms, e2el_ms } = *self;
        [("ttft", ttft_ms), ("tpot", tpot_ms), ("e2el", e2el_ms)]
            .into_iter()
            .filter_map(|(name, limit)| Some((name, limit?)))
    }
}

/// As `--goodput` takes it.
impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits: Vec<_> = self.limits().map(|(name, limit)| format!("{name}:{limit}")).collect();
        f.write_str(&limits.join(" "))
    }
}

/// Checks the limits; none when the profile gives none.
///
/// # Errors
/// When a limit is no time that a turn can take.
pub(super) fn slo(raw: &raw::Slo) -> Result<Option<Slo>, ProfileError> {
    let raw::Slo { ttft_ms, tpot_ms, e2el_ms } = *raw;
    let slo = Slo { ttft_ms, tpot_ms, e2el_ms };
    for (name, limit) in slo.limits() {
        if !LIMITS_MS.contains(&limit) {
            let why = format!("{limit}: give milliseconds, above 0 and at most a day, as in --goodput {name}:200");
            return Err(ProfileError::value(&format!("slo.{name}_ms"), why));
        }
    }
    Ok(slo.limits().next().is_some().then_some(slo))
}
