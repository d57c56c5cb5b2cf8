//! What a profile's plan promises, through the same doors that the commands use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gspbench::profile::{self, Context, KeyScope, Order, Popularity, RunSpec};
use gspbench::text::Vocabulary;
use gspbench::workload::{Plan, Prompter, Role, SessionPlan, plan};
use proptest::prelude::*;
use serde_json::json;
use tokenizers::Tokenizer;

fn tokenizer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bpe-2k.tokenizer.json")
}

/// A built-in profile under seed 42, with changes as `--set` takes them.
fn spec(name: &str, changes: &[&str]) -> RunSpec {
    let changes: Vec<_> = changes.iter().map(|text| profile::Override::Assign((*text).to_owned())).collect();
    let raw = profile::load(name, profile::builtin(name).unwrap(), &changes).unwrap();
    profile::run_spec(&raw, &Context { name: name.into(), drawn_seed: 42, compares_arms: true }).unwrap()
}

fn planned(spec: &RunSpec) -> Plan {
    plan(spec, &Vocabulary::words()).unwrap()
}

fn prompter(plan: &Plan, vocabulary: Vocabulary) -> Prompter {
    Prompter::new(Arc::new(plan.clone()), Arc::new(vocabulary))
}

fn keys(plan: &Plan) -> BTreeSet<Option<String>> {
    let turns = plan.sessions.iter().flat_map(|s| (0u32..).zip(&s.turns).map(|(turn, _)| (s.group, s.session, turn)));
    turns.map(|(group, session, turn)| plan.key(group, session, turn)).collect()
}

fn seats(plan: &Plan) -> Vec<(u32, u32)> {
    plan.sessions.iter().map(|session| (session.group, session.session)).collect()
}

/// Row B96 of the traps. Golden: a change here makes results of two versions incomparable, so it must be a wanted one.
#[test]
fn each_built_in_profile_keeps_its_digest() {
    let digests = ["quick", "dpa8-gsp", "mla-showcase", "pd-multiturn"].map(|name| planned(&spec(name, &[])).digest);
    let golden = [
        "b345581528de09f031cc5ef298f460ba",
        "8dae8f0204040470314796349a205c60",
        "dbb797855c66dec84b9e69562df03bfe",
        "be85679396bd034f6ff3ea8d6ea3ffdd",
    ];
    assert_eq!(digests, golden);
}

#[test]
fn the_digest_sees_what_the_server_sees_and_nothing_else() {
    let digest = |changes: &[&str]| planned(&spec("quick", &[&["request.api=\"chat\""], changes].concat())).digest;
    let plain = digest(&[]);
    let unseen = [
        "request.model=\"m\"",
        "request.headers={a=\"b\"}",
        "key.headers=[\"x\"]",
        "server.ranks=4",
        "load.max_concurrency=8",
        "load.max_turns_in_flight=3",
        "workload.history=\"real\"",
    ];
    for change in unseen {
        assert_eq!(digest(&[change]), plain, "{change}");
    }
    let seen = [
        "workload.seed=43",
        "key.salt=1",
        "key.by=\"session\"",
        "key.by=\"none\"",
        "workload.output_tokens=65",
        "workload.question_tokens=129",
        "workload.system_tokens=4097",
        "workload.order=\"grouped\"",
        "workload.groups=9",
        "workload.turns=2",
        "load.rate=5.0",
        "request.api=\"generate\"",
        "request.chat_layout=\"merged\"",
        "request.temperature=0.5",
        "request.ignore_eos=false",
        "request.extra_body={top_p=0.5}",
    ];
    let mut digests: BTreeSet<String> = seen.iter().map(|change| digest(&[change])).collect();
    digests.insert(plain);
    assert_eq!(digests.len(), seen.len() + 1);
    assert_ne!(digest(&["workload.turns=2", "load.think=\"1s\""]), digest(&["workload.turns=2"]));
    assert_ne!(digest(&["load.rate=5.0", "load.burstiness=2.0"]), digest(&["load.rate=5.0"]));
}

