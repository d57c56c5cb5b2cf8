//! `pin:` targets: this program places each turn itself, by the policies that the simulator has too or by the plan, with its
//! own turns in flight as loads. The choice is made as the turn leaves and holds until it has ended.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::client::{Aim, Client};
use crate::policy::{Affinity, Arrival, Chooser, Load, Method};
use crate::record::{Place, TurnRecord};
use crate::units::Rank;
use crate::workload::{Plan, Prompt, oracle_places};

/// The policy that knows the plan.
const ORACLE: &str = "oracle";

/// What follows `pin:`, checked.
#[derive(Debug, Clone)]
pub(crate) struct PinPolicy {
    rule: Rule,
    /// How many ranks there are, for a server that does not tell.
    pub ranks: Option<u16>,
}

#[derive(Debug, Clone)]
enum Rule {
    Oracle,
    Method(Method, Affinity),
}

impl PinPolicy {
    /// Reads a policy's name and its settings, which have the names of the simulator's flags.
    ///
    /// # Errors
    /// One sentence on the first that is unknown or out of range.
    pub(crate) fn parse(policy: &str, settings: &BTreeMap<String, String>) -> Result<Self, String> {
        let is_oracle = policy == ORACLE;
        let method = policy.parse::<Method>().map_err(|why| format!("{why}, or {ORACLE}"));
        let (mut ranks, mut affinity) = (None, Affinity::default());
        for (key, value) in settings {
            let wrong = |why: &dyn std::fmt::Display| format!("`{key}={value}`: {why}");
            if key == "ranks" {
                let given = value.parse::<u16>().ok().filter(|ranks| *ranks > 0);
                ranks = Some(given.ok_or_else(|| wrong(&"give a number of ranks, 1 to 65535"))?);
                continue;
            }
            if is_oracle || method.as_ref().is_ok_and(|method| *method != Method::PrefixAffinity) {
                return Err(wrong(&"that is a setting of prefix_affinity; any policy takes ranks=N"));
            }
            match key.strip_prefix("prefix-affinity-").unwrap_or(key) {
                "guard" => affinity.guard = value.parse().map_err(|why| wrong(&why))?,
                "fallback" => affinity.fallback = value.parse().map_err(|why| wrong(&why))?,
                "max-load-skew" => affinity.max_load_skew = value.parse().map_err(|why| wrong(&why))?,
                "hash-tokens" => affinity.hash_tokens = value.parse().map_err(|why| wrong(&why))?,
                "disable-token-fallback" => {
                    affinity.token_fallback = !value.parse::<bool>().map_err(|_| wrong(&"give true or false"))?;
                }
                _ => {
                    let known = "ranks, guard, fallback, max-load-skew, hash-tokens and disable-token-fallback";
                    return Err(wrong(&format_args!("no such setting: there are {known}")));
                }
            }
        }
        let rule = if is_oracle { Rule::Oracle } else { Rule::Method(method?, affinity) };
        Ok(Self { rule, ranks })
    }
}

/// Where turns may go.
#[derive(Debug, Clone)]
pub(crate) enum Places {
    /// The ranks 0 to N − 1 of one server.
    Ranks(u16),
    /// Servers, each by its public address and the full URL of its generation route.
    Nodes(Vec<(String, Arc<str>)>),
}

impl Places {
    pub(crate) fn len(&self) -> u16 {
        match self {
            Self::Ranks(ranks) => *ranks,
            Self::Nodes(nodes) => u16::try_from(nodes.len()).unwrap_or(u16::MAX),
        }
    }

    /// The fewest that show whether a turn can be sent to any: every server, or the last rank of one.
    pub(crate) fn probes(&self) -> Vec<Aim> {
        let first = match self {
            Self::Ranks(ranks) => ranks.saturating_sub(1),
            Self::Nodes(_) => 0,
        };
        (first..self.len()).map(|at| self.aim(Rank(at))).collect()
    }

    fn aim(&self, at: Rank) -> Aim {
        match self {
            Self::Ranks(_) => Aim { url: None, place: Some(Place::Rank(at)) },
            Self::Nodes(nodes) => {
                let (name, url) = &nodes[usize::from(at.0)];
                Aim { url: Some(Arc::clone(url)), place: Some(Place::Node(name.clone())) }
            }
        }
    }
}

/// What decides where the turns of one block go.
#[derive(Debug, Clone)]
pub(crate) enum Placer {
    /// The server.
    Server,
    Pins(Arc<Pins>),
}

/// A policy at work. Places are numbered, and the numbers are ranks to the policy.
#[derive(Debug)]
pub(crate) struct Pins {
    places: Places,
    ids: Vec<Rank>,
    state: Mutex<State>,
    spilled: AtomicU64,
}

#[derive(Debug)]
struct State {
    chooser: Chosen,
    /// Of the turns under way.
    loads: Vec<Load>,
}

