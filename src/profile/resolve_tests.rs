//! Each refusal names the key and the way out; each default is the documented one.

use super::*;
use crate::profile::{KeyScope, load};

fn context() -> Context {
    Context { name: "test".into(), drawn_seed: 99, compares_arms: false }
}

fn run(text: &str) -> Checked<RunSpec> {
    run_spec(&load("test", text, &[]).unwrap(), &context())
}

fn refusal(text: &str) -> String {
    run(text).map(|spec| format!("accepted: {spec:?}")).unwrap_or_else(|why| why.to_string())
}

#[test]
fn an_empty_profile_has_the_documented_defaults() {
    let spec = run("").unwrap();
    assert_eq!(spec.workload.seed, 99);
    assert_eq!(spec.workload.system_tokens, Length { min: 4096, max: 4096 });
    assert_eq!((spec.key.by, spec.key.body_field.as_deref()), (KeyScope::Group, Some("routing_key")));
    assert_eq!(spec.key.headers, ["x-smg-routing-key", "x-session-id"]);
    assert_eq!(spec.load.pacing, Pacing::Closed { sessions: NonZeroU32::new(32).unwrap() });
    assert_eq!((spec.timeout.first_byte, spec.timeout.idle), (Duration::from_secs(600), Duration::from_secs(60)));
    assert!(spec.request.ignore_eos && spec.server.flush);
    assert!(spec.request.temperature.abs() < f64::EPSILON);
}

#[test]
fn keys_are_per_session_and_history_synthetic_when_arms_of_several_turns_are_compared() {
    let many = "workload.turns = 3";
    let spec = run(many).unwrap();
    assert_eq!((spec.key.by, spec.workload.history), (KeyScope::Session, History::Real));
    let profile = load("test", many, &[]).unwrap();
    let compared = run_spec(&profile, &Context { compares_arms: true, ..context() }).unwrap();
    assert_eq!(compared.workload.history, History::Synthetic);
}

#[test]
fn range_ratio_draws_from_the_interval_of_bench_serving() {
    let length =
        |ratio: f64| run(&format!("workload.question_tokens = 100\nworkload.range_ratio = {ratio:.3}")).unwrap();
    assert_eq!(length(0.5).workload.question_tokens, Length { min: 50, max: 100 });
    assert_eq!(length(0.0).workload.question_tokens, Length { min: 1, max: 100 });
    assert_eq!(length(0.019).workload.question_tokens, Length { min: 1, max: 100 });
}