#[test]
fn all_512_prompts_share_exactly_their_groups_system_prompt() {
    let plan = planned(&spec("dpa8-gsp", &[]));
    let prompter = prompter(&plan, Vocabulary::words());
    let mut first_words: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    let mut systems = BTreeMap::new();
    let mut texts = BTreeSet::new();
    for (at, session) in plan.sessions.iter().enumerate() {
        let prompt = prompter.prompt(at, 0, &[]);
        let [system, question] = &prompt.messages[..] else { panic!("two parts") };
        assert_eq!((system.role, question.role), (Role::System, Role::User));
        let text = prompt.text();
        let words: Vec<&str> = text.split(' ').collect();
        assert_eq!((words.len(), plan.prompt_tokens(at, 0)), (4224, Some(4224)));
        let shared = systems.entry(session.group).or_insert_with(|| words[..4096].join(" "));
        assert_eq!(*shared, words[..4096].join(" "));
        assert!(first_words.entry(session.group).or_default().insert(words[4096].to_owned()), "shared by accident");
        texts.insert(text);
    }
    assert_eq!(texts.len(), 512);
    let openings: BTreeSet<&str> = systems.values().map(|text| text.split(' ').next().unwrap()).collect();
    assert_eq!((systems.len(), openings.len()), (16, 16));
}

/// Rows B86 and B91 of the traps.
#[test]
fn under_a_tokenizer_the_seam_of_every_joined_prompt_is_exact() {
    let vocabulary = Vocabulary::from_file(&tokenizer()).unwrap();
    let encoder = Tokenizer::from_file(tokenizer()).unwrap();
    let changes = [
        "request.api=\"generate\"",
        "request.prompt_as=\"ids\"",
        "workload.turns=3",
        "workload.system_tokens=300",
        "workload.question_tokens={min=20,max=40}",
        "workload.output_tokens={min=1,max=30}",
        "workload.history=\"synthetic\"",
        "request.tokenizer=\"x\"",
        "workload.sessions_per_group=4",
    ];
    let plan = plan(&spec("quick", &changes), &vocabulary).unwrap();
    let prompter = prompter(&plan, vocabulary);
    let mut systems: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (at, session) in plan.sessions.iter().enumerate() {
        let mut earlier: Vec<u32> = Vec::new();
        for turn in 0..3 {
            let prompt = prompter.prompt(at, turn, &[]);
            let ids = encoder.encode(prompt.text(), false).unwrap().get_ids().to_vec();
            assert_eq!(prompt.ids().as_ref(), Some(&ids));
            assert_eq!(plan.prompt_tokens(at, turn), u32::try_from(ids.len()).ok());
            assert_eq!(&ids[..300], systems.entry(session.group).or_insert_with(|| ids[..300].to_vec()));
            assert!(ids.starts_with(&earlier), "a later turn begins with all of the earlier one");
            earlier = ids;
        }
    }
    let heads: BTreeSet<u32> = systems.values().map(|ids| ids[0]).collect();
    assert_eq!(heads.len(), systems.len());
}

#[test]
fn real_history_is_what_the_server_said() {
    let spec = spec("pd-multiturn", &["workload.history=\"real\""]);
    let prompter = prompter(&planned(&spec), Vocabulary::words());
    let prompt = prompter.prompt(3, 2, &["One.".into(), "Two words".into()]);
    let roles: Vec<Role> = prompt.messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::User, Role::Assistant, Role::User]);
    assert_eq!((&*prompt.messages[2].passage.text, &*prompt.messages[4].passage.text), ("One.", "Two words"));
    assert!(prompt.text().contains(" Two words "));
    assert_eq!(prompter.prompt_tokens(3, 2), Some(6144 + 3 * 2048 + 2 * 128), "by the planned lengths");
    assert_eq!(prompter.prompt_tokens(3, 5), None);
}

/// Row B96 of the traps: what is not asked about a turn does not change it.
#[test]
fn more_sessions_or_groups_move_and_change_no_other() {
    let changes = ["workload.question_tokens={min=50,max=90}", "workload.system_tokens={min=100,max=200}"];
    let with = |more: &str| planned(&spec("quick", &[changes[0], changes[1], more]));
    let plain = with("load.rate=3.0");
    for more in ["workload.sessions_per_group=20", "workload.groups=11"] {
        let larger = with(more);
        let kept = |session: &&SessionPlan| session.group < 8 && session.session < 12;
        let same: Vec<&SessionPlan> = larger.sessions.iter().filter(kept).collect();
        assert_eq!(same.iter().map(|s| (s.group, s.session)).collect::<Vec<_>>(), seats(&plain), "{more}");
        assert!(same.iter().zip(&plain.sessions).all(|(a, b)| a.turns == b.turns));
        assert_eq!(larger.system_tokens[..8], plain.system_tokens);
        let (one, two) = (prompter(&plain, Vocabulary::words()), prompter(&larger, Vocabulary::words()));
        let seat = seats(&plain)[7];
        let at = seats(&larger).iter().position(|other| *other == seat).unwrap();
        assert_eq!(one.prompt(7, 0, &[]), two.prompt(at, 0, &[]));
        assert_eq!(plain.key(seat.0, seat.1, 0), larger.key(seat.0, seat.1, 0));
    }
}