#[derive(Debug)]
enum Chosen {
    By(Chooser),
    /// The place of each session.
    Known(BTreeMap<(u32, u32), usize>),
}

/// A body, and so much of its prompt's ids as the policy reads.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub body: Bytes,
    head: Vec<u32>,
}

/// A turn's place, which counts as load until this is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    pub aim: Aim,
    taken: Option<(Arc<Pins>, Rank, u64)>,
}

impl Placer {
    /// A policy with nothing under way, for the turns of `plan`.
    pub(crate) fn new(policy: &PinPolicy, places: Places, plan: &Plan) -> Self {
        let count = places.len();
        let chooser = match &policy.rule {
            Rule::Oracle => Chosen::Known(oracle_places(plan, count.into())),
            Rule::Method(method, affinity) => Chosen::By(Chooser::new(*method, *affinity)),
        };
        let loads = vec![Load::default(); count.into()];
        Self::Pins(Arc::new(Pins {
            places,
            ids: (0..count).map(Rank).collect(),
            state: Mutex::new(State { chooser, loads }),
            spilled: AtomicU64::new(0),
        }))
    }

    /// Makes a turn ready ahead of its time.
    pub(crate) fn prepare(&self, client: &Client, turn: &TurnRecord, prompt: &Prompt) -> Prepared {
        let head = match self {
            Self::Server => vec![],
            Self::Pins(pins) => head(prompt, pins.window(turn.key.as_deref())),
        };
        Prepared { body: client.prepare(turn, prompt), head }
    }

    /// Chooses the place of a turn that leaves now.
    pub(crate) fn place(&self, turn: &TurnRecord, prepared: &Prepared) -> Seat {
        let Self::Pins(pins) = self else { return Seat { aim: Aim::default(), taken: None } };
        let tokens = turn.planned_prompt_tokens.map_or(0, u64::from);
        let rank = pins.take(turn, &prepared.head, tokens);
        Seat { aim: pins.places.aim(rank), taken: Some((Arc::clone(pins), rank, tokens)) }
    }

    /// Turns that did not go where their key or prompt belongs; none where no policy of ours knows such a place.
    pub(crate) fn spilled(&self) -> Option<u64> {
        let Self::Pins(pins) = self else { return None };
        let has_preference = match &pins.locked().chooser {
            Chosen::By(chooser) => matches!(chooser.method(), Method::PrefixMatch | Method::PrefixAffinity),
            Chosen::Known(_) => false,
        };
        has_preference.then(|| pins.spilled.load(Ordering::Relaxed))
    }
}

impl Pins {
    fn window(&self, key: Option<&str>) -> usize {
        match &self.locked().chooser {
            Chosen::By(chooser) => chooser.prompt_window(key),
            Chosen::Known(_) => 0,
        }
    }

    /// Chooses a place and charges the turn to it.
    fn take(&self, turn: &TurnRecord, head: &[u32], tokens: u64) -> Rank {
        let mut state = self.locked();
        let State { chooser, loads } = &mut *state;
        let rank = match chooser {
            Chosen::Known(sessions) => {
                let at = sessions.get(&(turn.group, turn.session)).copied().unwrap_or(0);
                self.ids.get(at).copied().unwrap_or(Rank(0))
            }
            Chosen::By(chooser) => {
                let arrival = Arrival { key: turn.key.as_deref(), prompt: head, pin: None };
                let load = |rank: Rank| loads[usize::from(rank.0)];
                let dispatch = chooser.choose(&arrival, &self.ids, |_| true, load);
                let spilled = dispatch.is_some_and(|dispatch| dispatch.spilled());
                self.spilled.fetch_add(spilled.into(), Ordering::Relaxed);
                // There is a place at least, and all are live.
                dispatch.map_or(Rank(0), |dispatch| dispatch.rank)
            }
        };
        let load = &mut loads[usize::from(rank.0)];
        load.requests = load.requests.saturating_add(1);
        load.tokens = load.tokens.saturating_add(tokens);
        rank
    }

    fn leave(&self, rank: Rank, tokens: u64) {
        let load = &mut self.locked().loads[usize::from(rank.0)];
        load.requests = load.requests.saturating_sub(1);
        load.tokens = load.tokens.saturating_sub(tokens);
    }

    /// Counts stay sound when a holder of the lock has panicked.
    fn locked(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some((pins, rank, tokens)) = self.taken.take() {
            pins.leave(rank, tokens);
        }
    }
}

/// The first `window` ids of a prompt: the tokenizer's, or without one a hash of each word.
fn head(prompt: &Prompt, window: usize) -> Vec<u32> {
    if window == 0 {
        return vec![];
    }
    let mut ids = prompt.ids().unwrap_or_else(|| {
        let text = prompt.text();
        text.split_whitespace().take(window).map(word_id).collect()
    });
    ids.truncate(window);
    ids
}

