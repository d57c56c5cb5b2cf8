//! One block, stage by stage: plan → warm-up → flush → scrape → drive → scrape → report → files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

use super::exit::{Exit, ExitWith as _};
use super::output_args::Lines;
use super::progress::Progress;
use super::recorder::{Recorded, Recorder};
use super::site::Site;
use super::witness::Witness;
use crate::clock::Clock;
use crate::drive::{Driven, Limits, Load, Stop, drive};
use crate::lanes::Lanes;
use crate::profile::{Pacing, RunSpec};
use crate::record::{EndedBy, Outcome};
use crate::render;
use crate::report::{
    Accumulator, Closing, Context, CounterDelta, Host, KeySeen, Manifest, RunReport, State, Unread, When,
};
use crate::store::{Detail, RunDir};
use crate::target::{self, Flush, Scrape, TargetError};
use crate::text::Vocabulary;
use crate::units::public_address;
use crate::workload::{Observing, Plan, Prompter};

/// What one block runs.
#[derive(Debug)]
pub(super) struct Block<'a> {
    /// With the round's seed and salt.
    pub spec: &'a RunSpec,
    pub plan: Arc<Plan>,
    pub vocabulary: &'a Arc<Vocabulary>,
    pub site: &'a Site,
    pub arm: Option<&'a str>,
    pub round: Option<u32>,
    /// Shown before the bar.
    pub name: String,
    pub shows_progress: bool,
    pub detail: Detail,
    pub lines: &'a Lines<'a>,
    pub stop: &'a Stop,
}

/// A block that has run.
#[derive(Debug)]
pub(super) struct Measured {
    pub report: RunReport,
    /// What the reader must know beside the report's own warnings.
    pub notes: Vec<String>,
}

