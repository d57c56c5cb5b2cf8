//! What voids a run, what warns, and what does neither.

use std::collections::BTreeMap;

use crate::profile::Target;
use crate::record::{CounterRole, Failure, Outcome, TurnRecord};
use crate::report::tests::{context, ended, report, served};
use crate::report::*;
use crate::workload::{Aliasing, RouterKey, RouterRule};

fn counters(deltas: &[(&str, &str, f64)]) -> Vec<CounterDelta> {
    let counter = |&(name, source, delta): &(&str, &str, f64)| CounterDelta {
        source: "http://h/metrics".into(),
        name: name.into(),
        labels: BTreeMap::from([("cache_source".into(), source.into())]),
        role: match name {
            "llamacpp:prompt_tokens_total" => Some(CounterRole::ComputedTokens),
            "llamacpp:prompt_tokens_cached_total" => Some(CounterRole::CachedTokens),
            "sglang:cached_tokens_total" => Some(CounterRole::CachedTokensFinished),
            "gspbench_sim_spilled_total" => Some(CounterRole::Spills),
            _ => None,
        },
        place: None,
        node: None,
        before: Some(5.0),
        after: Some(5.0 + delta),
        delta: (delta >= 0.0).then_some(delta),
    };
    deltas.iter().map(counter).collect()
}

fn counted(state: State, deltas: &[(&str, &str, f64)]) -> Closing {
    let server = ServerSide { counters: counters(deltas), ..ServerSide::default() };
    Closing { server, ..Closing::plain(state) }
}

fn with_counters(deltas: &[(&str, &str, f64)]) -> Validity {
    let mut accumulator = Accumulator::new(context(1, 10));
    (0..10).for_each(|session| accumulator.add(&served(session, 0, 0, 100)));
    accumulator.finish(counted(State::Complete, deltas)).validity
}

pub(super) fn kinds(findings: &[Finding]) -> Vec<FindingKind> {
    findings.iter().map(|finding| finding.kind).collect()
}

#[test]
fn cached_tokens_of_client_and_server_must_agree() {
    let name = "sglang:cached_tokens_total";
    let sources = with_counters(&[(name, "device", 900.0), (name, "host", 100.0)]);
    assert_eq!(sources, Validity::default());
    assert_eq!(kinds(&with_counters(&[(name, "total", 1_000.0)]).warnings), []);
    assert_eq!(kinds(&with_counters(&[(name, "device", 1_020.0)]).warnings), [FindingKind::Hit]);
    assert_eq!(kinds(&with_counters(&[(name, "device", 1_100.0)]).voids), [FindingKind::Hit]);
    assert_eq!(kinds(&with_counters(&[("other", "device", 0.0)]).voids), []);
}

#[test]
fn prompt_tokens_may_be_counted_in_two_parts() {
    // Ten turns of 100 prompt tokens, all of them cached.
    let parts = |computed| {
        let [read, cached] =
            [("llamacpp:prompt_tokens_total", computed), ("llamacpp:prompt_tokens_cached_total", 1_000.0)]
                .map(|(name, value)| (name, "", value));
        kinds(&with_counters(&[read, cached]).warnings)
    };
    assert_eq!(parts(0.0), []);
    assert_eq!(parts(100.0), [FindingKind::Traffic]);
}

/// Rows B86 and B90 of the traps: another tokenizer, a template, a second BOS.
#[test]
fn prompts_of_another_length_than_the_tokenizer_gave_are_called_out() {
    let warnings = |tokenizer: Option<&str>, prompt_tokens| {
        let mut context = context(1, 10);
        context.manifest.spec.request.tokenizer = tokenizer.map(Into::into);
        let mut accumulator = Accumulator::new(context);
        for session in 0..10 {
            accumulator.add(&TurnRecord { prompt_tokens, ..served(session, 0, 0, 0) });
        }
        kinds(&accumulator.finish(Closing::plain(State::Complete)).validity.warnings)
    };
    // 100 tokens were planned for each.
    assert_eq!(warnings(Some("t.json"), Some(100)), []);
    assert_eq!(warnings(Some("t.json"), Some(101)), []);
    assert_eq!(warnings(Some("t.json"), Some(103)), [FindingKind::PromptLength]);
    assert_eq!(warnings(Some("t.json"), Some(50)), [FindingKind::PromptLength]);
    assert_eq!(warnings(None, Some(50)), [], "words are no tokens");
    assert!(!warnings(Some("t.json"), None).contains(&FindingKind::PromptLength), "nothing told");
}

