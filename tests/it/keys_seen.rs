//! Whether routing keys arrive, as the server's counters and gauges show it.

use std::sync::{Condvar, Mutex};

use crate::end_to_end::Sim;
use crate::scripted::{Answer, Scripted};
use crate::small_runs::{kinds, proxy, run, server, valid_run};

#[test]
fn a_key_that_a_proxy_strips_is_missed_and_one_that_arrives_is_seen() {
    let sim = Sim::start(&["--ranks=2"]);
    let chat = ["--api=chat"];
    let (_, report, printed) = run(&sim.url, &chat);
    assert_eq!(report["server"]["key_seen"], "yes", "{printed}");
    let stripping = proxy(&sim.url, "x-smg-routing-key", |_| None);
    let (exit, report, printed) = run(&stripping.url, &chat);
    assert_eq!((exit, &report["server"]["key_seen"]), (0, &"no".into()), "{printed}");
    assert!(kinds(&report, "warnings").contains(&"key".to_owned()), "{printed}");
    assert!(printed.contains("routing keys do not arrive") && printed.contains("drops the header"), "{printed}");
    // In a body it passes, and without a key there is none to miss.
    assert_eq!(run(&stripping.url, &[]).1["server"]["key_seen"], "yes");
    assert_eq!(run(&stripping.url, &["--api=chat", "--key-by=none"]).1["server"]["key_seen"], "unknown");
}

/// A server whose gauge shows the keys that it `sees` of the requests under way. One with many tokens is held until the
/// gauge was looked at five times.
fn with_key_gauge(sees: bool) -> Scripted {
    let state = Mutex::new((0_u32, 0_u32));
    let looked = Condvar::new();
    server(move |seen| {
        if seen.path == "/metrics" {
            let mut state = state.lock().unwrap();
            state.1 += 1;
            looked.notify_all();
            return Some(Answer::Whole(200, "text/plain", format!("sglang:routing_keys_active {}\n", state.0)));
        }
        if seen.path == "/v1/chat/completions" && seen.json()["max_tokens"] == 128 {
            let has_key = seen.header("x-smg-routing-key").is_some();
            let mut state = state.lock().unwrap();
            state.0 += u32::from(has_key && sees);
            let enough = state.1 + 5;
            drop(looked.wait_while(state, |state| state.1 < enough).unwrap());
        }
        None
    })
}

#[test]
fn where_only_gauges_show_keys_they_are_watched_while_a_keyed_request_runs() {
    for (sees, told) in [(true, "yes"), (false, "no")] {
        let (report, printed) = valid_run(&with_key_gauge(sees), &[]);
        assert_eq!(report["server"]["key_seen"], told, "{printed}");
    }
}

#[test]
fn a_request_that_was_watched_has_ended_before_the_flush() {
    #[derive(Default)]
    struct State {
        is_running: bool,
        was_seen: bool,
        flushed_meanwhile: bool,
    }
    let state = std::sync::Arc::new((Mutex::new(State::default()), Condvar::new()));
    let shared = std::sync::Arc::clone(&state);
    let server = server(move |seen| {
        let (state, changed) = &*shared;
        let mut state = state.lock().unwrap();
        if seen.path == "/metrics" {
            state.was_seen |= state.is_running;
            changed.notify_all();
            let keys = u32::from(state.is_running);
            return Some(Answer::Whole(200, "text/plain", format!("sglang:routing_keys_active {keys}\n")));
        }
        if seen.path.starts_with("/flush") {
            state.flushed_meanwhile |= state.is_running;
            changed.notify_all();
        }
        if seen.path == "/v1/chat/completions" && seen.json()["max_tokens"] == 128 {
            state.is_running = true;
            state = changed.wait_while(state, |state| !state.was_seen).unwrap();
            // Long enough for one that does not wait for the end.
            let grace = std::time::Duration::from_millis(500);
            state = changed.wait_timeout_while(state, grace, |state| !state.flushed_meanwhile).unwrap().0;
            state.is_running = false;
        }
        None
    });
    let (report, printed) = valid_run(&server, &[]);
    assert_eq!(report["server"]["key_seen"], "yes", "{printed}");
    assert!(!state.0.lock().unwrap().flushed_meanwhile);
}
