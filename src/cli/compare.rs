//! `gspbench compare`: lays saved runs, or the blocks of an experiment, side by side.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::exit::{Ended, Exit, ExitWith as _};
use super::report::{Format, load};
use super::say;
use crate::compare::{BlockResult, Comparison, compare};
use crate::profile::ExperimentSpec;
use crate::{render, store};

/// Compare saved runs, or the blocks of an experiment
#[derive(Debug, clap::Args)]
pub(super) struct CompareArgs {
    /// The directory of one experiment, or those of at least two runs; the first run's arm is the baseline
    #[arg(value_name = "DIR", required = true)]
    dirs: Vec<PathBuf>,
    /// Name of the arm that the others are compared with
    #[arg(long, value_name = "ARM")]
    baseline: Option<String>,
    /// How it is shown
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// What is to be compared.
struct Blocks {
    results: Vec<BlockResult>,
    baseline: String,
    controls: Vec<String>,
}

/// Compares; arms that did not run the same work end with an exit code of their own.
///
/// # Errors
/// When a directory cannot be read, or there is nothing to pair.
pub(super) fn run(args: &CompareArgs) -> anyhow::Result<Exit> {
    let Blocks { results, baseline, controls } = match args.dirs.as_slice() {
        [one] => experiment(one)?,
        many => runs(many)?,
    };
    let baseline = args.baseline.as_ref().unwrap_or(&baseline);
    let comparison = compare(&results, baseline, &controls).exit_with(Exit::Usage)?;
    match args.format {
        Format::Table => say::result(&render::terminal(&render::comparison(&comparison)))?,
        Format::Markdown => say::result(&render::markdown(&render::comparison(&comparison)))?,
        Format::Json => say::json(&serde_json::to_string_pretty(&comparison)?)?,
    }
    Ok(exit_of(&comparison))
}

/// Unlike work, or an arm without a valid block, compares nothing.
pub(super) fn exit_of(comparison: &Comparison) -> Exit {
    let all_void = comparison.arms.iter().any(|arm| arm.void_rounds.len() == arm.rounds.len());
    if comparison.comparable && !all_void { Exit::Ok } else { Exit::Void }
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
    let controls = spec.arms.iter().filter(|arm| arm.control).map(|arm| arm.name.clone()).collect();
    let baseline = spec.arms.first().map(|arm| arm.name.clone()).unwrap_or_default();
    Ok(Blocks { results, baseline, controls })
}

/// Single runs: each is a block of its own arm and round, where it says so, and else of an arm named like its directory.
fn runs(dirs: &[PathBuf]) -> anyhow::Result<Blocks> {
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut results = Vec::new();
    for (dir, name) in dirs.iter().zip(names(dirs)) {
        let report = load(dir)?;
        let arm = report.manifest.arm.clone().unwrap_or(name);
        let times = seen.entry(arm.clone()).or_default();
        *times += 1;
        results.push(BlockResult { round: report.manifest.round.unwrap_or(*times), arm, report });
    }
    let baseline = results.first().map(|block| block.arm.clone()).unwrap_or_default();
    Ok(Blocks { results, baseline, controls: vec![] })
}

/// The last parts of the paths, or the paths whole where those are not all different.
fn names(dirs: &[PathBuf]) -> Vec<String> {
    let last = |dir: &PathBuf| dir.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut short: Vec<_> = dirs.iter().filter_map(last).collect();
    let names = short.clone();
    short.sort();
    short.dedup();
    if short.len() == dirs.len() { names } else { dirs.iter().map(|dir| dir.display().to_string()).collect() }
}
