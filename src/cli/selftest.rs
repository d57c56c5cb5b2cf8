//! `gspbench selftest`: how many streams this host can drive, and with what error, against a server that says when it
//! wrote what. The client under test is the one that runs use: the same load loop, the same turns over HTTP.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::mpsc;

use super::exit::{Ended, Exit};
use super::truth::Truth;
use super::{interrupt, say};
use crate::client::{Client, Settings, Shape};
use crate::clock::Clock;
use crate::drive::{Limits, Load, Stop, drive};
use crate::profile::{self, RunSpec, run_spec};
use crate::record::{EndedBy, TurnRecord};
use crate::sim::{Schedule, Written};
use crate::stats::{Distribution, Quantile};
use crate::text::Vocabulary;
use crate::workload::{self, Prompter};

/// The streams of a step start within this time, so that the accepting of connections is not what is measured.
const RAMP: Duration = Duration::from_secs(1);
/// From a request to its first token.
const FIRST: Duration = Duration::from_millis(200);
/// The error that the last line speaks of.
const BOUND_US: f64 = 1000.0;
/// Files that the program needs beside its streams.
const OTHER_FILES: u64 = 64;

/// Measure what this host can drive, and with what error
///
/// Starts a server on this host that writes tokens on an exact schedule and logs the instant of each write, drives it with
/// growing numbers of streams, and holds what the client measured against that log. Each step starts its streams within a
/// second; each stream gets its tokens one event at a time at the rate given.
///
/// TTFT err and ITL err are |client − server's log| in milliseconds, p50 and p99 over all requests and all gaps; the
/// server's own delay in reading a request counts as the client's, so TTFT err is an upper bound. CPU is that of the client
/// process alone, in cores; the server needs about as much of the same host, which no run against a distant server has to
/// pay. Server late is the worst lag of the server behind its schedule: what it wrote late is no error of the client, but
/// says that the host was full.
#[derive(Debug, clap::Args)]
pub(super) struct SelftestArgs {
    /// Numbers of streams to try, in growing order
    #[arg(long, value_delimiter = ',', default_value = "64,256,1024,2048,4096", value_name = "N,N,…")]
    streams: Vec<NonZeroU32>,
    /// Tokens a second of each stream
    #[arg(long, default_value = "20", value_name = "R")]
    rate: NonZeroU32,
    /// How long a stream lasts
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Duration,
}

/// Runs the steps; ends early when a step was far off.
///
/// # Errors
/// When the server does not start, or turns fail.
pub(super) fn run(args: &SelftestArgs) -> anyhow::Result<Exit> {
    interrupt::block_on(Duration::ZERO, |stop| async move {
        let interval = Duration::from_secs(1) / args.rate.get();
        let mut best = None;
        say::result(&Step::header())?;
        for streams in &args.streams {
            if let Some(limit) = file_limit().filter(|limit| u64::from(streams.get()) + OTHER_FILES > *limit) {
                say::note(&format!(
                    "note: {streams} streams need more than the {limit} open files allowed here; see `ulimit -n`"
                ));
                break;
            }
            let mut truth = Truth::start(Schedule { first: FIRST, interval }).await?;
            let step = measure(args, *streams, &mut truth, &stop).await;
            truth.stop().await;
            let step = step?;
            say::result(&step.line())?;
            if step.worst() <= BOUND_US {
                best = Some(step);
            } else if step.worst() > 100.0 * BOUND_US {
                break;
            }
        }
        say::result(&verdict(args, best.as_ref()))?;
        Ok(Exit::Ok)
    })
}

fn verdict(args: &SelftestArgs, best: Option<&Step>) -> String {
    let rate = args.rate;
    match best {
        Some(Step { streams, .. }) => format!("this host drives {streams} streams × {rate} tok/s within 1 ms"),
        None => {
            format!("this host drives none of these loads within 1 ms, at {rate} tok/s a stream: is it busy otherwise?")
        }
    }
}

