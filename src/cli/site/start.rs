//! The server of an arm, where this program starts it: the simulated one, or a command of the profile.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::pin::PinPolicy;
use crate::cli::exit::{Exit, ExitWith as _};
use crate::profile::{LaunchSpec, ProfileError, RunSpec, SimSpec, Target, raw};
use crate::target::{self, Launched, Order, Readiness, Running, TargetError};

/// How often a server that is not up yet is asked.
const ASK: Duration = Duration::from_millis(250);

/// How a command ends that leaves its server in the background.
const ENDED_WELL: &str = "exit status 0";
const STAYS: &str = " (a command must stay as long as its server: no `&` at its end, no daemon)";

/// A command that starts the server of an arm.
#[derive(Debug, Clone)]
pub(crate) struct Launch<'a> {
    pub spec: &'a LaunchSpec,
    /// Gets its output.
    pub log: PathBuf,
}

/// A server that ends with this program.
#[derive(Debug)]
pub(crate) enum Started {
    Sim(Launched),
    Command(Running),
}

impl Started {
    /// Starts a command whose server will answer at `bases`.
    ///
    /// # Errors
    /// When another server answers there already, or no process can be started.
    pub(crate) async fn command(
        launch: &Launch<'_>,
        http: &reqwest::Client,
        bases: &[String],
    ) -> Result<Self, TargetError> {
        for base in bases {
            match target::readiness(http, base).await {
                Err(TargetError::Unreachable { .. }) => {}
                _ => {
                    let why = "a server answers here before the arm's own is launched: stop it, or give another port";
                    return Err(TargetError::refused(base, why.to_owned()));
                }
            }
        }
        let program = std::env::current_exe();
        let program = program.map_err(|why| TargetError::Sim(format!("this program's own path: {why}")))?;
        let LaunchSpec { command, ready_timeout: _, stop_timeout } = launch.spec;
        let order = Order { program: &program, command, log: &launch.log, stop_timeout: *stop_timeout };
        Ok(Self::Command(Running::start(order).await?))
    }

    /// Waits until the server has ended by itself; says how. A simulated one is not watched.
    pub(crate) async fn end(&self) -> String {
        match self {
            Self::Sim(_) => std::future::pending().await,
            Self::Command(running) => running.end().await,
        }
    }

    pub(crate) async fn stop(self) {
        match self {
            Self::Sim(launched) => launched.stop().await,
            Self::Command(running) => running.stop().await,
        }
    }
}

/// Waits until the server is ready, for as long as it may take. One that is still not ready then is asked all the same, since
/// its real reply says more than its health; a launched one that is not ready in time has failed.
///
/// # Errors
/// When it does not answer in time, or has ended.
pub(crate) async fn ready(
    started: Option<&Started>,
    http: &reqwest::Client,
    base: &str,
    timeout: Duration,
) -> Result<Readiness, TargetError> {
    let Some(started @ Started::Command(_)) = started else { return until_ready(http, base, timeout).await };
    let refused = |why: String| TargetError::refused(base, why);
    let late = |why: &str| {
        let span = humantime::format_duration(timeout);
        refused(format!(
            "the launched server was not ready within {span} ({why}); see its log, or give a longer `ready_timeout`"
        ))
    };
    tokio::select! {
        biased;
        how = started.end() => {
            let stays = if how.starts_with(ENDED_WELL) { STAYS } else { "" };
            Err(refused(format!("the launched server ended before it was ready{stays}: {how}")))
        },
        ready = until_ready(http, base, timeout) => match ready {
            Ok(Readiness::NotYet(said)) => Err(late(&said)),
            Err(why @ TargetError::Unreachable { .. }) => Err(late(&why.to_string())),
            ready => ready,
        },
    }
}

async fn until_ready(http: &reqwest::Client, base: &str, timeout: Duration) -> Result<Readiness, TargetError> {
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        match target::readiness(http, base).await {
            Err(TargetError::Unreachable { .. }) | Ok(Readiness::NotYet(_))
                if tokio::time::Instant::now() < deadline =>
            {
                tokio::time::sleep(ASK).await;
            }
            answer => return answer,
        }
    }
}

