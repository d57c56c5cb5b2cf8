//! One turn as it happened: who it was, when its bytes moved, what the server counted.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::{Failure, Oddity, Outcome, Place, PlaceSource, ServerTimes};
use crate::units::Micros;

/// Which turn of the plan: its group, its session within the group, its place in the conversation (from 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TurnId {
    pub group: u32,
    pub session: u32,
    pub turn: u32,
}

impl std::fmt::Display for TurnId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "g{}-s{}-t{}", self.group, self.session, self.turn)
    }
}

/// Output within this span is one delivery, not a stream.
const AT_ONCE: Micros = Micros(1_000);

/// The silence before one output frame after the first. Eight bytes, since a stream has as many as it has tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// From the previous output frame to this one.
    pub us: u32,
    tokens: Option<Count>,
}

/// A number below [`u32::MAX`], kept as the one after it: so zero is free to mean that there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u32", into = "u32")]
struct Count(NonZeroU32);

impl From<u32> for Count {
    fn from(number: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(number))
    }
}

impl From<Count> for u32 {
    fn from(count: Count) -> Self {
        count.0.get() - 1
    }
}

impl Gap {
    #[must_use]
    pub fn new(us: u32, tokens: Option<u32>) -> Self {
        Self { us, tokens: tokens.map(Count::from) }
    }

    /// New tokens in this frame; absent where the server does not say.
    #[must_use]
    pub fn tokens(self) -> Option<u32> {
        self.tokens.map(u32::from)
    }
}

/// One line of `requests.jsonl`. Times are offsets from the start of the run; absent is null, never 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// The turn's own id, unique in the run; also sent as `X-Request-ID`.
    pub id: String,
    pub group: u32,
    pub session: u32,
    pub turn: u32,
    /// The routing key that the turn carried.
    pub key: Option<String>,
    /// When the plan said that it leaves.
    pub due_us: Micros,
    /// How long a cap held it back under a rate, a part of sent − due; absent where no cap applies.
    pub cap_wait_us: Option<Micros>,
    /// First poll of the request body: what a kernel stamp shows within microseconds.
    pub sent_us: Option<Micros>,
    /// Response head in hand.
    pub head_us: Option<Micros>,
    /// First event that carries output.
    pub first_us: Option<Micros>,
    /// First output after reasoning; equals `first_us` without reasoning.
    pub answer_us: Option<Micros>,
    /// Last event that carries output.
    pub last_us: Option<Micros>,
    /// End of the stream, or of the attempt.
    pub done_us: Option<Micros>,
    pub outcome: Outcome,
    /// What the server or the network said of a failure, in short.
    pub detail: Option<String>,
    pub status: Option<u16>,
    /// As the server counted.
    pub prompt_tokens: Option<u32>,
    pub planned_prompt_tokens: Option<u32>,
    pub cached_tokens: Option<u32>,
    pub output_tokens: Option<u32>,
    pub planned_output_tokens: u32,
    /// The output count is our own estimate, because the server sent no usage.
    pub output_estimated: bool,
    pub reasoning_tokens: Option<u32>,
    /// Events that carried output.
    pub frames: u32,
    /// Tokens in the first of them, where known.
    pub first_frame_tokens: Option<u32>,
    pub finish: Option<String>,
    pub place: Option<Place>,
    pub place_source: Option<PlaceSource>,
    /// Where the time to first token went, where the server tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_times: Option<ServerTimes>,
    /// The id that the server gave the request.
    pub request_id: Option<String>,
    /// Whether it went over a connection that was open before.
    pub reused_connection: Option<bool>,
    /// How long its own connection took to open; absent where it went over one that was open. A part of sent − due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_us: Option<Micros>,
    /// This host's port of the connection by which the reply came: turns that shared a connection have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_port: Option<u16>,
    pub resends: u32,
    /// What the reply did beside the protocol, each kind once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub oddities: Vec<Oddity>,
    /// Gaps between output frames, in order; written to the file only on request, since it outweighs all the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "gaps_us")]
    pub gaps: Vec<Gap>,
}

impl TurnRecord {
    /// A turn of which nothing has happened yet.
    #[must_use]
    pub fn planned(id: String, turn: TurnId, key: Option<String>, due_us: Micros, planned_output_tokens: u32) -> Self {
        Self {
            id,
            group: turn.group,
            session: turn.session,
            turn: turn.turn,
            key,
            due_us,
            cap_wait_us: None,
            sent_us: None,
            head_us: None,
            first_us: None,
            answer_us: None,
            last_us: None,
            done_us: None,
            outcome: Outcome::Skipped,
            detail: None,
            status: None,
            prompt_tokens: None,
            planned_prompt_tokens: None,
            cached_tokens: None,
            output_tokens: None,
            planned_output_tokens,
            output_estimated: false,
            reasoning_tokens: None,
            frames: 0,
            first_frame_tokens: None,
            finish: None,
            place: None,
            place_source: None,
            server_times: None,
            request_id: None,
            reused_connection: None,
            connect_us: None,
            local_port: None,
            resends: 0,
            oddities: Vec::new(),
            gaps: Vec::new(),
        }
    }

