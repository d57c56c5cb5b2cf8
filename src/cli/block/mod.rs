//! One block, stage by stage: plan → warm-up → flush → scrape → drive → scrape → report → files.

pub(super) mod progress;
pub(super) mod recorder;
pub(super) mod recording;
pub(super) mod request_log;
pub(super) mod witness;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::FutureExt as _;
use futures::future::Either;
use tokio::sync::mpsc;

use crate::cli::args::output::Lines;
use crate::cli::exit::{Exit, ExitWith as _};
use crate::cli::facts::Estimate;
use crate::cli::site::Site;
use crate::cli::site::cold_start::ColdStart;
use crate::cli::site::outside::{Outside, cut, deltas, histograms, raw_metrics, restarted};
use crate::cli::site::pin::{Placer, Seat};
use crate::client::{Client, Dials};
use crate::clock::Clock;
use crate::drive::{Driven, Limits, Load, Stop, drive};
use crate::lanes::Lanes;
use crate::profile::{Isolate, Pacing, RunSpec};
use crate::record::{EndedBy, Outcome, PlaceLoad, TurnRecord};
use crate::render;
use crate::report::{Accumulator, Closing, Context, Host, Manifest, RunReport, ServerSide, State};
use crate::store::{Detail, RunDir};
use crate::target::TargetError;
use crate::text::Vocabulary;
use crate::units::plural;
use crate::workload::{Observing, Plan, Prompter, Replies};
use progress::Progress;
use recorder::{Recorded, Recorder};
use witness::Witness;

/// What one block runs.
#[derive(Debug)]
pub(crate) struct Block<'a> {
    /// With the round's seed and salt.
    pub spec: &'a RunSpec,
    pub plan: Arc<Plan>,
    /// What stands as recorded history.
    pub replies: Arc<Replies>,
    pub vocabulary: &'a Arc<Vocabulary>,
    pub site: &'a Site,
    pub arm: Option<&'a str>,
    pub round: Option<u32>,
    pub detail: Detail,
    pub lines: &'a Lines<'a>,
    pub stop: &'a Stop,
}

/// A block that has run.
#[derive(Debug)]
pub(crate) struct Measured {
    pub report: RunReport,
    /// What the reader must know beside the report's own warnings.
    pub notes: Vec<String>,
}

/// What came of a plan that is not measured.
#[derive(Debug, Default)]
pub(crate) struct Rehearsed {
    /// Turns.
    pub complete: u64,
    /// The kind of the first failure, and what was said of it.
    pub failure: Option<String>,
}

/// What driving the plan has brought.
struct Driving {
    driven: Driven,
    recorded: Recorded,
    progress: Progress,
    /// Most turns in flight at once.
    in_flight_max: usize,
    dials: Dials,
    series: Vec<PlaceLoad>,
}