/// Rows B86 and B90 of the traps: one token more than 1 % is called out, and 1 % itself is not; a second BOS makes 37 of 36.
#[test]
fn a_prompt_length_is_called_out_above_one_percent_and_not_at_it() {
    let findings = |planned: u32, told: u32| {
        let mut context = context(1, 10);
        context.manifest.spec.request.tokenizer = Some("t.json".into());
        let mut accumulator = Accumulator::new(context);
        for session in 0..10 {
            let (planned_prompt_tokens, prompt_tokens) = (Some(planned), Some(told));
            accumulator.add(&TurnRecord { planned_prompt_tokens, prompt_tokens, ..served(session, 0, 0, 0) });
        }
        let Validity { voids, warnings, .. } = accumulator.finish(Closing::plain(State::Complete)).validity;
        assert_eq!(voids, []);
        warnings
    };
    // The share is of the longer one.
    for (planned, told) in [(9_900, 10_000), (10_000, 9_900), (9_901, 10_000), (1_000, 1_000)] {
        assert_eq!(kinds(&findings(planned, told)), [], "{planned} planned, {told} told");
    }
    for (planned, told) in [(9_899, 10_000), (10_000, 9_899), (1_000, 1_030), (36, 37)] {
        assert_eq!(kinds(&findings(planned, told)), [FindingKind::PromptLength], "{planned} planned, {told} told");
    }
    let second_bos = &findings(36, 37)[0];
    assert_eq!(second_bos.seen, "mean prompt 37.0 tokens by the server, 36.0 by the tokenizer");
    assert!(second_bos.advice.contains("second BOS"), "{}", second_bos.advice);
}

#[test]
fn more_cached_tokens_than_the_prompt_had_void_the_run_and_give_no_rate() {
    // Also where the sums would hide it.
    for others in [100, 0] {
        let turns: Vec<TurnRecord> = (0..4).map(|s| served(s, 0, 0, if s == 0 { 101 } else { others })).collect();
        let report = report(&turns);
        assert_eq!(kinds(&report.validity.voids), [FindingKind::Hit]);
        assert_eq!((report.metrics.cache_hit_rate.value, report.totals.cached_above_prompt_turns), (None, 1));
    }
    let full = report(&[served(0, 0, 0, 100)]);
    assert_eq!((full.validity.voids.len(), full.metrics.cache_hit_rate.value), (0, Some(1.0)));
    let row = &report(&[served(0, 0, 1, 400)]).ranks[1];
    assert_eq!((row.cached_tokens, row.hit_rate), (Some(400), None));
}

#[test]
fn each_address_that_could_not_be_read_is_named() {
    let mut accumulator = Accumulator::new(context(1, 1));
    accumulator.add(&served(0, 0, 0, 0));
    let unread = [("http://a", When::Before), ("http://b", When::After), ("http://c", When::Both)]
        .map(|(source, when)| Unread { source: source.into(), when, why: Some("it is on fire".into()) });
    let server = ServerSide { unread: unread.to_vec(), ..ServerSide::default() };
    let closing = Closing { server, ..Closing::plain(State::Complete) };
    let Validity { voids, warnings, .. } = accumulator.finish(closing).validity;
    assert_eq!((kinds(&voids), kinds(&warnings)), (vec![], vec![FindingKind::Scrape; 3]));
    for (warning, words) in warnings.iter().zip(["http://a", "after", "before or after"]) {
        assert!(warning.seen.contains(words) && warning.seen.ends_with("(it is on fire)"), "{}", warning.seen);
    }
}

#[test]
fn a_page_of_counters_that_is_not_kept_whole_is_named_with_what_is_missing() {
    let said = |summed_series, left_out_bytes| {
        let mut accumulator = Accumulator::new(context(1, 1));
        accumulator.add(&served(0, 0, 0, 0));
        let cut = vec![Cut { source: "http://a".into(), summed_series, left_out_histograms: None, left_out_bytes }];
        let server = ServerSide { cut, ..ServerSide::default() };
        let mut warnings = accumulator.finish(Closing { server, ..Closing::plain(State::Complete) }).validity.warnings;
        assert_eq!(kinds(&warnings), [FindingKind::Scrape]);
        warnings.remove(0).seen
    };
    let (series, bytes) = (said(Some(160_000), 0), said(None, 77));
    assert!(series.contains("http://a") && series.contains("160,000 series") && !series.contains("bytes"), "{series}");
    assert!(bytes.contains("77 bytes") && !bytes.contains("known counters"), "{bytes}");
    assert!(said(Some(160_000), 77).contains("metrics.prom"));
}

