//! What client and server must tell alike: each prompt once, and nobody else's.

use std::collections::BTreeMap;

use super::tests::kinds;
use crate::record::{CounterRole, Failure, Outcome, Place, TurnRecord};
use crate::report::tests::{context, ended, served};
use crate::report::*;
use crate::units::NodeRole;

/// A counter that grew.
fn grown(source: &str, node: Option<NodeRole>, role: CounterRole, delta: f64) -> CounterDelta {
    CounterDelta {
        source: source.into(),
        name: format!("{role:?}"),
        labels: BTreeMap::new(),
        role: Some(role),
        place: None,
        node,
        before: Some(5.0),
        after: Some(5.0 + delta),
        delta: Some(delta),
    }
}

/// Ten turns of 100 prompt tokens, all of them cached, and of each node what it does and how its counters moved.
fn behind_a_proxy(nodes: &[(Option<NodeRole>, f64, f64)], place: Option<Place>) -> Validity {
    let mut accumulator = Accumulator::new(context(1, 10));
    for session in 0..10 {
        let turn = served(session, 0, 0, 100);
        accumulator.add(&TurnRecord { place: place.clone().or(turn.place.clone()), ..turn });
    }
    let of_node = |(at, (node, prompt, cached)): (usize, &(Option<NodeRole>, f64, f64))| {
        let counter = |role, delta| grown(&format!("http://n{at}"), *node, role, delta);
        [counter(CounterRole::PromptTokens, *prompt), counter(CounterRole::CachedTokensFinished, *cached)]
    };
    let counters = nodes.iter().enumerate().flat_map(of_node).collect();
    accumulator
        .finish(Closing { server: ServerSide { counters, ..ServerSide::default() }, ..Closing::plain(State::Complete) })
        .validity
}

#[test]
fn each_prompt_is_compared_once_where_two_nodes_count_it() {
    let (prefill, decode) = (Some(NodeRole::Prefill), Some(NodeRole::Decode));
    let judged = |nodes: &[(Option<NodeRole>, f64, f64)], place: Option<Place>| {
        let validity = behind_a_proxy(nodes, place);
        (kinds(&validity.voids), kinds(&validity.warnings))
    };
    let told = |node: (f64, f64)| judged(&[(prefill, node.0, node.1), (decode, 1_000.0, 400.0)], None);
    assert_eq!(told((1_000.0, 1_000.0)), (vec![], vec![]), "the prefill side alone");
    assert_eq!(told((1_000.0, 700.0)), (vec![FindingKind::Hit], vec![]), "which is wrong");
    assert_eq!(told((1_100.0, 1_000.0)), (vec![], vec![FindingKind::Traffic]), "or serves others");
    // A decode node may count as cached what it was sent, and repeat that in its replies.
    let validity = behind_a_proxy(&[(prefill, 1_000.0, 400.0), (decode, 1_000.0, 1_000.0)], None);
    assert_eq!((kinds(&validity.voids), kinds(&validity.warnings)), (vec![], vec![FindingKind::Hit]));
    assert!(validity.warnings[0].seen.contains("the decode nodes' counters moved by what the replies say"));
    // Nobody knows which is which.
    let twice = [(None, 1_000.0, 1_000.0), (None, 1_000.0, 900.0)];
    let validity = behind_a_proxy(&twice, None);
    assert_eq!((kinds(&validity.voids), kinds(&validity.warnings)), (vec![], vec![FindingKind::Unreconciled]));
    let finding = &validity.warnings[0];
    assert!(finding.seen.contains("http://n0, http://n1") && finding.advice.contains("prefill=URL"), "{finding:?}");
    let pair = Place::Pair { prefill: "p".into(), decode: "d".into() };
    assert_eq!(judged(&twice, Some(pair)), (vec![], vec![FindingKind::Unreconciled]));
    // Two workers that share the turns are compared as ever.
    assert_eq!(judged(&[(None, 400.0, 400.0), (None, 600.0, 600.0)], None), (vec![], vec![]));
    let (voids, warnings) = judged(&[(None, 700.0, 400.0), (None, 700.0, 900.0)], None);
    assert_eq!((voids, warnings), (vec![FindingKind::Hit], vec![FindingKind::Traffic]));
}

