//! Whether the client itself was the limit: late, busy, held back by its own cap, or short of what this host gives.

use super::finding::{FindingKind, Judged, Verdict, finding, percent};
use crate::profile::Target;
use crate::report::shape::RunReport;
use crate::stats::Summary;
use crate::units::plural;

/// Lag at the 99th percentile, in ms, and as a share of the median TTFT; the larger counts. Half of it warns.
const LAG_MS: f64 = 5.0;
const LAG_SHARE: f64 = 0.05;
/// Looks at the runtime below which their 99th percentile says nothing: one second's worth.
const LEAST_LOOKS: u64 = 100;
/// Share of the usable cores that this process kept busy. Half of it warns.
const CPU_SHARE: f64 = 0.8;
/// Share of its time for which the busiest thread that carries streams was on a core: above the first it voids, above the
/// second it warns. A host of many cores never reaches its share of all of them with one such thread at its end.
const LANE_SHARE: f64 = 0.95;
const LANE_SHARE_WARNS: f64 = 0.8;
/// Shorter runs have no CPU share to speak of: the clock of processes steps, and start and end weigh too much.
const LEAST_SECONDS: f64 = 1.0;
/// Share of the planned rate that must have been kept.
const RATE_SHARE: f64 = 0.98;

/// Why a limit that is passed voids nothing there.
const SHARES_CORES: &str = "no void, since a simulated server shares this host's cores";

/// What our own simulator calls itself.
const SIMULATOR: &str = "gspbench sim";

/// In the order in which they are shown.
pub(super) const CHECKS: [fn(&RunReport) -> Option<Judged>; 7] =
    [send_lag, runtime_lag, cpu, lane, client_resource, cap_wait, rate];

/// The lag from which the client counts as late.
fn lag_limit(report: &RunReport) -> f64 {
    LAG_MS.max(LAG_SHARE * report.metrics.ttft_ms.map_or(0.0, |ttft| ttft.p50))
}

fn late(report: &RunReport, what: &str, lag: Option<Summary>, effect: &str) -> Option<Judged> {
    let (lag, limit) = (lag?.p99, lag_limit(report));
    if lag <= limit / 2.0 {
        return None;
    }
    let verdict = if lag > limit { client_verdict(report) } else { Verdict::Valid };
    let is_excused = lag > limit && verdict == Verdict::Valid;
    let effect = if is_excused { format!("{effect}; {SHARES_CORES}") } else { effect.to_owned() };
    let finding = finding(
        FindingKind::Client,
        format!("{what} p99 {lag:.1} ms"),
        Some(format!("{limit:.1} ms, warning above {:.1} ms", limit / 2.0)),
        &effect,
        "give the client more cores, spread the start with --ramp-up, or lower the load",
    );
    Some((finding, verdict))
}

fn send_lag(report: &RunReport) -> Option<Judged> {
    // Reports of earlier versions do not tell the two apart.
    let lag = report.client.own_lag_ms.or(report.client.send_lag_ms);
    late(report, "send lag", lag, "requests left later than planned, so the load was lighter than asked for")
}

fn runtime_lag(report: &RunReport) -> Option<Judged> {
    let lag = report.client.runtime_lag_ms.filter(|lag| lag.count >= LEAST_LOOKS);
    late(report, "runtime lag", lag, "replies may have been read, and stamped, that much after they came")
}

fn is_long_enough(report: &RunReport) -> bool {
    report.metrics.duration_s.is_some_and(|seconds| seconds >= LEAST_SECONDS)
}

fn cpu(report: &RunReport) -> Option<Judged> {
    let busy = report.client.cpu_cores.filter(|_| is_long_enough(report))?;
    let usable = report.manifest.host.cores?;
    let share = busy / f64::from(usable);
    if share <= CPU_SHARE / 2.0 {
        return None;
    }
    let finding = finding(
        FindingKind::Client,
        format!("the client kept {busy:.2} of {usable} usable cores busy ({})", percent((share * 1e3).round() / 1e3)),
        Some(format!("{}, warning above {}", percent(CPU_SHARE), percent(CPU_SHARE / 2.0))),
        "near that, times are those of the client and no longer of the server",
        "give the client more cores, or lower the load",
    );
    Some((finding, if share > CPU_SHARE { client_verdict(report) } else { Verdict::Valid }))
}

