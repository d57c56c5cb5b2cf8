//! The real request that every target is probed with, and what its reply tells: which fields are taken, whether the key
//! arrives, what the server will not tell.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::outside::Outside;
use super::untold::{Asked, untold};
use super::{Opening, Site, route};
use crate::cli::say;
use crate::client::{Asks, CachedDetails};
use crate::clock::Clock;
use crate::lanes::Lanes;
use crate::profile::{Api, KeyScope, RunSpec};
use crate::record::{Failure, Oddity, Outcome, Place, TurnId, TurnRecord};
use crate::report::{KeySeen, Untold};
use crate::target::{Carried, KeySigns, ServerFacts, TargetError, key_arrived};
use crate::units::Micros;
use crate::workload::{Plan, Prompt, Prompter};

/// Output tokens of the first probe, and of the one that runs long enough to be seen in gauges.
const SHORT: u32 = 2;
const LONG: u32 = 128;
/// Between two looks at the gauges.
const LOOK: Duration = Duration::from_millis(100);

/// Optional fields of a request that a strict server may refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fields {
    pub continuous_usage: bool,
    pub ignore_eos: bool,
}

/// What the probe has told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Probed {
    /// What the server takes of what is asked for.
    pub fields: Fields,
    /// What only this kind of server is asked for.
    pub asks: Asks,
    pub key_seen: KeySeen,
    pub untold: Vec<Untold>,
    /// For the reader of the report.
    pub notes: Vec<String>,
}

impl Probed {
    /// Nothing is known yet, and all is asked for.
    #[must_use]
    pub(crate) fn before(spec: &RunSpec, server: &ServerFacts) -> Self {
        let fields =
            Fields { continuous_usage: spec.request.api != Api::Generate, ignore_eos: spec.request.ignore_eos };
        let asks = super::asks::of(server, &spec.request);
        Self { fields, asks, key_seen: KeySeen::Unknown, untold: vec![], notes: vec![] }
    }
}

impl Fields {
    /// All of them, then with ever more left out. `continuous_usage_stats` goes first: without `ignore_eos` replies are no
    /// longer as long as planned.
    fn attempts(self) -> Vec<Self> {
        let choices = [(true, true), (false, true), (true, false), (false, false)];
        let mut attempts: Vec<Self> = choices
            .into_iter()
            .map(|(continuous_usage, ignore_eos)| Self {
                continuous_usage: self.continuous_usage && continuous_usage,
                ignore_eos: self.ignore_eos && ignore_eos,
            })
            .collect();
        attempts.dedup();
        attempts
    }
}

/// Sends one turn with a prompt and a key of its own, leaving out what the server refuses; then, if only gauges show keys,
/// one that is long enough to be seen in them.
///
/// # Errors
/// One sentence that names the address, what it said, and the way out.
pub(crate) async fn probe(site: &Site, opening: &Opening<'_>, plan: &Plan) -> Result<Probed, TargetError> {
    let prompter = Prompter::new(Arc::new(plan.warmup(1)), Arc::clone(opening.vocabulary));
    let prober = Prober { site, spec: opening.spec, prompt: prompter.prompt(0, 0, &[]) };
    let mut probed = site.probed.clone();
    let before = prober.key_signs().await;
    let (turn, fields) = prober.accepted(probed.fields).await?;
    probed.notes = left_out(probed.fields, fields);
    probed.fields = fields;
    probed.key_seen = prober.key_seen(before, fields).await?;
    if probed.asks.cached_details == CachedDetails::Asked && prober.tells_details(fields).await? {
        probed.asks.cached_details = CachedDetails::Answered;
    }
    probed.untold = untold(&Asked {
        kind: site.facts.kind,
        api: opening.spec.request.api,
        shows_metrics: site.facts.shows_metrics || !opening.spec.server.metrics_urls.is_empty(),
        turn: &turn,
        ranks: site.facts.ranks,
        misses_keys: opening.spec.key.by != KeyScope::None && probed.key_seen == KeySeen::Unknown,
    });
    Ok(probed)
}

/// The fields that had to go, and what that does to the run.
fn left_out(asked: Fields, taken: Fields) -> Vec<String> {
    let lost = [
        (
            asked.continuous_usage && !taken.continuous_usage,
            "the server refuses `continuous_usage_stats`, which is left out: the tokens of a frame are unknown, and so is ITL",
        ),
        (
            asked.ignore_eos && !taken.ignore_eos,
            "the server refuses `ignore_eos`, which is left out: replies end where the model ends them",
        ),
    ];
    lost.into_iter().filter(|(is_lost, _)| *is_lost).map(|(_, note)| note.to_owned()).collect()
}

struct Prober<'a> {
    site: &'a Site,
    spec: &'a RunSpec,
    prompt: Prompt,
}

