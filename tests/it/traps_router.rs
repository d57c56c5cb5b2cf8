//! Row B103 of the traps, whole: a router that takes the key from a header of the user's choice, and a connection that it
//! loses now and then.

use std::collections::{BTreeMap, BTreeSet};

use crate::scripted::{Answer, Seen, chat_stream};
use crate::traps_program::{Ran, server};

const HEADER: &str = "x-conversation";
const BACKENDS: u32 = 4;

fn key(seen: &Seen) -> String {
    seen.header(HEADER).unwrap_or_default().to_owned()
}

/// The backend that a key belongs to.
fn backend(key: &str) -> String {
    format!("backend-{}", key.bytes().map(u32::from).sum::<u32>() % BACKENDS)
}

fn is_again(seen: &Seen) -> bool {
    seen.header("x-request-id").is_some_and(|id| id.ends_with("-again"))
}

#[test]
fn a_session_has_one_key_in_the_header_asked_for_on_all_turns_and_when_one_is_sent_again() {
    let router = server(|seen, turn| {
        // A connection that idled is closed as it is used again.
        if seen.before > 0 && turn % 17 == 0 && !is_again(seen) {
            return Answer::Raw(vec![]);
        }
        let name = format!("\"model\":\"{}\"", backend(&key(seen)));
        Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12).replace("\"id\":\"x\"", &name))
    });
    let flags = ["--key-by=session", "--key-header=X-Conversation", "--place-field=model", "--model=m"];
    let sizes = ["--gsp-num-groups=5", "--gsp-prompts-per-group=10", "--gsp-num-turns=4", "--warmup-requests=2"];
    let ran = Ran::new(&router, &[&flags[..], &sizes].concat());
    let report = ran.report();
    let failed: Vec<_> = ran.turns().into_iter().filter(|turn| turn["outcome"] != "complete").collect();
    assert!(ran.ended_well() && failed.is_empty(), "{failed:?}: {}", ran.stderr);

    // As the client wrote it down: 50 sessions, a key each.
    let mut sessions: BTreeMap<(u64, u64), BTreeSet<String>> = BTreeMap::new();
    for turn in ran.turns() {
        let session = (turn["group"].as_u64().unwrap(), turn["session"].as_u64().unwrap());
        sessions.entry(session).or_default().insert(turn["key"].as_str().unwrap().to_owned());
    }
    assert!(sessions.len() == 50 && sessions.values().all(|keys| keys.len() == 1), "{sessions:?}");
    let measured: BTreeSet<String> = sessions.into_values().flatten().collect();
    assert_eq!(measured.len(), 50);

    // As the router saw it.
    let seen = router.turns();
    let mut turns: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for seen in &seen[1..] {
        assert_eq!((seen.header("x-session-id"), seen.header("x-smg-routing-key")), (None, None));
        let id = seen.header("x-request-id").unwrap().trim_end_matches("-again").to_owned();
        turns.entry(key(seen)).or_default().insert(id);
    }
    assert!(
        turns.values().all(|turns| turns.len() == 4),
        "a request sent again has the key of its first one: {turns:?}"
    );
    let warm_up: Vec<&String> = turns.keys().filter(|key| !measured.contains(*key)).collect();
    assert_eq!((turns.len(), warm_up.len()), (52, 2), "the warm-up has keys of its own");
    let again = seen.iter().filter(|seen| is_again(seen) && measured.contains(&key(seen))).count();
    assert!(again > 0 && report["totals"]["resends"] == again, "{again}: {}", report["totals"]);

    // As the report says it.
    let affinity = &report["affinity"];
    let told = ["keys", "sessions", "split_sessions", "off_majority_turns"].map(|field| affinity[field].as_u64());
    assert_eq!(told, [Some(50), Some(50), Some(0), Some(0)], "{affinity}");
    let mut shares: BTreeMap<String, u64> = BTreeMap::new();
    measured.iter().for_each(|key| *shares.entry(backend(key)).or_default() += 4);
    let rows = report["ranks"].as_array().unwrap().iter();
    let rows = rows.map(|row| (row["place"]["node"].as_str().unwrap().to_owned(), row["turns"].as_u64().unwrap()));
    assert_eq!(rows.collect::<BTreeMap<_, _>>(), shares);
    assert!(!ran.findings().contains("skew"), "keys were placed, not connections");
}