fn lane(report: &RunReport) -> Option<Judged> {
    let busy = report.client.busiest_lane.filter(|_| is_long_enough(report))?;
    if busy <= LANE_SHARE_WARNS {
        return None;
    }
    let finding = finding(
        FindingKind::Client,
        format!("the busiest thread that carries streams was on a core for {} of the time", percent(busy)),
        Some(format!("{}, warning above {}", percent(LANE_SHARE), percent(LANE_SHARE_WARNS))),
        "its streams wait for each other, whatever other cores do: their times are those of the client",
        "lower the load of this client, or give it more cores: half of them carry streams, two to eight",
    );
    Some((finding, if busy > LANE_SHARE { client_verdict(report) } else { Verdict::Valid }))
}

fn client_resource(report: &RunReport) -> Option<Judged> {
    let turns = *report.totals.failed_by_kind.get("client_resource")?;
    let finding = finding(
        FindingKind::Client,
        format!("{} failed because this host ran out of ports, descriptors or memory", plural(turns, "turn")),
        Some("none".into()),
        "the server never saw them",
        "raise `ulimit -n`, widen the port range, or lower the load",
    );
    Some((finding, client_verdict(report)))
}

/// A cap is a choice of the user's, so it voids nothing; but who asked for a rate must know.
fn cap_wait(report: &RunReport) -> Option<Judged> {
    let wait = report.client.cap_wait_ms.filter(|wait| wait.p99 > lag_limit(report))?;
    let finding = finding(
        FindingKind::Cap,
        format!(
            "turns waited for a permit of --max-concurrency or --max-turns-in-flight: p50 {:.1} ms, p99 {:.1} ms",
            wait.p50, wait.p99
        ),
        Some(format!("{:.1} ms", lag_limit(report))),
        "this is no open loop any more: TTFT from due has the wait in it, TTFT has not",
        "raise the cap, or lower the rate",
    );
    Some((finding, Verdict::Valid))
}

fn rate(report: &RunReport) -> Option<Judged> {
    let rate = report.client.rate?;
    let (planned, achieved) = (rate.planned?, rate.achieved?);
    let finding = (achieved < RATE_SHARE * planned).then(|| {
        finding(
            FindingKind::Rate,
            format!("{achieved:.2} sessions/s were started, {planned:.2} were planned"),
            Some(percent(RATE_SHARE)),
            "the load was lighter than asked for",
            "see cap wait and send lag for what held it back",
        )
    })?;
    Some((finding, Verdict::Valid))
}

