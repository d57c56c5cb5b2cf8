//! `requests.jsonl`: a line as each turn ends.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::StoreError;
use crate::record::TurnRecord;

/// How much of a turn a line holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// All but the gaps between frames, which outweigh the rest.
    Plain,
    /// The gaps too.
    Gaps,
}

/// The open log. Each line is one write, so that a crash loses at most the line being written; a turn takes milliseconds,
/// a write takes microseconds, and no timed path waits for it.
#[derive(Debug)]
pub struct RequestLog {
    file: File,
    path: PathBuf,
    detail: Detail,
    line: Vec<u8>,
}

impl RequestLog {
    pub(super) fn create(path: &Path, detail: Detail) -> Result<Self, StoreError> {
        let file = File::options().append(true).create_new(true).open(path).map_err(StoreError::write(path))?;
        Ok(Self { file, path: path.to_owned(), detail, line: Vec::new() })
    }

    /// Appends one turn.
    ///
    /// # Errors
    /// When the line cannot be written; the lines before it stay.
    pub fn append(&mut self, turn: &TurnRecord) -> Result<(), StoreError> {
        self.line.clear();
        let written = match self.detail {
            Detail::Plain if !turn.gaps.is_empty() => {
                serde_json::to_writer(&mut self.line, &TurnRecord { gaps: Vec::new(), ..turn.clone() })
            }
            Detail::Plain | Detail::Gaps => serde_json::to_writer(&mut self.line, turn),
        };
        self.line.push(b'\n');
        written
            .map_err(std::io::Error::from)
            .and_then(|()| self.file.write_all(&self.line))
            .map_err(StoreError::write(&self.path))
    }
}

/// A second `requests.jsonl` beside the first one, which it replaces when it is whole.
#[derive(Debug)]
pub struct Rewriting {
    file: std::io::BufWriter<File>,
    path: PathBuf,
    beside: PathBuf,
}

impl Rewriting {
    pub(super) fn of(path: &Path) -> Result<Self, StoreError> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".tmp");
        let beside = PathBuf::from(beside);
        let file = File::create(&beside).map_err(StoreError::write(&beside))?;
        Ok(Self { file: std::io::BufWriter::new(file), path: path.to_owned(), beside })
    }

    /// Appends one turn, with all that is known of it.
    ///
    /// # Errors
    /// When the line cannot be written; the first file stays.
    pub fn append(&mut self, turn: &TurnRecord) -> Result<(), StoreError> {
        serde_json::to_writer(&mut self.file, turn)
            .map_err(std::io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"))
            .map_err(StoreError::write(&self.beside))
    }

    /// Puts the second file in the place of the first.
    ///
    /// # Errors
    /// When that cannot be done; the first file stays.
    pub fn finish(mut self) -> Result<(), StoreError> {
        self.file.flush().map_err(StoreError::write(&self.beside))?;
        std::fs::rename(&self.beside, &self.path).map_err(StoreError::write(&self.path))
    }
}

impl Drop for Rewriting {
    /// What was not finished leaves nothing behind.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.beside);
    }
}
