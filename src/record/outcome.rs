//! How a planned turn ended. Every planned turn ends in exactly one of these, so that
//! planned = complete + failed + cancelled + skipped, always.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The end of one planned turn; in JSON `complete`, `cancelled`, `skipped`, or the kind of the failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Outcome {
    /// Output arrived, and the server said that it was all.
    Complete,
    /// Cut by the end of the run itself (duration, interrupt).
    Cancelled,
    /// Never sent, because an earlier turn of its session failed.
    Skipped,
    /// Sent, or tried, without a usable reply.
    Failed(Failure),
}

/// Why a turn failed. The kinds say who to ask: the network, this host, the server's HTTP side, or its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// No connection: refused, unreachable, or not within the connect timeout.
    Connect,
    /// The TLS handshake failed.
    Tls,
    /// This host ran out of ports, descriptors or memory: not the server's fault.
    ClientResource,
    /// A status other than 2xx.
    Http(u16),
    /// A 2xx reply that carried an `error` object or string.
    InBandError,
    /// The engine said `finish_reason: abort`.
    Aborted,
    /// The reply ended without `[DONE]`, a finish reason, or the rest of its body.
    Truncated,
    /// The connection was reset while the reply was under way.
    Reset,
    /// No byte of the reply body within the first-byte timeout.
    FirstByteTimeout,
    /// Silence between bytes longer than the idle timeout.
    IdleTimeout,
    /// A well-formed end, but no output at all.
    NoOutput,
    /// Bytes that are not the protocol of the API in use.
    Protocol,
}

impl Outcome {
    /// Whether the turn produced a usable reply.
    #[must_use]
    pub fn is_complete(self) -> bool {
        self == Self::Complete
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete => f.write_str("complete"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Skipped => f.write_str("skipped"),
            Self::Failed(failure) => failure.fmt(f),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Http(status) => return write!(f, "http_{status:03}"),
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::ClientResource => "client_resource",
            Self::InBandError => "in_band_error",
            Self::Aborted => "aborted",
            Self::Truncated => "truncated",
            Self::Reset => "reset",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::NoOutput => "no_output",
            Self::Protocol => "protocol",
        };
        f.write_str(name)
    }
}

/// A word that is no outcome.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is no outcome of a turn")]
pub struct UnknownOutcome(String);

impl FromStr for Outcome {
    type Err = UnknownOutcome;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Ok(match word {
            "complete" => Self::Complete,
            "cancelled" => Self::Cancelled,
            "skipped" => Self::Skipped,
            _ => Self::Failed(word.parse()?),
        })
    }
}

impl FromStr for Failure {
    type Err = UnknownOutcome;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownOutcome(word.to_owned());
        Ok(match word {
            "connect" => Self::Connect,
            "tls" => Self::Tls,
            "client_resource" => Self::ClientResource,
            "in_band_error" => Self::InBandError,
            "aborted" => Self::Aborted,
            "truncated" => Self::Truncated,
            "reset" => Self::Reset,
            "first_byte_timeout" => Self::FirstByteTimeout,
            "idle_timeout" => Self::IdleTimeout,
            "no_output" => Self::NoOutput,
            "protocol" => Self::Protocol,
            _ => Self::Http(word.strip_prefix("http_").and_then(|n| n.parse().ok()).ok_or_else(unknown)?),
        })
    }
}

impl From<Outcome> for String {
    fn from(outcome: Outcome) -> Self {
        outcome.to_string()
    }
}

impl TryFrom<String> for Outcome {
    type Error = UnknownOutcome;

    fn try_from(word: String) -> Result<Self, Self::Error> {
        word.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_reads_back_from_its_word() {
        let failures = [
            Failure::Connect,
            Failure::Tls,
            Failure::ClientResource,
            Failure::Http(503),
            Failure::InBandError,
            Failure::Aborted,
            Failure::Truncated,
            Failure::Reset,
            Failure::FirstByteTimeout,
            Failure::IdleTimeout,
            Failure::NoOutput,
            Failure::Protocol,
        ];
        let plain = [Outcome::Complete, Outcome::Cancelled, Outcome::Skipped];
        for outcome in plain.into_iter().chain(failures.map(Outcome::Failed)) {
            assert_eq!(outcome.to_string().parse::<Outcome>().unwrap(), outcome);
        }
        assert!("http_".parse::<Outcome>().is_err());
        assert!("fine".parse::<Outcome>().is_err());
    }
}