#[test]
fn spills_are_those_that_the_simulator_counted() {
    let mut accumulator = Accumulator::new(context(1, 1));
    accumulator.add(&served(0, 0, 0, 0));
    assert_eq!(accumulator.finish(Closing::plain(State::Complete)).affinity.spilled, None);
    let deltas = [("gspbench_sim_spilled_total", "a", 2.0), ("gspbench_sim_spilled_total", "b", 1.0)];
    assert_eq!(accumulator.finish(counted(State::Complete, &deltas)).affinity.spilled.unwrap().turns, 3);
}

#[test]
fn turns_that_did_not_complete_may_explain_their_share_of_the_difference() {
    let mut accumulator = Accumulator::new(context(1, 10));
    (0..8).for_each(|session| accumulator.add(&served(session, 0, 0, 100)));
    let closing = counted(State::Interrupted, &[("sglang:cached_tokens_total", "device", 1_000.0)]);
    assert_eq!(kinds(&accumulator.finish(closing).validity.warnings), [FindingKind::Interrupted]);
}

#[test]
fn a_counter_that_fell_voids_the_run() {
    assert_eq!(kinds(&with_counters(&[("sglang:num_requests_total", "", -1.0)]).voids), [FindingKind::Restart]);
}

#[test]
fn one_failure_in_a_hundred_warns_and_two_void() {
    let turns = |failed: u32| -> Vec<_> {
        let fate = |n| if n < failed { Outcome::Failed(Failure::Http(503)) } else { Outcome::Complete };
        (0..100).map(|n| ended(n, 0, fate(n))).collect()
    };
    assert_eq!(report(&turns(0)).validity, Validity::default());
    assert_eq!(kinds(&report(&turns(1)).validity.warnings), [FindingKind::Errors]);
    let void = report(&turns(2)).validity;
    assert_eq!((void.verdict, kinds(&void.voids)), (Verdict::Void, vec![FindingKind::Errors]));
    assert_eq!(void.voids[0].seen, "2 of 100 turns failed (2 %): http_503 2");
}

#[test]
fn replies_of_another_length_void_only_when_the_length_was_forced() {
    let short = TurnRecord { output_tokens: Some(3), ..served(0, 0, 0, 0) };
    assert_eq!(kinds(&report(std::slice::from_ref(&short)).validity.voids), [FindingKind::OutputLength]);
    let mut free = context(1, 1);
    free.manifest.spec.request.ignore_eos = false;
    let mut accumulator = Accumulator::new(free);
    accumulator.add(&short);
    assert_eq!(accumulator.finish(Closing::plain(State::Complete)).validity, Validity::default());
}

#[test]
fn a_late_client_voids_unless_it_shares_its_cores_with_our_own_simulator() {
    let late = TurnRecord { due_us: Micros(0), ..served(0, 6, 0, 0) };
    assert_eq!(kinds(&report(std::slice::from_ref(&late)).validity.voids), [FindingKind::Client]);
    let (mut started, mut found) = (context(1, 1), context(1, 1));
    started.manifest.target = Some(Target::Sim { policy: "round_robin".into(), settings: BTreeMap::new() });
    found.server.kind = Some("gspbench sim".into());
    for shared in [started, found] {
        let mut accumulator = Accumulator::new(shared);
        accumulator.add(&late);
        let validity = accumulator.finish(Closing::plain(State::Complete)).validity;
        assert_eq!((validity.verdict, kinds(&validity.warnings)), (Verdict::Valid, vec![FindingKind::Client]));
    }
}

#[test]
fn a_group_that_began_warm_voids_a_run_that_was_to_begin_cold() {
    let judged = |cached: Option<u32>, flush: bool| {
        let mut context = context(1, 1);
        context.server.page_tokens = Some(1);
        context.manifest.spec.server.flush = flush;
        let mut accumulator = Accumulator::new(context);
        accumulator.add(&TurnRecord { cached_tokens: cached, ..served(0, 0, 0, 0) });
        let report = accumulator.finish(Closing::plain(State::Complete));
        (kinds(&report.validity.voids), kinds(&report.validity.warnings))
    };
    assert_eq!(judged(Some(64), true), (vec![], vec![]), "no more than the slack that templates take");
    assert_eq!(judged(Some(65), true), (vec![FindingKind::Warm], vec![]));
    assert_eq!(judged(Some(65), false), (vec![], vec![FindingKind::Warm]), "the cache was left alone on purpose");
    assert_eq!(judged(None, true), (vec![], vec![FindingKind::ColdUnproven]));
    assert_eq!(judged(None, false), (vec![], vec![]));
}

