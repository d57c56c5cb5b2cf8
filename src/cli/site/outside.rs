//! What is asked of the server beside the turns of a block: its counters before and after, its load while they run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Site;
use crate::clock::Clock;
use crate::profile::MetricsUrl;
use crate::record::{Place, PlaceLoad};
use crate::report::{CounterDelta, Cut, HistogramDelta, Unread, When};
use crate::target::{self, Kind, Scrape, TargetError};
use crate::units::{NodeRole, plural, public_address};
use crate::wire::Exposition;

/// What every address said, by the name under which it is stored.
#[derive(Debug, Default)]
pub(crate) struct Scrapes {
    read: BTreeMap<String, Scrape>,
    /// Why there is none.
    failed: BTreeMap<String, String>,
}

impl Scrapes {
    /// Whether every counter and histogram is what it was.
    fn stand_as(&self, earlier: &Self) -> bool {
        let is_same = |(name, scrape): (&String, &Scrape)| {
            earlier
                .read
                .get(name)
                .is_some_and(|earlier| earlier.counters == scrape.counters && earlier.histograms == scrape.histograms)
        };
        self.read.len() == earlier.read.len() && self.read.iter().all(is_same)
    }
}

/// The target and the further addresses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outside<'a> {
    pub site: &'a Site,
    pub metrics_urls: &'a [MetricsUrl],
}

/// A server counts a request a little after it has answered it; so long between two looks at its counters …
const SETTLING: Duration = Duration::from_millis(20);
/// … and so many looks at the most: one that others use never settles.
const LOOKS: usize = 5;

