//! A target made ready: started or found, asked what it is, and probed with one real request of the API in use.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::exit::{Exit, ExitWith as _};
use super::say;
use crate::client::{Asks, CachedDetails, Client, Settings, Shape, Trust, common_headers, transport};
use crate::clock::Clock;
use crate::profile::{Api, ProfileError, RequestSpec, RunSpec, SimSpec, Target, raw};
use crate::record::{Failure, Outcome, TurnId, TurnRecord};
use crate::target::{self, Launched, ServerFacts, TargetError};
use crate::text::Vocabulary;
use crate::units::{Micros, without_user};
use crate::workload::{Plan, Prompt, Prompter};

/// A server that answers.
#[derive(Debug)]
pub(super) struct Site {
    pub target: Target,
    pub base: String,
    /// For everything but turns, with the headers that turns have: scrapes and flushes have connections of their own.
    pub http: reqwest::Client,
    pub facts: ServerFacts,
    pub model: Option<String>,
    continuous_usage: bool,
    asks: Asks,
    api_key: Option<String>,
    launched: Option<Launched>,
}

/// What opening a site needs to know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opening<'a> {
    pub spec: &'a RunSpec,
    pub vocabulary: &'a Arc<Vocabulary>,
    /// How long the server may take until it answers at all.
    pub ready_timeout: Duration,
}

impl Site {
    /// Starts or finds the target and sends it one real request.
    ///
    /// # Errors
    /// One sentence that names the address, what it said, and the way out; exit code 3.
    pub(super) async fn open(target: &Target, opening: Opening<'_>, plan: &Plan) -> anyhow::Result<Self> {
        let (base, launched) = match target {
            Target::Url(url) => (url.clone(), None),
            Target::Sim { policy, settings } => {
                let arguments = sim_arguments(policy, settings, &opening.spec.sim, opening.spec);
                let launched = target::launch_sim(arguments).await.exit_with(Exit::Target)?;
                (launched.url.clone(), Some(launched))
            }
        };
        let trust = trust(&opening.spec.request);
        if trust == Trust::Anyone && base.starts_with("https://") {
            say::note("TLS certificates are not verified (--insecure)");
        }
        // One authorization a request: the profile's header beats a user in the address, which beats the environment.
        let profile = &opening.spec.request.headers;
        let has_own = profile.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
        let base = if has_own { without_user(&base) } else { base };
        let has_user = without_user(&base) != base;
        let api_key = std::env::var("OPENAI_API_KEY").ok().filter(|key| !(key.is_empty() || has_user));
        let headers = common_headers(profile, api_key.as_deref()).exit_with(Exit::Usage)?;
        let http = transport(opening.spec.timeout.connect, &base, &trust, headers).exit_with(Exit::Usage)?;
        let models = models(&http, &base, opening.ready_timeout).await.exit_with(Exit::Target)?;
        let model = choose_model(&base, opening.spec.request.model.as_deref(), &models).exit_with(Exit::Target)?;
        let facts = target::ask(&http, &base).await;
        let continuous_usage = opening.spec.request.api != Api::Generate;
        let (asks, target) = (super::asks::of(&facts, &opening.spec.request), target.clone());
        let mut site = Self { target, base, http, facts, model, continuous_usage, asks, api_key, launched };
        site.probe(opening, plan).await.exit_with(Exit::Target)?;
        site.probe_details(opening, plan).await.exit_with(Exit::Target)?;
        Ok(site)
    }

    /// A client for one block.
    ///
    /// # Errors
    /// When a header of the profile is malformed.
    pub(super) fn client(&self, spec: &RunSpec, clock: Clock, cancel: CancellationToken) -> anyhow::Result<Client> {
        let settings = Settings {
            url: self.url(spec.request.api),
            shape: Shape {
                request: spec.request.clone(),
                model: self.model.clone(),
                key_field: spec.key.body_field.clone(),
                continuous_usage: self.continuous_usage,
                asks: self.asks,
            },
            key_headers: spec.key.headers.clone(),
            headers: spec.request.headers.clone(),
            api_key: self.api_key.clone(),
            trust: trust(&spec.request),
            connect_timeout: spec.timeout.connect,
            first_byte_timeout: spec.timeout.first_byte,
            idle_timeout: spec.timeout.idle,
        };
        Client::new(settings, clock, cancel).exit_with(Exit::Usage)
    }

    /// Ends the server if this program started it.
    pub(super) async fn close(self) {
        if let Some(launched) = self.launched {
            launched.stop().await;
        }
    }

    fn url(&self, api: Api) -> String {
        let route = match api {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
            Api::Generate => "/generate",
        };
        target::join(&self.base, route)
    }

    /// One turn with a prompt and a key of its own. A server that refuses the request may only dislike
    /// `continuous_usage_stats`; it is then left out.
    async fn probe(&mut self, opening: Opening<'_>, plan: &Plan) -> Result<(), TargetError> {
        let prompter = Prompter::new(Arc::new(plan.warmup(1)), Arc::clone(opening.vocabulary));
        let prompt = prompter.prompt(0, 0, &[]);
        let first = self.probe_once(opening.spec, &prompt).await?;
        let is_refused = matches!(first.outcome, Outcome::Failed(Failure::Http(400..=499)));
        if !(is_refused && self.continuous_usage) {
            return self.verdict(opening.spec, &first);
        }
        self.continuous_usage = false;
        let second = self.probe_once(opening.spec, &prompt).await?;
        self.verdict(opening.spec, &second)
    }

