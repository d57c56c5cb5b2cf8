//! The text of a turn, made when it is needed and always the same.

use std::sync::{Arc, OnceLock};

use super::plan::Plan;
use super::seed::derive;
use crate::profile::{ArmPrompts, History};
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

/// What a server replied in an unmeasured block: a text for each turn of each session, in the plan's order.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Replies {
    sessions: Vec<Vec<Passage>>,
}

impl Replies {
    #[must_use]
    pub fn new(sessions: &[Vec<String>]) -> Self {
        let passages = |texts: &Vec<String>| texts.iter().map(|text| Passage::from_text(text)).collect();
        Self { sessions: sessions.iter().map(passages).collect() }
    }

    fn get(&self, at: usize, turn: u32) -> Passage {
        self.sessions
            .get(at)
            .and_then(|texts| texts.get(turn as usize))
            .cloned()
            .unwrap_or_else(|| Passage::from_text(""))
    }
}

/// Makes the prompts of a plan. Shared by all sessions; a group's system prompt is made once, when it is first asked for.
#[derive(Debug)]
pub struct Prompter {
    plan: Arc<Plan>,
    vocabulary: Arc<Vocabulary>,
    systems: Vec<OnceLock<Passage>>,
    recorded: Arc<Replies>,
}

impl Prompter {
    #[must_use]
    pub fn new(plan: Arc<Plan>, vocabulary: Arc<Vocabulary>) -> Self {
        let systems = plan.system_tokens.iter().map(|_| OnceLock::new()).collect();
        Self { plan, vocabulary, systems, recorded: Arc::default() }
    }

    /// With the replies that stand as recorded history.
    #[must_use]
    pub fn with_replies(self, recorded: Arc<Replies>) -> Self {
        Self { recorded, ..self }
    }

    /// The prompt of turn `turn` of the session at index `at` of the plan.
    ///
    /// With real history, `replies` holds the text that the server gave to each earlier turn; with any other it is not
    /// looked at.
    ///
    /// # Panics
    /// When the plan has no such turn.
    #[must_use]
    pub fn prompt(&self, at: usize, turn: u32, replies: &[String]) -> Prompt {
        let session = &self.plan.sessions[at];
        let seat = Seat { group: session.group, session: session.session };
        let mut messages = Vec::with_capacity(2 + 2 * turn as usize);
        let system = self.system(seat, turn);
        let is_alone = self.plan.prompts == ArmPrompts::ZeroReuse && system.is_empty();
        if !system.is_empty() {
            messages.push(Message { role: Role::System, passage: system });
        }
        for k in 0..=turn {
            let planned = session.turns[k as usize];
            let family = match k {
                0 if is_alone => lone_family(&self.plan, turn),
                _ => question_family(&self.plan, k),
            };
            let question = family.passage(&self.vocabulary, seat.ordinal(), planned.question_tokens);
            messages.push(Message { role: Role::User, passage: question });
            if k == turn {
                break;
            }
            let reply = match self.plan.workload.history {
                History::Synthetic => {
                    reply_family(&self.plan, k).passage(&self.vocabulary, seat.ordinal(), planned.output_tokens)
                }
                History::Real => Passage::from_text(replies.get(k as usize).map_or("", String::as_str)),
                History::Recorded => self.recorded.get(at, k),
            };
            messages.push(Message { role: Role::Assistant, passage: reply });
        }
        Prompt { messages }
    }

