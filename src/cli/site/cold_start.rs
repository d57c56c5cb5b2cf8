//! A block's cold start: the cache is emptied, and then looked at, since a 200 from a flush proves nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::outside::Outside;
use crate::client::Aim;
use crate::clock::Clock;
use crate::lanes::Lanes;
use crate::profile::RunSpec;
use crate::record::{Place, TurnId, TurnRecord};
use crate::report::{Fact, FlushBy, FlushFacts, FlushProof};
use crate::target::{self, Dialect, Flush, Kind, TargetError};
use crate::text::Vocabulary;
use crate::units::{Micros, Rank, public_address};
use crate::workload::{Plan, Prompt, Prompter};

/// How often a rank that was busy is flushed again.
const AGAIN: usize = 2;
/// How often, and how far apart, the gauges of an idle server are looked at until they have followed the flush.
const LOOKS: usize = 10;
const BETWEEN: Duration = Duration::from_millis(200);
/// What a prompt may find cached on an empty rank, unless a page is larger: the words of a template.
const SLACK_TOKENS: u32 = 64;

/// What a cold start needs to know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColdStart<'a> {
    pub outside: Outside<'a>,
    pub spec: &'a RunSpec,
    pub plan: &'a Plan,
    pub vocabulary: &'a Arc<Vocabulary>,
}

/// What a look at the caches shows.
enum Seen {
    Cold(FlushProof),
    Warm(Vec<Place>),
    Nothing,
}

