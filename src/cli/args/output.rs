//! Flags that say where results go and how long to wait, and none of the measured load.

use std::path::PathBuf;
use std::time::Duration;

use crate::cli::exit::{Exit, ExitWith as _};
use crate::cli::form::Form;
use crate::report::{Arrays, RunReport};
use crate::store::{Detail, LineFile, RunDir};

/// A year: a clock can hold that.
const LONGEST_READY_CHECK: u64 = 365 * 86_400;

/// Shared by `run` and `ab`.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Results")]
pub(crate) struct OutputArgs {
    /// Directory of the results; must not exist yet (default: gspbench-results/UTC-LABEL-RANDOM)
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// A word for the default directory's name
    #[arg(long, value_name = "WORD")]
    pub tag: Option<String>,
    /// Also write the gaps between the frames of each turn
    #[arg(long, alias = "output_details")]
    pub output_details: bool,
    /// Append each run to this file, as a line of SGLang's bench_serving; with --output-details, its arrays too
    #[arg(long, alias = "output_file", value_name = "FILE")]
    pub output_file: Option<PathBuf>,
    /// Show no progress: neither the bar, nor the lines that stand for it where standard error is no terminal
    #[arg(long, alias = "disable_tqdm")]
    pub disable_tqdm: bool,
    /// After the first SIGINT or SIGTERM, turns under way may take this long to end
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = humantime::parse_duration)]
    pub grace: Duration,
    /// Wait up to this many seconds until the server answers
    #[arg(long, alias = "ready_check_timeout_sec", value_name = "SECONDS", default_value_t = 0,
        value_parser = clap::value_parser!(u64).range(..=LONGEST_READY_CHECK))]
    pub ready_check_timeout_sec: u64,
}

impl OutputArgs {
    /// The file of lines, opened before anything is measured.
    ///
    /// # Errors
    /// When it cannot be appended to.
    pub(crate) fn lines(&self) -> anyhow::Result<Lines<'_>> {
        let file = self
            .output_file
            .as_deref()
            .map(|path| LineFile::open(path, "--output-file"))
            .transpose()
            .exit_with(Exit::Usage)?;
        let arrays = if self.output_details { Arrays::With } else { Arrays::Without };
        Ok(Lines { file, arrays, tag: self.tag.as_deref() })
    }

    /// How runs are shown as they go on.
    #[must_use]
    pub(crate) fn progress(&self) -> Form {
        Form::of_stderr(!self.disable_tqdm)
    }

    #[must_use]
    pub(crate) fn detail(&self) -> Detail {
        if self.output_details { Detail::Gaps } else { Detail::Plain }
    }

    #[must_use]
    pub(crate) fn ready_timeout(&self) -> Duration {
        Duration::from_secs(self.ready_check_timeout_sec)
    }

    /// The label of the default directory.
    #[must_use]
    pub(crate) fn label<'a>(&'a self, name: &'a str) -> &'a str {
        self.tag.as_deref().unwrap_or(name)
    }
}

/// Where every run gets a line, if that was asked for.
#[derive(Debug)]
pub(crate) struct Lines<'a> {
    file: Option<LineFile>,
    arrays: Arrays,
    tag: Option<&'a str>,
}

impl Lines<'_> {
    /// Adds the run that `dir` holds.
    ///
    /// # Errors
    /// When its turns cannot be read, or the line cannot be written.
    pub(crate) fn append(&self, dir: &RunDir, report: &RunReport) -> anyhow::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let line = crate::cli::export::bench_serving(dir.path(), report, self.arrays, self.tag)?;
        Ok(file.append(&line)?)
    }
}
