//! The text of a turn, made when it is needed and always the same.

use std::sync::{Arc, OnceLock};

use super::plan::Plan;
use super::seed::derive;
use crate::profile::History;
use crate::text::{JOINT, Passage, Vocabulary};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

/// One part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub passage: Passage,
}

/// What one turn sends: the group's system prompt (left out where it is planned empty), then question, reply, question …
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub messages: Vec<Message>,
}

impl Prompt {
    /// All parts as one text, joined by [`JOINT`]: for routes that take no messages.
    #[must_use]
    pub fn text(&self) -> String {
        let parts: Vec<&str> = self.parts().map(|passage| &*passage.text).collect();
        parts.join(JOINT)
    }

    /// The ids of [`Prompt::text`], as the tokenizer would give them; `None` where a part has none.
    #[must_use]
    pub fn ids(&self) -> Option<Vec<u32>> {
        let mut joined = Vec::new();
        for passage in self.parts() {
            let at = joined.len();
            joined.extend_from_slice(passage.ids.as_deref()?);
            if let Some(id) = joined.get_mut(at).filter(|_| at > 0) {
                *id = passage.first_after_joint?;
            }
        }
        Some(joined)
    }

    fn parts(&self) -> impl Iterator<Item = &Passage> {
        self.messages.iter().map(|message| &message.passage).filter(|passage| !passage.is_empty())
    }
}

/// Makes the prompts of a plan. Shared by all sessions; a group's system prompt is made once, when it is first asked for.
#[derive(Debug)]
pub struct Prompter {
    plan: Arc<Plan>,
    vocabulary: Arc<Vocabulary>,
    systems: Vec<OnceLock<Passage>>,
}

impl Prompter {
    #[must_use]
    pub fn new(plan: Arc<Plan>, vocabulary: Arc<Vocabulary>) -> Self {
        let systems = plan.system_tokens.iter().map(|_| OnceLock::new()).collect();
        Self { plan, vocabulary, systems }
    }

    /// The prompt of turn `turn` of the session at index `at` of the plan.
    ///
    /// With real history, `replies` holds the text that the server gave to each earlier turn; with synthetic history it
    /// is not looked at.
    ///
    /// # Panics
    /// When the plan has no such turn.
    #[must_use]
    pub fn prompt(&self, at: usize, turn: u32, replies: &[String]) -> Prompt {
        let session = &self.plan.sessions[at];
        let (group, seat) = (session.group, Seat { group: session.group, session: session.session });
        let mut messages = Vec::with_capacity(2 + 2 * turn as usize);
        let system = self.systems[group as usize].get_or_init(|| {
            let tokens = self.plan.system_tokens[group as usize];
            system_family(&self.plan).passage(&self.vocabulary, group.into(), tokens)
        });
        if !system.is_empty() {
            messages.push(Message { role: Role::System, passage: system.clone() });
        }
        for k in 0..=turn {
            let planned = session.turns[k as usize];
            let question =
                question_family(&self.plan, k).passage(&self.vocabulary, seat.ordinal(), planned.question_tokens);
            messages.push(Message { role: Role::User, passage: question });
            if k == turn {
                break;
            }
            let reply = match self.plan.workload.history {
                History::Synthetic => {
                    reply_family(&self.plan, k).passage(&self.vocabulary, seat.ordinal(), planned.output_tokens)
                }
                History::Real => Passage::from_text(replies.get(k as usize).map_or("", String::as_str)),
            };
            messages.push(Message { role: Role::Assistant, passage: reply });
        }
        Prompt { messages }
    }

    /// Tokens of that prompt; see [`Plan::prompt_tokens`] for what is exact.
    #[must_use]
    pub fn prompt_tokens(&self, at: usize, turn: u32) -> Option<u32> {
        self.plan.prompt_tokens(at, turn)
    }

    /// The plan whose prompts these are.
    #[must_use]
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }
}

/// A session of a group, as the number of its passages within their family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seat {
    pub(super) group: u32,
    pub(super) session: u32,
}

impl Seat {
    /// The session counts lowest, so that the sessions of one group differ at the first token of their questions; the
    /// number depends on nothing else, so that more groups or sessions change no text.
    pub(super) fn ordinal(self) -> u64 {
        u64::from(self.group) << 32 | u64::from(self.session)
    }
}

/// Passages that differ from each other at their first tokens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family(u64);

impl Family {
    fn passage(self, vocabulary: &Vocabulary, ordinal: u64, tokens: u32) -> Passage {
        vocabulary.passage(self.0, ordinal, tokens)
    }

    /// Appends the text of that passage.
    pub(super) fn write(self, vocabulary: &Vocabulary, text: &mut String, ordinal: u64, tokens: u32) {
        vocabulary.write(text, self.0, ordinal, tokens);
    }
}

pub(super) fn system_family(plan: &Plan) -> Family {
    Family(derive(plan.workload.seed, "system", &[]))
}

pub(super) fn question_family(plan: &Plan, turn: u32) -> Family {
    Family(derive(plan.workload.seed, "question", &[turn.into()]))
}

fn reply_family(plan: &Plan, turn: u32) -> Family {
    Family(derive(plan.workload.seed, "reply", &[turn.into()]))
}