#[expect(clippy::cast_possible_truncation, reason = "half of a hash is a hash")]
fn word_id(word: &str) -> u32 {
    xxh3_64(word.as_bytes()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::rendezvous;
    use crate::record::TurnId;
    use crate::units::Micros;

    fn parse(text: &str) -> Result<PinPolicy, String> {
        match format!("pin:{text}@http://h").parse() {
            Ok(crate::profile::Target::Pin { policy, settings, .. }) => PinPolicy::parse(&policy, &settings),
            other => panic!("{other:?}"),
        }
    }

    fn placer(text: &str, ranks: u16) -> Placer {
        let loaded = crate::profile::load("t", "workload.groups = 4\nworkload.system_tokens = 8", &[]).unwrap();
        let context = crate::profile::Context { name: "t".into(), drawn_seed: 1, compares_arms: true };
        let spec = crate::profile::run_spec(&loaded, &context).unwrap();
        let plan = crate::workload::plan(&spec, &crate::text::Vocabulary::words()).unwrap();
        Placer::new(&parse(text).unwrap(), Places::Ranks(ranks), &plan)
    }

    fn place(placer: &Placer, key: &str) -> (Seat, u16) {
        let id = TurnId { group: 0, session: 0, turn: 0 };
        let turn = TurnRecord::planned("t".into(), id, Some(key.to_owned()), Micros(0), 1);
        let seat = placer.place(&turn, &Prepared { body: Bytes::new(), head: vec![] });
        match seat.aim.place {
            Some(Place::Rank(rank)) => (seat, rank.0),
            _ => panic!("{seat:?}"),
        }
    }

    #[test]
    fn a_policy_has_its_settings_and_no_others() {
        assert_eq!(parse("oracle,ranks=2").unwrap().ranks, Some(2));
        assert!(parse("prefix_affinity,guard=none,max_load_skew=2,disable_token_fallback=true").is_ok());
        let wrong = [
            ("nope", "or oracle"),
            ("oracle,guard=none", "prefix_affinity"),
            ("round_robin,guard=none", "prefix_affinity"),
            ("prefix_affinity,guard=nope", "`nope`"),
            ("prefix_affinity,colour=red", "no such setting"),
            ("prefix_affinity,max_load_skew=0.5", "at least 1"),
            ("round_robin,ranks=0", "1 to 65535"),
        ];
        for (text, word) in wrong {
            let said = parse(text).unwrap_err();
            assert!(said.contains(word), "{text}: {said}");
        }
    }

    #[test]
    fn the_choice_is_the_simulators_and_the_loads_are_the_turns_in_flight() {
        let guarded = placer("prefix_affinity", 8);
        let order = rendezvous(b"g1", &(0..8).map(Rank).collect::<Vec<_>>());
        // An idle server lets one rank have two turns of a key; the third goes to the next.
        let held: Vec<_> = (0..3).map(|_| place(&guarded, "g1")).collect();
        let ranks: Vec<u16> = held.iter().map(|(_, rank)| *rank).collect();
        assert_eq!(ranks, [order[0].0, order[0].0, order[1].0]);
        assert_eq!(guarded.spilled(), Some(1));
        drop(held);
        assert_eq!(place(&guarded, "g1").1, order[0].0, "turns that have ended are no load");
        assert_eq!(guarded.spilled(), Some(1));
    }

    #[test]
    fn round_robin_deals_in_turn_and_the_least_loaded_gets_the_next() {
        let dealt = placer("round_robin", 3);
        assert_eq!((0..6).map(|_| place(&dealt, "k").1).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        let least = placer("total_requests", 2);
        let first = place(&least, "k");
        let second = place(&least, "k");
        assert_eq!((first.1, second.1), (0, 1));
        drop(second);
        assert_eq!(place(&least, "k").1, 1);
    }

    #[test]
    fn the_oracle_keeps_a_session_where_it_is() {
        let oracle = placer("oracle", 4);
        let places: std::collections::BTreeSet<u16> = (0..5).map(|_| place(&oracle, "k").1).collect();
        assert_eq!(places.len(), 1);
    }

    #[test]
    fn the_head_of_a_prompt_is_as_long_as_asked_for_and_the_same_for_the_same_words() {
        let prompt = |text: &str| Prompt {
            messages: vec![crate::workload::Message {
                role: crate::workload::Role::User,
                passage: crate::text::Passage::from_text(text),
            }],
        };
        assert_eq!(head(&prompt("a b c"), 2), head(&prompt("a b d"), 9)[..2]);
        assert_ne!(head(&prompt("a b c"), 3), head(&prompt("a b d"), 3));
        assert!(head(&prompt("a b c"), 0).is_empty());
    }
}
