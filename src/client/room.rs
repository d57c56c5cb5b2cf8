//! How long a reply may be: far beyond any real one, so that a server that never ends costs a turn, and not this host's
//! memory.

use crate::wire::Excess;

/// Events of any reply, however short the plan wants it: several times those of the longest real one.
const EVENTS: u32 = 1 << 20;

/// Further events for each output token of the plan, which is one event as a rule.
const PER_TOKEN: u32 = 16;

/// Bytes of text for each event that there may be; a token has four on average.
const TEXT_PER_EVENT: usize = 16;

/// How much of one reply may still come.
#[derive(Debug, Default)]
pub(super) struct Room {
    planned: u32,
    /// Events that may still come.
    events: u32,
    full: Option<String>,
}

impl Room {
    /// For a reply of so many output tokens.
    pub(super) fn of(planned: u32) -> Self {
        Self { planned, events: most_events(planned), full: None }
    }

    /// Whether one more event may come; it is counted.
    pub(super) fn take(&mut self) -> bool {
        let Some(left) = self.events.checked_sub(1) else {
            let limit = most_events(self.planned);
            self.fill(format!("the reply has more than {limit} events, the limit for {} output tokens", self.planned));
            return false;
        };
        self.events = left;
        true
    }

    /// Sees that the text of the answer is so many bytes long by now.
    pub(super) fn hold(&mut self, text: usize) {
        let limit = most_events(self.planned) as usize * TEXT_PER_EVENT;
        if text > limit {
            let tokens = self.planned;
            self.fill(format!("the reply's text is longer than {limit} bytes, the limit for {tokens} output tokens"));
        }
    }

    /// Sees what the stream had too much of.
    pub(super) fn see(&mut self, excess: Option<Excess>) {
        match excess {
            None => {}
            Some(Excess::Event { limit }) => {
                self.fill(format!(
                    "a line or event of the reply is longer than {limit} bytes, the limit: raise \
                     `request.largest_event_mib` (--largest-event-mib)"
                ));
            }
            Some(Excess::NoEvent { limit }) => {
                self.fill(format!(
                    "the reply has more than {limit} bytes of comments and blank lines in a row, the limit of \
                     `request.largest_event_mib`"
                ));
            }
            Some(Excess::Stray { limit }) => {
                self.fill(format!("the reply has more than {limit} bytes that are no events, the limit"));
            }
        }
    }

    /// Why nothing more may come; the first reason counts.
    pub(super) fn full(&self) -> Option<&str> {
        self.full.as_deref()
    }

    fn fill(&mut self, why: String) {
        self.events = 0;
        self.full.get_or_insert(why);
    }

    #[cfg(test)]
    pub(super) fn narrow(&mut self, events: u32) {
        self.events = events;
    }
}

fn most_events(planned: u32) -> u32 {
    planned.saturating_mul(PER_TOKEN).saturating_add(EVENTS)
}