    /// The system prompt: the group's, made once, or one that no other turn has.
    fn system(&self, seat: Seat, turn: u32) -> Passage {
        let Self { plan, vocabulary, systems, .. } = self;
        let tokens = plan.system_tokens[seat.group as usize];
        match plan.prompts {
            ArmPrompts::Plan => systems[seat.group as usize]
                .get_or_init(|| system_family(plan).passage(vocabulary, seat.group.into(), tokens))
                .clone(),
            ArmPrompts::ZeroReuse => lone_family(plan, turn).passage(vocabulary, seat.ordinal(), tokens),
        }
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

/// What stands first in the prompts of one turn number when no two prompts may begin alike. Each turn number begins in its
/// own way by chance: after the one word in hundreds where two do, they differ.
fn lone_family(plan: &Plan, turn: u32) -> Family {
    Family(derive(plan.workload.seed, "lone", &[turn.into()]))
}

fn reply_family(plan: &Plan, turn: u32) -> Family {
    Family(derive(plan.workload.seed, "reply", &[turn.into()]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::profile::sample::spec;
    use crate::profile::{ArmKeys, KeyScope};
    use crate::workload::plan;

    fn prompts(plan: &Plan) -> Vec<Vec<String>> {
        let prompter = Prompter::new(Arc::new(plan.clone()), Arc::new(Vocabulary::words()));
        let turns = 0..plan.workload.turns.get();
        let all = (0..plan.sessions.len()).flat_map(|at| turns.clone().map(move |turn| (at, turn)));
        all.map(|(at, turn)| prompter.prompt(at, turn, &[]).text().split_whitespace().map(str::to_owned).collect())
            .collect()
    }

    #[test]
    fn without_reuse_no_two_prompts_have_four_words_in_common_at_their_heads() {
        for system in [40, 0] {
            let mut spec = spec(3, 5, 3, system, 12, 4);
            spec.workload.history = History::Synthetic;
            let planned = plan(&spec, &Vocabulary::words()).unwrap();
            let apart = planned.clone().for_arm(ArmKeys::Plan, ArmPrompts::ZeroReuse);
            let heads = |plan: &Plan| {
                let mut heads = BTreeMap::<Vec<String>, u32>::new();
                prompts(plan).into_iter().for_each(|words| *heads.entry(words[..4].to_vec()).or_default() += 1);
                heads.into_values().max().unwrap()
            };
            assert!(heads(&planned) >= 3, "turns of a session begin alike");
            assert_eq!(heads(&apart), 1);
            let lengths = |plan: &Plan| prompts(plan).iter().map(Vec::len).collect::<Vec<_>>();
            assert_eq!(lengths(&apart), lengths(&planned));
            assert_ne!(apart.digest, planned.digest);
            assert_eq!(
                (crate::workload::ideal(&apart).cached, crate::workload::round_robin(&apart, 4).reuse),
                (0, 0.0)
            );
        }
    }

    #[test]
    fn other_keys_are_the_same_workload() {
        let planned = plan(&spec(2, 2, 2, 8, 8, 4), &Vocabulary::words()).unwrap();
        let key = |keys, turn| planned.clone().for_arm(keys, ArmPrompts::Plan).key(0, 0, turn);
        assert_eq!(planned.key.by, KeyScope::Group);
        assert_eq!(key(ArmKeys::Plan, 0), key(ArmKeys::Plan, 1));
        assert_ne!(key(ArmKeys::PerTurn, 0), key(ArmKeys::PerTurn, 1));
        assert_eq!(key(ArmKeys::None, 0), None);
        assert_eq!(planned.clone().for_arm(ArmKeys::None, ArmPrompts::Plan).digest, planned.digest);
    }

    #[test]
    fn recorded_replies_stand_where_the_servers_would() {
        let mut spec = spec(1, 2, 2, 8, 8, 4);
        spec.workload.history = History::Recorded;
        let plan = Arc::new(plan(&spec, &Vocabulary::words()).unwrap());
        let replies = Replies::new(&[vec!["first said".into()], vec!["second said".into()]]);
        let prompter = Prompter::new(plan, Arc::new(Vocabulary::words())).with_replies(Arc::new(replies));
        for (at, said) in [(0, "first said"), (1, "second said")] {
            let prompt = prompter.prompt(at, 1, &["not looked at".to_owned()]);
            assert_eq!(&*prompt.messages[2].passage.text, said);
        }
    }
}
