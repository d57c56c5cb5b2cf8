//! Units as types. Times are integers of microseconds from the start of the run, so that a record is exact, small and
//! the same on every machine; milliseconds appear only where a number is shown.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Microseconds from the start of the run (or a span of that unit).
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Micros(pub u64);

impl Micros {
    /// The span from `earlier` to `self`; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Milliseconds, for display and for JSON keys that end in `_ms`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "2^53 µs are 285 years")]
    pub fn as_ms(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// Seconds, for rates.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "2^53 µs are 285 years")]
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl From<Duration> for Micros {
    /// Rounds to the nearest microsecond; saturates after 584,000 years.
    fn from(span: Duration) -> Self {
        Self(u64::try_from((span.as_nanos() + 500) / 1000).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Self {
        Self::from_micros(span.0)
    }
}

impl std::ops::Add for Micros {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

/// One data-parallel KV cache behind one address, by the stable id that its server gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u16);

/// Most ranks of one server that are believed, or simulated: some things take memory for each. The largest deployments
/// have hundreds.
pub const MOST_RANKS: u32 = 4096;

impl std::fmt::Display for Rank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a node does where prefill and decode are apart: every prompt passes one of either kind, and both count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    Prefill,
    Decode,
}

impl NodeRole {
    /// The role of this name, as callers give it and as servers say it.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        [Self::Prefill, Self::Decode].into_iter().find(|role| role.name() == word)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// Whether a character is none that is read but one that steers what shows it: control characters, line separators, and the
/// marks that turn the direction of text round, so that a name can show as another or swap the cells of a table's row.
#[must_use]
pub fn steers(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// An address without user and password.
#[must_use]
pub fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let authority_end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// An address without what may be secret in it: user and password, and the values of its query.
#[must_use]
pub fn public_address(url: &str) -> String {
    let url = without_user(url);
    let Some((path, query)) = url.split_once('?') else { return url };
    let mut public = path.to_owned();
    for (at, part) in query.split('&').enumerate() {
        public.push(if at == 0 { '?' } else { '&' });
        // A part without a name is a value.
        let name = part.split_once('=').map_or("", |(name, _)| name);
        public.push_str(if part.is_empty() { "" } else { name });
        public.push_str(if part.is_empty() { "" } else { "=(hidden)" });
    }
    public
}

/// A count in groups of three digits: `2,162,688`. Counts of a run are printed by this and [`plural`].
#[must_use]
pub fn grouped(count: u64) -> String {
    group(&count.to_string())
}

/// A count with what it counts: `1 turn`, `2,048 turns`.
#[must_use]
pub fn plural(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// The same of a count that is held as a float, rounded.
#[must_use]
pub fn grouped_float(count: f64) -> String {
    group(&format!("{count:.0}"))
}

/// Decimal digits, with a sign or without, in groups of three.
fn group(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let mut out = String::from(sign);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_public_address_has_neither_user_nor_values() {
        let cases = [
            ("http://h:1/v1", "http://h:1/v1"),
            ("http://u:p@h:1/v1?k=S&x=S", "http://h:1/v1?k=(hidden)&x=(hidden)"),
            ("https://u:p@ss@[::1]:8?S", "https://[::1]:8?=(hidden)"),
            ("http://h/a@b", "http://h/a@b"),
            ("sim:round_robin", "sim:round_robin"),
        ];
        for (url, public) in cases {
            assert_eq!(public_address(url), public);
        }
    }

    #[test]
    fn a_span_never_goes_below_zero_and_rounds_to_the_nearest_microsecond() {
        assert_eq!(Micros(5).since(Micros(7)), Micros(0));
        assert_eq!(Micros::from(Duration::from_nanos(1499)), Micros(1));
        assert_eq!(Micros::from(Duration::from_nanos(1500)), Micros(2));
        assert!((Micros(1500).as_ms() - 1.5).abs() < 1e-12);
    }
}
