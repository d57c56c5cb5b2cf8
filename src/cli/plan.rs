//! `gspbench plan`: what a profile will send and what it can show, without a server.

use std::sync::Arc;
use std::time::Instant;

use super::args::spec::SpecArgs;
use super::exit::ExitWith as _;
use super::{Exit, say};
use crate::client::{Asks, Shape, encode};
use crate::policy::rendezvous;
use crate::profile::{History, RunSpec, run_spec};
use crate::record::{TurnId, TurnRecord};
use crate::render;
use crate::sim::Preset;
use crate::text::Vocabulary;
use crate::units::{Micros, Rank, plural};
use crate::workload::{self, Plan, PlanSummary, Prompter, StepCost};

/// Shows what a profile will send: counts, keys over ranks, the reuse it allows, working sets, the least run time.
#[derive(Debug, clap::Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    spec: SpecArgs,
    /// Instead, build every request body and say how long that takes
    #[arg(long, hide = true)]
    bodies: bool,
}

/// Plans, and asks no server.
///
/// # Errors
/// When the profile is wrong or has no plan.
pub(super) fn run(args: &PlanArgs) -> anyhow::Result<Exit> {
    let loaded = args.spec.load(None)?;
    // Later turns are planned as the command that the profile is for would send them.
    let spec =
        run_spec(&loaded.profile, &loaded.context(loaded.profile.arm.len() > 1)).map_err(|why| loaded.by_flag(why))?;
    say::notes(&args.spec.notes);
    let text = if args.bodies { time_bodies(&spec)? } else { render::terminal(&render::plan(&summarise(&spec)?)) };
    say::result(&text)?;
    Ok(Exit::Ok)
}

/// Plans a run and sums it up. Keys go where rendezvous hashing over the ranks sends them when nothing is loaded; steps
/// cost what the simulator's preset says.
///
/// # Errors
/// When the specification has no plan, the tokenizer is none, or the preset is unknown.
pub(super) fn summarise(spec: &RunSpec) -> anyhow::Result<PlanSummary> {
    let vocabulary = super::facts::vocabulary(spec).exit_with(Exit::Usage)?;
    let plan = workload::plan(spec, &vocabulary).exit_with(Exit::Usage)?;
    let prompter = Prompter::new(Arc::new(plan), Arc::new(vocabulary));
    let preset = Preset::find(&spec.sim.preset).exit_with(Exit::Usage)?;
    let cost = StepCost {
        decode_base: preset.costs.decode_base,
        prefill_base: preset.costs.prefill_base,
        per_token: preset.costs.per_token,
        chunk: preset.chunk,
    };
    let ranks: Vec<Rank> = (0..=u16::MAX).map(Rank).take(spec.server.ranks.get() as usize).collect();
    let preferred = |key: &str| rendezvous(key.as_bytes(), &ranks).first().map_or(0, |rank| rank.0.into());
    Ok(PlanSummary::new(spec, &prompter, cost, preferred))
}

/// Prepares all that a run sends, as the run itself does, and throws it away. Assistant text is synthetic here: there is no
/// server to give any.
fn time_bodies(spec: &RunSpec) -> anyhow::Result<String> {
    let mut spec = spec.clone();
    spec.workload.history = History::Synthetic;
    let start = Instant::now();
    let vocabulary = Arc::new(super::facts::vocabulary(&spec).exit_with(Exit::Usage)?);
    let loaded = start.elapsed();
    let start = Instant::now();
    let plan = Arc::new(workload::plan(&spec, &vocabulary).exit_with(Exit::Usage)?);
    let (bodies, bytes) = bodies(&spec, &plan, vocabulary.clone());
    let built = start.elapsed();
    Ok(format!(
        "vocabulary of {} loaded in {:.3} s\nplan and bodies of {}, {:.1} MB, built in {:.3} s\n",
        plural(vocabulary.size() as u64, "word"),
        loaded.as_secs_f64(),
        plural(bodies as u64, "turn"),
        megabytes(bytes),
        built.as_secs_f64(),
    ))
}

/// Their number and their bytes.
fn bodies(spec: &RunSpec, plan: &Arc<Plan>, vocabulary: Arc<Vocabulary>) -> (usize, usize) {
    let shape = Shape {
        request: spec.request.clone(),
        model: spec.request.model.clone(),
        key_field: spec.key.body_field.clone(),
        continuous_usage: true,
        asks: Asks::default(),
    };
    let prompter = Prompter::new(Arc::clone(plan), vocabulary);
    let (mut count, mut bytes) = (0, 0);
    for (at, session) in plan.sessions.iter().enumerate() {
        for (turn, planned) in (0u32..).zip(&session.turns) {
            let id = TurnId { group: session.group, session: session.session, turn };
            let key = plan.key(id.group, id.session, turn);
            let record = TurnRecord::planned(id.to_string(), id, key, Micros(0), planned.output_tokens);
            bytes += encode(&shape, &record, &prompter.prompt(at, turn, &[])).len();
            count += 1;
        }
    }
    (count, bytes)
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}
