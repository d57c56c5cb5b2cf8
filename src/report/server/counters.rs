//! What the server's counters say of the run: differences, and sums by role.

use std::collections::{BTreeMap, BTreeSet};

use super::{CounterDelta, ServerFacts};
use crate::record::{CounterRole, Place, ServerCounter};
use crate::units::NodeRole;

impl CounterDelta {
    /// The growth of every counter of one address, over two scrapes of which either may have failed. A counter that only
    /// the later scrape has started from nothing; one that fell has started again, and what it counted in between is lost.
    /// A scrape that failed says nothing of any counter: none has a growth then.
    #[must_use]
    pub fn between(source: &str, before: Option<&[ServerCounter]>, after: Option<&[ServerCounter]>) -> Vec<Self> {
        let key = |counter: &ServerCounter| {
            (counter.name.clone(), counter.role, counter.place.clone(), counter.labels.clone())
        };
        let values = |scrape: Option<&[ServerCounter]>| -> BTreeMap<_, f64> {
            scrape.unwrap_or_default().iter().map(|counter| (key(counter), counter.value)).collect()
        };
        let (earlier, later) = (values(before), values(after));
        let delta = |counter: &ServerCounter| {
            let (first, last) = (earlier.get(&key(counter)).copied(), later.get(&key(counter)).copied());
            let start = first.or(before.map(|_| 0.0));
            Self {
                source: source.to_owned(),
                name: counter.name.clone(),
                labels: counter.labels.clone(),
                role: Some(counter.role),
                place: counter.place.clone(),
                node: counter.node,
                before: first,
                after: last,
                delta: last.zip(start).map(|(last, start)| last - start).filter(|growth| *growth >= 0.0),
            }
        };
        let gone = before.unwrap_or_default().iter().filter(|counter| !later.contains_key(&key(counter)));
        after.unwrap_or_default().iter().chain(gone).map(delta).collect()
    }

    /// Whether it fell: its server started again during the run.
    #[must_use]
    pub fn fell(&self) -> bool {
        self.before.zip(self.after).is_some_and(|(before, after)| after < before)
    }
}

impl ServerFacts {
    /// Growth of a role over the run: as the target's own addresses say it, all of them, else as the further ones say it
    /// together (a router may repeat its workers). None where nobody counts it, or a counter fell. A target that answers
    /// with the page of one of its workers says nothing itself.
    #[must_use]
    pub fn growth(&self, role: CounterRole) -> Option<f64> {
        sum(&self.speaking(|counter| counter.role == Some(role)))
    }

    /// The same of one place.
    #[must_use]
    pub fn growth_at(&self, role: CounterRole, place: &Place) -> Option<f64> {
        sum(&self.speaking(|counter| counter.role == Some(role) && counter.place.as_ref() == Some(place)))
    }

    /// Growth of what is counted of each prompt. Where prefill and decode are apart both nodes count it, so it is that of the
    /// prefill nodes alone, if any counter is known for one of those, else that of all that are no decode nodes.
    #[must_use]
    pub fn growth_of_prompts(&self, role: CounterRole) -> Option<f64> {
        let said = self.speaking(|counter| counter.role == Some(role));
        let is_told = said.iter().any(|counter| counter.node == Some(NodeRole::Prefill));
        let counts = |counter: &&CounterDelta| match counter.node {
            Some(role) => role == NodeRole::Prefill,
            None => !is_told,
        };
        sum(&said.into_iter().filter(counts).collect::<Vec<_>>())
    }

    /// The same as the decode nodes say it.
    #[must_use]
    pub fn growth_at_decode(&self, role: CounterRole) -> Option<f64> {
        sum(&self.speaking(|counter| counter.role == Some(role) && counter.node == Some(NodeRole::Decode)))
    }

    /// The addresses beside the target that speak of a role for it, none of which tells what its node does.
    pub(in crate::report) fn nodes_without_role(&self, role: CounterRole) -> BTreeSet<&str> {
        let said = self.speaking(|counter| counter.role == Some(role));
        let is_own = |source: &str| self.targets().any(|target| target == source);
        if said.iter().any(|counter| counter.node.is_some() || is_own(&counter.source)) {
            return BTreeSet::new();
        }
        said.into_iter().map(|counter| counter.source.as_str()).collect()
    }

