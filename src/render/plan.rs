//! A plan as a page: what will be sent, what reuse it allows, whether it fits, how long it takes.

use super::number::{ABSENT, figure, or_dash, percent, plural, whole, word};
use super::page::{Grid, Page, Section};
use crate::workload::{Aliasing, Length, Pacing, Placement, PlanSummary, PlanWarning};

/// The page of one plan; warnings last.
#[must_use]
pub fn plan(summary: &PlanSummary) -> Page {
    let mut sections = vec![Section::Lines(workload(summary)), Section::Table(placements(summary))];
    if let Some(placement) = &summary.placement {
        sections
            .push(Section::Details { summary: "Where the keys prefer to go".into(), tables: vec![ranks(placement)] });
    }
    sections.push(Section::Lines(estimate(summary)));
    sections.push(Section::Lines(summary.warnings.iter().map(|w| format!("note: {}", warning(w))).collect()));
    Page { title: format!("gspbench plan · {}", summary.name), sections }
}

fn workload(summary: &PlanSummary) -> Vec<String> {
    let totals = &summary.totals;
    let turns = format!("{} each", plural(summary.turns_per_session.into(), "turn"));
    let keys = summary.placement.as_ref().map_or_else(
        || "no keys".to_owned(),
        |placement| format!("{} by {}", plural(placement.keys, "key"), word(&summary.key_by)),
    );
    vec![
        format!(
            "workload: {}, {}, {turns} · {} prompt + {} · {}",
            plural(totals.groups, "group"),
            plural(totals.sessions, "session"),
            whole(totals.prompt_tokens),
            plural(totals.output_tokens, "output token"),
            plural(totals.distinct_prompts, "distinct prompt"),
        ),
        format!(
            "lengths: system prompt {}, question {}, output {}{}",
            length(summary.system_tokens),
            length(summary.question_tokens),
            length(summary.output_tokens),
            if summary.output_tokens.max == 1 { " token" } else { " tokens" },
        ),
        format!("load: {} · {} order · {keys}", load(summary), word(&summary.order)),
        format!("seed {} · digest {}", summary.seed, summary.digest),
    ]
}

fn length(Length { min, max }: Length) -> String {
    if min == max { whole(min.into()) } else { format!("{}–{}", whole(min.into()), whole(max.into())) }
}

fn load(summary: &PlanSummary) -> String {
    let load = match summary.pacing {
        Pacing::Closed { sessions: _ } => format!("{} in flight", plural(summary.in_flight.into(), "session")),
        Pacing::Open { per_second, gaps, sessions } => {
            let limit =
                sessions.map_or("no limit".to_owned(), |limit| format!("at most {}", whole(limit.get().into())));
            let about = whole(summary.in_flight.into());
            format!("{per_second} sessions/s, {gaps}, {limit} in flight (about {about})")
        }
    };
    load + &summary.duration.map_or(String::new(), |span| format!(", for at most {} s", figure(span.as_secs_f64())))
}

/// Affinity and its absence side by side, beside the most that there is.
fn placements(summary: &PlanSummary) -> Grid {
    let (ideal, home, spread) = (&summary.ideal, summary.placement.as_ref(), &summary.round_robin);
    let (sets, time) = (&summary.working_set, &summary.run_time);
    let mut grid = Grid::new(["", "one cache for all", "keys at home", "round robin"]);
    let mut row = |name: &str, cells: [String; 3]| {
        let [ideal, home, spread] = cells;
        grid.row([name.into(), ideal, home, spread]);
    };
    let reuse = or_dash(home, |home| percent(home.expected.reuse));
    row("Reuse (%)", [percent(ideal.ratio), reuse, percent(spread.reuse)]);
    let pairs = or_dash(home, |home| whole(home.expected.cold_pairs));
    row("Cold (rank, group) pairs", [whole(summary.totals.groups), pairs, figure(spread.cold_pairs)]);
    if let Some(share) = spread.split_share {
        let split = or_dash(home, |home| percent(home.split_share));
        row("Sessions split over ranks (%)", [ABSENT.into(), split, percent(share)]);
    }
    row("Working set of a rank (tokens)", [ABSENT.into(), or_dash(sets.affinity, whole), whole(sets.round_robin)]);
    let share = |set| of(set, summary);
    row("… of its KV cache (%)", [ABSENT.into(), or_dash(sets.affinity, share), share(sets.round_robin)]);
    let times = [figure(time.ideal_s), or_dash(time.affinity_s, figure), figure(time.round_robin_s)];
    row("Least run time (s)", times);
    grid
}

