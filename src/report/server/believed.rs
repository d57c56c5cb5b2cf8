//! Whom to believe where several addresses show the same: a target and the nodes behind it.

use std::collections::BTreeMap;

use super::{CounterDelta, HistogramDelta, ServerFacts};
use crate::record::{CounterRole, Place};

impl ServerFacts {
    /// Those that are to be believed of those that are meant: what the target's own addresses show, all of them, else what the
    /// further ones show together.
    pub(super) fn believed<'a, S: Series>(&self, all: &'a [S], is_meant: impl Fn(&S) -> bool) -> Vec<&'a S> {
        let targets: Vec<&str> = self.targets().collect();
        let meant = all.iter().filter(|series| is_meant(series));
        let (own, further): (Vec<_>, Vec<_>) = meant.partition(|series| targets.contains(&series.source()));
        let is_silent = |address: &&str| !own.iter().any(|series| series.source() == *address);
        if !own.is_empty() && targets.iter().any(is_silent) {
            // A part of several addresses is no sum of all.
            return vec![];
        }
        if own.is_empty() || self.passes_a_workers_page_on(&own, &further) { further } else { own }
    }

    pub(super) fn targets(&self) -> impl Iterator<Item = &str> {
        self.address.iter().chain(&self.other_addresses).map(String::as_str)
    }

    /// vllm-router answers `/metrics` with the page of a worker that its policy names, each time anew. Where the kind is not
    /// known: pages that further addresses show as well, before and after, are those of workers.
    fn passes_a_workers_page_on<'a, S: Series>(&self, own: &[&'a S], further: &[&'a S]) -> bool {
        let mut pages: BTreeMap<&str, BTreeMap<S::Key<'a>, &S>> = BTreeMap::new();
        for &series in further {
            pages.entry(series.source()).or_default().entry(series.key()).or_insert(series);
        }
        let shows = |page: &BTreeMap<S::Key<'a>, &S>, mine: &'a S, end: usize| {
            page.get(&mine.key()).is_some_and(|theirs| theirs.shows_alike(mine)[end])
        };
        let is_shown = |end| pages.values().any(|page| own.iter().all(|&mine| shows(page, mine, end)));
        self.kind.as_deref() == Some("vllm-router") || (is_shown(0) && is_shown(1))
    }
}

/// A series of some address, before and after the run.
pub(super) trait Series {
    /// What all addresses name the same series by.
    type Key<'a>: Ord
    where
        Self: 'a;
    fn source(&self) -> &str;
    fn key(&self) -> Self::Key<'_>;
    /// Whether both showed the same before the run, and after it.
    fn shows_alike(&self, other: &Self) -> [bool; 2];
}

impl Series for CounterDelta {
    type Key<'a> = (&'a str, Option<CounterRole>, Option<&'a Place>, &'a BTreeMap<String, String>);

    fn source(&self) -> &str {
        &self.source
    }

    fn key(&self) -> Self::Key<'_> {
        (&self.name, self.role, self.place.as_ref(), &self.labels)
    }

    fn shows_alike(&self, other: &Self) -> [bool; 2] {
        [self.before == other.before, self.after == other.after]
    }
}

impl Series for HistogramDelta {
    type Key<'a> = (&'a str, &'a BTreeMap<String, String>);

    fn source(&self) -> &str {
        &self.source
    }

    fn key(&self) -> Self::Key<'_> {
        (&self.name, &self.labels)
    }

    fn shows_alike(&self, other: &Self) -> [bool; 2] {
        [self.before == other.before, self.after == other.after]
    }
}