/// What is said of other traffic where these turns were sent and the server counted so many requests and prompt tokens.
fn traffic(turns: &[TurnRecord], requests: f64, prompt_tokens: f64) -> Option<Finding> {
    let mut accumulator = Accumulator::new(context(1, turns.len() as u64));
    turns.iter().for_each(|turn| accumulator.add(turn));
    let counter = |role, delta| grown("http://h", None, role, delta);
    let counters = vec![counter(CounterRole::Requests, requests), counter(CounterRole::PromptTokens, prompt_tokens)];
    let validity = accumulator
        .finish(Closing { server: ServerSide { counters, ..ServerSide::default() }, ..Closing::plain(State::Complete) })
        .validity;
    validity.warnings.into_iter().find(|finding| finding.kind == FindingKind::Traffic)
}

#[test]
fn requests_of_others_are_seen_however_short_their_prompts_are() {
    let turns: Vec<_> = (0..200).map(|session| served(session, 0, 0, 0)).collect();
    assert_eq!(traffic(&turns, 200.0, 20_000.0), None);
    assert_eq!(traffic(&turns, 201.0, 20_001.0), None, "one may have ended as the run began");
    let seen = traffic(&turns, 400.0, 20_040.0).unwrap().seen;
    for words in ["400 requests, our turns had 200", "20,040 prompt tokens, our turns had 20,000"] {
        assert!(seen.contains(words), "{seen}");
    }
    assert!(traffic(&turns, 202.0, 20_002.0).is_some(), "two of two hundred are 1 %");
    assert!(traffic(&turns, 200.0, 20_200.0).is_some());
}

#[test]
fn turns_that_did_not_complete_may_have_been_counted_and_explain_no_more_than_themselves() {
    let fates = [Outcome::Failed(Failure::Reset), Outcome::Cancelled];
    for fate in fates {
        let mut turns: Vec<_> = (0..20).map(|session| served(session, 0, 0, 0)).collect();
        turns.push(ended(20, 0, fate));
        for (requests, tokens) in [(20.0, 2_000.0), (21.0, 2_100.0), (22.0, 2_110.0)] {
            assert_eq!(traffic(&turns, requests, tokens), None, "{fate:?}: {requests} {tokens}");
        }
        // A twentieth of what is estimated is no more than its error.
        let cut = |session| ended(session, 0, fate);
        let half_cut: Vec<_> = (0..10).map(|session| served(session, 0, 0, 0)).chain((10..20).map(cut)).collect();
        assert_eq!(traffic(&half_cut, 20.0, 2_045.0), None);
        assert!(traffic(&half_cut, 20.0, 2_055.0).is_some());
        let seen = traffic(&turns, 21.0, 2_200.0).unwrap().seen;
        assert!(seen.contains("at most 100 in requests without a complete reply"), "{seen}");
        assert!(traffic(&turns, 42.0, 2_100.0).is_some(), "{fate:?}");
    }
    // One that never left explains nothing; one that was sent twice may count twice.
    let never = TurnRecord { sent_us: None, ..ended(20, 0, Outcome::Failed(Failure::Connect)) };
    let turns = [served(0, 0, 0, 0), never];
    assert!(traffic(&turns, 1.0, 200.0).is_some());
    assert_eq!(traffic(&[TurnRecord { resends: 1, ..served(0, 0, 0, 0) }], 2.0, 200.0), None);
    // What the plan could not know bounds nothing, and requests still count.
    let unknown = TurnRecord { planned_prompt_tokens: None, ..ended(1, 0, Outcome::Cancelled) };
    let turns = [served(0, 0, 0, 0), unknown, ended(2, 0, Outcome::Cancelled)];
    assert_eq!(traffic(&turns, 3.0, 9_000.0), None);
    assert!(traffic(&turns, 9.0, 9_000.0).is_some());
}