impl Outside<'_> {
    /// The counters once they stand still: SGLang sends a reply before it counts it, and the last request of a probe would be
    /// counted among the turns, or the last turn not at all. Addresses that do not answer are not asked again.
    pub(crate) async fn settled(&self) -> Scrapes {
        let mut scrapes = self.scrape().await;
        for _ in 1..LOOKS {
            if scrapes.read.is_empty() || !scrapes.failed.is_empty() {
                break;
            }
            tokio::time::sleep(SETTLING).await;
            let earlier = std::mem::replace(&mut scrapes, self.scrape().await);
            if scrapes.stand_as(&earlier) {
                break;
            }
        }
        scrapes
    }

    /// Reads the counters of every address that shows some, of all at once.
    async fn scrape(&self) -> Scrapes {
        let ask = async |(name, source): (String, &str)| (name, self.site.scraper.scrape(source).await);
        let mut scrapes = Scrapes::default();
        for (name, said) in join_all(self.sources().into_iter().map(ask)).await {
            match said {
                // Its samples have been read, and may be many.
                Ok(scrape) => {
                    scrapes.read.insert(name, Scrape { exposition: Exposition::default(), ..scrape });
                }
                Err(why) => {
                    scrapes.failed.insert(name, why.to_string());
                }
            }
        }
        scrapes
    }

    /// What the node at each further address does, where prefill and decode are apart and the caller or the node's description
    /// of itself says so. Counters that are labelled with it need neither.
    pub(crate) async fn node_roles(&self, seen: &Scrapes) -> BTreeMap<String, NodeRole> {
        let role = async |(name, source): (String, &str)| {
            let given = self.metrics_urls.iter().find(|given| given.url == source)?;
            let is_labelled = seen.read.get(&name).is_some_and(|of| of.counters.iter().any(|of| of.node.is_some()));
            let is_asked = given.role.is_none() && !is_labelled && self.site.bases().all(|base| base != source);
            let told = if is_asked { target::node_role(&self.site.http, source).await } else { given.role };
            Some((name, told?))
        };
        join_all(self.sources().into_iter().map(role)).await.into_iter().flatten().collect()
    }

    /// Refuses roles that nodes contradict, of themselves or by the labels of their counters: two addresses that were swapped
    /// would have the prompts of one side compared with the counters of the other.
    ///
    /// # Errors
    /// One that names every such address, with what was said of it and what it says.
    pub(crate) async fn check_roles(&self) -> Result<(), TargetError> {
        let contradicts = async |given: &MetricsUrl| {
            let (role, own) = (given.role?, self.own_role(&given.url).await?);
            let why = format!("it was given as `{}=` and says itself that it is the {} node", role.name(), own.name());
            (own != role).then(|| (given.url.clone(), why))
        };
        let wrong: Vec<(String, String)> =
            join_all(self.metrics_urls.iter().map(contradicts)).await.into_iter().flatten().collect();
        let Some(((url, why), others)) = wrong.split_first() else { return Ok(()) };
        let others: String = others.iter().map(|(url, why)| format!("; {}: {why}", public_address(url))).collect();
        let way_out = "swap the addresses, or leave the words out, since each node says what it is";
        Err(TargetError::refused(url, format!("{why}{others}: {way_out}")))
    }

    /// What a node says that it does; none where it does not tell, or its counters are those of both sides.
    async fn own_role(&self, source: &str) -> Option<NodeRole> {
        if let Some(role) = target::node_role(&self.site.http, source).await {
            return Some(role);
        }
        let scrape = self.site.scraper.scrape(source).await.ok()?;
        let labels: BTreeSet<NodeRole> = scrape.counters.iter().filter_map(|counter| counter.node).collect();
        labels.first().copied().filter(|_| labels.len() == 1)
    }

    /// Starts to sample the load of every place, on connections and threads of its own: a large answer is read while no
    /// stream waits for it, and a server that does not answer holds up nothing. A period of 0 asks nothing.
    pub(crate) fn sample(&self, period: Duration, clock: &Clock) -> Sampling {
        let stop = CancellationToken::new();
        if period.is_zero() {
            return Sampling { tasks: vec![], stop: stop.drop_guard() };
        }
        let start = |(name, source): (String, &str)| {
            let name = Some(name).filter(|_| source != self.site.base);
            let watching =
                target::watch(self.site.http.clone(), source.to_owned(), period, clock.clone(), stop.clone());
            let runtime = tokio::runtime::Handle::current();
            (name, tokio::task::spawn_blocking(move || runtime.block_on(watching)))
        };
        let tasks = self.sources().into_iter().map(start).collect();
        Sampling { tasks, stop: stop.drop_guard() }
    }

    /// The addresses that a scrape did not reach. A target that has never shown counters has none to miss.
    pub(crate) fn unread(&self, before: &Scrapes, after: &Scrapes) -> Vec<Unread> {
        let is_own = |source: &str| self.site.bases().any(|base| base == source);
        let is_to_answer = |source: &str| !is_own(source) || self.site.showing.iter().any(|base| base == source);
        let missing =
            |name: &String, source: &str| match (before.read.contains_key(name), after.read.contains_key(name)) {
                (true, true) => None,
                (false, true) => Some(When::Before),
                (true, false) => Some(When::After),
                (false, false) => Some(When::Both).filter(|_| is_to_answer(source)),
            };
        let why = |name: &String| before.failed.get(name).or_else(|| after.failed.get(name)).cloned();
        let sources = self.sources().into_iter();
        let unread = |(name, source): (String, &str)| {
            Some(Unread { when: missing(&name, source)?, why: why(&name), source: name })
        };
        sources.filter_map(unread).collect()
    }

    /// The target's address, unless asking it there would disturb what is measured.
    pub(crate) fn own(&self) -> Option<&str> {
        let may_be = self.site.facts.kind.is_none_or(Kind::may_be_scraped);
        may_be.then_some(&*self.site.base)
    }

    /// The addresses that are asked beside the turns: the target's own and the further ones.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        let own = self.own().into_iter().flat_map(|_| self.site.bases());
        own.map(String::as_str).chain(self.metrics_urls.iter().map(|given| given.url.as_str()))
    }

    /// Every address with counters under the name that is stored; two that differ only in what is hidden are numbered.
    fn sources(&self) -> Vec<(String, &str)> {
        let mut sources: Vec<(String, &str)> = vec![];
        for source in self.addresses() {
            let shown = public_address(source);
            let earlier = sources.iter().filter(|(name, _)| name.split(' ').next() == Some(&shown)).count();
            let name = if earlier == 0 { shown } else { format!("{shown} ({})", earlier + 1) };
            sources.push((name, source));
        }
        sources
    }
}

/// Samples until it is ended or dropped.
#[derive(Debug)]
pub(crate) struct Sampling {
    /// With the name of an address other than the target's, which then names its places.
    tasks: Vec<(Option<String>, JoinHandle<Vec<PlaceLoad>>)>,
    stop: DropGuard,
}

impl Sampling {
    /// What was sampled; open questions are cut.
    pub(crate) async fn end(self) -> Vec<PlaceLoad> {
        drop(self.stop);
        let mut series = vec![];
        for (source, task) in self.tasks {
            let loads = task.await.unwrap_or_default();
            series.extend(
                loads.into_iter().map(|load| PlaceLoad { place: named(source.as_deref(), load.place), ..load }),
            );
        }
        series
    }
}