/// What a run of 16 turns over eight ranks says of aliasing, its cycles being multiples of them. `dealt`: in turn; else the
/// second turn of each session stays.
fn aliased(target: Option<&str>, method: Option<&str>, dealt: bool) -> Vec<Finding> {
    aliased_with(&[], target, method, dealt)
}

/// The same with headers in every request.
fn aliased_with(headers: &[&str], target: Option<&str>, method: Option<&str>, dealt: bool) -> Vec<Finding> {
    let mut context = context(2, 16);
    context.manifest.spec.request.headers = headers.iter().map(|name| ((*name).to_owned(), "1".to_owned())).collect();
    context.manifest.target = target.map(|text| text.parse().unwrap());
    context.server.load_balance_method = method.map(str::to_owned);
    context.server.ranks = Some(8);
    context.workload.oracle.aliasing = vec![Aliasing::Concurrency(8), Aliasing::Sessions(16)];
    context.workload.oracle.round_robin =
        Some(RoundRobinOracle { ranks: 8, reuse: 0.5, cold_pairs: 9.0, split_share: Some(0.875) });
    let mut accumulator = Accumulator::new(context);
    for (session, turn) in (0..8).flat_map(|session| [(session, 0), (session, 1)]) {
        let at = u16::try_from(2 * session + turn).unwrap() % 8;
        let at = if dealt { at } else { u16::try_from(session * session).unwrap() % 8 };
        accumulator.add(&TurnRecord { turn, ..served(session, 0, at, 0) });
    }
    accumulator.finish(Closing::plain(State::Complete)).validity.warnings
}

#[test]
fn a_cycle_that_keeps_step_with_the_ranks_warns_where_turns_are_dealt_in_turn() {
    let warnings = aliased(None, Some("round_robin"), true);
    assert_eq!(kinds(&warnings), [FindingKind::Aliasing]);
    for words in ["8 sessions in flight and 16 sessions in all", "8 ranks", "100 % of sessions moved, by chance 87.5 %"]
    {
        assert!(warnings[0].seen.contains(words), "{}", warnings[0].seen);
    }
    for dealt in [true, false] {
        let warns = |target, method| kinds(&aliased(target, method, dealt)) == [FindingKind::Aliasing];
        let (http, sim) = (Some("http://h:1"), Some("sim:round_robin"));
        assert!(warns(http, Some("round_robin")) && warns(sim, None) && warns(sim, Some("round_robin")));
        assert!(!warns(http, Some("prefix_affinity")) && !warns(Some("sim:total_requests"), None));
        // The client places these, whatever the server would do with turns that say nothing.
        assert!(warns(Some("pin:round_robin@http://h:1"), Some("total_tokens")));
        assert!(warns(Some("pin:round_robin@http://h:1,http://h:2"), None));
        let pins = ["pin:prefix_affinity@http://h", "pin:oracle@http://h", "pin:total_requests@http://h,http://i"];
        for pin in pins {
            assert!(!warns(Some(pin), Some("round_robin")) && !warns(Some(pin), None), "{pin}");
        }
        // So does a header that names one rank.
        let pinned = aliased_with(&["X-Data-Parallel-Rank"], http, Some("round_robin"), dealt);
        assert_eq!(kinds(&pinned), []);
        assert_eq!(aliased_with(&["X-Other"], http, Some("round_robin"), dealt).len(), 1);
        // Of a server that does not tell, places that look dealt are the only sign.
        assert_eq!((warns(http, None), warns(None, None)), (dealt, dealt));
    }
}

#[test]
fn places_that_are_not_known_look_like_nothing() {
    let mut context = context(1, 8);
    context.workload.oracle.aliasing = vec![Aliasing::Sessions(8)];
    context.workload.oracle.round_robin =
        Some(RoundRobinOracle { ranks: 8, reuse: 0.5, cold_pairs: 9.0, split_share: None });
    let mut accumulator = Accumulator::new(context);
    (0..8).for_each(|session| accumulator.add(&TurnRecord { place: None, ..served(session, 0, 0, 0) }));
    assert_eq!(accumulator.finish(Closing::plain(State::Complete)).validity.warnings, []);
}

