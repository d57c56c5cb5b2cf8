//! `gspbench compare`: lays saved runs, or the blocks of an experiment, side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::args::gates::GateArgs;
use super::exit::{Ended, Exit, ExitWith as _};
use super::export::ExportArgs;
use super::report::load;
use crate::compare::{BlockResult, Comparison, Interrupted, Settings, compare};
use crate::profile::ExperimentSpec;
use crate::report::{RunReport, TurnSample, metric};
use crate::store::{BlockState, Experiment};
use crate::{profile, store};

/// Compare saved runs, the blocks of an experiment, or results of other programs
#[derive(Debug, clap::Args)]
pub(super) struct CompareArgs {
    /// The directory of one experiment, or those of at least two runs; the first run's arm is the baseline. Also files of
    /// bench_serving (JSONL), `vllm bench serve` (JSON) and AIPerf (profile_export.jsonl)
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// Name of the arm that the others are compared with
    #[arg(long, value_name = "ARM")]
    baseline: Option<String>,
    /// The metric that decides, as a key such as ttft_ms.mean (default: what the experiment declared, else ttft_ms.mean)
    #[arg(long, value_name = "METRIC")]
    primary: Option<String>,
    /// The smallest relative change that matters, such as 0.02 for 2 % (default: what the experiment declared, else 0.02)
    #[arg(long, value_name = "SHARE", value_parser = share)]
    threshold: Option<f64>,
    /// A field of server_info in which the arms are meant to differ; `prefix_affinity_*` names all that begin so. May be given
    /// several times, beside those that the experiment named
    #[arg(long, alias = "may_differ", value_name = "FIELD")]
    may_differ: Vec<String>,
    /// Judge the arms even if they did not run the same work; the differences are shown
    #[arg(long, alias = "allow_mismatch")]
    allow_mismatch: bool,
    #[command(flatten)]
    gates: GateArgs,
    #[command(flatten)]
    export: ExportArgs,
}

impl CompareArgs {
    /// What the command line says beats what an experiment declared.
    fn apply(&self, settings: &mut Settings) -> anyhow::Result<()> {
        if let Some(baseline) = &self.baseline {
            settings.baseline.clone_from(baseline);
        }
        if let Some(primary) = &self.primary {
            settings.primary.clone_from(primary);
        }
        if metric(&settings.primary).is_none() {
            return Err(anyhow::Error::msg(super::facts::unknown_metric(&settings.primary))).exit_with(Exit::Usage);
        }
        settings.threshold = self.threshold.unwrap_or(settings.threshold);
        settings.server_info_may_differ.extend(self.may_differ.iter().cloned());
        settings.fail_if = self.gates.beside(std::mem::take(&mut settings.fail_if))?;
        settings.allow_mismatch = self.allow_mismatch;
        Ok(())
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "give a share from 0 to 1, such as 0.02 for 2 %".to_owned())
}

/// What is to be compared.
struct Blocks {
    results: Vec<BlockResult>,
    settings: Settings,
}

/// What an experiment declared.
pub(super) fn settings(spec: &ExperimentSpec) -> Settings {
    Settings {
        controls: spec.arms.iter().filter(|arm| arm.control).map(|arm| arm.name.clone()).collect(),
        primary: spec.primary.clone(),
        threshold: spec.threshold,
        server_info_may_differ: spec.server_info_may_differ.clone(),
        fail_if: spec.fail_if.clone(),
        aa: spec.aa,
        ..Settings::new(spec.arms.first().map_or("", |arm| &arm.name))
    }
}

/// What is missing of an experiment; none when it has run all that it could.
pub(super) fn interrupted(dir: &Path, experiment: &Experiment) -> Option<Interrupted> {
    // Of a block that ran twice, the last one says how it stands.
    let last: BTreeMap<_, _> = experiment.blocks.iter().map(|block| ((block.round, &block.arm), block.state)).collect();
    let is_open = |state| matches!(state, BlockState::Planned | BlockState::Running | BlockState::Interrupted);
    let rounds: BTreeSet<u32> = last.keys().map(|(round, _)| *round).collect();
    let open: BTreeSet<u32> = last.iter().filter(|(_, state)| is_open(**state)).map(|((round, _), _)| *round).collect();
    let count = |rounds: usize| u32::try_from(rounds).unwrap_or(u32::MAX);
    (!open.is_empty()).then(|| Interrupted {
        rounds_done: count(rounds.len() - open.len()),
        rounds_planned: count(rounds.len()),
        dir: dir.display().to_string(),
    })
}

/// The complete turns in a run's directory; none when its log is gone or damaged, since a part of them would mislead.
pub(super) fn turns(dir: &Path) -> Option<Vec<TurnSample>> {
    let mut samples = vec![];
    for turn in store::read_records(dir).ok()? {
        samples.extend(TurnSample::of(&turn.ok()?));
    }
    Some(samples)
}