impl ColdStart<'_> {
    /// Empties the cache as the profile says, and looks at every rank; what was done, and notes for the reader.
    ///
    /// # Errors
    /// When the server, or the command, refuses.
    pub(crate) async fn run(&self) -> Result<(FlushFacts, Vec<String>), TargetError> {
        let facts = |by, proof, warm| FlushFacts { by, proof, warm };
        if self.spec.server.isolate.is_some() {
            return Ok((facts(FlushBy::CacheSalt, None, vec![]), vec![]));
        }
        if !self.spec.server.flush {
            let note = "the prefix cache was left as it was: earlier requests may have warmed it";
            return Ok((facts(FlushBy::Nothing, None, vec![]), vec![note.to_owned()]));
        }
        let marked = self.mark().await;
        let mut left = AGAIN;
        loop {
            let (by, notes) = self.empty().await?;
            if by == FlushBy::Nothing {
                return Ok((facts(by, None, vec![]), notes));
            }
            return Ok(match self.look(marked.as_ref()).await {
                Seen::Cold(proof) => (facts(by, Some(proof), vec![]), notes),
                Seen::Nothing => (facts(by, None, vec![]), notes),
                Seen::Warm(_) if left > 0 => {
                    left -= 1;
                    continue;
                }
                Seen::Warm(places) => (facts(by, None, places), notes),
            });
        }
    }

    async fn empty(&self) -> Result<(FlushBy, Vec<String>), TargetError> {
        let (site, server) = (self.outside.site, &self.spec.server);
        let by_command = match &server.flush_command {
            Some(command) => Some(target::flush_by_command(command, &site.base, server.flush_timeout).await),
            None => None,
        };
        if let Some(flush) = by_command {
            return match flush {
                Flush::Refused(said) => Err(self.refused(&site.base, &format!("--flush-command failed ({said})"))),
                Flush::Accepted | Flush::Unsupported | Flush::Unreached(_) => Ok((FlushBy::Command, vec![])),
            };
        }
        // The flush of a vllm-router reaches routes that vLLM does not have.
        if site.facts.kind != Some(Kind::VllmRouter) {
            let mut emptied = 0;
            for base in site.bases() {
                match target::flush(&site.http, base, server.flush_timeout).await {
                    Flush::Accepted => emptied += 1,
                    Flush::Refused(said) => {
                        return Err(self.refused(base, &format!("the flush was refused ({said})")));
                    }
                    Flush::Unsupported => {}
                    Flush::Unreached(said) => {
                        return self
                            .reset(&format!("the flush did not reach the servers behind this one ({said})"))
                            .await;
                    }
                }
            }
            if emptied == 1 + site.others.len() {
                return Ok((FlushBy::FlushCache, vec![]));
            }
        }
        self.reset("the server has no /flush_cache").await
    }

    /// vLLM's own route, on every address that is one: a router would pass it on to one of them only. `lacking` says why
    /// nothing else has emptied the cache.
    async fn reset(&self, lacking: &str) -> Result<(FlushBy, Vec<String>), TargetError> {
        let site = self.outside.site;
        let (mut emptied, mut notes) = (0, vec![]);
        for source in self.outside.addresses() {
            let is_router = source == site.base && site.facts.kind.is_some_and(Kind::is_router);
            let scrape = site.scraper.scrape(source).await;
            let is_vllm = scrape.is_ok_and(|scrape| target::dialects(&scrape.exposition).contains(&Dialect::Vllm));
            if is_router || !is_vllm {
                continue;
            }
            let base = source.strip_suffix("/metrics").unwrap_or(source);
            match target::reset(&site.http, base, self.spec.server.flush_timeout).await {
                Flush::Accepted => emptied += 1,
                Flush::Refused(said) => return Err(self.refused(source, &format!("the reset was refused ({said})"))),
                Flush::Unsupported | Flush::Unreached(_) => notes.push(format!(
                    "{} has no /reset_prefix_cache, which vLLM has with VLLM_SERVER_DEV_MODE=1: its cache was not emptied",
                    public_address(source)
                )),
            }
        }
        if emptied > 0 {
            return Ok((FlushBy::ResetPrefixCache, notes));
        }
        notes.push(format!(
            "{lacking}: earlier requests may have warmed its prefix cache; --flush-command or --isolate cache_salt begin \
             cold without it, and --no-flush-cache measures the cache as it is"
        ));
        Ok((FlushBy::Nothing, notes))
    }

    fn refused(&self, url: &str, why: &str) -> TargetError {
        let way_out = "wait until the server is idle, or measure its cache as it is with --no-flush-cache";
        TargetError::refused(url, format!("{why}; {way_out}"))
    }

    /// Has every rank compute one prompt that the look after the flush can ask for again: an idle SGLang may show the gauges
    /// of before the flush for ever. None where a rank cannot be asked by its number, or its answer would tell nothing.
    async fn mark(&self) -> Option<Marked> {
        let facts = &self.outside.site.facts;
        let ranks = facts.ranks.and_then(|ranks| u16::try_from(ranks).ok())?;
        let tells = !self.outside.site.probed.untold.iter().any(|untold| untold.fact == Fact::CachedTokens);
        let is_long = self.plan.warmup(1).prompt_tokens(0, 0).is_some_and(|tokens| tokens > 2 * self.slack());
        if !(facts.kind.is_some_and(Kind::pins) && tells && is_long) {
            return None;
        }
        let prompter = Prompter::new(Arc::new(self.plan.warmup(1)), Arc::clone(self.vocabulary));
        let marked = Marked { ranks, prompt: prompter.prompt(0, 0, &[]) };
        let found = self.ask(&marked).await;
        found.iter().all(Option::is_some).then_some(marked)
    }

    async fn look(&self, marked: Option<&Marked>) -> Seen {
        if let Some(marked) = marked {
            if self.gauges().await == Some(0.0) {
                return Seen::Cold(FlushProof::NoEvictableTokens);
            }
            let found = self.ask(marked).await;
            let is_warm = |cached: &Option<u32>| cached.is_some_and(|cached| cached > self.slack());
            let places = (0..).map(Rank).zip(&found);
            let warm: Vec<_> =
                places.filter(|(_, cached)| is_warm(cached)).map(|(rank, _)| Place::Rank(rank)).collect();
            return match (warm.is_empty(), found.iter().all(Option::is_some)) {
                (false, _) => Seen::Warm(warm),
                (true, true) => Seen::Cold(FlushProof::PinnedProbe),
                (true, false) => Seen::Nothing,
            };
        }
        // A gauge above 0 may only be late: an idle SGLang refreshes it seldom. So it proves nothing.
        for look in 0..LOOKS {
            match self.gauges().await {
                None => return Seen::Nothing,
                Some(0.0) => return Seen::Cold(FlushProof::NoEvictableTokens),
                Some(_) if look + 1 < LOOKS => tokio::time::sleep(BETWEEN).await,
                Some(_) => {}
            }
        }
        Seen::Nothing
    }

    /// Cached tokens of all ranks together that no request holds; none unless every rank shows them.
    async fn gauges(&self) -> Option<f64> {
        let site = self.outside.site;
        let ranks = usize::try_from(site.facts.ranks?).ok()?;
        let shown = target::evictable(&site.scraper.scrape(self.outside.own()?).await.ok()?.exposition);
        (shown.len() >= ranks).then(|| shown.values().sum())
    }

    /// What each rank finds cached of a prompt that it is asked for by number; none where it does not say.
    async fn ask(&self, marked: &Marked) -> Vec<Option<u32>> {
        futures::future::join_all((0..marked.ranks).map(|rank| self.pinned(rank, &marked.prompt))).await
    }

    async fn pinned(&self, rank: u16, prompt: &Prompt) -> Option<u32> {
        let mut spec = self.spec.clone();
        // SGLang reads the field on every route, vLLM the header.
        spec.request.extra_body.insert("routed_dp_rank".to_owned(), rank.into());
        spec.request.headers.insert("x-data-parallel-rank".to_owned(), rank.to_string());
        let client =
            self.outside.site.client(&spec, &Lanes::default(), Clock::wall(), CancellationToken::new()).ok()?;
        let id = TurnId { group: 0, session: u32::from(rank), turn: 0 };
        let name = format!("gspbench-cold-{rank}-{:08x}", rand::random::<u32>());
        let turn = TurnRecord::planned(name, id, None, Micros(0), 1);
        let body = client.prepare(&turn, prompt);
        let (turn, _) = client.send(turn, body, Aim::default()).await;
        turn.cached_tokens.filter(|_| turn.outcome.is_complete())
    }

    fn slack(&self) -> u32 {
        self.outside.site.facts.page_tokens.unwrap_or(0).max(SLACK_TOKENS)
    }
}

/// A prompt that every rank has computed.
struct Marked {
    ranks: u16,
    prompt: Prompt,
}
