//! One choice after the other by one method, for whoever knows the loads: SGLang's controller by its budget, a client that
//! pins turns by its own requests in flight.

use crate::policy::{Affinity, Fallback, Load, Method, RoundRobin, choose, rendezvous};
use crate::units::Rank;

/// A request, as far as the choice of a rank is concerned.
#[derive(Debug, Clone, Copy, Default)]
pub struct Arrival<'a> {
    /// The routing key; an empty one is none.
    pub key: Option<&'a str>,
    pub prompt: &'a [u32],
    /// The rank that the caller asks for by number.
    pub pin: Option<Rank>,
}

/// Where a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dispatch {
    pub rank: Rank,
    /// Where the key or prompt wanted to go; none where the method knows no preference.
    pub preferred: Option<Rank>,
}

impl Dispatch {
    /// Whether the guard sent the request past its preferred rank.
    #[must_use]
    pub fn spilled(&self) -> bool {
        self.preferred.is_some_and(|preferred| preferred != self.rank)
    }
}

/// A method, its settings, and the counter that it keeps between choices.
#[derive(Debug, Clone)]
pub struct Chooser {
    method: Method,
    affinity: Affinity,
    counter: RoundRobin,
}

impl Chooser {
    #[must_use]
    pub fn new(method: Method, affinity: Affinity) -> Self {
        Self { method, affinity, counter: RoundRobin::default() }
    }

    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// How many leading ids of the prompt decide where a request with this key goes; 0 where the prompt does not matter.
    #[must_use]
    pub fn prompt_window(&self, key: Option<&str>) -> usize {
        let is_keyed = key.is_some_and(|key| !key.is_empty());
        match self.method {
            Method::PrefixMatch => choose::MATCHED_TOKENS,
            Method::PrefixAffinity if self.affinity.token_fallback && !is_keyed => self.affinity.hash_tokens.get(),
            Method::PrefixAffinity | Method::RoundRobin | Method::TotalRequests | Method::TotalTokens => 0,
        }
    }

    /// Chooses among the live ones of `ranks`; `pin` is not looked at. None when no rank is live.
    pub fn choose(
        &mut self,
        arrival: &Arrival<'_>,
        ranks: &[Rank],
        is_live: impl Fn(Rank) -> bool,
        load: impl Fn(Rank) -> Load,
    ) -> Option<Dispatch> {
        let live = || ranks.iter().copied().filter(|rank| is_live(*rank)).collect::<Vec<_>>();
        let counter = &mut self.counter;
        let mut by = |fallback| match fallback {
            Fallback::RoundRobin => counter.next(ranks, &is_live),
            Fallback::TotalRequests => choose::least_requests(&live(), &load),
            Fallback::TotalTokens => choose::least_tokens(&live(), &load),
        };
        let unguided = |rank| Dispatch { rank, preferred: None };
        match self.method {
            Method::RoundRobin => by(Fallback::RoundRobin).map(unguided),
            Method::TotalRequests => by(Fallback::TotalRequests).map(unguided),
            Method::TotalTokens => by(Fallback::TotalTokens).map(unguided),
            Method::PrefixMatch => match choose::prefix_match(arrival.prompt, &live()) {
                Some(rank) => Some(Dispatch { rank, preferred: Some(rank) }),
                None => by(Fallback::RoundRobin).map(unguided),
            },
            Method::PrefixAffinity => match self.affinity.key(arrival.key, arrival.prompt) {
                Some(key) => {
                    let order = rendezvous(&key, &live());
                    let Affinity { guard, max_load_skew, .. } = self.affinity;
                    let rank = choose::guarded(&order, guard, max_load_skew, &load)?;
                    Some(Dispatch { rank, preferred: order.first().copied() })
                }
                None => by(self.affinity.fallback).map(unguided),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_read_only_where_it_decides() {
        let window = |method, affinity| {
            let chooser = Chooser::new(method, affinity);
            [None, Some(""), Some("k")].map(|key| chooser.prompt_window(key))
        };
        assert_eq!(window(Method::RoundRobin, Affinity::default()), [0; 3]);
        assert_eq!(window(Method::PrefixMatch, Affinity::default()), [4096; 3]);
        assert_eq!(window(Method::PrefixAffinity, Affinity::default()), [4096, 4096, 0]);
        let keys_only = Affinity { token_fallback: false, ..Affinity::default() };
        assert_eq!(window(Method::PrefixAffinity, keys_only), [0; 3]);
    }
}