/// Compares; arms that did not run the same work end with an exit code of their own.
///
/// # Errors
/// When a directory cannot be read, or there is nothing to pair.
pub(super) fn run(args: &CompareArgs) -> anyhow::Result<Exit> {
    let mut blocks = match args.dirs.as_slice() {
        [one] if foreign(one)?.is_none() => experiment(one)?,
        some => runs(some)?,
    };
    args.apply(&mut blocks.settings)?;
    blocks.write(&args.export)
}

/// An experiment in a form of `report`.
///
/// # Errors
/// As [`run`].
pub(super) fn experiment_as(dir: &Path, export: &ExportArgs) -> anyhow::Result<Exit> {
    experiment(dir)?.write(export)
}

impl Blocks {
    fn write(&self, export: &ExportArgs) -> anyhow::Result<Exit> {
        let comparison = match (compare(&self.results, &self.settings, &turns), &self.settings.interrupted) {
            (Err(_), Some(cut)) if cut.rounds_done == 0 => {
                let dir = &cut.dir;
                let why = format!(
                    "`{dir}` was interrupted before a round of all arms had ended, and there is nothing to compare: go on \
                     with `gspbench ab --resume {dir}`"
                );
                return Err(anyhow::Error::msg(why)).exit_with(Exit::Usage);
            }
            (compared, _) => compared.exit_with(Exit::Usage)?,
        };
        export.comparison(&comparison, &self.results)?;
        Ok(exit_of(&comparison))
    }
}

/// Unlike work, or an arm without a valid block, compares nothing; what compares may fail a gate.
pub(super) fn exit_of(comparison: &Comparison) -> Exit {
    let all_valid = comparison.arms.iter().all(crate::compare::Arm::has_valid_round);
    let comparable = comparison.comparable || comparison.mismatch_allowed;
    if !(comparable && all_valid) {
        return Exit::Void;
    }
    if comparison.gates.iter().all(|gate| gate.passed) { Exit::Ok } else { Exit::Gate }
}

/// The blocks of an experiment; its first arm is the baseline.
fn experiment(dir: &Path) -> anyhow::Result<Blocks> {
    if store::read_run(dir).is_ok() {
        return Err(Ended::new(
            Exit::Usage,
            "one run alone compares with nothing: give at least two, or an experiment",
        )
        .into());
    }
    let experiment = store::read_experiment(dir).exit_with(Exit::Usage)?;
    let spec: ExperimentSpec = serde_json::from_value(experiment.spec.clone()).exit_with(Exit::Usage)?;
    let results = store::read_blocks(dir).exit_with(Exit::Usage)?;
    let interrupted = interrupted(dir, &experiment);
    Ok(Blocks { results, settings: Settings { interrupted, ..settings(&spec) } })
}

/// Single runs: each is a block of its own arm and round, where it says so, and else of an arm named like its directory.
///
/// # Errors
/// When one cannot be read, or two would be the same block, of which only one could be shown.
fn runs(paths: &[PathBuf]) -> anyhow::Result<Blocks> {
    let (dirs, reports): (Vec<PathBuf>, Vec<RunReport>) = found(paths)?.into_iter().unzip();
    let arms: Vec<String> =
        reports.iter().zip(names(&dirs)).map(|(report, name)| report.manifest.arm.clone().unwrap_or(name)).collect();
    let homes: Vec<_> =
        reports.iter().zip(&dirs).map(|(report, dir)| Some((experiment_of(dir), report.manifest.round?))).collect();
    let rounds = number(&arms, &homes);
    let mut seen = BTreeMap::new();
    for ((arm, round), dir) in arms.iter().zip(&rounds).zip(&dirs) {
        if let Some(other) = seen.insert((arm, round), dir) {
            let why = format!(
                "`{}` and `{}` are both round {round} of the arm `{arm}`: give one of them",
                other.display(),
                dir.display()
            );
            return Err(anyhow::Error::msg(why)).exit_with(Exit::Usage);
        }
    }
    let baseline = arms.first().cloned().unwrap_or_default();
    let blocks = rounds.into_iter().zip(arms).zip(reports).zip(&dirs);
    let results = blocks.map(|(((round, arm), report), dir)| {
        // Another program's file holds no turns of ours.
        let dir = if report.foreign.is_some() {
            None
        } else if dir.is_dir() {
            Some(dir.clone())
        } else {
            dir.parent().map(Path::to_owned)
        };
        BlockResult { round, arm, report, dir }
    });
    Ok(Blocks { results: results.collect(), settings: Settings::new(&baseline) })
}

/// Each result with its path; a file of another program may hold several.
fn found(paths: &[PathBuf]) -> anyhow::Result<Vec<(PathBuf, RunReport)>> {
    let mut found = vec![];
    for path in paths {
        match foreign(path)? {
            Some(reports) => found.extend(reports.into_iter().map(|report| (path.clone(), report))),
            None => found.push((path.clone(), load(path)?)),
        }
    }
    Ok(found)
}