#[expect(clippy::cast_precision_loss, reason = "token counts stay below 2^53")]
fn of(set: u64, summary: &PlanSummary) -> String {
    percent(set as f64 / summary.working_set.kv_tokens_per_rank as f64)
}

fn ranks(placement: &Placement) -> Grid {
    let mut grid = Grid::new(["rank", "keys", "groups", "turns"]);
    let counts = placement.keys_per_rank.iter().zip(&placement.groups_per_rank).zip(&placement.turns_per_rank);
    for (rank, ((keys, groups), turns)) in counts.enumerate() {
        grid.row([rank.to_string(), whole(*keys), whole(groups.len() as u64), whole(*turns)]);
    }
    grid
}

fn estimate(summary: &PlanSummary) -> Vec<String> {
    vec![
        format!(
            "Reuse is for caches that never evict, over {}. Keys at home: every turn where rendezvous hashing sends its key \
             while nothing is loaded. Working sets: shared system prompts and the sessions in flight, on the fullest rank \
             with keys at home, on the mean rank with round robin.",
            plural(summary.ranks.into(), "rank")
        ),
        format!(
            "Least run time: prefill of what is not reused, plus output tokens {} at a time, at the step costs of the \
             simulator's preset; queues and uneven ranks come on top.",
            plural(summary.in_flight.into(), "session")
        ),
    ]
}

