//! What reuse saved, by the servers' own counters.

use super::shape::{Cost, Pair};
use crate::report::CounterRole;
use crate::report::RunReport;
use crate::stats::rounded;

/// Sums over the paired blocks; a figure that a block of either arm lacks is absent, since a part of a sum would mislead.
pub(super) fn cost<'a>(arm: &str, pairs: impl Iterator<Item = (&'a RunReport, &'a RunReport)> + Clone) -> Cost {
    let sums = |role: CounterRole, unit: f64| {
        let grown = |report: &RunReport| report.server.growth(role);
        let sum = |report: &mut dyn Iterator<Item = &'a RunReport>| report.map(grown).sum::<Option<f64>>();
        let baseline = sum(&mut pairs.clone().map(|(base, _)| base))?;
        let other = sum(&mut pairs.clone().map(|(_, other)| other))?;
        // A counter that never moves is one that its server does not keep.
        let moved = baseline > 0.0 && other > 0.0;
        moved.then(|| Pair { baseline: rounded(baseline * unit), other: rounded(other * unit) })
    };
    Cost {
        arm: arm.to_owned(),
        computed_tokens: sums(CounterRole::ComputedTokens, 1.0),
        prefill_busy_ms: sums(CounterRole::PrefillBusyUs, 1e-3),
    }
}
