//! The server of an arm, where this program starts it: the simulated one, or a command of the profile.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::pin::PinPolicy;
use crate::cli::exit::{Exit, ExitWith as _};
use crate::cli::form::Form;
use crate::cli::say;
use crate::profile::{LaunchSpec, ProfileError, RunSpec, SimSpec, Target, raw};
use crate::target::{self, Launched, Order, Readiness, Running, TargetError};
use crate::units::public_address;

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

/// How long a server is waited for, and how that is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub most: Duration,
    pub form: Form,
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
    patience: Patience,
) -> Result<Readiness, TargetError> {
    let ask = || target::readiness(http, base);
    let waiting =
        until_ready(ask, patience, |wait| say::note(&format!("waiting for {}: {wait}", public_address(base))));
    let Some(started @ Started::Command(_)) = started else { return waiting.await };
    let refused = |why: String| TargetError::refused(base, why);
    let late = |why: &str| {
        let span = humantime::format_duration(patience.most);
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
        ready = waiting => match ready {
            Ok(Readiness::NotYet(said)) => Err(late(&said)),
            Err(why @ TargetError::Unreachable { .. }) => Err(late(&why.to_string())),
            ready => ready,
        },
    }
}

/// Asks until the server is ready or the time is over. `tell` hears now and then for how long and for what it waits.
async fn until_ready(
    ask: impl AsyncFn() -> Result<Readiness, TargetError>,
    Patience { most, form }: Patience,
    tell: impl Fn(&str),
) -> Result<Readiness, TargetError> {
    let (began, mut told) = (tokio::time::Instant::now(), Duration::ZERO);
    loop {
        let answer = ask().await;
        let waited = began.elapsed();
        let said = match &answer {
            Err(TargetError::Unreachable { .. }) => "nothing answers there yet",
            Ok(Readiness::NotYet(said)) => said,
            _ => return answer,
        };
        if waited >= most {
            return answer;
        }
        if form.between_lines().is_some_and(|between| waited >= told + between) {
            told = waited;
            tell(&format!("{said}; for {} s now, at most {}", waited.as_secs(), humantime::format_duration(most)));
        }
        tokio::time::sleep(ASK).await;
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

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// What a wait of at most `most` seconds told, for a server that is ready after `ready` seconds.
    async fn told(form: Form, most: u64, ready: u64) -> (Vec<String>, bool) {
        let (began, lines) = (tokio::time::Instant::now(), RefCell::new(vec![]));
        let asked = Cell::new(0_u32);
        let ask = async || {
            asked.set(asked.get() + 1);
            Ok(if began.elapsed() < Duration::from_secs(ready) {
                Readiness::NotYet("/health says 503: loading".to_owned())
            } else {
                Readiness::Silent
            })
        };
        let patience = Patience { most: Duration::from_secs(most), form };
        let end = until_ready(ask, patience, |line| lines.borrow_mut().push(line.to_owned())).await.unwrap();
        (lines.into_inner(), end == Readiness::Silent)
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_says_off_a_terminal_what_it_waits_for_and_how_long() {
        let (lines, is_ready) = told(Form::Lines, 600, 100).await;
        let line = |seconds: u64| format!("/health says 503: loading; for {seconds} s now, at most 10m");
        assert_eq!((lines, is_ready), ([30, 60, 90].map(line).to_vec(), true));
        assert_eq!(told(Form::Lines, 600, 29).await, (vec![], true), "a short one says nothing");
        let (lines, is_ready) = told(Form::Lines, 65, 100).await;
        assert_eq!((lines.len(), is_ready), (2, false));
        for form in [Form::Bar, Form::Nothing] {
            assert_eq!(told(form, 600, 100).await, (vec![], true));
        }
    }
}