    /// A server that was asked for details of cached tokens is silent about replies that found nothing. Whether it is
    /// silent about all shows in the second of two equal turns on one rank.
    async fn probe_details(&mut self, opening: Opening<'_>, plan: &Plan) -> Result<(), TargetError> {
        if self.asks.cached_details == CachedDetails::NotAsked {
            return Ok(());
        }
        let prompter = Prompter::new(Arc::new(plan.warmup(1)), Arc::clone(opening.vocabulary));
        let prompt = prompter.prompt(0, 0, &[]);
        let spec = RunSpec { request: super::asks::on_one_rank(&opening.spec.request), ..opening.spec.clone() };
        self.probe_once(&spec, &prompt).await?;
        let second = self.probe_once(&spec, &prompt).await?;
        if second.cached_tokens.is_some_and(|cached| cached > 0) {
            self.asks.cached_details = CachedDetails::Answered;
        }
        Ok(())
    }

    async fn probe_once(&self, spec: &RunSpec, prompt: &Prompt) -> Result<TurnRecord, TargetError> {
        let refused = |why: String| TargetError::refused(&self.base, why);
        let client =
            self.client(spec, Clock::wall(), CancellationToken::new()).map_err(|why| refused(say::words(&why)))?;
        let id = TurnId { group: 0, session: 0, turn: 0 };
        let name = format!("gspbench-probe-{:08x}", rand::random::<u32>());
        let turn = TurnRecord::planned(name, id, None, Micros(0), 2);
        let body = client.prepare(&turn, prompt);
        Ok(client.send(turn, body).await.0)
    }

    fn verdict(&self, spec: &RunSpec, turn: &TurnRecord) -> Result<(), TargetError> {
        let Outcome::Failed(failure) = turn.outcome else { return Ok(()) };
        let url = self.url(spec.request.api);
        let said = turn.detail.clone().unwrap_or_else(|| failure.to_string());
        let why = match failure {
            Failure::Connect | Failure::Tls => return Err(TargetError::unreachable(&url, said)),
            Failure::Http(status @ (404 | 405)) => format!(
                "{status} ({said}): no such route or model here; check the base URL and --model, or choose another route \
                 with --api chat, completions or generate"
            ),
            Failure::Http(status @ (401 | 403)) => {
                format!("{status} ({said}): put the server's key into OPENAI_API_KEY")
            }
            Failure::Http(status) => format!("refused the probe with {status}: {said}"),
            _ => format!("the probe failed ({failure}): {said}"),
        };
        Err(TargetError::refused(&url, why))
    }
}

fn trust(request: &RequestSpec) -> Trust {
    match &request.ca_file {
        _ if request.insecure => Trust::Anyone,
        Some(path) => Trust::File(path.clone()),
        None => Trust::Host,
    }
}

/// Waits until the server answers at all, for as long as it may take.
async fn models(http: &reqwest::Client, base: &str, ready_timeout: Duration) -> Result<Vec<String>, TargetError> {
    let deadline = tokio::time::Instant::now() + ready_timeout;
    loop {
        match target::models(http, base).await {
            Err(TargetError::Unreachable { .. }) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
            answer => return answer,
        }
    }
}

/// The model to name. A list that says `unknown` is a router's, which does not know its own models.
fn choose_model(base: &str, asked: Option<&str>, served: &[String]) -> Result<Option<String>, TargetError> {
    let Some(asked) = asked else { return Ok(served.first().filter(|name| *name != "unknown").cloned()) };
    let is_known = served.is_empty() || served.iter().any(|name| name == asked || name == "unknown");
    if !is_known {
        let why = format!("the model `{asked}` is not served here; --model takes one of: {}", served.join(", "));
        return Err(TargetError::refused(base, why));
    }
    Ok(Some(asked.to_owned()))
}

/// Checks what a simulated server would only say after its start; notes of settings that change nothing.
///
/// # Errors
/// When a simulated target, or `[sim]`, names what does not exist.
pub(super) fn check_targets(targets: &[&Target], spec: &RunSpec, sim: &raw::Sim) -> Result<Vec<String>, ProfileError> {
    let wrong = |text: String, why| ProfileError::Target { text, why };
    let own = ["--preset=", "--prefix-affinity-guard="].into_iter().zip([&spec.sim.preset, &spec.sim.guard]);
    let own = own.map(|(flag, value)| format!("{flag}{value}").into()).collect();
    super::sim::check(own).map_err(|why| ProfileError::Value { key: "sim".to_owned(), why })?;
    for target in targets {
        if let Target::Sim { policy, settings } = target {
            let arguments = sim_arguments(policy, settings, &spec.sim, spec);
            super::sim::check(arguments).map_err(|why| wrong(target.to_string(), why))?;
        }
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
