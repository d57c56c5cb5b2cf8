//! `gspbench selftest`: how many streams this host can drive, and with what error, against a server that says when it
//! wrote what. The client under test is the one that runs use: the same load loop, the same turns over HTTP.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::mpsc;

use super::block::witness::process_time;
use super::exit::Exit;
use super::truth::Truth;
use super::{descriptors, interrupt, say};
use crate::client::{Aim, Asks, Client, Settings, Shape, Trust};
use crate::clock::Clock;
use crate::drive::{Limits, Load, Stop, drive};
use crate::lanes::Lanes;
use crate::profile::{self, RunSpec, run_spec};
use crate::record::{EndedBy, TurnRecord};
use crate::sim::{Schedule, Written};
use crate::stats::{Distribution, Quantile};
use crate::text::Vocabulary;
use crate::units::{grouped, grouped_float, plural};
use crate::workload::{self, Plan, Prompter};

/// The streams of a step start within this time, so that the accepting of connections is not what is measured.
const RAMP: Duration = Duration::from_secs(1);
/// From a request to its first token.
const FIRST: Duration = Duration::from_millis(200);
/// The error that the last line speaks of.
const BOUND_US: f64 = 1000.0;
/// A step that misses it by this factor is the last.
const FAR_OFF: f64 = 100.0;

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

/// Runs the steps; ends early when a step was far off, or a signal came: then with what the steps before it have shown.
///
/// # Errors
/// When the server does not start, or turns fail.
pub(super) fn run(args: &SelftestArgs) -> anyhow::Result<Exit> {
    interrupt::block_on(Duration::ZERO, |stop| async move {
        let mut best = None;
        say::result(&Step::header())?;
        for streams in &args.streams {
            let job = Job::new(args, *streams)?;
            if let Err(why) = descriptors::reserve(&job.spec, &job.plan) {
                say::note(&format!("note: {why:#}"));
                break;
            }
            let Some(step) = job.measure(&stop).await? else {
                say::result(&interrupted(args, *streams, best.as_ref()))?;
                return Ok(Exit::Interrupted);
            };
            say::result(&step.line())?;
            if step.worst_us() > FAR_OFF * BOUND_US {
                break;
            }
            if step.worst_us() <= BOUND_US {
                best = Some(step);
            }
        }
        say::result(&verdict(args, best.as_ref()))?;
        Ok(Exit::Ok)
    })
}

/// What the steps before the one that a signal cut have shown.
fn interrupted(args: &SelftestArgs, cut: NonZeroU32, best: Option<&Step>) -> String {
    let so_far = match best {
        Some(Step { streams, .. }) => {
            format!("so far, this host drives {} × {} tok/s within 1 ms", told(*streams), args.rate)
        }
        None => "no step before it was within 1 ms".to_owned(),
    };
    format!("INTERRUPTED at {}, of which nothing is known: {so_far}", told(cut))
}

fn told(streams: NonZeroU32) -> String {
    plural(streams.get().into(), "stream")
}

