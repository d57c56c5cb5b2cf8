//! Cases of a server's counters (B105, B106, B108; its histograms: `own_clock`): read before and after a run, whatever the
//! server makes of the question.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::play::{DONE, content, counts, event, finish};
use crate::scripted::{Answer, Scripted, Step, stream};
use crate::traps_program::{Ran, abc, server_with};

/// A run against a server whose counters may differ with the last turn that it was asked for. The probe is turn 0: before the
/// run and after it they are read as often as the program likes.
pub(crate) fn run_with(counters: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Ran {
    Ran::new(&counting(counters), &[])
}

fn counting(counters: impl Fn(usize) -> Answer + Send + Sync + 'static) -> Scripted {
    let last = Arc::new(AtomicUsize::new(0));
    let last_turn = Arc::clone(&last);
    server_with(
        move |_, turn| {
            last.store(turn, Ordering::SeqCst);
            abc()
        },
        move |seen| (seen.path == "/metrics").then(|| counters(last_turn.load(Ordering::SeqCst))),
    )
}

/// B105, B106
#[test]
fn counters_are_those_of_the_run_and_a_reset_is_seen() {
    let run = |before: u32, after: u32| {
        let page = move |turn| {
            let (hits, prompt) = if turn == 0 { (before, 10_000) } else { (after, 20_000) };
            format!(
                "vllm:prefix_cache_hits_total{{engine=\"0\"}} {hits}\nvllm:prompt_tokens_total{{engine=\"0\"}} {prompt}\n"
            )
        };
        let ran = run_with(move |turn| Answer::Whole(200, "text/plain", page(turn)));
        let counters = ran.report()["server"]["counters"].as_array().unwrap().clone();
        let named = |name: &str| counters.iter().find(|of| of["name"].as_str().unwrap().contains(name));
        let delta = |name: &str| named(name).unwrap_or_else(|| panic!("no {name} in {counters:?}"))["delta"].clone();
        let [hits, prompt] = ["prefix_cache_hits", "prompt_tokens"].map(delta);
        (ran, hits, prompt)
    };
    let (_, hits, prompt) = run(7000, 7100);
    assert_eq!((hits, prompt), (json!(100.0), json!(10_000.0)), "1 %, and not the 35.5 % since the server started");
    let (ran, hits, _) = run(10_000, 500);
    assert_eq!(hits, Value::Null, "never -9,500");
    assert!(ran.findings().contains("restart") && ran.exit == 4);
}

/// B105: four prompts of 2,500 tokens, of each of which 25 were cached, on a server that has served others before.
#[test]
fn the_hit_rate_is_that_of_the_run_and_agrees_with_what_the_counters_grew_by() {
    let last = Arc::new(AtomicUsize::new(0));
    let last_turn = Arc::clone(&last);
    let server = server_with(
        move |_, turn| {
            last.store(turn, Ordering::SeqCst);
            let mut usage = counts(2_500, 3);
            usage["prompt_tokens_details"] = json!({"cached_tokens": 25});
            let end = event(&json!({"choices": [], "usage": usage}));
            stream([content("a"), content("b"), content("c"), finish("length"), end, DONE.to_owned()])
        },
        move |seen| {
            let of_run = last_turn.load(Ordering::SeqCst);
            let page = format!(
                "vllm:prefix_cache_hits_total{{engine=\"0\"}} {}\nvllm:prefix_cache_queries_total{{engine=\"0\"}} {}\nvllm:prompt_tokens_total{{engine=\"0\"}} {}\n",
                7_000 + 25 * of_run,
                10_000 + 2_500 * of_run,
                10_000 + 2_500 * of_run,
            );
            (seen.path == "/metrics").then(|| Answer::Whole(200, "text/plain", page))
        },
    );
    let ran = Ran::new(&server, &[]);
    let report = ran.report();
    assert_eq!(report["metrics"]["cache_hit_rate"], json!({"value": 0.01, "coverage": 1.0}));
    let rows: Vec<&str> = ran.stdout.lines().filter(|line| line.contains("Cache hit rate (%)")).collect();
    assert!(rows.len() == 1 && rows[0].contains(" 1.0 "), "{}", ran.stdout);
    assert!(!ran.stdout.contains("35.5"), "the rate since the server started");
    // The counters say the same, so that neither a hit too many nor traffic of others is found.
    let found = ran.findings();
    assert!(!found.contains("hit") && !found.contains("traffic"), "{found:?}");
    let hits =
        report["server"]["counters"].as_array().unwrap().iter().find(|of| of["role"] == "cached_tokens").unwrap();
    assert_eq!(
        (&hits["before"], &hits["after"], &hits["delta"]),
        (&json!(7_000.0), &json!(7_100.0), &json!(100.0)),
        "read after the probe and before the first turn, and after the last"
    );
}

/// B108
#[test]
fn metrics_that_are_missing_or_no_metrics_change_nothing() {
    for answer in [None, Some("<html>hi</html>\n<p>x{y</p>"), Some("other_total 5\n"), Some("")] {
        let server = server_with(
            |_, _| abc(),
            move |seen| {
                let page = answer.filter(|_| seen.path == "/metrics")?;
                Some(Answer::Whole(200, "text/html", page.to_owned()))
            },
        );
        let ran = Ran::new(&server, &[]);
        assert_eq!((ran.ended_well(), &ran.totals()["complete"]), (true, &json!(4)), "{answer:?}: {}", ran.stderr);
    }
}

/// A page of a gateway that labels its counters by tenant, and of a server that exports what it likes.
#[test]
fn a_page_of_counters_that_is_too_large_is_summed_or_refused_and_both_are_said() {
    let run = |page: Arc<dyn Fn(usize) -> String + Send + Sync>| {
        let ran = run_with(move |turn| Answer::Whole(200, "text/plain", page(turn)));
        assert!(ran.ended_well(), "{}", ran.stderr);
        ran.report()["server"].clone()
    };
    // More series after the run than before it, each of which counts one then.
    let tenants = |turn: usize| if turn == 0 { 15_000 } else { 25_000 };
    let line = |n: usize| format!("vllm:request_success_total{{engine=\"0\",tenant=\"{n}\"}} 1\n");
    let told = run(Arc::new(move |turn| (0..tenants(turn)).map(line).collect()));
    let counters = told["counters"].as_array().unwrap();
    assert_eq!((counters.len(), &counters[0]["delta"]), (1, &json!(10_000.0)));
    assert_eq!((&told["cut"][0]["summed_series"], &told["cut"][0]["left_out_bytes"]), (&json!(25_000), &json!(0)));
    let large = |turn| if turn == 0 { "up 1\n".to_owned() } else { "foreign_total{a=\"b\"} 1\n".repeat(1 << 20) };
    let told = run(Arc::new(large));
    assert_eq!(told["unread"][0]["when"], "after");
    assert!(told["unread"][0]["why"].as_str().unwrap().contains("larger than 16777216 bytes"), "{}", told["unread"]);
}

/// B108: from the first turn on, no question about metrics is answered.
#[test]
fn metrics_that_hang_delay_no_turn_and_are_named_as_unread() {
    let server = counting(|turn| match turn {
        0 => Answer::Whole(200, "text/plain", "sglang:num_requests_total 5\n".to_owned()),
        _ => Answer::Steps(vec![Step::Hold]),
    });
    let ran = Ran::new(&server, &[]);
    let report = ran.report();
    assert_eq!((ran.ended_well(), &report["totals"]["complete"]), (true, &json!(4)), "{}", ran.stderr);
    assert_eq!(report["server"]["counters"][0]["delta"], Value::Null);
    assert_eq!(report["server"]["unread"][0]["when"], "after", "{}", report["server"]["unread"]);
    assert!(report["server"]["unread"][0]["why"].as_str().unwrap().contains("no answer within"));
    let asked: BTreeSet<usize> =
        server.seen().iter().filter(|seen| seen.path == "/metrics").map(|seen| seen.connection).collect();
    assert!(server.turns()[1..].iter().all(|turn| !asked.contains(&turn.connection)), "on a connection of its own");
}