#[test]
fn lengths_stay_in_range_and_use_it() {
    let plan =
        planned(&spec("dpa8-gsp", &["workload.question_tokens={min=7,max=9}", "workload.output_tokens={min=1,max=3}"]));
    let turns: Vec<_> = plan.sessions.iter().flat_map(|session| &session.turns).collect();
    for length in 7..=9 {
        let share = turns.iter().filter(|turn| turn.question_tokens == length).count();
        assert!((130..=210).contains(&share), "{share} of 512 have {length}");
    }
    assert!(turns.iter().all(|turn| (7..=9).contains(&turn.question_tokens) && (1..=3).contains(&turn.output_tokens)));
}

#[test]
fn keys_follow_their_scope_seed_and_salt() {
    let of = |by: KeyScope, salt: u64| {
        let mut spec = spec("pd-multiturn", &["workload.groups=6", "workload.sessions_per_group=4"]);
        (spec.key.by, spec.key.salt) = (by, salt);
        keys(&planned(&spec))
    };
    assert_eq!([KeyScope::Group, KeyScope::Session, KeyScope::Turn].map(|by| of(by, 0).len()), [6, 24, 120]);
    assert_eq!(of(KeyScope::None, 0), BTreeSet::from([None]));
    assert!(of(KeyScope::Group, 0).is_disjoint(&of(KeyScope::Group, 1)));
    assert!(of(KeyScope::Group, 0).is_disjoint(&of(KeyScope::Session, 0)));
    let shaped = |key: &Option<String>| {
        let key = key.as_deref().unwrap();
        key.len() == 17 && key.starts_with('g') && key[1..].bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    assert!(of(KeyScope::Turn, 0).iter().all(shaped));
}

#[test]
fn orders_are_as_named() {
    let mut spec = spec("quick", &[]);
    let shuffled = seats(&planned(&spec));
    spec.workload.order = Order::Grouped;
    let grouped = seats(&planned(&spec));
    assert!(grouped.is_sorted() && grouped.len() == 96);
    assert_ne!(shuffled, grouped);
    assert_eq!(shuffled.into_iter().collect::<BTreeSet<_>>(), grouped.into_iter().collect());
}

#[test]
fn zipf_groups_are_asked_by_rank_and_number_their_sessions_without_gaps() {
    let mut spec = spec(
        "dpa8-gsp",
        &["workload.sessions_per_group=1000", "workload.question_tokens=4", "workload.system_tokens=8"],
    );
    spec.workload.popularity = Popularity::Zipf(1.1);
    let mut sessions: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (group, session) in seats(&planned(&spec)) {
        assert!(sessions.entry(group).or_default().insert(session));
    }
    let total: f64 = (1..=16).map(|k| f64::from(k).powf(-1.1)).sum();
    for (group, sessions) in &sessions {
        assert_eq!(sessions.last().map(|last| *last as usize + 1), Some(sessions.len()));
        let want = 16_000.0 * f64::from(group + 1).powf(-1.1) / total;
        assert!(
            (sessions.len() as f64 - want).abs() < 5.0 * want.sqrt(),
            "group {group}: {} of {want}",
            sessions.len()
        );
    }
    assert_eq!(sessions.values().map(BTreeSet::len).sum::<usize>(), 16_000);
}

/// Row B87 of the traps.
#[test]
fn what_cannot_be_is_refused_with_the_key_and_the_way_out() {
    type Change = fn(&mut RunSpec);
    let cases: [(Change, &[&str]); 3] = [
        (|s| s.workload.system_tokens.max = u32::MAX, &["system_tokens", "smaller"]),
        (
            |s| {
                (s.workload.question_tokens.min, s.workload.question_tokens.max) = (1, 1);
                s.workload.sessions_per_group = 3000.try_into().unwrap();
            },
            &["workload.question_tokens of 1", "2039 different", "longer"],
        ),
        (
            |s| {
                (s.workload.system_tokens.min, s.workload.system_tokens.max) = (1, 1);
                s.workload.groups = 2100.try_into().unwrap();
            },
            &["workload.system_tokens of 1", "longer"],
        ),
    ];
    for (change, words) in cases {
        let mut spec = spec("quick", &[]);
        change(&mut spec);
        let message = plan(&spec, &Vocabulary::words()).unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

/// Row B94 of the traps.
#[test]
fn a_thousand_prompts_without_a_shared_prefix_have_none_by_accident() {
    for changes in [
        ["workload.groups=1000", "workload.sessions_per_group=1"],
        ["workload.groups=20", "workload.sessions_per_group=50"],
    ] {
        let plan = planned(&spec(
            "quick",
            &[changes[0], changes[1], "workload.system_tokens=0", "workload.question_tokens=32"],
        ));
        let prompter = prompter(&plan, Vocabulary::words());
        let heads = (0..1000).map(|at| {
            let text = prompter.prompt(at, 0, &[]).text();
            assert_eq!(text.split(' ').count(), 32);
            text.split(' ').take(2).map(str::to_owned).collect::<Vec<_>>()
        });
        assert_eq!(heads.collect::<BTreeSet<_>>().len(), 1000, "two prompts share two tokens");
    }
}

/// Row B94 of the traps, its second case.
#[test]
fn prompts_that_share_a_prefix_share_no_more_than_that() {
    let changes = ["workload.groups=1", "workload.sessions_per_group=1000", "workload.system_tokens=32"];
    let plan = planned(&spec("quick", &[&changes[..], &["workload.question_tokens=32"]].concat()));
    let prompter = prompter(&plan, Vocabulary::words());
    let words = |at| prompter.prompt(at, 0, &[]).text().split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let first = words(0);
    let bodies = (0..1000).map(|at| {
        let words = words(at);
        assert_eq!((words.len(), &words[..32]), (64, &first[..32]));
        words[32..34].to_vec()
    });
    assert_eq!(bodies.collect::<BTreeSet<_>>().len(), 1000, "two bodies begin alike");
}

/// 67 words, so that short questions soon are the same.
fn few_words() -> Vocabulary {
    let words = include_str!("../../src/text/words.txt").lines().take(67);
    let vocab: BTreeMap<&str, usize> = words.zip(0..).collect();
    let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": "able"});
    let all = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null, "model": model,
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, all.to_string()).unwrap();
    Vocabulary::from_file(file.path()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Row B95 of the traps: the number of distinct prompts that is told is that of the prompts which are sent, and a plan that
    /// would have to repeat one is refused.
    #[test]
    fn a_plan_has_as_many_distinct_prompts_as_it_says_or_is_refused(
        seed: u64, groups in 1..5u32, sessions in 1..90u32, turns in 1..4u32, system in 0..3u32, question in (1..3u32, 0..3u32),
    ) {
        let (words, mut spec) = (few_words(), spec("quick", &[]));
        let count = |n: u32| n.try_into().unwrap();
        spec.workload.seed = seed >> 16;
        (spec.workload.groups, spec.workload.sessions_per_group) = (count(groups), count(sessions));
        spec.workload.turns = count(turns);
        (spec.workload.system_tokens.min, spec.workload.system_tokens.max) = (system, system);
        (spec.workload.question_tokens.min, spec.workload.question_tokens.max) = (question.0, question.0 + question.1);
        let one_word = words.distinct(1);
        match plan(&spec, &words) {
            Ok(plan) => {
                let (totals, prompter) = (plan.totals(), prompter(&plan, words));
                let prompts = (0..plan.sessions.len()).flat_map(|at| (0..turns).map(move |turn| (at, turn)));
                let messages = |(at, turn)| {
                    let prompt = prompter.prompt(at, turn, &[]);
                    prompt.messages.iter().map(|message| message.passage.text.to_string()).collect::<Vec<_>>()
                };
                let distinct = prompts.map(messages).collect::<BTreeSet<_>>().len() as u64;
                prop_assert_eq!((totals.distinct_prompts, totals.turns), (distinct, u64::from(groups * sessions * turns)));
            }
            Err(why) => {
                // Behind a system prompt of its own a group has as many first questions of a word as there are words; without
                // one, all groups share them.
                let may_repeat = if system > 0 { u64::from(sessions) > one_word } else { sessions * groups > 1 };
                prop_assert!(question.0 == 1 && may_repeat, "{}", why);
                prop_assert!(why.to_string().contains("prompts would repeat: make it longer"), "{}", why);
            }
        }
    }
}

#[test]
fn totals_add_up() {
    let plan = planned(&spec("pd-multiturn", &[]));
    let totals = plan.totals();
    let prompts: u64 = (0..60)
        .flat_map(|at| (0..5).map(move |turn| (at, turn)))
        .map(|(at, turn)| u64::from(plan.prompt_tokens(at, turn).unwrap()))
        .sum();
    assert_eq!((totals.groups, totals.sessions, totals.turns, totals.distinct_prompts), (60, 60, 300, 300));
    assert_eq!((totals.prompt_tokens, totals.output_tokens), (prompts, 300 * 128));
    assert_eq!(prompts, 60 * (5 * 8192 + 10 * 2176));
}
