//! What can be wrong with a directory, said with its path and the way out.

use std::path::{Path, PathBuf};

/// A directory or file that could not be made, written or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("`{}` exists already, and results are never overwritten: give another `--out`, or remove it", .0.display())]
    Exists(PathBuf),
    #[error("cannot create `{}` ({source}): give a folder that can be written as `--out`", path.display())]
    Create { path: PathBuf, source: std::io::Error },
    #[error("`{}` exists already, and no file is overwritten: give another name, or remove it", .0.display())]
    FileExists(PathBuf),
    #[error("cannot write `{}` ({source}): free some space, or give another `--out`", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    /// A single file that a flag names.
    #[error("cannot write `{}` ({source}): free some space, or give another file as `{flag}`", path.display())]
    WriteFile { path: PathBuf, flag: &'static str, source: std::io::Error },
    #[error("cannot read `{}`: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("`{}` does not exist: give the folder that a run printed at its end", .0.display())]
    Missing(PathBuf),
    #[error("`{}` is a device or a pipe, which has no end to read to: give a file or the folder of a run", .0.display())]
    NoFile(PathBuf),
    #[error("`{}` holds no run.json: give the folder of a run", .0.display())]
    NoRun(PathBuf),
    #[error("`{}` is an experiment, not a run: give it alone to `gspbench compare`, or give one of its round-NN/ARM folders", .0.display())]
    IsExperiment(PathBuf),
    #[error("`{}` is a sweep, not a run: use `gspbench report`, or give one of its step-NN/ARM folders", .0.display())]
    IsSweep(PathBuf),
    #[error("`{}` holds no requests.jsonl: the run ended before its first turn, so there is nothing to report", .0.display())]
    NoTurns(PathBuf),
    #[error("`{}` holds no ab.json: give the folder of an experiment", .0.display())]
    NoExperiment(PathBuf),
    #[error("`{}` holds no sweep.json: give the folder of a sweep", .0.display())]
    NoSweep(PathBuf),
    #[error("`{}` is being written by another gspbench: wait for its end", .0.display())]
    Locked(PathBuf),
    #[error("`{}` was written by a newer gspbench (schema {schema}, this one reads {known}): use that version", path.display())]
    Newer { path: PathBuf, schema: u32, known: u32 },
    #[error("`{}` is not what gspbench writes there: {source}", path.display())]
    Foreign { path: PathBuf, source: serde_json::Error },
    #[error("`{}` is no run, and no result of bench_serving (JSONL), `vllm bench serve` (JSON) or AIPerf (profile_export.jsonl)", .0.display())]
    UnknownResult(PathBuf),
    #[error("`{}`, line {line}, is no JSON: {source}", path.display())]
    BadResult { path: PathBuf, line: u64, source: serde_json::Error },
    #[error("`{}`, line {line}, is no record of a turn: {source}", path.display())]
    BadLine { path: PathBuf, line: u64, source: serde_json::Error },
}

impl StoreError {
    pub(super) fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Write { path, source }
    }

    pub(super) fn write_file(path: &Path, flag: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::WriteFile { path, flag, source }
    }

    pub(super) fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Read { path, source }
    }
}