/// One step's figures.
#[derive(Debug)]
struct Step {
    streams: NonZeroU32,
    events_per_second: f64,
    errors: Errors,
    cpu_cores: Option<f64>,
    late_us: u64,
}

impl Step {
    fn header() -> String {
        format!(
            "{:>8} {:>9}   {:>17}   {:>17}   {:>9}   {:>14}",
            "streams", "events/s", "TTFT err p50/p99", "ITL err p50/p99", "CPU cores", "server late ms"
        )
    }

    fn line(&self) -> String {
        let pair = |errors: &Distribution| {
            let [p50, p99] = [Quantile::P50, Quantile::P99].map(|q| errors.quantile(q).map_or(f64::NAN, |us| us / 1e3));
            format!("{p50:.2}/{p99:.2} ms")
        };
        let cpu = self.cpu_cores.map_or_else(|| "–".to_owned(), |cores| format!("{cores:.2}"));
        format!(
            "{:>8} {:>9.0}   {:>17}   {:>17}   {cpu:>9}   {:>14.1}",
            self.streams,
            self.events_per_second,
            pair(&self.errors.ttft),
            pair(&self.errors.itl),
            Duration::from_micros(self.late_us).as_secs_f64() * 1e3
        )
    }

    /// The larger of the two p99 errors, in µs.
    fn worst(&self) -> f64 {
        let p99 = |errors: &Distribution| errors.quantile(Quantile::P99).unwrap_or(f64::INFINITY);
        p99(&self.errors.ttft).max(p99(&self.errors.itl))
    }
}

/// Absolute differences between the client's record and the server's log.
#[derive(Debug, Default)]
struct Errors {
    ttft: Distribution,
    itl: Distribution,
}

impl Errors {
    fn add(&mut self, turn: &TurnRecord, written: &Written) {
        if let Some(ttft) = turn.ttft() {
            self.ttft.record(ttft.0.abs_diff(written.first_us), 1);
        }
        for (gap, true_us) in turn.gaps.iter().zip(&written.gaps_us) {
            self.itl.record(u64::from(gap.us).abs_diff(*true_us), 1);
        }
    }
}

/// Drives one step and holds its records against the server's log.
async fn measure(args: &SelftestArgs, streams: NonZeroU32, truth: &mut Truth, stop: &Stop) -> anyhow::Result<Step> {
    let spec = spec(args, streams)?;
    let (started, cpu_before) = (Instant::now(), cpu_time());
    let turns = drive_all(&spec, &truth.url, stop).await?;
    let (took, cpu_after) = (started.elapsed().as_secs_f64(), cpu_time());
    let mut written = BTreeMap::new();
    for _ in &turns {
        let reply = truth.next().await?;
        written.insert(reply.id.clone(), reply);
    }
    let mut errors = Errors::default();
    let (mut events, mut late_us) = (0, 0);
    for turn in &turns {
        if !turn.outcome.is_complete() {
            let why = turn.detail.clone().unwrap_or_default();
            anyhow::bail!("a turn did not end well with {streams} streams: {:?} {why}", turn.outcome);
        }
        let written = written.get(&turn.id).with_context(|| format!("the server knows no request `{}`", turn.id))?;
        errors.add(turn, written);
        events += turn.frames;
        late_us = late_us.max(written.late_us);
    }
    let cpu_cores = cpu_after.zip(cpu_before).map(|(after, before)| (after - before) / took);
    Ok(Step { streams, events_per_second: f64::from(events) / took, errors, cpu_cores, late_us })
}

