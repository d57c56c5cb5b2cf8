//! The names and settings of the policies, checked once when they are parsed; after that no one checks again.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

/// How a controller chooses a rank, in SGLang's spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// In turn, blind to everything.
    RoundRobin,
    /// The rank with the fewest requests, running or waiting.
    TotalRequests,
    /// The rank with the fewest tokens in use, then the fewest requests.
    TotalTokens,
    /// Hash of the prompt's head modulo the number of live ranks.
    PrefixMatch,
    /// Rendezvous hash of the routing key (or of the prompt's head), bounded by a load guard.
    PrefixAffinity,
}

/// What `prefix_affinity` does with a request that has no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fallback {
    RoundRobin,
    TotalRequests,
    #[default]
    TotalTokens,
}

/// The load that makes `prefix_affinity` pass over a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Guard {
    /// Never: a key stays on its preferred rank whatever the load.
    None,
    /// Running and waiting requests.
    #[default]
    Requests,
    /// Tokens in use, as in the first version of PR #31170: one long session marks its own rank overloaded.
    Tokens,
}

/// Settings of `prefix_affinity`; the defaults are those of PR #31170.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Affinity {
    pub fallback: Fallback,
    pub max_load_skew: MaxLoadSkew,
    /// How many leading token ids make the key of a request without a routing key.
    pub hash_tokens: NonZeroUsize,
    /// Whether a request without a routing key gets one from its prompt.
    pub token_fallback: bool,
    pub guard: Guard,
}

/// How far above the mean load a rank may be and still be chosen by affinity: finite and at least 1.
///
/// Below 1 the rank at the mean would be refused, and a walk over equally loaded ranks would find none.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct MaxLoadSkew(f64);

/// A name that is none of the choices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{given}`: choose one of {choices}")]
pub struct UnknownName {
    what: &'static str,
    given: String,
    choices: String,
}

/// A skew that would leave requests without a rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "max load skew `{0}`: give a finite number of at least 1 (1.5 spills above one and a half times the mean load)"
)]
pub struct BadSkew(String);

impl Method {
    /// Every method, in the order of help texts.
    pub const ALL: [Self; 5] =
        [Self::RoundRobin, Self::TotalRequests, Self::TotalTokens, Self::PrefixMatch, Self::PrefixAffinity];

    /// SGLang's spelling.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::TotalRequests => "total_requests",
            Self::TotalTokens => "total_tokens",
            Self::PrefixMatch => "prefix_match",
            Self::PrefixAffinity => "prefix_affinity",
        }
    }

    /// Whether the choice depends on loads; `prefix_affinity` reads them for its guard and its fallback.
    #[must_use]
    pub fn reads_loads(self) -> bool {
        match self {
            Self::TotalRequests | Self::TotalTokens | Self::PrefixAffinity => true,
            Self::RoundRobin | Self::PrefixMatch => false,
        }
    }
}

impl Fallback {
    /// Every fallback, in the order of help texts.
    pub const ALL: [Self; 3] = [Self::RoundRobin, Self::TotalRequests, Self::TotalTokens];

    /// SGLang's spelling.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::TotalRequests => "total_requests",
            Self::TotalTokens => "total_tokens",
        }
    }
}

impl Guard {
    /// Every guard, in the order of help texts.
    pub const ALL: [Self; 3] = [Self::None, Self::Requests, Self::Tokens];

    /// The spelling of flags and profiles.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Requests => "requests",
            Self::Tokens => "tokens",
        }
    }
}

impl Default for Affinity {
    fn default() -> Self {
        Self {
            fallback: Fallback::default(),
            max_load_skew: MaxLoadSkew::default(),
            hash_tokens: NonZeroUsize::new(4096).expect("4096 is not zero"),
            token_fallback: true,
            guard: Guard::default(),
        }
    }
}

impl MaxLoadSkew {
    /// The factor on the mean load.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Default for MaxLoadSkew {
    fn default() -> Self {
        Self(1.5)
    }
}

impl TryFrom<f64> for MaxLoadSkew {
    type Error = BadSkew;
    fn try_from(skew: f64) -> Result<Self, BadSkew> {
        if skew.is_finite() && skew >= 1.0 { Ok(Self(skew)) } else { Err(BadSkew(skew.to_string())) }
    }
}

impl FromStr for MaxLoadSkew {
    type Err = BadSkew;
    fn from_str(given: &str) -> Result<Self, BadSkew> {
        given.parse::<f64>().map_err(|_| BadSkew(given.to_owned()))?.try_into()
    }
}

impl fmt::Display for MaxLoadSkew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Method {
    type Err = UnknownName;
    fn from_str(given: &str) -> Result<Self, UnknownName> {
        named("load balance method", given, &Self::ALL, Self::name)
    }
}

impl FromStr for Fallback {
    type Err = UnknownName;
    fn from_str(given: &str) -> Result<Self, UnknownName> {
        named("prefix affinity fallback", given, &Self::ALL, Self::name)
    }
}

impl FromStr for Guard {
    type Err = UnknownName;
    fn from_str(given: &str) -> Result<Self, UnknownName> {
        named("guard", given, &Self::ALL, Self::name)
    }
}

fn named<T: Copy>(what: &'static str, given: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T, UnknownName> {
    all.iter().copied().find(|&choice| name(choice) == given).ok_or_else(|| UnknownName {
        what,
        given: given.to_owned(),
        choices: all.iter().map(|&choice| name(choice)).collect::<Vec<_>>().join(", "),
    })
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_as_itself() {
        for method in Method::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        for fallback in Fallback::ALL {
            assert_eq!(fallback.to_string().parse(), Ok(fallback));
        }
        for guard in Guard::ALL {
            assert_eq!(guard.to_string().parse(), Ok(guard));
        }
    }

    #[test]
    fn an_unknown_name_lists_the_choices() {
        let told = "prefix-affinity".parse::<Method>().unwrap_err().to_string();
        assert_eq!(
            told,
            "unknown load balance method `prefix-affinity`: choose one of round_robin, total_requests, total_tokens, \
             prefix_match, prefix_affinity"
        );
        let told = "prefix_match".parse::<Fallback>().unwrap_err().to_string();
        assert!(told.ends_with("choose one of round_robin, total_requests, total_tokens"), "{told}");
    }

    #[test]
    fn a_skew_below_one_or_without_end_is_refused() {
        for bad in ["0.99", "-1", "inf", "NaN", "wide"] {
            let told = bad.parse::<MaxLoadSkew>().unwrap_err().to_string();
            assert!(told.contains(&format!("`{bad}`")) && told.contains("at least 1"), "{told}");
        }
        assert!(("1".parse::<MaxLoadSkew>().unwrap().get() - 1.0).abs() < f64::EPSILON);
    }
}
