//! What the server's own latency histograms say of the run: their growth, and the sums of several.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::ServerFacts;
use crate::record::{HistogramRole, Place, ServerHistogram};
use crate::stats::{Bucket, Buckets, Quantile, rounded};
use crate::units::NodeRole;

/// The growth of one latency histogram over the run. All figures but `before` and `after` are of what came between, and null
/// where that is not known: a scrape failed, a bucket fell (its server started again), a value was no number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistogramDelta {
    /// The address that was scraped.
    pub source: String,
    /// Of the family, without `_bucket`.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Which time it holds, in words that all servers share.
    pub role: HistogramRole,
    /// The rank or node that it speaks of; absent for the whole server.
    #[serde(default)]
    pub place: Option<Place>,
    /// What its node does, as for counters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeRole>,
    /// Samples so far. Some servers show a histogram only with its first sample: then `before` is null.
    pub before: Option<u64>,
    pub after: Option<u64>,
    pub count: Option<u64>,
    pub sum_ms: Option<f64>,
    pub mean_ms: Option<f64>,
    pub p50_ms: Option<Between>,
    pub p99_ms: Option<Between>,
    /// Those that hold samples.
    pub buckets: Vec<TimeBucket>,
}

/// The bounds of the bucket that holds a quantile: above `from`, at or below `to`, which is null in the last bucket.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Between {
    pub from: f64,
    pub to: Option<f64>,
}

/// Samples above `from_ms` and at or below `to_ms`; null where there is no bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TimeBucket {
    pub from_ms: f64,
    pub to_ms: Option<f64>,
    pub count: u64,
}

/// One time by the server's own clock, over all that tell it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ServerClock {
    pub role: HistogramRole,
    /// What the nodes do that tell it, where prefill and decode are apart.
    pub node: Option<NodeRole>,
    pub count: u64,
    /// None where a sum is not told.
    pub mean_ms: Option<f64>,
    /// None where bounds lie across each other.
    pub p50_ms: Option<Between>,
    pub p99_ms: Option<Between>,
}

impl Between {
    fn holding(buckets: &Buckets, q: Quantile) -> Option<Self> {
        buckets.holding(q).map(|Bucket { from, to, count: _ }| Self { from, to })
    }
}

impl HistogramDelta {
    /// The growth of every histogram of one address, over two scrapes of which either may have failed; as with counters, one
    /// that only the later scrape has started from nothing. Without a sample in between its count is 0, and nothing else of
    /// it is there.
    #[must_use]
    pub fn between(source: &str, before: Option<&[ServerHistogram]>, after: Option<&[ServerHistogram]>) -> Vec<Self> {
        let key = |histogram: &ServerHistogram| (histogram.name.clone(), histogram.labels.clone());
        let values = |scrape: Option<&[ServerHistogram]>| -> BTreeMap<_, Option<Buckets>> {
            scrape.unwrap_or_default().iter().map(|histogram| (key(histogram), in_ms(histogram))).collect()
        };
        let (earlier, later) = (values(before), values(after));
        let delta = |histogram: &ServerHistogram| {
            let (first, last) = (earlier.get(&key(histogram)), later.get(&key(histogram)));
            let nothing = before.is_some().then(Buckets::default);
            let start = first.cloned().unwrap_or(nothing);
            let grown = last.cloned().flatten().zip(start).and_then(|(last, start)| last.since(&start));
            let count = |at: Option<&Option<Buckets>>| at.and_then(|buckets| Some(buckets.as_ref()?.count()));
            Self::of(source, histogram, [count(first), count(last)], grown.as_ref())
        };
        let gone = before.unwrap_or_default().iter().filter(|histogram| !later.contains_key(&key(histogram)));
        after.unwrap_or_default().iter().chain(gone).map(delta).collect()
    }

