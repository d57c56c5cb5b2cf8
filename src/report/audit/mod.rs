//! What makes a run void, and what its reader must know. A pure function of the report, so a saved one is judged alike.

mod client;
mod eviction;
pub(super) mod finding;
mod premises;
mod reconcile;
mod served;
mod skew;
mod turns;

use super::shape::RunReport;

pub use finding::{Finding, FindingKind, Validity, Verdict};

use finding::Judged;

/// Judges a report by its other parts.
pub(super) fn judge(report: &RunReport) -> Validity {
    let checks = [
        served::restart,
        served::flush,
        served::cold,
        served::key,
        served::pin,
        turns::errors,
        reconcile::possible,
        reconcile::unreconciled,
        reconcile::hit,
        reconcile::hit_by_place,
        reconcile::traffic,
        reconcile::traffic_at_decode,
        eviction::eviction,
        reconcile::prompt_length,
        turns::output_length,
    ];
    let notes = [
        premises::rank,
        skew::skew,
        premises::aliasing,
        premises::router_key,
        turns::interrupted,
        turns::estimated,
        turns::oddities,
        turns::refusals,
        turns::debug_build,
    ];
    let checks = checks.iter().chain(&client::CHECKS).chain(&notes);
    let found = checks.filter_map(|check| check(report)).chain(report.server.unread.iter().map(reconcile::unread));
    let found = found.chain(report.server.cut.iter().map(reconcile::cut));
    let (voids, warnings): (Vec<Judged>, Vec<Judged>) = found.partition(|(_, verdict)| *verdict == Verdict::Void);
    let plain = |judged: Vec<Judged>| judged.into_iter().map(|(finding, _)| finding).collect();
    Validity {
        verdict: if voids.is_empty() { Verdict::Valid } else { Verdict::Void },
        voids: plain(voids),
        warnings: plain(warnings),
    }
}

#[cfg(test)]
mod reconcile_tests;
#[cfg(test)]
mod tests;