fn verdict(args: &SelftestArgs, best: Option<&Step>) -> String {
    let rate = args.rate;
    match best {
        Some(Step { streams, .. }) => format!("this host drives {} × {rate} tok/s within 1 ms", told(*streams)),
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
    cpu_cores: f64,
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
        format!(
            "{:>8} {:>9}   {:>17}   {:>17}   {:>9.2}   {:>14.1}",
            grouped(self.streams.get().into()),
            grouped_float(self.events_per_second),
            pair(&self.errors.ttft),
            pair(&self.errors.itl),
            self.cpu_cores,
            Duration::from_micros(self.late_us).as_secs_f64() * 1e3
        )
    }

    /// The larger of the two p99 errors, in µs.
    fn worst_us(&self) -> f64 {
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

/// One step's load.
#[derive(Debug)]
struct Job {
    streams: NonZeroU32,
    spec: RunSpec,
    plan: Arc<Plan>,
    vocabulary: Arc<Vocabulary>,
    schedule: Schedule,
}

impl Job {
    /// One short session a stream, all of them due within the ramp.
    fn new(args: &SelftestArgs, streams: NonZeroU32) -> anyhow::Result<Self> {
        let tokens = (f64::from(args.rate.get()) * args.duration.as_secs_f64()).round().max(2.0);
        let starts = f64::from(streams.get()) / RAMP.as_secs_f64();
        let text = format!(
            "[workload]\ngroups = 1\nsessions_per_group = {streams}\nsystem_tokens = 16\nquestion_tokens = 16\n\
             output_tokens = {tokens}\nseed = 1\n[request]\napi = \"completions\"\n\
             [load]\nmax_concurrency = {streams}\nrate = {starts:.1}\n"
        );
        let profile = profile::load("selftest", &text, &[])?;
        let context = profile::Context { name: "selftest".to_owned(), drawn_seed: 1, compares_arms: false };
        let spec = run_spec(&profile, &context)?;
        let vocabulary = Arc::new(Vocabulary::words());
        let plan = Arc::new(workload::plan(&spec, &vocabulary)?);
        let schedule = Schedule { first: FIRST, interval: Duration::from_secs(1) / args.rate.get() };
        Ok(Self { streams, spec, plan, vocabulary, schedule })
    }

    /// Drives the load and holds its records against the server's log; nothing where a signal has cut it.
    async fn measure(&self, stop: &Stop) -> anyhow::Result<Option<Step>> {
        let mut truth = Truth::start(self.schedule).await?;
        let (started, cpu_before) = (Instant::now(), process_time());
        let Some(turns) = self.drive(&truth.url, stop).await? else {
            truth.stop().await;
            return Ok(None);
        };
        let (took, cpu) = (started.elapsed().as_secs_f64(), process_time().saturating_sub(cpu_before));
        let failed = turns.iter().find(|turn| !turn.outcome.is_complete());
        if let Some(TurnRecord { outcome, detail, .. }) = failed {
            anyhow::bail!("{}: a turn ended as {outcome:?}: {}", told(self.streams), detail.as_deref().unwrap_or("-"));
        }
        let mut written = BTreeMap::new();
        for _ in &turns {
            let reply = truth.next().await?;
            written.insert(reply.id.clone(), reply);
        }
        truth.stop().await;
        let mut errors = Errors::default();
        for turn in &turns {
            let of_turn = written.get(&turn.id);
            errors.add(turn, of_turn.with_context(|| format!("the server knows no request `{}`", turn.id))?);
        }
        Ok(Some(Step {
            streams: self.streams,
            events_per_second: f64::from(turns.iter().map(|turn| turn.frames).sum::<u32>()) / took,
            errors,
            cpu_cores: cpu.as_secs_f64() / took,
            late_us: written.values().map(|reply| reply.late_us).max().unwrap_or(0),
        }))
    }

    /// Runs the plan to its end: a record for each turn. Nothing where a signal has ended it before.
    async fn drive(&self, url: &str, stop: &Stop) -> anyhow::Result<Option<Vec<TurnRecord>>> {
        let clock = Clock::wall();
        let lanes = Lanes::for_streams(usize::try_from(self.streams.get()).ok())?;
        let client = Client::new(settings(&self.spec, url), &lanes, clock.clone(), stop.cut.clone())?;
        let load = Load {
            run_id: "selftest".to_owned(),
            prompter: Arc::new(Prompter::new(Arc::clone(&self.plan), Arc::clone(&self.vocabulary))),
            limits: Limits {
                sessions: None,
                turns: None,
                ramp_up: Duration::ZERO,
                duration: None,
                think: Duration::ZERO,
            },
            clock,
            lanes,
            stop: stop.clone(),
            watch: Arc::default(),
        };
        let (sender, mut records) = mpsc::channel(1024);
        let preparing = client.clone();
        let driving = drive(
            load,
            move |turn, prompt| preparing.prepare(turn, prompt),
            |_, _| Aim::default(),
            move |turn, body, aim| client.send(turn, body, aim),
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
        Ok((driven.ended_by == EndedBy::Plan).then_some(turns))
    }
}

fn settings(spec: &RunSpec, url: &str) -> Settings {
    Settings {
        url: format!("{url}/v1/completions"),
        shape: Shape {
            request: spec.request.clone(),
            model: None,
            key_field: None,
            continuous_usage: true,
            asks: Asks::default(),
        },
        key_headers: vec![],
        headers: BTreeMap::new(),
        api_key: None,
        trust: Trust::default(),
        connections: spec.load.connections,
        connect_timeout: spec.timeout.connect,
        first_byte_timeout: spec.timeout.first_byte,
        idle_timeout: spec.timeout.idle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Gap, TurnId};
    use crate::units::Micros;

    #[test]
    fn counts_of_a_step_have_their_thousands_apart() {
        let streams = NonZeroU32::new(4_096).unwrap();
        let line =
            Step { streams, events_per_second: 81_920.4, errors: Errors::default(), cpu_cores: 1.0, late_us: 0 }.line();
        assert!(line.starts_with("   4,096    81,920 "), "{line}");
    }

    #[test]
    fn errors_are_differences_from_the_servers_log_in_either_direction() {
        let id = TurnId { group: 0, session: 0, turn: 0 };
        let gap = |us| Gap::new(us, Some(1));
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
}