    fn of(source: &str, of: &ServerHistogram, [before, after]: [Option<u64>; 2], grown: Option<&Buckets>) -> Self {
        let held = |q| grown.and_then(|grown| Between::holding(grown, q));
        let bucket = |bucket: &Bucket| TimeBucket { from_ms: bucket.from, to_ms: bucket.to, count: bucket.count };
        Self {
            source: source.to_owned(),
            name: of.name.clone(),
            labels: of.labels.clone(),
            role: of.role,
            place: of.place.clone(),
            node: of.node,
            before,
            after,
            count: grown.map(Buckets::count),
            sum_ms: grown.filter(|grown| grown.count() > 0).and_then(Buckets::sum).map(rounded),
            mean_ms: grown.and_then(Buckets::mean).map(rounded),
            p50_ms: held(Quantile::P50),
            p99_ms: held(Quantile::P99),
            buckets: grown.map_or(vec![], |grown| grown.buckets().iter().map(bucket).collect()),
        }
    }

    /// None where its growth is not known.
    fn grown(&self) -> Option<Buckets> {
        self.count?;
        let bucket = |of: &TimeBucket| Bucket { from: of.from_ms, to: of.to_ms, count: of.count };
        Buckets::new(self.buckets.iter().map(bucket).collect(), self.sum_ms)
    }
}

/// Servers tell seconds.
fn in_ms(histogram: &ServerHistogram) -> Option<Buckets> {
    let cumulative = histogram.cumulative.as_ref()?;
    let cumulative: Vec<_> = cumulative.iter().map(|(bound, count)| (rounded(bound * 1e3), *count)).collect();
    Buckets::from_cumulative(&cumulative, histogram.sum.map(|sum| sum * 1e3))
}

impl ServerFacts {
    /// Each time that the server tells by its own clock, of all its ranks and kinds of requests together, and apart only
    /// where nodes tell that they are prefill or decode nodes. As with counters, the target's own address is believed before
    /// further ones. A time of which any histogram has no known growth is left out: a part is not the whole.
    #[must_use]
    pub fn clocks(&self) -> Vec<ServerClock> {
        HistogramRole::ALL.into_iter().flat_map(|role| self.clocks_of(role)).collect()
    }

    fn clocks_of(&self, role: HistogramRole) -> Vec<ServerClock> {
        let told = self.believed(&self.histograms, |histogram| histogram.role == role);
        let nodes: BTreeSet<Option<NodeRole>> = told.iter().map(|histogram| histogram.node).collect();
        let clock = |node: Option<NodeRole>| {
            let of_node = told.iter().filter(|histogram| histogram.node == node);
            let parts: Option<Vec<Buckets>> = of_node.map(|histogram| histogram.grown()).collect();
            clock(role, node, &parts?)
        };
        nodes.into_iter().filter_map(clock).collect()
    }

    /// A time over all that tell it. Where prefill and decode are apart it is the prefill nodes' wait in the queue; what a
    /// TTFT of either side is depends on the proxy, so there is none then, nor of the other times.
    #[must_use]
    pub fn own_clock(&self, role: HistogramRole) -> Option<ServerClock> {
        let clocks = self.clocks_of(role);
        let meant = |clock: &&ServerClock| match clock.node {
            None => clocks.len() == 1,
            Some(node) => node == NodeRole::Prefill && role == HistogramRole::QueueTime,
        };
        clocks.iter().find(meant).copied()
    }
}

fn clock(role: HistogramRole, node: Option<NodeRole>, parts: &[Buckets]) -> Option<ServerClock> {
    let count = parts.iter().try_fold(0_u64, |all, part| all.checked_add(part.count()))?;
    let parts = || parts.iter().filter(|part| part.count() > 0);
    let sum = parts().map(Buckets::sum).sum::<Option<f64>>();
    let whole = parts().try_fold(Buckets::default(), |whole, part| whole.merged(part));
    let held = |q| whole.as_ref().and_then(|whole| Between::holding(whole, q));
    #[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
    let mean_ms = sum.map(|sum| rounded(sum / count as f64));
    (count > 0).then(|| ServerClock {
        role,
        node,
        count,
        mean_ms,
        p50_ms: held(Quantile::P50),
        p99_ms: held(Quantile::P99),
    })
}

#[cfg(test)]
#[path = "histograms_tests.rs"]
mod tests;