/// A simulated server of our own shares the client's cores, started by us or found at an address: its client is busy by
/// design, and no one buys hardware by its numbers.
fn client_verdict(report: &RunReport) -> Verdict {
    match report.manifest.target {
        _ if report.server.kind.as_deref() == Some(SIMULATOR) => Verdict::Valid,
        Some(Target::Sim { .. }) => Verdict::Valid,
        Some(Target::Url(_) | Target::Pin { .. }) | None => Verdict::Void,
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Validity;
    use super::*;
    use crate::profile::Connections;
    use crate::record::{Failure, Outcome, TurnRecord};
    use crate::report::tests::{context, ended, report, served};
    use crate::report::{Accumulator, Closing, StartRate, State};
    use crate::units::Micros;

    /// A run of one second on two cores, changed by `edit`, judged by these checks alone.
    fn judged(edit: impl FnOnce(&mut RunReport)) -> Vec<(FindingKind, Verdict)> {
        let mut report = report(&[served(0, 0, 0, 0), served(1, 900, 0, 0)]);
        report.manifest.host.cores = Some(2);
        report.validity = Validity::default();
        edit(&mut report);
        CHECKS.iter().filter_map(|check| check(&report)).map(|(finding, verdict)| (finding.kind, verdict)).collect()
    }

    fn lag(count: u64, p99: f64) -> Option<Summary> {
        Some(Summary { count, mean: 0.1, std: 0.1, min: 0.0, p50: 0.1, p90: 0.1, p95: 0.1, p99, max: p99 })
    }

    const VOID: (FindingKind, Verdict) = (FindingKind::Client, Verdict::Void);
    const WARNING: (FindingKind, Verdict) = (FindingKind::Client, Verdict::Valid);

    #[test]
    fn above_the_limit_is_void_and_above_its_half_a_warning() {
        let own = |p99| judged(|report| report.client.own_lag_ms = lag(10, p99));
        assert_eq!([own(2.4), own(2.6), own(5.1)], [vec![], vec![WARNING], vec![VOID]]);
        let runtime = |count, p99| judged(|report| report.client.runtime_lag_ms = lag(count, p99));
        assert_eq!([runtime(100, 2.4), runtime(100, 2.6), runtime(100, 5.1)], [vec![], vec![WARNING], vec![VOID]]);
        assert_eq!(runtime(99, 50.0), [], "less than a second says nothing");
        let cpu = |cores| judged(|report| report.client.cpu_cores = Some(cores));
        assert_eq!([cpu(0.8), cpu(0.81), cpu(1.61)], [vec![], vec![WARNING], vec![VOID]]);
        let lane = |share| judged(|report| report.client.busiest_lane = Some(share));
        assert_eq!([lane(0.8), lane(0.81), lane(0.96)], [vec![], vec![WARNING], vec![VOID]]);
    }

    #[test]
    fn a_slow_server_allows_a_later_client() {
        let late = |ttft| {
            judged(|report| {
                report.client.own_lag_ms = lag(10, 20.0);
                report.metrics.ttft_ms = report.metrics.ttft_ms.map(|summary| Summary { p50: ttft, ..summary });
            })
        };
        assert_eq!([late(100.0), late(500.0), late(1_000.0)], [vec![VOID], vec![WARNING], vec![]]);
    }

    #[test]
    fn the_cpu_time_of_a_run_shorter_than_a_second_is_not_judged() {
        let busy = judged(|report| {
            report.client.cpu_cores = Some(2.0);
            report.client.busiest_lane = Some(1.0);
            report.metrics.duration_s = Some(0.99);
        });
        assert_eq!(busy, []);
    }

    #[test]
    fn a_turn_that_this_host_had_no_room_for_voids_the_run() {
        let turns: Vec<_> = (0..200)
            .map(|n| match n {
                0 => ended(n, 0, Outcome::Failed(Failure::ClientResource)),
                _ => ended(n, 0, Outcome::Complete),
            })
            .collect();
        let voids = report(&turns).validity.voids;
        assert_eq!(voids.iter().map(|void| void.kind).collect::<Vec<_>>(), [FindingKind::Client]);
    }

    #[test]
    fn the_wait_for_a_cap_is_no_lag_of_the_client() {
        let capped = |session, wait: u64| TurnRecord {
            due_us: Micros(0),
            cap_wait_us: Some(Micros(wait * 1_000)),
            ..served(session, 400, 0, 0)
        };
        let found = report(&[capped(0, 400), capped(1, 399)]);
        assert_eq!(found.client.own_lag_ms.map(|lag| lag.max), Some(1.0));
        assert_eq!(found.validity.voids, []);
        let kinds: Vec<_> = found.validity.warnings.iter().map(|warning| warning.kind).collect();
        assert_eq!(kinds, [FindingKind::Cap]);
    }

    #[test]
    fn the_opening_of_a_connection_is_no_lag_of_the_client_where_each_turn_was_to_open_one() {
        let lag = |connections| {
            let mut context = context(2, 0);
            context.manifest.spec.load.connections = connections;
            let mut accumulator = Accumulator::new(context);
            // Sent 400 ms after they were due, of which 399 went by until their connection was open.
            for session in 0..2 {
                let connect_us = Some(Micros(399_000));
                accumulator.add(&TurnRecord { due_us: Micros(0), connect_us, ..served(session, 400, 0, 0) });
            }
            let client = accumulator.finish(Closing::plain(State::Complete)).client;
            [client.send_lag_ms, client.own_lag_ms].map(|lag| lag.map(|lag| lag.max))
        };
        assert_eq!(lag(Connections::PerTurn), [Some(400.0), Some(1.0)]);
        assert_eq!(
            lag(Connections::Kept),
            [Some(400.0), Some(400.0)],
            "who keeps connections should not be short of one"
        );
    }

    #[test]
    fn a_rate_that_was_not_kept_is_said() {
        let rate = |achieved| {
            judged(|report| {
                report.client.rate = Some(StartRate { asked: 10.0, planned: Some(9.5), achieved: Some(achieved) });
            })
        };
        assert_eq!((rate(9.4), rate(9.2)), (vec![], vec![(FindingKind::Rate, Verdict::Valid)]));
    }
}