    /// The nodes whose counters speak of prompts and tell what each does; none where prefill and decode are not apart, or a
    /// frontend speaks for both.
    #[must_use]
    pub fn told_nodes(&self) -> BTreeSet<(NodeRole, &str)> {
        use CounterRole::{CachedTokens, CachedTokensFinished, ComputedTokens, PromptTokens};
        let roles = [PromptTokens, CachedTokens, CachedTokensFinished, ComputedTokens];
        let said = roles.into_iter().flat_map(|role| self.speaking(move |counter| counter.role == Some(role)));
        said.filter_map(|counter| Some((counter.node?, counter.source.as_str()))).collect()
    }

    fn speaking(&self, is_meant: impl Fn(&CounterDelta) -> bool) -> Vec<&CounterDelta> {
        self.believed(&self.counters, is_meant)
    }
}

/// None where nothing is counted, or a counter has no growth.
fn sum(counters: &[&CounterDelta]) -> Option<f64> {
    if counters.is_empty() { None } else { counters.iter().map(|counter| counter.delta).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Rank;

    fn counter(role: CounterRole, rank: u16, value: f64) -> ServerCounter {
        ServerCounter {
            name: format!("{role:?}"),
            labels: BTreeMap::from([("dp_rank".to_owned(), rank.to_string())]),
            role,
            place: Some(Place::Rank(Rank(rank))),
            node: None,
            value,
        }
    }

    #[test]
    fn a_counter_that_appears_starts_from_nothing_and_one_that_falls_has_no_growth() {
        use CounterRole::{CachedTokens, Requests};
        let before = [counter(CachedTokens, 0, 7_000.0), counter(Requests, 0, 10_000.0)];
        let after = [counter(CachedTokens, 0, 7_100.0), counter(CachedTokens, 1, 50.0), counter(Requests, 0, 500.0)];
        let deltas = CounterDelta::between("http://h", Some(&before), Some(&after));
        let growth: Vec<_> = deltas.iter().map(|delta| delta.delta).collect();
        assert_eq!(growth, [Some(100.0), Some(50.0), None]);
        assert_eq!(deltas.iter().map(CounterDelta::fell).collect::<Vec<_>>(), [false, false, true]);
        let facts = ServerFacts { counters: deltas, ..ServerFacts::default() };
        assert_eq!(facts.growth(CachedTokens), Some(150.0));
        assert_eq!(facts.growth_at(CachedTokens, &Place::Rank(Rank(1))), Some(50.0));
        assert_eq!((facts.growth(Requests), facts.growth(CounterRole::Spills)), (None, None));
    }

    #[test]
    fn a_scrape_that_failed_is_no_scrape_of_zeros() {
        use CounterRole::{CachedTokens, Requests};
        let seen = [counter(CachedTokens, 0, 7_000.0), counter(Requests, 0, 10.0)];
        for (before, after) in [(None, Some(&seen[..])), (Some(&seen[..]), None)] {
            let deltas = CounterDelta::between("http://h", before, after);
            assert_eq!(deltas.iter().map(|of| of.before.or(of.after)).collect::<Vec<_>>(), [Some(7_000.0), Some(10.0)]);
            assert!(deltas.iter().all(|of| of.delta.is_none() && !of.fell()));
            let facts = ServerFacts { counters: deltas, ..ServerFacts::default() };
            assert_eq!((facts.growth(CachedTokens), facts.growth(Requests)), (None, None));
        }
        assert_eq!(CounterDelta::between("http://h", None, None), []);
        // A counter that went away has been reset, whatever the others of its role say.
        let deltas = CounterDelta::between("http://h", Some(&seen), Some(&seen[..1]));
        assert_eq!(deltas.iter().map(|of| of.delta).collect::<Vec<_>>(), [Some(0.0), None]);
    }

    #[test]
    fn the_targets_own_word_outweighs_that_of_further_addresses() {
        use CounterRole::CachedTokens;
        let of =
            |source: &str, value| CounterDelta::between(source, Some(&[]), Some(&[counter(CachedTokens, 0, value)]));
        let mut facts = ServerFacts { address: Some("http://router".into()), ..ServerFacts::default() };
        facts.counters = [of("http://w0", 3.0), of("http://w1", 4.0)].concat();
        assert_eq!(facts.growth(CachedTokens), Some(7.0), "the router says nothing: its workers together");
        facts.counters.extend(of("http://router", 7.0));
        assert_eq!(facts.growth(CachedTokens), Some(7.0));
        facts.other_addresses = vec!["http://second".into()];
        assert_eq!(facts.growth(CachedTokens), None, "one of two addresses of the target says nothing");
        facts.counters.extend(of("http://second", 5.0));
        assert_eq!(facts.growth(CachedTokens), Some(12.0));
    }

    #[test]
    fn where_prefill_and_decode_are_apart_a_prompt_counts_once() {
        use CounterRole::PromptTokens;
        use NodeRole::{Decode, Prefill};
        let of = |pages: &[(&str, Option<NodeRole>, f64)]| {
            let page = |(source, node, value): &(&str, Option<NodeRole>, f64)| {
                let seen = ServerCounter { node: *node, ..counter(PromptTokens, 0, *value) };
                CounterDelta::between(source, Some(&[]), Some(&[seen]))
            };
            let counters = pages.iter().flat_map(page).collect();
            ServerFacts { address: Some("http://router".into()), counters, ..ServerFacts::default() }
        };
        let told =
            [("http://p0", Some(Prefill), 3.0), ("http://p1", Some(Prefill), 4.0), ("http://d", Some(Decode), 7.0)];
        let facts = of(&told);
        let grown = |facts: &ServerFacts| (facts.growth_of_prompts(PromptTokens), facts.growth_at_decode(PromptTokens));
        assert_eq!((grown(&facts), facts.growth(PromptTokens)), ((Some(7.0), Some(7.0)), Some(14.0)));
        assert!(!facts.told_nodes().is_empty() && facts.nodes_without_role(PromptTokens).is_empty());
        // Who is no decode node is a prefill node, where none is known for one; and a decode node alone says nothing.
        assert_eq!(grown(&of(&[("http://p", None, 7.0), told[2]])), (Some(7.0), Some(7.0)));
        assert_eq!(grown(&of(&told[2..])), (None, Some(7.0)));
        let silent = of(&[("http://a", None, 3.0), ("http://b", None, 4.0)]);
        assert_eq!(grown(&silent), (Some(7.0), None));
        assert_eq!(silent.nodes_without_role(PromptTokens), BTreeSet::from(["http://a", "http://b"]));
        assert!(of(&[("http://router", None, 7.0)]).nodes_without_role(PromptTokens).is_empty(), "the target itself");
    }

    #[test]
    fn a_target_that_passes_on_the_page_of_one_worker_does_not_speak_for_all() {
        use CounterRole::{CachedTokens, PromptTokens};
        let page = |source: &str, cached, prompt| {
            let seen = [counter(CachedTokens, 0, cached), counter(PromptTokens, 0, prompt)];
            CounterDelta::between(source, Some(&[]), Some(&seen))
        };
        let of = |kind: Option<&str>, pages: &[(&str, f64, f64)]| {
            let counters = pages.iter().flat_map(|(source, cached, prompt)| page(source, *cached, *prompt)).collect();
            let facts = ServerFacts {
                address: Some("http://router".into()),
                kind: kind.map(str::to_owned),
                counters,
                ..ServerFacts::default()
            };
            (facts.growth(CachedTokens), facts.growth(PromptTokens))
        };
        let workers = [("http://w0", 3.0, 30.0), ("http://w1", 4.0, 40.0)];
        let behind = |own: (&'static str, f64, f64)| [&[own][..], &workers].concat();
        let all = (Some(7.0), Some(70.0));
        assert_eq!(of(None, &behind(("http://router", 3.0, 30.0))), all, "a worker's page");
        assert_eq!(of(None, &behind(("http://router", 4.0, 40.0))), all, "another worker's");
        assert_eq!(of(None, &behind(("http://router", 7.0, 70.0))), all, "a page of its own");
        assert_eq!(of(None, &behind(("http://router", 8.0, 80.0))), (Some(8.0), Some(80.0)), "and it is believed");
        // Alone, the page of one worker looks like any other.
        let alone = [("http://router", 3.0, 30.0)];
        assert_eq!(of(None, &alone), (Some(3.0), Some(30.0)));
        assert_eq!(of(Some("vllm-router"), &alone), (None, None));
        // Several such routers pass on pages of the same workers.
        let counters = [page("http://router", 3.0, 30.0), page("http://second", 3.0, 30.0)];
        let counters = counters.into_iter().chain(workers.map(|(source, cached, prompt)| page(source, cached, prompt)));
        let facts = ServerFacts {
            address: Some("http://router".into()),
            other_addresses: vec!["http://second".into()],
            kind: Some("vllm-router".into()),
            counters: counters.flatten().collect(),
            ..ServerFacts::default()
        };
        assert_eq!((facts.growth(CachedTokens), facts.growth(PromptTokens)), all);
    }
}
