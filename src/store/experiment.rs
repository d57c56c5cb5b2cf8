//! An experiment's directory: `ab.json`, `round-01/ARM/…`, and what came of them.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::dir::{create, create_numbered, file_name, lock, replace, write_json};
use super::{COMPARISON, EXPERIMENT, HTML, MARKDOWN, REPLIES, RunDir, StoreError};
use crate::compare::Comparison;

/// The version of `ab.json`.
pub(super) const SCHEMA: u32 = 1;

/// `ab.json`: what was to be run, and how far it has come.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    pub schema: u32,
    /// The resolved specification, whole.
    pub spec: serde_json::Value,
    /// In the order in which they run.
    pub blocks: Vec<Block>,
}

/// One run of one arm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// From 1.
    pub round: u32,
    pub arm: String,
    pub seed: u64,
    pub salt: u64,
    pub state: BlockState,
    /// Relative to the experiment's directory; empty until the block starts.
    pub dir: String,
    /// Why it failed.
    #[serde(default)]
    pub reason: Option<String>,
}

/// How far a block has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    Planned,
    Running,
    Complete,
    /// Ran to its end, but its numbers may not be used.
    Void,
    Interrupted,
    /// Could not be run: its warm-up or flush was refused, or a file could not be written.
    Failed,
}

/// A directory that this process created for an experiment, or went on with; no other process writes to it meanwhile.
#[derive(Debug)]
pub struct ExperimentDir {
    path: PathBuf,
    /// Held for its lock.
    _lock: File,
}

impl Experiment {
    /// An experiment of which no block has run.
    #[must_use]
    pub fn new(spec: serde_json::Value, blocks: Vec<Block>) -> Self {
        Self { schema: SCHEMA, spec, blocks }
    }
}

impl ExperimentDir {
    /// Creates `path`, or a directory of the default name, as [`RunDir::create`] does.
    ///
    /// # Errors
    /// When the directory exists already or cannot be created.
    pub fn create(path: Option<&Path>, label: &str) -> Result<Self, StoreError> {
        Self::open(&create(path, label)?)
    }

    /// Takes up an experiment that another process began.
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

    /// Creates `round-01/ARM` for a block, or `round-01/ARM.2` when the arm has to run again in its round.
    ///
    /// # Errors
    /// When the directory cannot be created.
    pub fn block_dir(&self, round: u32, arm: &str) -> Result<RunDir, StoreError> {
        let parent = self.path.join(format!("round-{round:02}"));
        create_numbered(&parent, &file_name(arm)).map(RunDir::at)
    }

    /// A block's directory as `ab.json` names it.
    #[must_use]
    pub fn relative(&self, block: &RunDir) -> String {
        block.path().strip_prefix(&self.path).unwrap_or(block.path()).display().to_string()
    }

    /// Writes `ab.json`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_experiment(&self, experiment: &Experiment) -> Result<(), StoreError> {
        write_json(&self.path.join(EXPERIMENT), experiment)
    }

    /// Writes `replies.json`: recorded history, a text for each turn of each session.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_replies(&self, replies: &[Vec<String>]) -> Result<(), StoreError> {
        write_json(&self.path.join(REPLIES), &replies)
    }

    /// Reads `replies.json`; none when there is no such file.
    ///
    /// # Errors
    /// When it cannot be read, or is foreign.
    pub fn read_replies(&self) -> Result<Option<Vec<Vec<String>>>, StoreError> {
        let path = self.path.join(REPLIES);
        match std::fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map(Some).map_err(|source| StoreError::Foreign { path, source })
            }
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::Read { path, source }),
        }
    }

    /// Writes `comparison.json`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_comparison(&self, comparison: &Comparison) -> Result<(), StoreError> {
        write_json(&self.path.join(COMPARISON), comparison)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::context;
    use crate::report::{Accumulator, Closing, State};
    use crate::store::{read_blocks, read_experiment};

    fn block(arm: &str, state: BlockState, dir: String) -> Block {
        Block { round: 1, arm: arm.into(), seed: 7, salt: 7, state, dir, reason: None }
    }

    fn failed_block(dir: String) -> Block {
        Block { reason: Some("refused".into()), ..block("d", BlockState::Failed, dir) }
    }

    #[test]
    fn blocks_that_ended_read_back_and_others_are_left_out() {
        let home = tempfile::tempdir().unwrap();
        let experiment = ExperimentDir::create(Some(&home.path().join("ab")), "x").unwrap();
        let run = experiment.block_dir(1, "a/b").unwrap();
        assert_eq!(experiment.relative(&run), "round-01/a-b");
        run.write_report(&Accumulator::new(context(1, 2)).finish(Closing::plain(State::Complete))).unwrap();
        let blocks = vec![
            block("a/b", BlockState::Complete, experiment.relative(&run)),
            block("c", BlockState::Planned, String::new()),
            failed_block(experiment.relative(&run)),
        ];
        let plan = Experiment::new(serde_json::json!({"rounds": 1}), blocks);
        experiment.write_experiment(&plan).unwrap();
        assert_eq!(read_experiment(experiment.path()).unwrap(), plan);
        let read = read_blocks(experiment.path()).unwrap();
        assert_eq!(read.iter().map(|block| block.arm.as_str()).collect::<Vec<_>>(), ["a/b"]);
    }

    #[test]
    fn a_repeated_block_has_a_directory_of_its_own() {
        let home = tempfile::tempdir().unwrap();
        let experiment = ExperimentDir::create(Some(&home.path().join("ab")), "x").unwrap();
        let dirs = [(); 3].map(|()| experiment.relative(&experiment.block_dir(2, "arm").unwrap()));
        assert_eq!(dirs, ["round-02/arm", "round-02/arm.2", "round-02/arm.3"]);
    }
}
