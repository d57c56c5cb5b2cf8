//! What a router that looks at the prompt takes for its key, and whether this plan lets it tell sessions apart.
//!
//! PegaFlow's router (PR #405) takes the first message of a chat, the first 512 characters of a text, the first 64 ids of a
//! list; other routers look at a shared head in like ways. A system prompt that is longer than the window and common to all
//! sessions gives all of them one key, and so one worker. A window that the first prompt does not fill holds another key in
//! each turn.

use serde::{Deserialize, Serialize};

use super::prompt::{Prompt, Prompter};
use crate::profile::{Api, ChatLayout, PromptAs, RequestSpec};

/// Characters of a text that make a key.
const CHARACTERS: usize = 512;
/// Ids of a list that make a key.
const IDS: usize = 64;

/// The part of a request that is the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterRule {
    FirstMessage,
    #[serde(rename = "first_512_characters")]
    FirstCharacters,
    #[serde(rename = "first_64_ids")]
    FirstIds,
}

/// What such a router makes of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterKey {
    pub rule: RouterRule,
    pub sessions: u64,
    /// Distinct keys of the sessions' first turns.
    pub keys: u64,
    /// Whether a session keeps its key as its conversation grows.
    pub is_stable: bool,
}

impl RouterKey {
    /// None for routes that such routers do not serve.
    ///
    /// Two pairs of sessions tell: passages differ from each other at their first tokens, so if one pair of a group, or of
    /// two groups, differs within the window, all do.
    #[must_use]
    pub fn of(prompter: &Prompter) -> Option<Self> {
        let plan = prompter.plan();
        let rule = match (plan.request.api, plan.request.prompt_as) {
            (Api::Generate, _) => return None,
            (Api::Chat, _) => RouterRule::FirstMessage,
            (Api::Completions, PromptAs::Text) => RouterRule::FirstCharacters,
            (Api::Completions, PromptAs::Ids) => RouterRule::FirstIds,
        };
        let key = |at: usize| rule.key(&plan.request, &prompter.prompt(at, 0, &[]));
        let first = plan.sessions.first()?;
        let own = key(0);
        let differs = |is_meant: &dyn Fn(u32) -> bool| {
            let other = plan.sessions.iter().skip(1).position(|session| is_meant(session.group));
            other.map(|at| key(at + 1).text != own.text)
        };
        let totals = plan.totals();
        let keys = match (differs(&|group| group == first.group), differs(&|group| group != first.group)) {
            (Some(true), _) => totals.sessions,
            (_, Some(true)) => totals.groups,
            _ => 1,
        };
        let is_stable = own.is_full || plan.workload.turns.get() == 1;
        Some(Self { rule, sessions: totals.sessions, keys, is_stable })
    }

    /// Whether all sessions go where one goes.
    #[must_use]
    pub fn collapses(&self) -> bool {
        self.keys == 1 && self.sessions > 1
    }
}

/// A key, and whether later turns of the session have the same.
struct Key {
    text: String,
    is_full: bool,
}

impl RouterRule {
    fn key(self, request: &RequestSpec, prompt: &Prompt) -> Key {
        match self {
            Self::FirstMessage => {
                let merged = usize::from(request.chat_layout == ChatLayout::Merged) + 1;
                let text = prompt.messages.iter().take(merged).map(|message| &*message.passage.text).collect();
                Key { text, is_full: true }
            }
            Self::FirstCharacters => {
                let text: String = prompt.text().chars().take(CHARACTERS).collect();
                Key { is_full: text.chars().count() == CHARACTERS, text }
            }
            Self::FirstIds => {
                let ids = prompt.ids().unwrap_or_default();
                Key { text: format!("{:?}", &ids[..ids.len().min(IDS)]), is_full: ids.len() >= IDS }
            }
        }
    }
}

impl std::fmt::Display for RouterRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::FirstMessage => "the first message",
            Self::FirstCharacters => "the first 512 characters",
            Self::FirstIds => "the first 64 ids",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::profile::RunSpec;
    use crate::profile::sample::spec;
    use crate::text::Vocabulary;
    use crate::workload::plan;

    fn key(spec: &RunSpec) -> Option<RouterKey> {
        let vocabulary = Vocabulary::words();
        let plan = Arc::new(plan(spec, &vocabulary).unwrap());
        RouterKey::of(&Prompter::new(plan, Arc::new(vocabulary)))
    }

    fn keys(spec: &RunSpec) -> (u64, bool) {
        let key = key(spec).unwrap();
        (key.keys, key.is_stable)
    }

    #[test]
    fn one_system_prompt_for_all_collapses_chats_and_one_a_group_makes_a_key_a_group() {
        let chat = spec(1, 6, 3, 400, 20, 5);
        assert_eq!(keys(&chat), (1, true));
        assert!(key(&chat).unwrap().collapses());
        assert_eq!(keys(&spec(4, 3, 3, 400, 20, 5)), (4, true));
        assert_eq!(keys(&spec(1, 6, 3, 0, 20, 5)), (6, true), "without it the question comes first");
        let mut merged = chat;
        merged.request.chat_layout = ChatLayout::Merged;
        assert_eq!(keys(&merged), (6, true));
        assert!(!key(&spec(1, 1, 3, 400, 20, 5)).unwrap().collapses(), "a lone session has nobody to share with");
    }

    #[test]
    fn texts_are_told_apart_within_512_characters_and_shorter_ones_change_their_key() {
        let text = |groups, system| {
            let mut spec = spec(groups, 4, 3, system, 20, 5);
            spec.request.api = Api::Completions;
            spec
        };
        assert_eq!(keys(&text(1, 400)), (1, true));
        assert_eq!(keys(&text(3, 400)), (3, true));
        assert_eq!(keys(&text(3, 10)), (12, false), "the question is in the window, and the window is not full");
        let mut single = text(3, 10);
        single.workload.turns = std::num::NonZeroU32::MIN;
        assert_eq!(keys(&single), (12, true));
    }

    #[test]
    fn the_native_route_has_no_such_router() {
        let mut native = spec(1, 6, 3, 400, 20, 5);
        native.request.api = Api::Generate;
        assert_eq!(key(&native), None);
    }

    #[test]
    fn a_rule_is_named_as_it_is_described() {
        let named = |rule| serde_json::to_value(rule).unwrap();
        assert_eq!(named(RouterRule::FirstCharacters), "first_512_characters");
        assert_eq!(named(RouterRule::FirstIds), "first_64_ids");
    }
}