#[test]
fn a_prompt_that_hides_its_session_from_routers_warns_unless_the_server_is_none() {
    let judged = |kind: Option<&str>, keys: u64, is_stable: bool| {
        let mut context = context(1, 1);
        context.server.kind = kind.map(str::to_owned);
        context.workload.router_key = Some(RouterKey { rule: RouterRule::FirstMessage, sessions: 9, keys, is_stable });
        let mut accumulator = Accumulator::new(context);
        accumulator.add(&served(0, 0, 0, 0));
        accumulator.finish(Closing::plain(State::Complete)).validity.warnings
    };
    let collapsed = judged(Some("sglang-router"), 1, true);
    assert_eq!(kinds(&collapsed), [FindingKind::RouterKey]);
    assert_eq!(collapsed[0].seen, "the first message is the same in all 9 sessions");
    assert_eq!(kinds(&judged(None, 9, false)), [FindingKind::RouterKey]);
    assert_eq!(judged(None, 9, true), []);
    assert_eq!(judged(Some("sglang"), 1, true), []);
}

#[test]
fn reuse_that_was_at_the_places_and_is_missing_warns_of_eviction() {
    // 40 turns of 10,000 tokens, of which caches that never evict would have given 90 %.
    let judged = |context: Context, observed: Option<f64>, turns: &[TurnRecord]| {
        let mut accumulator = Accumulator::new(context);
        turns.iter().for_each(|turn| accumulator.add(turn));
        let observed = observed.map(|reuse| ObservedOracle { reuse, cold_pairs: 2 });
        accumulator.finish(Closing { observed, ..Closing::plain(State::Complete) }).validity.warnings
    };
    let small = || {
        let mut small = context(1, 40);
        (small.server.page_tokens, small.server.kv_tokens_total) = (Some(1), Some(8_000));
        small.manifest.spec.server.flush = false;
        small
    };
    let turns = |gap: u64, cached: u32| -> Vec<TurnRecord> {
        let turn = |n: u32| TurnRecord {
            prompt_tokens: Some(10_000),
            cached_tokens: Some(if n < 2 { 0 } else { cached }),
            ..served(n, u64::from(n) * gap, 0, 0)
        };
        (0..40).map(turn).collect()
    };
    let one_by_one = |cached| judged(small(), Some(0.9), &turns(200, cached));
    let lost = one_by_one(5_000);
    assert_eq!(kinds(&lost), [FindingKind::Eviction]);
    for words in ["47.5 % of prompt tokens were cached, 90 % had been", "40000 distinct", "room for 8000 in all"] {
        assert!(lost[0].seen.contains(words), "{}", lost[0].seen);
    }
    assert_eq!(one_by_one(9_000), [], "5 points and the slack may be missing");
    assert_eq!(judged(small(), Some(0.9), &turns(0, 0)), [], "all left together: no cache can have held their prompts");
    assert_eq!(kinds(&judged(small(), Some(0.9), &turns(200, 0))), [FindingKind::Eviction], "one by one they could");
    assert_eq!(judged(small(), None, &turns(200, 0)), [], "nothing is expected of two ranks whose places are unknown");
    let mut paged = small();
    paged.server.page_tokens = Some(5_000);
    assert_eq!(judged(paged, Some(0.9), &turns(200, 5_000)), [], "pages that are not full cannot be shared");
    // A single rank needs no places: all its turns are expected to find what the plan allows.
    let mut single = small();
    single.server.ranks = Some(1);
    single.workload.oracle.ideal_reuse = Some(0.9);
    let nowhere: Vec<_> = turns(200, 0).into_iter().map(|turn| TurnRecord { place: None, ..turn }).collect();
    assert_eq!(kinds(&judged(single.clone(), None, &nowhere)), [FindingKind::Eviction]);
    assert_eq!(judged(single, None, &nowhere[..19]), [], "too few to tell");
}

#[test]
fn a_rank_that_the_server_does_not_have_is_named() {
    let judged = |ranks: Option<u32>| {
        let mut context = context(1, 4);
        context.server.ranks = ranks;
        let mut accumulator = Accumulator::new(context);
        [0, 1, 2, 9].into_iter().zip(0..).for_each(|(rank, n)| accumulator.add(&served(n, 0, rank, 0)));
        accumulator.finish(Closing::plain(State::Complete)).validity.warnings
    };
    let beyond = judged(Some(2));
    assert_eq!(kinds(&beyond), [FindingKind::Rank]);
    assert!(
        beyond[0].seen.starts_with("2 turns came back from rank 2 and 1 more, and the server has 2"),
        "{}",
        beyond[0].seen
    );
    assert_eq!(kinds(&judged(Some(9))), [FindingKind::Rank], "they are numbered from 0");
    assert_eq!((judged(Some(10)), judged(None)), (vec![], vec![]), "or their number is unknown");
}