/// A rank of one node is not that of another: places of further addresses carry their address.
fn named(source: Option<&str>, place: Place) -> Place {
    match (source, place) {
        (Some(source), Place::Rank(rank)) => Place::Node(format!("{source} rank {rank}")),
        (Some(source), Place::Node(name)) if name == target::WHOLE_SERVER => Place::Node(source.to_owned()),
        (_, place) => place,
    }
}

/// The growth of every counter, by source; `roles` of their nodes beat what their labels say.
pub(crate) fn deltas(before: &Scrapes, after: &Scrapes, roles: &BTreeMap<String, NodeRole>) -> Vec<CounterDelta> {
    let between = |source: &String| {
        let scrapes = [before, after].map(|scrapes| scrapes.read.get(source));
        // Sums compare with sums alone.
        let is_summed = scrapes.iter().flatten().any(|scrape| scrape.summed.is_some());
        let [before, after] = scrapes.map(|scrape| {
            let counters = scrape?.counters.clone();
            Some(if is_summed { target::summed(counters) } else { counters })
        });
        CounterDelta::between(source, before.as_deref(), after.as_deref())
    };
    let with_role = |delta: CounterDelta| {
        let node = roles.get(&delta.source).copied().or(delta.node);
        CounterDelta { node, ..delta }
    };
    sources(before, after).into_iter().flat_map(between).map(with_role).collect()
}

/// The growth of every latency histogram, likewise.
pub(crate) fn histograms(before: &Scrapes, after: &Scrapes, roles: &BTreeMap<String, NodeRole>) -> Vec<HistogramDelta> {
    let between = |source: &String| {
        let scrapes = [before, after].map(|scrapes| scrapes.read.get(source));
        // One that was not looked at has not started from nothing.
        if scrapes.iter().flatten().any(|scrape| scrape.left_out_histograms.is_some()) {
            return vec![];
        }
        let [before, after] = scrapes.map(|scrape| Some(scrape?.histograms.as_slice()));
        HistogramDelta::between(source, before, after)
    };
    let with_role = |delta: HistogramDelta| {
        let node = roles.get(&delta.source).copied().or(delta.node);
        HistogramDelta { node, ..delta }
    };
    sources(before, after).into_iter().flat_map(between).map(with_role).collect()
}

/// What is not kept of the pages of each address: the most of both scrapes.
pub(crate) fn cut(before: &Scrapes, after: &Scrapes) -> Vec<Cut> {
    let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let cut = |source: &String| {
        let scrapes = || [before, after].into_iter().filter_map(|scrapes| scrapes.read.get(source));
        let summed_series = scrapes().filter_map(|scrape| scrape.summed).max().map(count);
        let left_out_histograms = scrapes().filter_map(|scrape| scrape.left_out_histograms).max().map(count);
        let left_out_bytes = scrapes().map(|scrape| count(scrape.left_out)).max().unwrap_or(0);
        let is_cut = summed_series.or(left_out_histograms).is_some() || left_out_bytes > 0;
        is_cut.then(|| Cut { source: source.clone(), summed_series, left_out_histograms, left_out_bytes })
    };
    sources(before, after).into_iter().filter_map(cut).collect()
}

fn sources<'a>(before: &'a Scrapes, after: &'a Scrapes) -> BTreeSet<&'a String> {
    before.read.keys().chain(after.read.keys()).collect()
}

/// The addresses whose process has another start time than before.
pub(crate) fn restarted(before: &Scrapes, after: &Scrapes) -> Vec<String> {
    let started = |scrapes: &Scrapes, source: &String| scrapes.read.get(source).and_then(|scrape| scrape.started);
    let is_another = |source: &&String| {
        started(before, source).zip(started(after, source)).is_some_and(|(earlier, later)| later > earlier)
    };
    before.read.keys().filter(is_another).cloned().collect()
}

/// Both scrapes of every address, as far as they are kept.
pub(crate) fn raw_metrics(before: &Scrapes, after: &Scrapes) -> String {
    let part = |when: &str, scrapes: &Scrapes| {
        let page = |(source, Scrape { raw, left_out, .. }): (&String, &Scrape)| {
            let cut =
                if *left_out > 0 { format!("; {} left out", plural(*left_out as u64, "byte")) } else { String::new() };
            format!("# gspbench: {source}, {when} the run{cut}\n{raw}\n")
        };
        scrapes.read.iter().map(page).collect::<String>()
    };
    part("before", before) + &part("after", after)
}