    /// The turn's position in the plan.
    #[must_use]
    pub fn turn_id(&self) -> TurnId {
        TurnId { group: self.group, session: self.session, turn: self.turn }
    }

    /// Time to first token from when the request left: what the server did.
    #[must_use]
    pub fn ttft(&self) -> Option<Micros> {
        Some(self.first_us?.since(self.sent_us?))
    }

    /// Time to first token from when the plan said to send: what a user who came on time saw.
    #[must_use]
    pub fn ttft_from_due(&self) -> Option<Micros> {
        Some(self.first_us?.since(self.due_us))
    }

    /// Time to the first token after reasoning.
    #[must_use]
    pub fn answer(&self) -> Option<Micros> {
        Some(self.answer_us?.since(self.sent_us?))
    }

    /// End-to-end latency: from sent to the last output.
    #[must_use]
    pub fn e2e(&self) -> Option<Micros> {
        Some(self.last_us?.since(self.sent_us?))
    }

    /// End-to-end latency from the due time.
    #[must_use]
    pub fn e2e_from_due(&self) -> Option<Micros> {
        Some(self.last_us?.since(self.due_us))
    }

    /// How late the client itself was.
    #[must_use]
    pub fn send_lag(&self) -> Option<Micros> {
        Some(self.sent_us?.since(self.due_us))
    }

    /// Whether nothing listened at the server's address.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        let says = |detail: &String| detail.to_lowercase().contains("refused");
        self.outcome == Outcome::Failed(Failure::Connect) && self.detail.as_ref().is_some_and(says)
    }

    /// Notes an oddity once.
    pub fn note(&mut self, oddity: Oddity) {
        if !self.oddities.contains(&oddity) {
            self.oddities.push(oddity);
        }
    }

    /// Whether several output frames came in one millisecond or less: a buffer before the client held the stream back, and
    /// the time to its first token is the time to its last.
    #[must_use]
    pub fn came_at_once(&self) -> bool {
        let span = self.first_us.zip(self.last_us).map(|(first, last)| last.since(first));
        self.frames > 1 && span.is_some_and(|span| span <= AT_ONCE)
    }

    /// Time per output token in µs: (last − first) / (n − tokens of the first frame); none at n ≤ that, and none when all
    /// output came at one instant, where a rate would be division by nothing.
    ///
    /// A first frame of unknown size counts as one token.
    #[must_use]
    pub fn tpot_us(&self) -> Option<f64> {
        let rest = self.output_tokens?.checked_sub(self.first_frame_tokens.unwrap_or(1)).filter(|n| *n > 0)?;
        let span = Some(self.last_us?.since(self.first_us?)).filter(|span| *span > Micros(0))?;
        Some(span.as_secs() * 1e6 / f64::from(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn() -> TurnRecord {
        let id = TurnId { group: 1, session: 2, turn: 0 };
        TurnRecord {
            sent_us: Some(Micros(1_000)),
            first_us: Some(Micros(101_000)),
            answer_us: Some(Micros(101_000)),
            last_us: Some(Micros(221_000)),
            output_tokens: Some(13),
            first_frame_tokens: Some(1),
            ..TurnRecord::planned("a".into(), id, None, Micros(500), 13)
        }
    }

    #[test]
    fn a_gap_takes_eight_bytes_and_tells_zero_tokens_from_none() {
        assert_eq!(size_of::<Gap>(), 8);
        for tokens in [None, Some(0), Some(1), Some(u32::MAX - 1)] {
            let gap = Gap::new(7, tokens);
            let json = serde_json::to_value(gap).unwrap();
            assert_eq!(json, serde_json::json!({ "us": 7, "tokens": tokens }));
            assert_eq!((serde_json::from_value::<Gap>(json).unwrap(), gap.tokens()), (gap, tokens));
        }
    }

    #[test]
    fn both_clocks_start_where_they_say() {
        assert_eq!(turn().ttft(), Some(Micros(100_000)));
        assert_eq!(turn().ttft_from_due(), Some(Micros(100_500)));
        assert_eq!(turn().send_lag(), Some(Micros(500)));
        assert_eq!(turn().e2e(), Some(Micros(220_000)));
    }

    #[test]
    fn tpot_leaves_the_first_frame_out_and_is_absent_when_nothing_is_left() {
        assert_eq!(turn().tpot_us(), Some(10_000.0));
        assert_eq!(TurnRecord { first_frame_tokens: Some(5), ..turn() }.tpot_us(), Some(15_000.0));
        assert_eq!(TurnRecord { first_frame_tokens: Some(13), ..turn() }.tpot_us(), None);
        assert_eq!(TurnRecord { output_tokens: Some(1), ..turn() }.tpot_us(), None);
        assert_eq!(TurnRecord { output_tokens: None, ..turn() }.tpot_us(), None);
        assert_eq!(TurnRecord { last_us: Some(Micros(101_000)), ..turn() }.tpot_us(), None);
    }

    #[test]
    fn a_record_is_one_json_line_and_reads_back() {
        let line = serde_json::to_string(&turn()).unwrap();
        assert!(!line.contains('\n') && !line.contains("gaps_us"));
        assert_eq!(serde_json::from_str::<TurnRecord>(&line).unwrap(), turn());
    }
}
