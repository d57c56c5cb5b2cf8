//! What a reply did that its reader would not expect, though it could be used.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A fault of the protocol, or another thing to know of a reply, that spoilt no fact of the turn, or only those that are
/// absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Oddity {
    /// One JSON body in place of a stream: no first token, no gaps.
    NotStreamed,
    /// Events after `[DONE]`, which say nothing.
    AfterDone,
    /// Bytes that are no UTF-8, read with replacement characters as the standard of event streams asks.
    InvalidUtf8,
    /// Lines that are no field of an event stream.
    StrayLines,
    /// The connection broke after `[DONE]`.
    BrokenAfterDone,
    /// Compressed although only `identity` was asked for: a compressor may have held tokens back.
    Compressed,
    /// Served by another rank than the one that was asked for.
    PinIgnored,
    /// Output came as `delta.refusal`: the model declined to answer.
    Refusal,
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotStreamed => "not_streamed",
            Self::AfterDone => "after_done",
            Self::InvalidUtf8 => "invalid_utf8",
            Self::StrayLines => "stray_lines",
            Self::BrokenAfterDone => "broken_after_done",
            Self::Compressed => "compressed",
            Self::PinIgnored => "pin_ignored",
            Self::Refusal => "refusal",
        })
    }
}