fn warning(warning: &PlanWarning) -> String {
    match *warning {
        PlanWarning::NoReuse => "no prompt begins like an earlier one, so no routing can reuse anything: raise \
                                 sessions_per_group or turns"
            .into(),
        PlanWarning::FitsEverywhere { cold_round_robin, cold_affinity } => format!(
            "every rank can hold all that is asked for again, so the arms differ by cold misses and not by evictions: {} \
             cold (rank, group) pairs against {}",
            figure(cold_round_robin),
            whole(cold_affinity)
        ),
        PlanWarning::RoundRobinThrashes { wanted, held } => format!(
            "round robin wants {} tokens on each rank and a cache holds {}: it will evict prefixes and reuse less than \
             shown; affinity fits",
            whole(wanted),
            whole(held)
        ),
        PlanWarning::AffinityThrashes { wanted, held } => format!(
            "even with affinity a rank wants {} tokens and its cache holds {}: prefixes will be evicted under every \
             routing; take fewer or shorter groups",
            whole(wanted),
            whole(held)
        ),
        PlanWarning::IdleRanks { idle, ranks } => format!(
            "{} of {} {} no key: this placement is one draw; another key.salt gives another, more groups a more even one",
            whole(idle),
            plural(ranks.into(), "rank"),
            if idle == 1 { "has" } else { "have" }
        ),
        PlanWarning::HotRank { rank, over_mean } => format!(
            "rank {rank} is preferred by {} times the mean of turns: expect queues there, or spills where the policy has a \
             guard",
            figure(over_mean)
        ),
        PlanWarning::GroupsScattered { cold_pairs, groups } => format!(
            "keys are by session, so that affinity scatters the sessions of a group: {} cold (rank, group) pairs of {} \
             groups; keys by group would read each system prompt once",
            whole(cold_pairs),
            whole(groups)
        ),
        PlanWarning::RouterKey { key } if key.collapses() => format!(
            "{} is the same in all {}: a router that takes it for its key sends all of them to one worker",
            key.rule,
            plural(key.sessions, "session")
        ),
        PlanWarning::RouterKey { key } => format!(
            "the first prompts are shorter than {}, which later turns fill: a router that takes it for its key sees \
             another key in each turn",
            key.rule
        ),
        PlanWarning::Aliasing { cycle: Aliasing::Concurrency(sessions), ranks } => format!(
            "{} in flight are a multiple of {}, so round robin may return sessions to their rank by accident: take a number \
             that {ranks} does not divide",
            plural(sessions.into(), "session"),
            plural(ranks.into(), "rank")
        ),
        PlanWarning::Aliasing { cycle: Aliasing::Sessions(sessions), ranks } => format!(
            "{} are a multiple of {}, so round robin may return sessions to their rank by accident: compare the share of \
             split sessions with the one above",
            plural(sessions.into(), "session"),
            plural(ranks.into(), "rank")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Context, builtin, load as profile, run_spec};
    use crate::render::terminal;
    use crate::text::Vocabulary;
    use crate::workload::{Prompter, StepCost, plan as workload_plan};
    use std::time::Duration;

    fn summary(name: &str) -> PlanSummary {
        let raw = profile(name, builtin(name).unwrap(), &[]).unwrap();
        let spec = run_spec(&raw, &Context { name: name.into(), drawn_seed: 42, compares_arms: true }).unwrap();
        let cost = StepCost {
            decode_base: Duration::from_millis(14),
            prefill_base: Duration::from_millis(42),
            per_token: Duration::from_nanos(10_600),
            chunk: 1024,
        };
        let plan = workload_plan(&spec, &Vocabulary::words()).unwrap();
        let prompter = Prompter::new(plan.into(), Vocabulary::words().into());
        PlanSummary::new(&spec, &prompter, cost, |key| usize::from(key.as_bytes()[16] % 2))
    }

    #[test]
    fn a_plan_shows_both_placements_side_by_side() {
        insta::assert_snapshot!(terminal(&plan(&summary("pd-multiturn"))), @r"
        gspbench plan · pd-multiturn
        workload: 60 groups, 60 sessions, 5 turns each · 3,763,200 prompt + 38,400 output tokens · 300
            distinct prompts
        lengths: system prompt 6,144, question 2,048, output 128 tokens
        load: 12 sessions in flight · shuffled order · 60 keys by session
        seed 42 · digest be85679396bd034f6ff3ea8d6ea3ffdd
        ┌──────────────────────────────────────────────────────────────────────────────┐
        │                                 one cache for all  keys at home  round robin │
        ╞══════════════════════════════════════════════════════════════════════════════╡
        │ Reuse (%)                                    73.1          73.1         53.4 │
        │ Cold (rank, group) pairs                       60            60        116.2 │
        │ Sessions split over ranks (%)                   –           0.0         93.8 │
        │ Working set of a rank (tokens)                  –       105,549      197,904 │
        │ … of its KV cache (%)                           –          17.6         33.0 │
        │ Least run time (s)                          76.39         76.39        99.38 │
        └──────────────────────────────────────────────────────────────────────────────┘
        Where the keys prefer to go
        ┌───────────────────────────┐
        │ rank  keys  groups  turns │
        ╞═══════════════════════════╡
        │ 0       31      31    155 │
        │ 1       29      29    145 │
        └───────────────────────────┘
        Reuse is for caches that never evict, over 2 ranks. Keys at home: every turn where rendezvous
            hashing sends its key while nothing is loaded. Working sets: shared system prompts and the
            sessions in flight, on the fullest rank with keys at home, on the mean rank with round robin.
        Least run time: prefill of what is not reused, plus output tokens 12 sessions at a time, at the step
            costs of the simulator's preset; queues and uneven ranks come on top.
        note: every rank can hold all that is asked for again, so the arms differ by cold misses and not by
            evictions: 116.2 cold (rank, group) pairs against 60
        note: 12 sessions in flight are a multiple of 2 ranks, so round robin may return sessions to their
            rank by accident: take a number that 2 does not divide
        note: 60 sessions are a multiple of 2 ranks, so round robin may return sessions to their rank by
            accident: compare the share of split sessions with the one above
        ");
    }

    #[test]
    fn every_warning_says_what_follows() {
        let warnings = [
            PlanWarning::NoReuse,
            PlanWarning::FitsEverywhere { cold_round_robin: 126.5, cold_affinity: 16 },
            PlanWarning::RoundRobinThrashes { wanted: 2_000_000, held: 1_050_000 },
            PlanWarning::AffinityThrashes { wanted: 2_000_000, held: 1_050_000 },
            PlanWarning::IdleRanks { idle: 1, ranks: 8 },
            PlanWarning::HotRank { rank: 3, over_mean: 2.0 },
        ];
        insta::assert_snapshot!(warnings.iter().map(warning).collect::<Vec<_>>().join("\n"), @r"
            no prompt begins like an earlier one, so no routing can reuse anything: raise sessions_per_group or turns
            every rank can hold all that is asked for again, so the arms differ by cold misses and not by evictions: 126.5 cold (rank, group) pairs against 16
            round robin wants 2,000,000 tokens on each rank and a cache holds 1,050,000: it will evict prefixes and reuse less than shown; affinity fits
            even with affinity a rank wants 2,000,000 tokens and its cache holds 1,050,000: prefixes will be evicted under every routing; take fewer or shorter groups
            1 of 8 ranks has no key: this placement is one draw; another key.salt gives another, more groups a more even one
            rank 3 is preferred by 2.00 times the mean of turns: expect queues there, or spills where the policy has a guard
        ");
    }
}
