//! The distributions of runs as an HDR interval log.

use std::time::{Duration, SystemTime};

use crate::report::{Latency, RunReport};
use crate::stats::{Interval, interval_log};

/// A line a latency and run, tagged `ttft_us`, or `ttft_us.ARM` where the run has an arm: HDR tools merge lines of one tag,
/// and so the rounds of an arm. Each line is as long as its run.
#[must_use]
pub fn hlog<'a>(reports: impl IntoIterator<Item = &'a RunReport>) -> String {
    let intervals: Vec<Interval> = reports.into_iter().flat_map(intervals).collect();
    let start = intervals.iter().map(|interval| interval.from).min().unwrap_or(SystemTime::UNIX_EPOCH);
    interval_log("gspbench; values in microseconds", start, &intervals)
}

fn intervals(report: &RunReport) -> Vec<Interval> {
    let manifest = &report.manifest;
    // A file that was tampered with may hold any word here; the log only needs an order.
    let started = humantime::parse_rfc3339_weak(&manifest.started_utc).unwrap_or(SystemTime::UNIX_EPOCH);
    let whole = &report.windows.whole;
    let arm = manifest.arm.as_ref().map_or(String::new(), |arm| format!(".{arm}"));
    let interval = |latency: Latency| {
        Some(Interval {
            tag: latency.histogram_key() + &arm,
            from: started + Duration::from(whole.from_us),
            length: whole.to_us.since(whole.from_us).into(),
            samples: report.distribution(latency)?,
        })
    };
    Latency::ALL.into_iter().filter_map(interval).collect()
}
