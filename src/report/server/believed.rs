//! Whom to believe where several addresses show the same: a target and the nodes behind it.

use super::{CounterDelta, HistogramDelta, ServerFacts};

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
    fn passes_a_workers_page_on<S: Series>(&self, own: &[&S], further: &[&S]) -> bool {
        let is_shown_by = |source: &str, end: usize| {
            own.iter().all(|mine| {
                let theirs = further.iter().filter(|of| of.source() == source).find(|of| of.is_same_as(mine));
                theirs.is_some_and(|of| of.shows_alike(mine)[end])
            })
        };
        let is_shown = |end| further.iter().any(|of| is_shown_by(of.source(), end));
        self.kind.as_deref() == Some("vllm-router") || (is_shown(0) && is_shown(1))
    }
}

/// A series of some address, before and after the run.
pub(super) trait Series {
    fn source(&self) -> &str;
    /// Whether both are the same series but for their address.
    fn is_same_as(&self, other: &Self) -> bool;
    /// Whether both showed the same before the run, and after it.
    fn shows_alike(&self, other: &Self) -> [bool; 2];
}

impl Series for CounterDelta {
    fn source(&self) -> &str {
        &self.source
    }

    fn is_same_as(&self, other: &Self) -> bool {
        (&self.name, self.role, &self.place, &self.labels) == (&other.name, other.role, &other.place, &other.labels)
    }

    fn shows_alike(&self, other: &Self) -> [bool; 2] {
        [self.before == other.before, self.after == other.after]
    }
}

impl Series for HistogramDelta {
    fn source(&self) -> &str {
        &self.source
    }

    fn is_same_as(&self, other: &Self) -> bool {
        self.name == other.name && self.labels == other.labels
    }

    fn shows_alike(&self, other: &Self) -> [bool; 2] {
        [self.before == other.before, self.after == other.after]
    }
}