/// Starts the simulated server of a `sim:` target.
///
/// # Errors
/// As [`target::launch_sim`]; exit code 3.
pub(crate) async fn simulated(
    policy: &str,
    settings: &std::collections::BTreeMap<String, String>,
    spec: &RunSpec,
) -> anyhow::Result<Launched> {
    target::launch_sim(sim_arguments(policy, settings, &spec.sim, spec)).await.exit_with(Exit::Target)
}

/// Checks what a simulated server would only say after its start, and what a pinned target asks for; notes of settings that
/// change nothing.
///
/// # Errors
/// When a simulated or pinned target, or `[sim]`, names what does not exist.
pub(crate) fn check_targets(targets: &[&Target], spec: &RunSpec, sim: &raw::Sim) -> Result<Vec<String>, ProfileError> {
    let wrong = |text: String, why| ProfileError::Target { text, why };
    let own = ["--preset=", "--prefix-affinity-guard="].into_iter().zip([&spec.sim.preset, &spec.sim.guard]);
    let own = own.map(|(flag, value)| format!("{flag}{value}").into()).collect();
    crate::cli::sim::check(own).map_err(|why| ProfileError::Value { key: "sim".to_owned(), why })?;
    for target in targets {
        match target {
            Target::Url(_) => Ok(()),
            Target::Sim { policy, settings } => {
                crate::cli::sim::check(sim_arguments(policy, settings, &spec.sim, spec))
            }
            Target::Pin { policy, settings, urls } => PinPolicy::parse(policy, settings).and_then(|pin| {
                let is_moot = urls.len() > 1 && pin.ranks.is_some();
                if is_moot {
                    Err("turns are spread over its addresses: leave `ranks` out".to_owned())
                } else {
                    own_pins(spec)
                }
            }),
        }
        .map_err(|why| wrong(target.to_string(), why))?;
    }
    let is_simulated = targets.iter().any(|target| matches!(target, Target::Sim { .. }));
    let moot = [("sim.time_scale", sim.time_scale.is_some()), ("sim.guard", sim.guard.is_some())];
    let moot = moot.into_iter().filter(|(_, is_given)| *is_given && !is_simulated);
    Ok(moot.map(|(key, _)| format!("`{key}` changes nothing: no target is a simulated server")).collect())
}

/// The command line of a simulated server. Settings of the target beat those of the profile.
fn sim_arguments(
    policy: &str,
    settings: &std::collections::BTreeMap<String, String>,
    sim: &SimSpec,
    spec: &RunSpec,
) -> Vec<OsString> {
    let mut flags = std::collections::BTreeMap::from([
        ("load-balance-method".to_owned(), policy.to_owned()),
        ("preset".to_owned(), sim.preset.clone()),
        ("prefix-affinity-guard".to_owned(), sim.guard.clone()),
        ("time-scale".to_owned(), sim.time_scale.to_string()),
        ("ranks".to_owned(), spec.server.ranks.to_string()),
        ("kv-tokens".to_owned(), spec.server.kv_tokens_per_rank.to_string()),
    ]);
    if let Some(tokenizer) = &spec.request.tokenizer {
        flags.insert("tokenizer".to_owned(), tokenizer.to_string_lossy().into_owned());
    }
    for (name, value) in settings {
        let name = if name == "guard" { "prefix-affinity-guard" } else { name };
        flags.insert(name.to_owned(), value.clone());
    }
    flags.into_iter().map(|(name, value)| format!("--{name}={value}").into()).collect()
}

/// A second pin of the profile's own would be read by some servers and not by others.
fn own_pins(spec: &RunSpec) -> Result<(), String> {
    let fields = ["routed_dp_rank", "data_parallel_rank"];
    let field = fields.into_iter().find(|field| spec.request.extra_body.contains_key(*field));
    let header = spec.request.headers.keys().find(|name| name.eq_ignore_ascii_case("x-data-parallel-rank"));
    match field.or(header.map(String::as_str)) {
        Some(own) => Err(format!("the request has a `{own}` of its own already: leave one of the two out")),
        None => Ok(()),
    }
}
