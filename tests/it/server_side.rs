//! What the server's side adds to a run: its load over time, and what it says of a run that is not to be believed.

use std::path::Path;

use serde_json::Value;

use crate::bad_input::{gspbench, small};
use crate::end_to_end::Sim;
use crate::scripted::{Answer, Scripted, Seen, Step, chat_stream};

fn run_json(dir: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir.join("out/run.json")).unwrap()).unwrap()
}

/// A chat server that answers the routes that `also` knows, besides its turns.
fn server(also: impl Fn(&Seen) -> Option<Answer> + Send + Sync + 'static) -> Scripted {
    Scripted::start(move |seen| {
        also(seen).unwrap_or_else(|| match seen.method.as_str() {
            "POST" if seen.path.starts_with("/v1/") => {
                Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12))
            }
            _ => Answer::Whole(404, "application/json", "{}".to_owned()),
        })
    })
}

#[test]
fn the_load_of_every_rank_is_sampled_during_the_run_and_shown() {
    let sim = Sim::start(&["--ranks=8"]);
    let dir = tempfile::tempdir().unwrap();
    let (exit, stdout, stderr) = gspbench(&small(&["--target", &sim.url, "--out", "out"]), dir.path());
    assert_eq!(exit, 0, "{stderr}");
    let series = run_json(dir.path())["server"]["series"].clone();
    let ranks: std::collections::BTreeSet<_> =
        series.as_array().unwrap().iter().map(|load| load["place"]["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, (0..8).collect());
    for word in ["Load of the server", "queued", "KV use %"] {
        assert!(stdout.contains(word), "`{word}`: {stdout}");
    }
    let markdown = std::fs::read_to_string(dir.path().join("out/report.md")).unwrap();
    assert!(markdown.contains("Load of the server"), "{markdown}");
}

#[test]
fn a_server_that_holds_every_question_beside_the_turns_delays_none_of_them() {
    let held = server(|seen| (seen.path == "/v1/loads").then(|| Answer::Steps(vec![Step::Hold])));
    let dir = tempfile::tempdir().unwrap();
    let (exit, stdout, stderr) = gspbench(&small(&["--target", &held.url, "--out", "out"]), dir.path());
    assert_eq!(exit, 0, "{stderr}");
    let run = run_json(dir.path());
    assert_eq!((&run["totals"]["complete"], &run["server"]["series"]), (&4.into(), &serde_json::json!([])));
    assert!(!stdout.contains("Load of the server"), "{stdout}");
    let seen = held.seen();
    let asked: Vec<_> = seen.iter().filter(|seen| seen.path == "/v1/loads").map(|seen| seen.connection).collect();
    assert!(!asked.is_empty(), "the load was asked for");
    assert!(held.turns().iter().all(|turn| !asked.contains(&turn.connection)), "on a connection of its own");
}