impl Block<'_> {
    /// Runs the block into `dir`.
    ///
    /// # Errors
    /// When the warm-up fails as a whole, the flush is refused, or a file cannot be written; what was finished is in `dir`.
    pub(super) async fn run(&self, dir: &RunDir) -> anyhow::Result<Measured> {
        let limits = limits(self.spec);
        let lanes = Lanes::for_streams(limits.turns.into_iter().chain(limits.sessions).min())?;
        let mut progress = Progress::new(&self.name, self.plan.totals().turns, self.shows_progress);
        let accumulator = Accumulator::new(self.context());
        dir.write_report(&accumulator.finish(Closing::plain(State::Running)))?;
        progress.stage("warm-up");
        self.warm_up(&lanes).await.exit_with(Exit::Target)?;
        progress.stage("flush");
        let mut notes = self.flush().await.exit_with(Exit::Target)?;
        notes.extend(self.site.facts.notes.iter().cloned());
        let before = self.scrape().await;
        progress.start();
        let witness = Witness::start(&lanes);
        let (driven, recorded, in_flight_max) = self.measure(&lanes, accumulator, dir, progress).await?;
        let seen = witness.end().await;
        let after = self.scrape().await;
        dir.write_raw_metrics(&raw_metrics(&before, &after))?;
        let report = recorded.accumulator.finish(Closing {
            state: if driven.ended_by == EndedBy::Interrupt { State::Interrupted } else { State::Complete },
            ended_by: Some(driven.ended_by),
            counters: deltas(&before, &after),
            unread: self.unread(&before, &after),
            key_seen: KeySeen::Unknown,
            observed: super::facts::observed(&recorded.observing),
            in_flight_max: u64::try_from(in_flight_max).ok(),
            redials: None,
            runtime_lag: seen.runtime_lag,
            cpu_cores: seen.cpu_cores,
        });
        dir.write_report(&report)?;
        dir.write_markdown(&render::markdown(&render::run(&report)))?;
        dir.write_html(&render::html_run(&report))?;
        self.lines.append(dir, &report)?;
        if driven.lost_sessions > 0 {
            anyhow::bail!(
                "{} sessions ended by a fault of this program; its records lack their turns",
                driven.lost_sessions
            );
        }
        Ok(Measured { report, notes })
    }

    fn context(&self) -> Context {
        let manifest = Manifest {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            argv: std::env::args().collect(),
            spec: self.spec.clone(),
            target: Some(self.site.target.clone()),
            host: host(),
            started_utc: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            debug_build: cfg!(debug_assertions),
            arm: self.arm.map(str::to_owned),
            round: self.round,
        };
        let ranks = self.site.facts.ranks.unwrap_or_else(|| self.spec.server.ranks.get());
        Context {
            manifest,
            workload: super::facts::workload(&self.plan, ranks),
            server: super::facts::server(self.site),
        }
    }

    /// Sessions with prompts and keys of their own, at the measured concurrency; their records are thrown away.
    async fn warm_up(&self, lanes: &Lanes) -> Result<(), TargetError> {
        let sessions = self.spec.load.warmup_sessions;
        if sessions == 0 {
            return Ok(());
        }
        let plan = Arc::new(self.plan.warmup(sessions));
        let (sender, mut receiver) = mpsc::channel(64);
        // What a signal finds under way here measures nothing: it is cut at once.
        let stop = Stop { cut: self.stop.sending.child_token(), sending: self.stop.sending.child_token() };
        let client = self.client(lanes, Clock::wall(), &stop)?;
        let prompter = Arc::new(Prompter::new(plan, Arc::clone(self.vocabulary)));
        let limits = Limits { ramp_up: Duration::ZERO, duration: None, ..limits(self.spec) };
        let load = Load { limits, ..self.load(lanes, prompter, Clock::wall(), stop) };
        let preparing = client.clone();
        let driving = drive(
            load,
            move |turn, prompt| preparing.prepare(turn, prompt),
            move |turn, body| client.send(turn, body),
            sender,
        );
        let watching = async {
            let (mut complete, mut failure) = (0_u64, None);
            while let Some(turn) = receiver.recv().await {
                match turn.outcome {
                    Outcome::Failed(kind) if failure.is_none() => failure = Some((kind, turn.detail)),
                    Outcome::Complete => complete += 1,
                    _ => {}
                }
            }
            failure.filter(|_| complete == 0)
        };
        let (_, failed) = tokio::join!(driving, watching);
        failed.map_or(Ok(()), |(kind, detail)| {
            let why = format!("every warm-up turn failed ({kind}): {}", detail.unwrap_or_default());
            Err(TargetError::refused(&self.site.base, why))
        })
    }

    async fn flush(&self) -> Result<Vec<String>, TargetError> {
        if !self.spec.server.flush {
            return Ok(vec!["the prefix cache was left as it was: earlier requests may have warmed it".to_owned()]);
        }
        match target::flush(&self.site.http, &self.site.base, self.spec.server.flush_timeout).await {
            Flush::Accepted => Ok(vec![]),
            Flush::Unsupported => {
                Ok(vec!["the server has no /flush_cache: earlier requests may have warmed its prefix cache".to_owned()])
            }
            Flush::Refused(said) => {
                let why = format!(
                    "the flush was refused ({said}); wait until the server is idle, or measure its cache as it is with \
                     --no-flush-cache"
                );
                Err(TargetError::refused(&self.site.base, why))
            }
        }
    }

    /// Drives the plan; what was recorded, and the most turns in flight at once.
    async fn measure(
        &self,
        lanes: &Lanes,
        accumulator: Accumulator,
        dir: &RunDir,
        progress: Progress,
    ) -> anyhow::Result<(Driven, Recorded, usize)> {
        let clock = Clock::wall();
        let stop = self.stop.child();
        let client = self.client(lanes, clock.clone(), &stop).exit_with(Exit::Usage)?;
        let prompter = Arc::new(Prompter::new(Arc::clone(&self.plan), Arc::clone(self.vocabulary)));
        let load = self.load(lanes, prompter, clock, stop.clone());
        client.open_ahead(&target::join(&self.site.base, "/v1/models"), at_once(load.limits, &self.plan)).await;
        let watch = Arc::clone(&load.watch);
        let (sender, receiver) = mpsc::channel(4 * load.limits.sessions.unwrap_or(256));
        let recorder = Recorder {
            recorded: Recorded { accumulator, observing: Observing::new(&self.plan) },
            log: dir.request_log(self.detail)?,
            progress,
            stop,
            watch: Arc::clone(&watch),
        };
        let preparing = client.clone();
        let estimate = super::facts::estimate(self.spec, self.vocabulary);
        let driving = drive(
            load,
            move |turn, prompt| preparing.prepare(turn, prompt),
            move |turn, body| {
                let estimate = estimate.clone();
                let sending = Box::pin(client.send(turn, body));
                async move {
                    let (turn, text) = sending.await;
                    match super::facts::lacks_count(&turn) {
                        true => Box::pin(super::facts::fill_estimate(turn, text, estimate)).await,
                        false => (turn, text),
                    }
                }
            },
            sender,
        );
        let (driven, recorded) = tokio::join!(driving, recorder.run(receiver));
        Ok((driven, recorded?, watch.max_in_flight()))
    }

    fn client(&self, lanes: &Lanes, clock: Clock, stop: &Stop) -> Result<crate::client::Client, TargetError> {
        self.site
            .client(self.spec, lanes, clock, stop.cut.clone())
            .map_err(|why| TargetError::refused(&self.site.base, super::say::words(&why)))
    }

    fn load(&self, lanes: &Lanes, prompter: Arc<Prompter>, clock: Clock, stop: Stop) -> Load {
        let run_id = format!("{:012x}", rand::random::<u64>() >> 16);
        let (lanes, watch) = (lanes.clone(), Arc::default());
        Load { run_id, prompter, limits: limits(self.spec), clock, lanes, stop, watch }
    }

    /// The target and the further addresses, each with its scrape.
    async fn scrape(&self) -> BTreeMap<String, Scrape> {
        let mut scrapes = BTreeMap::new();
        for (name, source) in self.sources() {
            if let Some(scrape) = target::scrape(&self.site.http, source).await {
                scrapes.insert(name, scrape);
            }
        }
        scrapes
    }

    /// Every address with counters under the name that is stored; two that differ only in what is hidden are numbered.
    fn sources(&self) -> Vec<(String, &str)> {
        let mut sources: Vec<(String, &str)> = vec![];
        for source in std::iter::once(&self.site.base).chain(&self.spec.server.metrics_urls) {
            let shown = public_address(source);
            let earlier = sources.iter().filter(|(name, _)| name.split(' ').next() == Some(&shown)).count();
            let name = if earlier == 0 { shown } else { format!("{shown} ({})", earlier + 1) };
            sources.push((name, source));
        }
        sources
    }

    /// The addresses that a scrape did not reach. A target that never shows counters has none to miss.
    fn unread(&self, before: &BTreeMap<String, Scrape>, after: &BTreeMap<String, Scrape>) -> Vec<Unread> {
        let missing = |name: &String, source: &str| match (before.contains_key(name), after.contains_key(name)) {
            (true, true) => None,
            (false, true) => Some(When::Before),
            (true, false) => Some(When::After),
            (false, false) => Some(When::Both).filter(|_| *source != self.site.base),
        };
        let sources = self.sources().into_iter();
        sources.filter_map(|(name, source)| Some(Unread { when: missing(&name, source)?, source: name })).collect()
    }
}

