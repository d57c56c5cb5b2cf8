//! A target made ready: started or found, asked what it is, and probed with one real request of the API in use.

pub(super) mod asks;
pub(super) mod cold_start;
pub(super) mod outside;
pub(super) mod pin;
pub(super) mod probe;
pub(super) mod sites;
pub(super) mod start;
pub(super) mod untold;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::cli::exit::{Exit, ExitWith as _};
use crate::cli::form::Form;
use crate::cli::interrupt::unless_stopped;
use crate::cli::say;
use crate::client::{Aim, Client, Settings, Shape, Trust, common_headers, transport};
use crate::clock::Clock;
use crate::drive::Stop;
use crate::lanes::Lanes;
use crate::profile::{Api, RequestSpec, RunSpec, Target};
use crate::target::{self, Readiness, Scraper, ServerFacts, TargetError};
use crate::text::Vocabulary;
use crate::units::{public_address, without_user};
use crate::workload::Plan;
use outside::Outside;
use pin::{PinPolicy, Placer, Places};
use probe::{Fields, Probed, probe};
use start::{Launch, Patience, Started};

/// A server that answers.
#[derive(Debug)]
pub(crate) struct Site {
    pub target: Target,
    pub base: String,
    /// Further servers among which this program spreads the turns itself.
    pub others: Vec<String>,
    /// For everything but turns, with the headers that turns have: scrapes and flushes have connections of their own.
    pub http: reqwest::Client,
    pub scraper: Scraper,
    pub facts: ServerFacts,
    /// Those of its addresses that showed counters when they were asked what they are.
    pub showing: Vec<String>,
    pub model: Option<String>,
    pub probed: Probed,
    api_key: Option<String>,
    pin: Option<PinPolicy>,
    started: Option<Started>,
}

/// What opening a site needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Opening<'a> {
    pub spec: &'a RunSpec,
    pub vocabulary: &'a Arc<Vocabulary>,
    /// How long the server may take until it answers at all.
    pub ready_timeout: Duration,
    /// How it is started, if this program does that.
    pub launch: Option<Launch<'a>>,
    /// How a long wait for it is shown.
    pub form: Form,
    pub stop: &'a Stop,
}

impl Site {
    /// Starts or finds the target and sends it one real request.
    ///
    /// # Errors
    /// One sentence that names the address, what it said, and the way out; exit code 3.
    pub(crate) async fn open(target: &Target, opening: Opening<'_>, plan: &Plan) -> anyhow::Result<Self> {
        let mut started = None;
        let bases = match target {
            Target::Url(_) | Target::Pin { .. } => target.urls().to_vec(),
            Target::Sim { policy, settings } => {
                let launched = start::simulated(policy, settings, opening.spec).await?;
                let url = launched.url.clone();
                started = Some(Started::Sim(launched));
                vec![url]
            }
        };
        let trust = trust(&opening.spec.request);
        if trust == Trust::Anyone && bases.iter().any(|base| base.starts_with("https://")) {
            say::note("TLS certificates are not verified (--insecure)");
        }
        // One authorization a request: the profile's header beats a user in the address, which beats the environment.
        let profile = &opening.spec.request.headers;
        let has_own = profile.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
        let bases = if has_own { bases.iter().map(|base| without_user(base)).collect() } else { bases };
        let has_user = bases.iter().any(|base| without_user(base) != *base);
        let api_key = std::env::var(target::API_KEY).ok().filter(|key| !(key.is_empty() || has_user));
        let headers = common_headers(profile, api_key.as_deref()).exit_with(Exit::Usage)?;
        let http = transport(opening.spec.timeout.connect, &bases[0], &trust, headers).exit_with(Exit::Usage)?;
        if let Some(launch) = &opening.launch {
            started = Some(Started::command(launch, &http, &bases).await.exit_with(Exit::Target)?);
        }
        let pin = match target {
            Target::Pin { policy, settings, .. } => {
                Some(PinPolicy::parse(policy, settings).map_err(anyhow::Error::msg).exit_with(Exit::Usage)?)
            }
            Target::Url(_) | Target::Sim { .. } => None,
        };
        let server = Server { target: target.clone(), bases, http, api_key, pin };
        let finding = Box::pin(Self::find(server, started.as_ref(), &opening, plan));
        match unless_stopped(opening.stop, finding).await {
            Ok(site) => Ok(Self { started, ..site }),
            Err(why) => {
                // What was started must have gone before this program ends, or the next arm can have its port.
                if let Some(started) = started {
                    started.stop().await;
                }
                Err(why)
            }
        }
    }

