//! A target made ready: started or found, asked what it is, and probed with one real request of the API in use.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::exit::{Exit, ExitWith as _};
use super::probe::{Fields, Probed, probe};
use super::say;
use crate::client::{Client, Settings, Shape, Trust, common_headers, transport};
use crate::clock::Clock;
use crate::lanes::Lanes;
use crate::profile::{Api, ProfileError, RequestSpec, RunSpec, SimSpec, Target, raw};
use crate::target::{self, Launched, Readiness, ServerFacts, TargetError};
use crate::text::Vocabulary;
use crate::units::without_user;
use crate::workload::Plan;

/// A server that answers.
#[derive(Debug)]
pub(super) struct Site {
    pub target: Target,
    pub base: String,
    /// For everything but turns, with the headers that turns have: scrapes and flushes have connections of their own.
    pub http: reqwest::Client,
    pub facts: ServerFacts,
    pub model: Option<String>,
    pub probed: Probed,
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
        let ready = until_ready(&http, &base, opening.ready_timeout).await.exit_with(Exit::Target)?;
        let mut facts = Box::pin(target::ask(&http, &base, &ready)).await.exit_with(Exit::Target)?;
        if let Readiness::NotYet(said) = ready {
            facts.notes.push(format!("the server was not ready ({said}): --ready-check-timeout-sec waits for it"));
        }
        let model =
            choose_model(&base, opening.spec.request.model.as_deref(), &facts.models).exit_with(Exit::Target)?;
        let probed = Probed::before(opening.spec, &facts);
        let mut site = Self { target: target.clone(), base, http, facts, model, probed, api_key, launched };
        site.probed = Box::pin(probe(&site, opening, plan)).await.exit_with(Exit::Target)?;
        Ok(site)
    }

    /// A client for one block.
    ///
    /// # Errors
    /// When a header of the profile is malformed.
    pub(super) fn client(
        &self,
        spec: &RunSpec,
        lanes: &Lanes,
        clock: Clock,
        cancel: CancellationToken,
    ) -> anyhow::Result<Client> {
        self.client_with(spec, self.probed.fields, lanes, clock, cancel)
    }

    /// The same, with only these optional fields.
    ///
    /// # Errors
    /// As [`Self::client`].
    pub(super) fn client_with(
        &self,
        spec: &RunSpec,
        fields: Fields,
        lanes: &Lanes,
        clock: Clock,
        cancel: CancellationToken,
    ) -> anyhow::Result<Client> {
        let Fields { continuous_usage, ignore_eos } = fields;
        let settings = Settings {
            url: self.url(spec.request.api),
            shape: Shape {
                request: RequestSpec { ignore_eos, ..spec.request.clone() },
                model: self.model.clone(),
                key_field: spec.key.body_field.clone(),
                continuous_usage,
                asks: self.probed.asks,
            },
            key_headers: spec.key.headers.clone(),
            headers: spec.request.headers.clone(),
            api_key: self.api_key.clone(),
            trust: trust(&spec.request),
            connect_timeout: spec.timeout.connect,
            first_byte_timeout: spec.timeout.first_byte,
            idle_timeout: spec.timeout.idle,
        };
        Client::new(settings, lanes, clock, cancel).exit_with(Exit::Usage)
    }

    /// Ends the server if this program started it.
    pub(super) async fn close(self) {
        if let Some(launched) = self.launched {
            launched.stop().await;
        }
    }

    /// Whether requests carry an `Authorization`.
    pub(super) fn is_authorized(&self, spec: &RunSpec) -> bool {
        let has_header = spec.request.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
        self.api_key.is_some() || has_header || without_user(&self.base) != self.base
    }

    pub(super) fn url(&self, api: Api) -> String {
        let route = match api {
            Api::Chat => "/v1/chat/completions",
            Api::Completions => "/v1/completions",
            Api::Generate => "/generate",
        };
        target::join(&self.base, route)
    }
}

fn trust(request: &RequestSpec) -> Trust {
    match &request.ca_file {
        _ if request.insecure => Trust::Anyone,
        Some(path) => Trust::File(path.clone()),
        None => Trust::Host,
    }
}

/// Waits until the server is ready, for as long as it may take. One that is still not ready then is asked all the same:
/// its real reply says more than its health.
async fn until_ready(http: &reqwest::Client, base: &str, timeout: Duration) -> Result<Readiness, TargetError> {
    let deadline = tokio::time::Instant::now() + timeout;
    loop {
        match target::readiness(http, base).await {
            Err(TargetError::Unreachable { .. }) | Ok(Readiness::NotYet(_))
                if tokio::time::Instant::now() < deadline =>
            {
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
