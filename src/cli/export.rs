//! The forms in which a run or a comparison leaves the program, and where it goes.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::exit::{Exit, ExitWith as _};
use super::say;
use crate::compare::{BlockResult, Comparison};
use crate::report::{Arrays, BenchServing, RunReport};
use crate::store::Sweep;
use crate::{render, store};

/// Shared by `report` and `compare`.
#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {
    /// The form: terminal and markdown are for people, html is a page with plots for a browser, json is everything,
    /// csv has a row a metric, jsonl a line a run as SGLang's bench_serving writes it, hlog the distributions for HDR tools
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Write it to this new file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// With `--format jsonl`: also bench_serving's arrays, a member a turn; gaps between frames are known of runs that
    /// were made with --output-details
    #[arg(long, alias = "output_details")]
    output_details: bool,
}

/// The form of a document.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    #[default]
    #[value(alias = "table")]
    Terminal,
    Markdown,
    Json,
    Csv,
    Jsonl,
    Hlog,
    Html,
}

impl ExportArgs {
    /// Writes one run.
    ///
    /// # Errors
    /// When its turns are needed and cannot be read, or the document cannot be written.
    pub(super) fn run(&self, dir: &Path, report: &RunReport) -> anyhow::Result<()> {
        let arrays = self.arrays()?;
        self.write(&match self.format {
            Format::Terminal => render::terminal(&render::run(report)),
            Format::Markdown => render::markdown(&render::run(report)),
            Format::Json => serde_json::to_string_pretty(report)?,
            Format::Csv => render::csv_run(report),
            Format::Jsonl => bench_serving(dir, report, arrays, None)?,
            Format::Hlog => render::hlog([report]),
            Format::Html => render::html_run(report),
        })
    }

    /// Writes a comparison.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(super) fn comparison(&self, comparison: &Comparison, blocks: &[BlockResult]) -> anyhow::Result<()> {
        let arrays = self.arrays()?;
        self.write(&match self.format {
            Format::Terminal => render::terminal(&render::comparison(comparison)),
            Format::Markdown => render::markdown(&render::comparison(comparison)),
            Format::Json => serde_json::to_string_pretty(comparison)?,
            Format::Csv => render::csv_comparison(comparison, blocks),
            Format::Jsonl => {
                let line = |block: &BlockResult| {
                    let dir = block.dir.as_deref().context("a result of another program has no turns on file");
                    bench_serving(dir.exit_with(Exit::Usage)?, &block.report, arrays, None)
                };
                blocks.iter().map(line).collect::<anyhow::Result<Vec<_>>>()?.join("\n")
            }
            Format::Hlog => render::hlog(blocks.iter().map(|block| &block.report)),
            Format::Html => render::html_comparison(comparison, blocks),
        })
    }

    /// Writes a sweep.
    ///
    /// # Errors
    /// When it is asked for a form of single runs, or the document cannot be written.
    pub(super) fn sweep(&self, dir: &Path, sweep: &Sweep) -> anyhow::Result<()> {
        let curves = &sweep.curves;
        self.write(&match self.format {
            Format::Terminal => render::terminal(&render::sweep(curves)),
            Format::Markdown => render::markdown(&render::sweep(curves)),
            Format::Json => serde_json::to_string_pretty(sweep)?,
            Format::Csv => render::csv_sweep(curves),
            Format::Html => render::html_sweep(curves),
            Format::Jsonl | Format::Hlog => {
                let why = format!("this form is of runs: give one of `{}/step-NN/ARM`", dir.display());
                return Err(anyhow::Error::msg(why)).exit_with(Exit::Usage);
            }
        })
    }

    fn arrays(&self) -> anyhow::Result<Arrays> {
        match (self.output_details, self.format) {
            (false, _) => Ok(Arrays::Without),
            (true, Format::Jsonl) => Ok(Arrays::With),
            (true, _) => {
                Err(anyhow::Error::msg("--output-details adds arrays to `--format jsonl` and to no other form"))
                    .exit_with(Exit::Usage)
            }
        }
    }

    fn write(&self, text: &str) -> anyhow::Result<()> {
        match (&self.output, self.format) {
            (Some(path), _) => {
                store::write_new(path, &format!("{}\n", text.trim_end()), "--output").exit_with(Exit::Usage)
            }
            (None, Format::Json | Format::Jsonl) => say::json(text),
            (None, _) => say::result(text),
        }
    }
}

/// A saved run as bench_serving's line. `tag` is the user's word for it; without one, the arm's name.
///
/// # Errors
/// When its turns cannot be read: the line's definitions need them.
pub(super) fn bench_serving(
    dir: &Path,
    report: &RunReport,
    arrays: Arrays,
    tag: Option<&str>,
) -> anyhow::Result<String> {
    let home = if dir.is_dir() { dir } else { dir.parent().unwrap_or(dir) };
    let mut turns = BenchServing::new(report, arrays);
    let records = store::read_records(home).context("bench_serving's figures are made from the turns");
    for turn in records.exit_with(Exit::Usage)? {
        turns.add(&turn.exit_with(Exit::Usage)?);
    }
    Ok(turns.line(report, tag.or(report.manifest.arm.as_deref())).to_string())
}