/// What is said of other traffic where a decode node counted so many requests and tokens, beside a prefill node that counted
/// ours alone, or beside none whose role is told.
fn at_decode(turns: &[TurnRecord], counts: (f64, f64), names_prefill: bool) -> Vec<String> {
    let mut accumulator = Accumulator::new(context(1, turns.len() as u64));
    turns.iter().for_each(|turn| accumulator.add(turn));
    let ours = f64::from(u32::try_from(turns.iter().filter(|turn| turn.outcome.is_complete()).count()).unwrap());
    let (prefill, decode) = (Some(NodeRole::Prefill), Some(NodeRole::Decode));
    let beside =
        [(CounterRole::Requests, ours), (CounterRole::PromptTokens, 100.0 * ours), (CounterRole::OutputTokens, ours)];
    let beside = beside.map(|(role, delta)| grown("http://p", prefill, role, delta));
    let counted = [(CounterRole::Requests, counts.0), (CounterRole::OutputTokens, counts.1)];
    let counted = counted.map(|(role, delta)| grown("http://d", decode, role, delta));
    let counters = beside.into_iter().filter(|_| names_prefill).chain(counted).collect();
    let closing =
        Closing { server: ServerSide { counters, ..ServerSide::default() }, ..Closing::plain(State::Complete) };
    let warnings = accumulator.finish(closing).validity.warnings.into_iter();
    warnings.filter(|finding| finding.kind == FindingKind::Traffic).map(|finding| finding.seen).collect()
}

#[test]
fn requests_that_went_to_a_decode_node_alone_are_seen_by_their_number_or_their_tokens() {
    // Four output tokens each.
    let turns: Vec<_> = (0..200).map(|session| served(session, 0, 0, 0)).collect();
    for names_prefill in [true, false] {
        let of = |requests, tokens| at_decode(&turns, (requests, tokens), names_prefill);
        for (requests, tokens) in [(200.0, 800.0), (200.0, 600.0), (201.0, 804.0)] {
            assert_eq!(of(requests, tokens), Vec::<String>::new(), "{requests} {tokens}");
        }
        for (requests, tokens) in [(202.0, 800.0), (200.0, 805.0)] {
            let seen = of(requests, tokens);
            let words =
                format!("the decode nodes' counters moved by {requests} requests, our turns had 200, and by {tokens}");
            assert!(seen.len() == 1 && seen[0].starts_with(&words), "{seen:?}");
        }
    }
    let estimated = |output_estimated| {
        let turns: Vec<_> = turns.iter().map(|turn| TurnRecord { output_estimated, ..turn.clone() }).collect();
        (at_decode(&turns, (200.0, 900.0), true).len(), at_decode(&turns, (220.0, 900.0), true).len())
    };
    assert_eq!(
        (estimated(false), estimated(true)),
        ((1, 1), (0, 1)),
        "an estimate explains nothing and accuses nobody"
    );
}

#[test]
fn a_decode_node_may_have_generated_what_turns_that_were_cut_had_asked_for() {
    let cut = ended(20, 0, Outcome::Cancelled);
    let planned = f64::from(cut.planned_output_tokens);
    let turns: Vec<_> = (0..20).map(|session| served(session, 0, 0, 0)).chain([cut]).collect();
    assert!(planned > 0.0);
    for (requests, tokens, found) in
        [(21.0, 80.0 + planned, 0), (21.0, 81.0 + planned, 1), (23.0, 80.0, 1), (20.0, 80.0, 0)]
    {
        assert_eq!(at_decode(&turns, (requests, tokens), true).len(), found, "{requests} {tokens}");
    }
}
