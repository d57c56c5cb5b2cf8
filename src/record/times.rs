//! Where the time to first token went, as the server says it.

use serde::{Deserialize, Serialize};

/// Spans of one turn by the server's own clock, in µs; absent where it does not tell. Those that are told follow each
/// other, from the request's arrival to the hand-over of its first token.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerTimes {
    /// From the request's arrival to the scheduler's queue: reading, tokenizing, dispatch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intake_us: Option<u32>,
    /// In the queue, until its first forward pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_us: Option<u32>,
    /// From its first forward pass to the end of its prefill, with what ran in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill_us: Option<u32>,
    /// From the end of its prefill until the first token was handed to the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_us: Option<u32>,
}

impl ServerTimes {
    /// The spans in their order.
    #[must_use]
    pub fn spans(&self) -> [Option<u32>; 4] {
        let Self { intake_us, queue_us, prefill_us, return_us } = *self;
        [intake_us, queue_us, prefill_us, return_us]
    }

    /// Their sum, where all are told.
    #[must_use]
    pub fn total_us(&self) -> Option<u64> {
        self.spans().into_iter().map(|span| span.map(u64::from)).sum()
    }

    /// Whether nothing is told.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_add_up_only_where_all_are_told() {
        let mut times = ServerTimes { intake_us: Some(1), queue_us: Some(2), prefill_us: Some(3), return_us: None };
        assert_eq!(times.total_us(), None);
        assert_eq!(serde_json::to_string(&times).unwrap(), r#"{"intake_us":1,"queue_us":2,"prefill_us":3}"#);
        times.return_us = Some(u32::MAX);
        assert_eq!(times.total_us(), Some(6 + u64::from(u32::MAX)));
        assert!(ServerTimes::default().is_silent() && !times.is_silent());
    }
}
