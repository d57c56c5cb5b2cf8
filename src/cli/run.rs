//! `gspbench run`: one arm, one block.

use std::sync::Arc;

use super::args::gates::{GateArgs, any_fails};
use super::args::output::{Lines, OutputArgs};
use super::args::spec::SpecArgs;
use super::block::progress::Progress;
use super::block::request_log::{self, RequestLogArgs};
use super::block::{Block, Measured};
use super::exit::{Exit, ExitWith as _};
use super::site::{Opening, Site};
use super::{descriptors, interrupt, say};
use crate::drive::Stop;
use crate::profile::{ProfileError, RunSpec, Target, run_spec};
use crate::report::{RunReport, State, Verdict};
use crate::store::RunDir;
use crate::text::Vocabulary;
use crate::{profile, render, workload};

/// Run one block against one server and report it
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    address: AddressArgs,
    #[command(flatten)]
    request_log: RequestLogArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    gates: GateArgs,
}

/// Where the requests go.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Target")]
struct AddressArgs {
    /// http(s)://HOST:PORT[/PATH]; sim:POLICY[,key=value…], a simulated server of our own; or
    /// pin:POLICY[,key=value…]@URL[,URL…]: this program itself spreads the turns over the ranks of one server, or over
    /// several. A key in the environment's OPENAI_API_KEY goes with every request as a bearer token
    #[arg(long, visible_aliases = ["url", "base-url"], alias = "base_url", value_name = "TARGET")]
    target: Option<String>,
    /// With --port, the same as --target http://HOST:PORT
    #[arg(long, value_name = "HOST", requires = "port", conflicts_with = "target")]
    host: Option<String>,
    /// With or without --host [default: 127.0.0.1]
    #[arg(long, value_name = "PORT", conflicts_with = "target")]
    port: Option<u16>,
}

impl AddressArgs {
    fn target(&self) -> Result<Target, ProfileError> {
        let text = match (&self.target, self.port) {
            (Some(target), _) => target.clone(),
            (None, Some(port)) => {
                let host = self.host.as_deref().unwrap_or("127.0.0.1");
                let is_bare_ipv6 = host.contains(':') && !host.starts_with('[');
                if is_bare_ipv6 { format!("http://[{host}]:{port}") } else { format!("http://{host}:{port}") }
            }
            (None, None) => {
                return Err(ProfileError::Target {
                    text: String::new(),
                    why: "say where the requests go: --target http://HOST:PORT, or --target sim:round_robin".to_owned(),
                });
            }
        };
        text.parse()
    }
}

/// Runs one block.
///
/// # Errors
/// See [`super::Exit`].
pub(super) fn run(args: &RunArgs) -> anyhow::Result<Exit> {
    let loaded = args.spec.load(None)?;
    let spec = run_spec(&loaded.profile, &loaded.context(false)).map_err(|why| loaded.by_flag(why))?;
    let gates = args.gates.of_run(profile::gates(&loaded.profile)?)?;
    let target = args.address.target()?;
    let moot = super::site::start::check_targets(&[&target], &spec, &loaded.profile.sim)?;
    let vocabulary = Arc::new(super::facts::vocabulary(&spec).exit_with(Exit::Usage)?);
    let plan = Arc::new(workload::plan(&spec, &vocabulary).exit_with(Exit::Usage)?);
    descriptors::reserve(&spec, &plan)?;
    let lines = args.output.lines()?;
    let dir = RunDir::create(args.output.out.as_deref(), args.output.label(&spec.name)).exit_with(Exit::Usage)?;
    say::notes(&args.spec.notes);
    say::notes(&moot);
    say::note(&super::facts::headline(&spec, &plan));
    let job = Job { args, spec: &spec, plan, vocabulary: &vocabulary, target: &target, dir: &dir, lines: &lines };
    let measured = interrupt::block_on(args.output.grace, |stop| async move { Box::pin(job.run(&stop)).await });
    // A target that was never reached leaves nothing behind.
    let Measured { mut report, mut notes } = measured.inspect_err(|_| dir.remove_if_empty())?;
    if args.request_log.is_given() {
        match request_log::join(&dir, &args.request_log, report.clone()) {
            Ok(joined) => {
                report = joined.report;
                notes.push(joined.note);
            }
            // The run is on file; only its places are missing, and can still be joined.
            Err(why) => notes.push(format!("{}; join it later with `gspbench report`", say::words(&why))),
        }
    }
    say::result(&render::terminal(&render::run(&report)))?;
    say::notes(&notes);
    say::note(&format!("results: {}", dir.path().display()));
    let fails = any_fails(&gates, &report);
    Ok(match exit_of(&report) {
        Exit::Ok if fails => Exit::Gate,
        exit => exit,
    })
}

/// A run about to start.
struct Job<'a> {
    args: &'a RunArgs,
    spec: &'a RunSpec,
    plan: Arc<workload::Plan>,
    vocabulary: &'a Arc<Vocabulary>,
    target: &'a Target,
    dir: &'a RunDir,
    lines: &'a Lines<'a>,
}

impl Job<'_> {
    async fn run(self, stop: &Stop) -> anyhow::Result<Measured> {
        let Self { args, spec, plan, vocabulary, target, dir, lines } = self;
        let progress = Progress::begin(args.output.progress(), target.to_string(), plan.totals().turns);
        progress.stage("server");
        let (ready_timeout, form) = (args.output.ready_timeout(), args.output.progress());
        let opening = Opening { spec, vocabulary, ready_timeout, launch: None, form, stop };
        let site = interrupt::unless_stopped(stop, Site::open(target, opening, &plan)).await?;
        let block = Block {
            spec,
            plan,
            replies: Arc::default(),
            vocabulary,
            site: &site,
            arm: None,
            round: None,
            detail: args.output.detail(),
            lines,
            stop,
        };
        let measured = Box::pin(block.run(dir, progress)).await;
        site.close().await;
        measured
    }
}

/// How a block's report ends the program.
pub(super) fn exit_of(report: &RunReport) -> Exit {
    match (report.state, report.validity.verdict) {
        (State::Interrupted, _) => Exit::Interrupted,
        (_, Verdict::Void) => Exit::Void,
        (_, Verdict::Valid) => Exit::Ok,
    }
}