impl Block<'_> {
    /// Runs the block into `dir`.
    ///
    /// # Errors
    /// When the warm-up fails as a whole, the flush is refused, or a file cannot be written; what was finished is in `dir`.
    pub(crate) async fn run(&self, dir: &RunDir, mut progress: Progress) -> anyhow::Result<Measured> {
        let lanes = self.lanes()?;
        let accumulator = Accumulator::new(self.context());
        dir.write_report(&accumulator.finish(Closing::plain(State::Running)))?;
        progress.stage("warm-up");
        self.warm_up(&lanes).await.exit_with(Exit::Target)?;
        progress.stage("flush");
        let (flush, mut notes) = Box::pin(self.cold_start().run()).await.exit_with(Exit::Target)?;
        notes.extend(self.site.facts.notes.iter().chain(&self.site.probed.notes).cloned());
        let before = self.outside().settled().await;
        let roles = self.outside().node_roles(&before).await;
        progress.start();
        let witness = Witness::start(&lanes);
        let placer = self.site.placer(&self.plan, self.spec.request.api);
        let measuring = self.measure(&lanes, accumulator, dir, progress, placer.clone());
        let Driving { driven, recorded, progress, in_flight_max, dials, series } = measuring.await?;
        progress.stage("counters");
        let seen = witness.end().await;
        let after = self.outside().settled().await;
        dir.write_raw_metrics(&raw_metrics(&before, &after))?;
        let server = ServerSide {
            counters: deltas(&before, &after, &roles),
            histograms: histograms(&before, &after, &roles),
            unread: self.outside().unread(&before, &after),
            cut: cut(&before, &after),
            series,
            flush: Some(flush),
            restarted: restarted(&before, &after),
            key_seen: self.site.probed.key_seen,
        };
        let report = recorded.accumulator.finish(Closing {
            state: if driven.ended_by == EndedBy::Interrupt { State::Interrupted } else { State::Complete },
            ended_by: Some(driven.ended_by),
            observed: crate::cli::facts::observed(&recorded.observing),
            spilled: placer.spilled(),
            server,
            client: seen.of_client(in_flight_max, dials, self.spec.load.connections),
        });
        dir.write_report(&report)?;
        dir.write_markdown(&render::markdown(&render::run(&report)))?;
        dir.write_html(&render::html_run(&report))?;
        self.lines.append(dir, &report)?;
        if driven.lost_sessions > 0 {
            anyhow::bail!(
                "{} ended by a fault of this program; its records lack their turns",
                plural(driven.lost_sessions as u64, "session")
            );
        }
        progress.end(&report);
        Ok(Measured { report, notes })
    }

    fn context(&self) -> Context {
        let mut spec = self.spec.clone();
        // As it is sent: a field that the server refuses is not.
        spec.request.ignore_eos = self.site.probed.fields.ignore_eos;
        let manifest = Manifest {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            argv: std::env::args().collect(),
            spec,
            target: Some(self.site.target.clone()),
            host: host(),
            started_utc: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            debug_build: cfg!(debug_assertions),
            arm: self.arm.map(str::to_owned),
            round: self.round,
        };
        let prompter = Prompter::new(Arc::clone(&self.plan), Arc::clone(self.vocabulary));
        let ranks = self.site.places().unwrap_or_else(|| self.spec.server.ranks.get());
        Context {
            manifest,
            workload: crate::cli::facts::workload(&prompter, &self.spec.load, ranks),
            server: crate::cli::facts::server(self.site),
        }
    }

    /// The threads of its streams.
    pub(crate) fn lanes(&self) -> anyhow::Result<Lanes> {
        let limits = limits(self.spec);
        Ok(Lanes::for_streams(limits.turns.into_iter().chain(limits.sessions).min())?)
    }

    /// Sessions with prompts and keys of their own, at the measured concurrency; their records are thrown away.
    async fn warm_up(&self, lanes: &Lanes) -> Result<(), TargetError> {
        let sessions = self.spec.load.warmup_sessions;
        if sessions == 0 {
            return Ok(());
        }
        let seen = self.rehearse(lanes, self.plan.warmup(sessions), |_, _| {}).await?;
        seen.failure.filter(|_| seen.complete == 0).map_or(Ok(()), |why| {
            Err(TargetError::refused(&self.site.base, format!("every warm-up turn failed {why}")))
        })
    }

    /// Drives a plan that is not measured; `keep` is shown each turn with its reply.
    pub(crate) async fn rehearse(
        &self,
        lanes: &Lanes,
        plan: Plan,
        keep: impl Fn(&TurnRecord, &str) + Send + Sync + 'static,
    ) -> Result<Rehearsed, TargetError> {
        let placer = self.site.placer(&plan, self.spec.request.api);
        let (sender, mut receiver) = mpsc::channel(64);
        // What a signal finds under way here measures nothing: it is cut at once.
        let stop = Stop { cut: self.stop.sending.child_token(), sending: self.stop.sending.child_token() };
        let client = self.client(self.spec, lanes, Clock::wall(), &stop)?;
        let prompter = self.prompter(&Arc::new(plan));
        let limits = Limits { ramp_up: Duration::ZERO, duration: None, ..limits(self.spec) };
        let load = Load { limits, ..self.load(lanes, prompter, Clock::wall(), stop) };
        let (preparing, placing) = ((placer.clone(), client.clone()), placer);
        let keep = Arc::new(keep);
        let driving = drive(
            load,
            move |turn, prompt| preparing.0.prepare(&preparing.1, turn, prompt),
            move |turn, prepared| placing.place(turn, prepared),
            move |turn, prepared, seat| {
                let keep = Arc::clone(&keep);
                let sending = Box::pin(client.send(turn, prepared.body, seat.aim.clone()));
                async move {
                    let (turn, text) = sending.await;
                    drop(seat);
                    keep(&turn, &text);
                    (turn, text)
                }
            },
            sender,
        );
        let watching = async {
            let mut seen = Rehearsed::default();
            while let Some(turn) = receiver.recv().await {
                match turn.outcome {
                    Outcome::Complete => seen.complete += 1,
                    Outcome::Failed(kind) if seen.failure.is_none() => {
                        seen.failure = Some(format!("({kind}): {}", turn.detail.unwrap_or_default()));
                    }
                    _ => {}
                }
            }
            seen
        };
        Ok(tokio::join!(driving, watching).1)
    }

    fn cold_start(&self) -> ColdStart<'_> {
        ColdStart { outside: self.outside(), spec: self.spec, plan: &self.plan, vocabulary: self.vocabulary }
    }

    /// The specification of the turns: with a fresh salt, where the run is kept apart from others by one.
    fn sent(&self) -> RunSpec {
        let mut spec = self.spec.clone();
        if spec.server.isolate == Some(Isolate::CacheSalt) {
            let salt = format!("gspbench-{:016x}", rand::random::<u64>());
            spec.request.extra_body.insert("cache_salt".to_owned(), salt.into());
        }
        spec
    }

    /// Drives the plan, and samples the server's load meanwhile.
    async fn measure(
        &self,
        lanes: &Lanes,
        accumulator: Accumulator,
        dir: &RunDir,
        progress: Progress,
        placer: Placer,
    ) -> anyhow::Result<Driving> {
        let clock = Clock::wall();
        let stop = self.stop.child();
        let client = self.client(&self.sent(), lanes, clock.clone(), &stop).exit_with(Exit::Usage)?;
        let load = self.load(lanes, self.prompter(&self.plan), clock.clone(), stop.clone());
        self.open_ahead(&client, load.limits).await;
        let watch = Arc::clone(&load.watch);
        let (sender, receiver) = mpsc::channel(4 * load.limits.sessions.unwrap_or(256));
        let recorder = Recorder {
            recorded: Recorded { accumulator, observing: Observing::new(&self.plan) },
            log: dir.request_log(self.detail)?,
            progress,
            stop,
            watch: Arc::clone(&watch),
        };
        let (preparing, placing, dialing) = ((placer.clone(), client.clone()), placer, client.clone());
        let estimate = crate::cli::facts::estimate(self.spec, self.vocabulary);
        let driving = drive(
            load,
            move |turn, prompt| preparing.0.prepare(&preparing.1, turn, prompt),
            move |turn, prepared| placing.place(turn, prepared),
            move |turn, prepared, seat| {
                counted(client.send(turn, prepared.body, seat.aim.clone()), seat, estimate.clone())
            },
            sender,
        );
        let sampling = self.outside().sample(self.spec.server.sample_interval, &clock);
        let (driven, recorded) = tokio::join!(driving, recorder.run(receiver));
        let series = sampling.end().await;
        let ((recorded, progress), in_flight_max, dials) = (recorded?, watch.max_in_flight(), dialing.dials());
        Ok(Driving { driven, recorded, progress, in_flight_max, dials, series })
    }

    fn client(&self, spec: &RunSpec, lanes: &Lanes, clock: Clock, stop: &Stop) -> Result<Client, TargetError> {
        self.site
            .client(spec, lanes, clock, stop.cut.clone())
            .map_err(|why| TargetError::refused(&self.site.base, crate::cli::say::words(&why)))
    }

    fn load(&self, lanes: &Lanes, prompter: Arc<Prompter>, clock: Clock, stop: Stop) -> Load {
        let run_id = format!("{:012x}", rand::random::<u64>() >> 16);
        let (lanes, watch) = (lanes.clone(), Arc::default());
        Load { run_id, prompter, limits: limits(self.spec), clock, lanes, stop, watch }
    }

    fn prompter(&self, plan: &Arc<Plan>) -> Arc<Prompter> {
        let prompter = Prompter::new(Arc::clone(plan), Arc::clone(self.vocabulary));
        Arc::new(prompter.with_replies(Arc::clone(&self.replies)))
    }

    /// As many connections as the first instant needs, at every address.
    async fn open_ahead(&self, client: &Client, limits: Limits) {
        let connections = at_once(limits, &self.plan).div_ceil(1 + self.site.others.len());
        for base in self.site.bases() {
            client.open_ahead(base, connections).await;
        }
    }

    fn outside(&self) -> Outside<'_> {
        Outside { site: self.site, metrics_urls: &self.spec.server.metrics_urls }
    }
}

/// A turn's reply, with a count of its tokens where the server gives none.
fn counted(
    sending: impl Future<Output = (TurnRecord, String)>,
    seat: Seat,
    estimate: Estimate,
) -> impl Future<Output = (TurnRecord, String)> {
    // No `async` block, which would hold the sending twice, for every session in flight.
    sending.then(move |(turn, text)| {
        // The place is free before tokens are counted.
        drop(seat);
        if crate::cli::facts::lacks_count(&turn) {
            Either::Left(Box::pin(crate::cli::facts::fill_estimate(turn, text, estimate)))
        } else {
            Either::Right(std::future::ready((turn, text)))
        }
    })
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