    /// Waits for the server, asks what it is and probes it.
    async fn find(
        server: Server,
        started: Option<&Started>,
        opening: &Opening<'_>,
        plan: &Plan,
    ) -> anyhow::Result<Self> {
        let Server { target, mut bases, http, api_key, pin } = server;
        let patience = Patience { most: opening.ready_timeout, form: opening.form };
        let scraper = Scraper::new(http.clone());
        let mut told = Vec::new();
        for base in &bases {
            let ready = start::ready(started, &http, base, patience).await.exit_with(Exit::Target)?;
            let mut facts = Box::pin(target::ask(&http, &scraper, base, &ready)).await.exit_with(Exit::Target)?;
            if let Readiness::NotYet(said) = ready {
                facts.notes.push(format!("the server was not ready ({said}): --ready-check-timeout-sec waits for it"));
            }
            let asked = opening.spec.request.model.as_deref();
            told.push((choose_model(base, asked, &facts.models).exit_with(Exit::Target)?, facts));
        }
        let showing = bases.iter().zip(&told).filter(|(_, (_, facts))| facts.shows_metrics);
        let showing = showing.map(|(base, _)| base.clone()).collect();
        let (model, facts) = told.swap_remove(0);
        let others = told.iter().filter_map(|(model, _)| model.as_ref());
        if let Some(other) = others.into_iter().find(|other| model.as_ref().is_some_and(|own| own != *other)) {
            let why = format!("its addresses serve `{}` and `{other}`: give --model", model.unwrap_or_default());
            return Err(TargetError::refused(&bases[0], why)).exit_with(Exit::Target);
        }
        let base = bases.remove(0);
        let probed = Probed::before(opening.spec, &facts);
        let mut site = Self {
            target,
            base,
            others: bases,
            http,
            scraper,
            facts,
            showing,
            model,
            probed,
            api_key,
            pin,
            started: None,
        };
        site.count_ranks().exit_with(Exit::Target)?;
        let outside = Outside { site: &site, metrics_urls: &opening.spec.server.metrics_urls };
        Box::pin(outside.check_roles()).await.exit_with(Exit::Target)?;
        site.probed = Box::pin(probe(&site, opening, plan)).await.exit_with(Exit::Target)?;
        Ok(site)
    }

    /// A pinned target of one address must know how many ranks it spreads turns over.
    fn count_ranks(&mut self) -> Result<(), TargetError> {
        let Some(pin) = &self.pin else { return Ok(()) };
        if !self.others.is_empty() {
            return Ok(());
        }
        let told = self.facts.ranks;
        let why = match (pin.ranks.map(u32::from), told) {
            (None, None) => "it does not tell its number of ranks: say it, as in pin:POLICY,ranks=8@URL".to_owned(),
            (Some(asked), Some(told)) if asked > told => {
                format!("it has {told} ranks, and `ranks={asked}` was asked for")
            }
            (asked, told) => {
                self.facts.ranks = told.or(asked);
                return Ok(());
            }
        };
        Err(TargetError::refused(&self.base, why))
    }

    /// The target's addresses.
    pub(crate) fn bases(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.base).chain(&self.others)
    }

    /// The places that turns are spread over, as far as that is known.
    pub(crate) fn places(&self) -> Option<u32> {
        if self.others.is_empty() { self.facts.ranks } else { u32::try_from(1 + self.others.len()).ok() }
    }

    /// What decides where the turns of `plan` go, with nothing under way.
    pub(crate) fn placer(&self, plan: &Plan, api: Api) -> Placer {
        let pinned = self.pin.as_ref().zip(self.pin_places(api));
        pinned.map_or(Placer::Server, |(pin, places)| Placer::new(pin, places, plan))
    }

    fn pin_places(&self, api: Api) -> Option<Places> {
        let pin = self.pin.as_ref()?;
        Some(if self.others.is_empty() {
            let told = self.facts.ranks.and_then(|ranks| u16::try_from(ranks).ok());
            Places::Ranks(pin.ranks.or(told).unwrap_or(1))
        } else {
            Places::Nodes(self.bases().map(|base| (public_address(base), route(base, api).into())).collect())
        })
    }

    /// A client for one block.
    ///
    /// # Errors
    /// When a header of the profile is malformed.
    pub(crate) fn client(
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
    pub(crate) fn client_with(
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
            connections: spec.load.connections,
            connect_timeout: spec.timeout.connect,
            first_byte_timeout: spec.timeout.first_byte,
            idle_timeout: spec.timeout.idle,
        };
        Client::new(settings, lanes, clock, cancel).exit_with(Exit::Usage)
    }

    /// Ends the server if this program started it.
    pub(crate) async fn close(self) {
        if let Some(started) = self.started {
            started.stop().await;
        }
    }

    /// Waits until a launched server has ended by itself; says how.
    pub(crate) async fn end(&self) -> String {
        match &self.started {
            Some(started) => started.end().await,
            None => std::future::pending().await,
        }
    }

    /// Whether requests carry an `Authorization`.
    pub(crate) fn is_authorized(&self, spec: &RunSpec) -> bool {
        let has_header = spec.request.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
        self.api_key.is_some() || has_header || without_user(&self.base) != self.base
    }

    pub(crate) fn url(&self, api: Api) -> String {
        route(&self.base, api)
    }

    /// The fewest places that show whether turns can be sent to any.
    pub(crate) fn probes(&self, api: Api) -> Vec<Aim> {
        self.pin_places(api).map_or_else(|| vec![Aim::default()], |places| places.probes())
    }
}

/// What is known before the server answers.
struct Server {
    target: Target,
    bases: Vec<String>,
    http: reqwest::Client,
    api_key: Option<String>,
    pin: Option<PinPolicy>,
}

/// The full URL of a route.
pub(crate) fn route(base: &str, api: Api) -> String {
    let route = match api {
        Api::Chat => "/v1/chat/completions",
        Api::Completions => "/v1/completions",
        Api::Generate => "/generate",
    };
    target::join(base, route)
}

fn trust(request: &RequestSpec) -> Trust {
    match &request.ca_file {
        _ if request.insecure => Trust::Anyone,
        Some(path) => Trust::File(path.clone()),
        None => Trust::Host,
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