impl Prober<'_> {
    /// The first turn that is not refused, and the fields that it had.
    async fn accepted(&self, asked: Fields) -> Result<(TurnRecord, Fields), TargetError> {
        let mut refusal = None;
        for fields in asked.attempts() {
            let turn = self.send(fields, SHORT).await?;
            match turn.outcome {
                // A server that knows the route and dislikes the request may only dislike a field.
                Outcome::Failed(Failure::Http(400 | 422)) => drop(refusal.get_or_insert(turn)),
                _ => return self.verdict(&turn).map(|()| (turn, fields)),
            }
        }
        let first = refusal.map_or(Ok(()), |turn| self.verdict(&turn));
        Err(first.err().unwrap_or_else(|| TargetError::refused(&self.site.base, "the probe was not sent".to_owned())))
    }

    async fn send(&self, fields: Fields, output_tokens: u32) -> Result<TurnRecord, TargetError> {
        let client = self
            .site
            .client_with(self.spec, fields, &Lanes::default(), Clock::wall(), CancellationToken::new())
            .map_err(|why| TargetError::refused(&self.site.base, say::words(&why)))?;
        let id = TurnId { group: 0, session: 0, turn: 0 };
        let name = format!("gspbench-probe-{:08x}", rand::random::<u32>());
        let key = (self.spec.key.by != KeyScope::None).then(|| format!("g{:016x}", rand::random::<u64>()));
        let turn = TurnRecord::planned(name, id, key, Micros(0), output_tokens);
        let mut probed = turn.clone();
        for aim in self.site.probes(self.spec.request.api) {
            probed = client.send(turn.clone(), client.prepare(&turn, &self.prompt), aim).await.0;
            if !probed.outcome.is_complete() {
                break;
            }
        }
        Ok(probed)
    }

    /// A server that was asked for details of cached tokens is silent about replies that found nothing. Whether it is silent
    /// about all shows in the second of two equal turns on one rank.
    async fn tells_details(&self, fields: Fields) -> Result<bool, TargetError> {
        let request = super::asks::on_one_rank(&self.spec.request);
        let spec = RunSpec { request, ..self.spec.clone() };
        let pinned = Prober { site: self.site, spec: &spec, prompt: self.prompt.clone() };
        pinned.send(fields, SHORT).await?;
        let second = pinned.send(fields, SHORT).await?;
        Ok(second.cached_tokens.is_some_and(|cached| cached > 0))
    }

    /// Whether the key of the turn that was just sent, or of a longer one, shows.
    async fn key_seen(&self, before: KeySigns, fields: Fields) -> Result<KeySeen, TargetError> {
        if self.spec.key.by == KeyScope::None {
            return Ok(KeySeen::Unknown);
        }
        let after = self.key_signs().await;
        let mut arrived = key_arrived(before, &[], after);
        if arrived.is_none() && after.has_gauge() {
            let looks = self.watch(fields).await?;
            arrived = key_arrived(after, &looks, after);
        }
        Ok(match arrived {
            Some(true) => KeySeen::Yes,
            Some(false) => KeySeen::No,
            None => KeySeen::Unknown,
        })
    }

    /// What the gauges show while a turn runs. It is read to its end even when they have told enough: one that is cut goes on
    /// in the server, where it delays a flush and is counted as part of the run.
    async fn watch(&self, fields: Fields) -> Result<Vec<KeySigns>, TargetError> {
        let mut looks = vec![];
        let sending = self.send(fields, LONG);
        tokio::pin!(sending);
        loop {
            let looking = async {
                tokio::time::sleep(LOOK).await;
                self.key_signs().await
            };
            tokio::select! {
                biased;
                ended = &mut sending => return ended.map(|_| looks),
                look = looking => looks.push(look),
            }
        }
    }

    async fn key_signs(&self) -> KeySigns {
        let carried = Carried {
            in_body: self.spec.request.api == Api::Generate,
            with_authorization: self.site.is_authorized(self.spec),
        };
        let mut signs = KeySigns::default();
        let outside = Outside { site: self.site, metrics_urls: &self.spec.server.metrics_urls };
        for source in outside.addresses() {
            if let Ok(scrape) = self.site.scraper.scrape(source).await {
                signs = signs.and(KeySigns::read(&scrape.exposition, carried));
            }
        }
        signs
    }

    fn verdict(&self, turn: &TurnRecord) -> Result<(), TargetError> {
        let url = match &turn.place {
            Some(Place::Node(base)) => route(base, self.spec.request.api),
            _ => self.site.url(self.spec.request.api),
        };
        if turn.oddities.contains(&Oddity::PinIgnored) {
            let why = "it served the probe on another rank than was asked for: it takes no placement from callers";
            return Err(TargetError::refused(&url, why.to_owned()));
        }
        let Outcome::Failed(failure) = turn.outcome else { return Ok(()) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_left_out_one_by_one_and_only_those_that_were_asked_for() {
        let fields = |continuous_usage, ignore_eos| Fields { continuous_usage, ignore_eos };
        let all = fields(true, true);
        assert_eq!(all.attempts(), [all, fields(false, true), fields(true, false), fields(false, false)]);
        let attempts = fields(false, true).attempts();
        assert_eq!(attempts, [fields(false, true), fields(false, false)]);
        assert_eq!(fields(false, false).attempts(), [fields(false, false)]);
        assert_eq!((left_out(all, all).len(), left_out(all, fields(false, false)).len()), (0, 2));
    }
}