#[test]
fn what_cannot_be_run_is_refused_with_its_key_and_a_way_out() {
    let cases = [
        ("schema = 2", "`schema`", "schema = 1"),
        ("load.rate = -1.0", "`load.rate`", "above 0"),
        ("load.rate = nan", "`load.rate`", "above 0"),
        ("load.burstiness = 2.0", "`load.burstiness`", "load.rate"),
        ("load.rate = 1.0\nload.burstiness = 0.0", "`load.burstiness`", "inf"),
        ("load.duration = \"0s\"", "`load.duration`", "60s"),
        ("load.duration = \"5s\"\nload.ramp_up = \"5s\"", "`load.ramp_up`", "shorter"),
        ("load.max_concurrency = 0", "`load.max_concurrency`", "at least 1"),
        ("workload.groups = 0", "`workload.groups`", "at least 1"),
        ("workload.output_tokens = 0", "`workload.output_tokens`", "at least 1"),
        ("workload.system_tokens = { min = 9, max = 3 }", "`workload.system_tokens`", "exchange"),
        ("workload.range_ratio = 1.5", "`workload.range_ratio`", "0 to 1"),
        ("workload.popularity = \"hot\"", "`workload.popularity`", "uniform"),
        ("workload.groups = 100000\nworkload.sessions_per_group = 100000", "`workload.groups`", "smaller"),
        ("request.prompt_as = \"ids\"", "`request.prompt_as`", "--tokenizer"),
        ("request.prompt_as = \"ids\"\nrequest.tokenizer = \"t\"", "`request.prompt_as`", "completions"),
        ("request.api = \"generate\"\nrequest.chat_layout = \"merged\"", "`request.chat_layout`", "leave it out"),
        ("request.extra_body.n = 2", "`request.extra_body.n`", "leave"),
        ("request.extra_body.messages = []", "`request.extra_body.messages`", "leave it out"),
        ("request.extra_body.prompt = \"x\"", "`request.extra_body.prompt`", "leave it out"),
        ("request.extra_body.text = \"x\"", "`request.extra_body.text`", "leave it out"),
        ("request.extra_body.input_ids = [1]", "`request.extra_body.input_ids`", "request.prompt_as"),
        ("request.extra_body.stream = true", "`request.extra_body.stream`", "leave it out"),
        ("request.extra_body.model = \"m\"", "`request.extra_body.model`", "--model"),
        ("request.headers.Host = \"x\"", "`request.headers`: `Host`", "leave it out"),
        ("request.headers.content-length = \"1\"", "`content-length`", "leave it out"),
        ("request.headers.\"a b\" = \"1\"", "`a b`", "letters"),
        ("request.headers.a = \"x\\n\"", "`a`", "ASCII"),
        ("key.headers = [\"a b\"]", "`key.headers`: `a b`", "letters"),
        ("key.headers = [\"Authorization\"]", "`key.headers`: `Authorization`", "another purpose"),
        (
            "key.headers = [\"X-Api-Key\"]\nrequest.headers.x-api-key = \"s\"",
            "`key.headers`: `X-Api-Key`",
            "leave one of them out",
        ),
        ("key.headers = [\"Connection\"]", "`key.headers`: `Connection`", "leave it out"),
        ("server.metrics_urls = [\"h:1\"]", "`server.metrics_urls`: `h:1`", "http://"),
        (
            "workload.range_ratio = 0.5\nworkload.output_tokens = { min = 1, max = 2 }",
            "`workload.output_tokens`",
            "leave out `workload.range_ratio`",
        ),
        ("timeout.idle = \"0s\"", "`timeout.idle`", "60s"),
        ("timeout.idle = \"soon\"", "`timeout.idle`", "90s"),
        ("sim.time_scale = 0.0", "`sim.time_scale`", "above 0"),
        ("sim.time_scale = 1e-9", "`sim.time_scale`", "0.001"),
        ("sim.time_scale = 1e9", "`sim.time_scale`", "1000000"),
        ("load.rate = 1e-300", "`load.rate`", "0.000001"),
        ("load.rate = inf", "`load.rate`", "1000000"),
        ("load.rate = 1.0\nload.burstiness = 1e-310", "`load.burstiness`", "0.001"),
        ("load.rate = 1.0\nload.burstiness = nan", "`load.burstiness`", "0.001"),
        ("load.rate = 1.0\nload.burstiness = 1e9", "`load.burstiness`", "1000000"),
        ("load.think = \"11y\"", "`load.think`", "10 years"),
        ("load.think = \"500000000000y\"", "`load.think`", "90s"),
        ("load.duration = \"18446744073709551615s\"", "`load.duration`", "10 years"),
        ("load.ramp_up = \"11y\"", "`load.ramp_up`", "10 years"),
        ("timeout.connect = \"11y\"", "`timeout.connect`", "10 years"),
        ("timeout.first_byte = \"11y\"", "`timeout.first_byte`", "10 years"),
        ("timeout.idle = \"11y\"", "`timeout.idle`", "10 years"),
        ("server.sample_interval = \"50ms\"", "`server.sample_interval`", "0 for none"),
        ("server.flush_timeout = \"11y\"", "`server.flush_timeout`", "10 years"),
        ("server.ranks = 4097", "`server.ranks`", "4096"),
        ("server.ranks = 4294967295", "`server.ranks`", "4096"),
        ("server.kv_tokens_per_rank = 0", "`server.kv_tokens_per_rank`", "1 to"),
        ("server.kv_tokens_per_rank = 9000000000000000000", "`server.kv_tokens_per_rank`", "1 to"),
    ];
    for (text, key, way_out) in cases {
        let said = refusal(text);
        assert!(said.contains(key) && said.contains(way_out), "{text}: {said}");
    }
}

#[test]
fn what_is_not_built_is_refused_and_never_ignored() {
    let keys = ["workload.kind = \"trace\"", "workload.kind = \"mixture\""];
    for text in keys {
        assert!(refusal(text).ends_with("is not built yet"), "{text}: {}", refusal(text));
    }
}

#[test]
fn an_experiment_needs_two_arms_of_different_names() {
    let experiment = |arms: &[(&str, &str)]| {
        let tables: String = arms
            .iter()
            .map(|(name, rest)| format!("[[arm]]\nname = \"{name}\"\ntarget = \"sim:round_robin\"\n{rest}\n"))
            .collect();
        experiment_spec(&load("test", &tables, &[]).unwrap(), &context()).map_err(|why| why.to_string())
    };
    assert_eq!(experiment(&[("a", ""), ("b", "control = true")]).unwrap().arms.len(), 2);
    for (arms, words) in [
        (&[("a", "")][..], "two arms"),
        (&[("a", ""), ("A", "")], "of its own"),
        (&[("a", "control = true"), ("b", "")], "baseline"),
        (&[("a", ""), ("b/c", "")], "folder"),
        (&[("a", ""), ("b", "launch = \"x\"")], "leave `launch` out"),
    ] {
        let said = experiment(arms).unwrap_err();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn recorded_history_is_for_arms_that_are_compared() {
    let said = refusal("workload.history = \"recorded\"");
    assert!(said.contains("`workload.history`") && said.contains("gspbench ab"), "{said}");
    let spec = |text: &str| {
        run_spec(&load("test", text, &[]).unwrap(), &Context { compares_arms: true, ..context() })
            .map_err(|why| why.to_string())
    };
    let recorded = "workload.history = \"recorded\"\nworkload.turns = 2\n";
    assert_eq!(spec(recorded).unwrap().workload.history, History::Recorded);
    let ranged = format!("{recorded}workload.output_tokens = {{ min = 1, max = 9 }}");
    assert!(spec(&ranged).unwrap_err().contains("one length"));
}
