//! A sweep's directory: `sweep.json`, `step-01/ARM/…`, and what came of them.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::dir::{create, create_numbered, file_name, lock, replace, write_json};
use super::{BlockState, HTML, MARKDOWN, RunDir, SWEEP, StoreError};
use crate::experiment::{Curves, Ladder};

/// The version of `sweep.json`.
pub(super) const SCHEMA: u32 = 1;

/// `sweep.json`: what was to be run, how far it has come, and what it has shown so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    pub schema: u32,
    pub state: SweepState,
    /// The resolved specification of the runs, whole, but for load, seed and salt, which each step has of its own.
    pub spec: serde_json::Value,
    pub ladder: Ladder,
    /// In the order in which they ran.
    pub steps: Vec<SweepStep>,
    pub curves: Curves,
}

/// How far a sweep has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SweepState {
    /// Still runs, or was killed.
    Running,
    Complete,
    Interrupted,
}

/// One run of one arm at one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepStep {
    /// From 1.
    pub step: u32,
    pub arm: String,
    /// Sessions in flight, or sessions a second.
    pub level: f64,
    pub seed: u64,
    pub salt: u64,
    pub state: BlockState,
    /// Relative to the sweep's directory.
    pub dir: String,
    /// Why it failed.
    pub reason: Option<String>,
}

/// A directory that this process created for a sweep, or went on with; no other process writes to it meanwhile.
#[derive(Debug)]
pub struct SweepDir {
    path: PathBuf,
    /// Held for its lock.
    _lock: File,
}

impl Sweep {
    /// A sweep of which no step has run.
    #[must_use]
    pub fn new(spec: serde_json::Value, ladder: Ladder, curves: Curves) -> Self {
        Self { schema: SCHEMA, state: SweepState::Running, spec, ladder, steps: vec![], curves }
    }
}

impl SweepDir {
    /// Creates `path`, or a directory of the default name, as [`RunDir::create`] does.
    ///
    /// # Errors
    /// When the directory exists already or cannot be created.
    pub fn create(path: Option<&Path>, label: &str) -> Result<Self, StoreError> {
        Self::open(&create(path, label)?)
    }

    /// Takes up a sweep that another process began.
    ///
    /// # Errors
    /// When the directory cannot be opened, or another process still writes to it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { path: path.to_owned(), _lock: lock(path)? })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the directory away again when nothing was written into it.
    pub fn remove_if_empty(&self) {
        RunDir::at(self.path.clone()).remove_if_empty();
    }

    /// Creates `step-01/ARM`, or `step-01/ARM.2` when the arm has to run that step again.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub fn step_dir(&self, step: u32, arm: &str) -> Result<RunDir, StoreError> {
        create_numbered(&self.path.join(format!("step-{step:02}")), &file_name(arm)).map(RunDir::at)
    }

    /// A step's directory as `sweep.json` names it.
    #[must_use]
    pub fn relative(&self, step: &RunDir) -> String {
        step.path().strip_prefix(&self.path).unwrap_or(step.path()).display().to_string()
    }

    /// Writes `sweep.json`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_sweep(&self, sweep: &Sweep) -> Result<(), StoreError> {
        write_json(&self.path.join(SWEEP), sweep)
    }

    /// Writes `report.md`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_markdown(&self, text: &str) -> Result<(), StoreError> {
        replace(&self.path.join(MARKDOWN), text.as_bytes())
    }

    /// Writes `report.html`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_html(&self, text: &str) -> Result<(), StoreError> {
        replace(&self.path.join(HTML), text.as_bytes())
    }
}
