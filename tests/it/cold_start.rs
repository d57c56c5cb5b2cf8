//! A run begins on an emptied cache, or says that it did not: flushes, and what proves them.

use serde_json::Value;

use crate::bad_input::{gspbench, small};
use crate::end_to_end::Sim;
use crate::scripted::{Answer, Seen};
use crate::small_runs::{LONG, kinds, proxy, router, run, valid_run};

fn not_found() -> Option<Answer> {
    Some(Answer::Whole(404, "application/json", "{}".to_owned()))
}

#[test]
fn a_cold_start_on_the_simulator_is_proven_on_every_rank() {
    let sim = Sim::start(&["--ranks=4"]);
    let (exit, report, printed) = run(&sim.url, &[]);
    assert_eq!(exit, 0, "{printed}");
    let flush = serde_json::json!({"by": "flush_cache", "proof": "no_evictable_tokens", "warm": []});
    assert_eq!(report["server"]["flush"], flush);
}

#[test]
fn a_warm_server_voids_a_run_that_was_to_begin_cold() {
    let sim = Sim::start(&["--ranks=2"]);
    assert_eq!(run(&sim.url, &[]).0, 0);
    // It says that it has flushed, and has not.
    let lying = proxy(&sim.url, "", |seen| {
        seen.path.starts_with("/flush").then(|| Answer::Whole(200, "text/plain", "Cache flushed.\n".to_owned()))
    });
    let (exit, report, printed) = run(&lying.url, &[]);
    // By the prompt that each rank was asked for again, and by what the groups found.
    assert_eq!((exit, kinds(&report, "voids")), (4, vec!["warm".to_owned(); 2]), "{printed}");
    assert!(printed.contains("VOID(warm)"), "{printed}");
    // Left warm on purpose, it is only warned of.
    let (exit, report, printed) = run(&sim.url, &["--no-flush-cache"]);
    assert_eq!((exit, kinds(&report, "voids")), (0, vec![]), "{printed}");
    assert!(kinds(&report, "warnings").contains(&"warm".to_owned()), "{printed}");
}

#[test]
fn where_no_gauge_tells_every_rank_is_asked_for_a_prompt_that_it_had() {
    let sim = Sim::start(&["--ranks=2"]);
    let silent = |seen: &Seen| seen.path.starts_with("/metrics").then(not_found).flatten();
    let honest = proxy(&sim.url, "", silent);
    let (exit, report, printed) = run(&honest.url, &[]);
    assert_eq!((exit, &report["server"]["flush"]["proof"]), (0, &"pinned_probe".into()), "{printed}");
    let lying = proxy(&sim.url, "", move |seen| {
        let flush = seen.path.starts_with("/flush").then(|| Answer::Whole(200, "text/plain", "ok".to_owned()));
        flush.or_else(|| silent(seen))
    });
    let (exit, report, printed) = run(&lying.url, &["--seed=8"]);
    assert_eq!(report["server"]["flush"]["warm"], serde_json::json!([{"rank": 0}, {"rank": 1}]), "{printed}");
    // Its groups began cold all the same: none but the probe's prompt had been there.
    assert_eq!((exit, kinds(&report, "voids")), (4, vec!["warm".to_owned()]), "{printed}");
    assert!(printed.contains("rank 0, rank 1 still held"), "{printed}");
}

#[test]
fn a_server_without_a_flush_begins_cold_by_a_salt() {
    let sim = Sim::start(&["--ranks=2"]);
    let none = proxy(&sim.url, "", |seen| seen.path.starts_with("/flush").then(not_found).flatten());
    let warm = |report: &Value| kinds(report, "voids").contains(&"warm".to_owned());
    let (_, first, printed) = run(&none.url, &[]);
    assert!(!warm(&first) && printed.contains("--isolate cache_salt"), "{printed}");
    let (exit, second, printed) = run(&none.url, &[]);
    assert!(warm(&second) && exit == 4, "{printed}");
    let (exit, salted, printed) = run(&none.url, &["--isolate=cache_salt"]);
    assert!(!warm(&salted) && exit == 0, "{printed}");
    assert_eq!(salted["server"]["flush"]["by"], "cache_salt");
    // The run's own reuse is there as ever.
    assert!(salted["totals"]["cached_tokens"].as_u64().unwrap() > 0);
}

#[test]
fn a_command_flushes_in_place_of_the_server() {
    let sim = Sim::start(&["--ranks=2"]);
    let (exit, report, printed) = run(&sim.url, &["--flush-command", "test -n \"$GSPBENCH_TARGET\" # S3CRET"]);
    assert_eq!((exit, &report["server"]["flush"]["by"]), (4, &"command".into()), "{printed}");
    assert!(printed.contains("VOID(warm)"), "a command that flushes nothing is found out: {printed}");
    assert!(!report.to_string().contains("S3CRET"), "a command may hold a password");
    let dir = tempfile::tempdir().unwrap();
    let args =
        [&["run", "--target", &sim.url, "--flush-command", "echo no such fleet >&2; exit 9"], &LONG[..]].concat();
    let (exit, _, stderr) = gspbench(&args, dir.path());
    assert_eq!(exit, 3, "{stderr}");
    assert!(stderr.contains("--flush-command") && stderr.contains("no such fleet"), "{stderr}");
}

#[test]
fn a_flush_that_ends_at_a_router_is_none_and_what_it_said_is_told() {
    let partial = "{\"status\":\"partial_success\",\"message\":\"Cache flush: 0 succeeded, 3 failed\",\"failed\":[\
                   {\"worker\":\"http://127.0.0.1:8402\",\"error\":\"flush_cache failed: HTTP 404 Not Found\"}]}";
    let cases = [
        ((206, partial), "0 succeeded, 3 failed"),
        ((500, "Cache flush failed on one or more servers"), "failed on one or more servers"),
    ];
    for (flush, said) in cases {
        let (report, printed) = valid_run(&router("OK", flush), &[]);
        assert_eq!(report["server"]["flush"]["by"], "nothing", "{printed}");
        for word in [said, "--flush-command", "--isolate cache_salt", "--no-flush-cache"] {
            assert!(printed.contains(word), "`{word}`: {printed}");
        }
        assert!(!printed.contains("wait until"), "{printed}");
    }
    // One that has the route and does not flush is busy.
    let busy = "{\"message\":\"2 succeeded, 1 failed\",\"failed\":[{\"error\":\"HTTP 400 Bad Request\"}]}";
    let dir = tempfile::tempdir().unwrap();
    let (exit, _, stderr) = gspbench(&small(&["--target", &router("OK", (206, busy)).url]), dir.path());
    assert!(exit == 3 && stderr.contains("2 succeeded, 1 failed") && stderr.contains("wait until"), "{exit}: {stderr}");
}