/// Runs the step's plan to its end: a record for each turn.
async fn drive_all(spec: &RunSpec, url: &str, stop: &Stop) -> anyhow::Result<Vec<TurnRecord>> {
    let vocabulary = Arc::new(Vocabulary::words());
    let plan = Arc::new(workload::plan(spec, &vocabulary)?);
    let clock = Clock::wall();
    let client = Client::new(settings(spec, url), clock.clone(), stop.cut.clone())?;
    let load = Load {
        run_id: "selftest".to_owned(),
        prompter: Arc::new(Prompter::new(plan, vocabulary)),
        limits: Limits { sessions: None, turns: None, think: Duration::ZERO, duration: None, ramp_up: Duration::ZERO },
        clock,
        stop: stop.clone(),
        watch: Arc::default(),
    };
    let (sender, mut records) = mpsc::channel(1024);
    let preparing = client.clone();
    let driving = drive(
        load,
        move |turn, prompt| preparing.prepare(turn, prompt),
        move |turn, body| {
            let client = client.clone();
            async move { client.send(turn, body).await }
        },
        sender,
    );
    let collecting = async {
        let mut turns = Vec::new();
        while let Some(turn) = records.recv().await {
            turns.push(turn);
        }
        turns
    };
    let (driven, turns) = tokio::join!(driving, collecting);
    if driven.ended_by == EndedBy::Interrupt {
        return Err(Ended::new(Exit::Interrupted, "interrupted").into());
    }
    Ok(turns)
}

/// One short session a stream, all of them due within the ramp.
fn spec(args: &SelftestArgs, streams: NonZeroU32) -> anyhow::Result<RunSpec> {
    let tokens = (f64::from(args.rate.get()) * args.duration.as_secs_f64()).round().max(2.0);
    let rate = f64::from(streams.get()) / RAMP.as_secs_f64();
    let text = format!(
        "[workload]\ngroups = 1\nsessions_per_group = {streams}\nsystem_tokens = 16\nquestion_tokens = 16\n\
         output_tokens = {tokens}\nseed = 1\n[request]\napi = \"completions\"\n[load]\nrate = {rate:.1}\n"
    );
    let profile = profile::load("selftest", &text, &[])?;
    Ok(run_spec(&profile, &profile::Context { name: "selftest".to_owned(), drawn_seed: 1, compares_arms: false })?)
}

fn settings(spec: &RunSpec, url: &str) -> Settings {
    Settings {
        url: format!("{url}/v1/completions"),
        shape: Shape { request: spec.request.clone(), model: None, key_field: None, continuous_usage: true },
        key_headers: vec![],
        headers: BTreeMap::new(),
        api_key: None,
        connect_timeout: spec.timeout.connect,
        first_byte_timeout: spec.timeout.first_byte,
        idle_timeout: spec.timeout.idle,
    }
}

/// CPU seconds of this process so far, where the system tells.
fn cpu_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The program's name may hold blanks; the fields after it do not. Times are in ticks of 10 ms on every Linux.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / 100.0)
}

/// Files that this process may have open.
fn file_limit() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Gap, TurnId};
    use crate::units::Micros;

    #[test]
    fn errors_are_differences_from_the_servers_log_in_either_direction() {
        let id = TurnId { group: 0, session: 0, turn: 0 };
        let gap = |us| Gap { us, tokens: Some(1) };
        let turn = TurnRecord {
            sent_us: Some(Micros(1_000)),
            first_us: Some(Micros(201_300)),
            gaps: vec![gap(50_000), gap(49_000)],
            ..TurnRecord::planned("a".into(), id, None, Micros(0), 3)
        };
        let written = Written { id: "a".into(), first_us: 200_000, gaps_us: vec![50_400, 48_000], late_us: 0 };
        let mut errors = Errors::default();
        errors.add(&turn, &written);
        assert_eq!((errors.ttft.count(), errors.ttft.mean()), (1, Some(300.0)));
        assert_eq!((errors.itl.count(), errors.itl.mean()), (2, Some(700.0)));
    }

    #[test]
    fn the_process_knows_its_own_cpu_and_files() {
        assert!(cpu_time().is_none_or(|seconds| seconds >= 0.0));
        assert!(file_limit().is_none_or(|limit| limit > 0));
    }
}