fn limits(spec: &RunSpec) -> Limits {
    let sessions = match spec.load.pacing {
        Pacing::Closed { sessions } => Some(sessions),
        Pacing::Open { sessions, .. } => sessions,
    };
    Limits {
        sessions: sessions.map(|n| n.get() as usize),
        turns: spec.load.max_turns_in_flight.map(|n| n.get() as usize),
        ramp_up: spec.load.ramp_up,
        duration: spec.load.duration,
        think: spec.load.think,
    }
}

/// How many turns leave in the first instant, if the slots open all at once.
fn at_once(limits: Limits, plan: &Plan) -> usize {
    let slots = limits.sessions.filter(|_| limits.ramp_up.is_zero()).unwrap_or(0);
    slots.min(limits.turns.unwrap_or(usize::MAX)).min(plan.sessions.len())
}

/// The growth of every counter, the target's own first.
fn deltas(before: &BTreeMap<String, Scrape>, after: &BTreeMap<String, Scrape>) -> Vec<CounterDelta> {
    let sources: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let of = |scrapes: &'_ BTreeMap<String, Scrape>, source: &String| {
        scrapes.get(source).map(|scrape| scrape.counters.clone())
    };
    let between =
        |source: &String| CounterDelta::between(source, of(before, source).as_deref(), of(after, source).as_deref());
    sources.into_iter().flat_map(between).collect()
}

fn raw_metrics(before: &BTreeMap<String, Scrape>, after: &BTreeMap<String, Scrape>) -> String {
    let part = |when: &str, scrapes: &BTreeMap<String, Scrape>| {
        scrapes
            .iter()
            .map(|(source, scrape)| format!("# gspbench: {source}, {when} the run\n{}\n", scrape.raw))
            .collect::<String>()
    };
    part("before", before) + &part("after", after)
}

fn host() -> Host {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let memory_kib = read("/proc/meminfo").and_then(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
    });
    Host {
        cores: std::thread::available_parallelism().ok().and_then(|n| u32::try_from(n.get()).ok()),
        memory_bytes: memory_kib.map(|kib| kib * 1024),
        kernel: read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
    }
}