/// The results of another program that `path` holds, if it is such a file.
fn foreign(path: &Path) -> anyhow::Result<Option<Vec<RunReport>>> {
    // They do not say what they ran as we do: the specification of an empty profile stands there, and is not looked at.
    let context = profile::Context { name: "foreign".to_owned(), drawn_seed: 0, compares_arms: true };
    let spec = profile::run_spec(&profile::raw::Profile::default(), &context)?;
    store::read_foreign(path, &spec).exit_with(Exit::Usage)
}

/// The round of each run, by its arm and by the experiment and round that it comes from. Rounds of one experiment keep
/// their numbers; those of several are numbered anew, in order of appearance. A run of no experiment is as many rounds of
/// its arm as there are runs of that arm so far.
fn number<Home: PartialEq>(arms: &[String], homes: &[Option<(Home, u32)>]) -> Vec<u32> {
    let known: Vec<&(Home, u32)> = homes.iter().flatten().collect();
    let is_one_experiment = known.iter().all(|home| home.0 == known[0].0);
    let (mut rounds, mut times) = (Vec::<&(Home, u32)>::new(), BTreeMap::<&str, u32>::new());
    let mut numbers = Vec::with_capacity(arms.len());
    for (arm, home) in arms.iter().zip(homes) {
        let times = times.entry(arm).or_default();
        *times += 1;
        numbers.push(match home {
            None => *times,
            Some((_, round)) if is_one_experiment => *round,
            Some(home) => {
                let at = rounds.iter().position(|known| *known == home).unwrap_or_else(|| {
                    rounds.push(home);
                    rounds.len() - 1
                });
                u32::try_from(at + 1).unwrap_or(u32::MAX)
            }
        });
    }
    numbers
}

/// The directory of the experiment that a block's directory lies in, as `round-01/ARM`.
fn experiment_of(run: &Path) -> PathBuf {
    let whole = std::fs::canonicalize(run).unwrap_or_else(|_| run.to_owned());
    let levels = if whole.is_dir() { 2 } else { 3 };
    whole.ancestors().nth(levels).unwrap_or(&whole).to_owned()
}

/// The last parts of the paths, or the paths whole where two paths end alike. A path may come several times.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let last = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let short: BTreeMap<_, _> = paths.iter().filter_map(|path| Some((path, last(path)?))).collect();
    let is_told_apart = |name: &String| short.values().filter(|other| *other == name).count() == 1;
    let all = paths.iter().all(|path| short.get(path).is_some_and(is_told_apart));
    let name = |path: &PathBuf| short.get(path).filter(|_| all).cloned().unwrap_or_else(|| path.display().to_string());
    paths.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Block;

    #[test]
    fn an_experiment_is_interrupted_while_a_block_is_open_and_a_repetition_counts_for_the_block() {
        use BlockState::{Complete, Failed, Interrupted as Cut, Planned, Running, Void};
        let of = |states: &[(u32, &str, BlockState)]| {
            let block = |(round, arm, state): &(u32, &str, BlockState)| Block {
                round: *round,
                arm: (*arm).to_owned(),
                seed: 1,
                salt: 0,
                state: *state,
                dir: String::new(),
                reason: None,
            };
            let experiment = Experiment::new(serde_json::Value::Null, states.iter().map(block).collect());
            interrupted(Path::new("out"), &experiment).map(|cut| (cut.rounds_done, cut.rounds_planned))
        };
        let whole = [(1, "a", Complete), (1, "b", Void), (1, "b", Complete), (2, "b", Failed), (2, "a", Complete)];
        assert_eq!(of(&whole), None);
        for open in [Planned, Running, Cut] {
            assert_eq!(of(&[(1, "a", Complete), (1, "b", Void), (2, "b", open), (2, "a", Planned)]), Some((1, 2)));
            assert_eq!(of(&[(1, "a", Complete), (1, "b", Void), (1, "b", open)]), Some((0, 1)));
        }
        assert_eq!(of(&[(1, "a", Cut), (1, "a", Complete), (1, "b", Complete)]), None);
    }

    #[test]
    fn rounds_of_several_experiments_are_told_apart_and_those_of_one_keep_their_numbers() {
        let of = |runs: &[(&str, Option<(&'static str, u32)>)]| {
            let (arms, homes): (Vec<String>, Vec<_>) =
                runs.iter().map(|(arm, home)| ((*arm).to_owned(), *home)).unzip();
            number(&arms, &homes)
        };
        let (one, two) = (|round| Some(("e1", round)), |round| Some(("e2", round)));
        assert_eq!(of(&[("a", one(1)), ("b", one(1)), ("a", two(1)), ("b", two(1))]), [1, 1, 2, 2]);
        assert_eq!(of(&[("a", one(2)), ("a", two(1)), ("b", two(1)), ("b", one(2))]), [1, 2, 2, 1]);
        assert_eq!(of(&[("a", one(3)), ("b", one(3)), ("b", one(2)), ("a", one(2))]), [3, 3, 2, 2]);
        assert_eq!(of(&[("a", None), ("b", None), ("a", None)]), [1, 1, 2]);
        assert_eq!(of(&[("a", None), ("b", one(1))]), [1, 1]);
    }
}
