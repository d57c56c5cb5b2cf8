//! Reading what runs left behind, finished or not.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::experiment::{self, BlockState, Experiment};
use super::sweep::{self, Sweep};
use super::{EXPERIMENT, REQUESTS, RUN, SWEEP, StoreError};
use crate::compare::BlockResult;
use crate::record::TurnRecord;
use crate::report::{RunReport, SCHEMA};

/// The report of a run, from its directory or from the path of its run.json.
///
/// # Errors
/// When there is none, or when it is foreign, half-written, or newer than this program.
pub fn read_run(path: &Path) -> Result<RunReport, StoreError> {
    let file = if path.is_dir() { path.join(RUN) } else { path.to_owned() };
    if !path.exists() {
        return Err(StoreError::Missing(path.to_owned()));
    }
    if file.exists() && !file.is_file() {
        return Err(StoreError::NoFile(file));
    }
    if !file.exists() {
        let known = [(EXPERIMENT, StoreError::IsExperiment as fn(_) -> _), (SWEEP, StoreError::IsSweep)];
        let known = known.into_iter().find(|(file, _)| path.join(file).exists());
        return Err(known.map_or(StoreError::NoRun as fn(_) -> _, |(_, error)| error)(path.to_owned()));
    }
    read_document(&file, SCHEMA)
}

/// The plan and progress of an experiment.
///
/// # Errors
/// When `dir` is none, or its ab.json is foreign or newer than this program.
pub fn read_experiment(dir: &Path) -> Result<Experiment, StoreError> {
    if !dir.exists() {
        return Err(StoreError::Missing(dir.to_owned()));
    }
    let file = dir.join(EXPERIMENT);
    if !file.exists() {
        return Err(StoreError::NoExperiment(dir.to_owned()));
    }
    read_document(&file, experiment::SCHEMA)
}

/// The plan, the progress and the curves of a sweep.
///
/// # Errors
/// When `dir` is none, or its sweep.json is foreign or newer than this program.
pub fn read_sweep(dir: &Path) -> Result<Sweep, StoreError> {
    if !dir.exists() {
        return Err(StoreError::Missing(dir.to_owned()));
    }
    let file = dir.join(SWEEP);
    if !file.exists() {
        return Err(StoreError::NoSweep(dir.to_owned()));
    }
    read_document(&file, sweep::SCHEMA)
}

/// The reports of the blocks that ran to their end, void or not, in the order in which they ran.
///
/// # Errors
/// As [`read_experiment`] and [`read_run`].
pub fn read_blocks(dir: &Path) -> Result<Vec<BlockResult>, StoreError> {
    let experiment = read_experiment(dir)?;
    let ended = |state| matches!(state, BlockState::Complete | BlockState::Void);
    let ended = experiment.blocks.into_iter().filter(|block| ended(block.state));
    ended
        .map(|block| {
            let home = dir.join(&block.dir);
            Ok(BlockResult { round: block.round, report: read_run(&home)?, arm: block.arm, dir: Some(home) })
        })
        .collect()
}

/// The turns of a run, one at a time, however many there are. A last line that a crash tore is left out.
///
/// # Errors
/// When there is no log; later, each line that is no record.
pub fn read_records(dir: &Path) -> Result<Records, StoreError> {
    let path = dir.join(REQUESTS);
    let file = File::open(&path).map_err(|why| match why.kind() {
        std::io::ErrorKind::NotFound => StoreError::NoTurns(dir.to_owned()),
        _ => StoreError::read(&path)(why),
    })?;
    Ok(Records { lines: BufReader::new(file), path, line: 0 })
}

/// An iterator over the lines of `requests.jsonl`.
#[derive(Debug)]
pub struct Records {
    lines: BufReader<File>,
    path: PathBuf,
    line: u64,
}

impl Iterator for Records {
    type Item = Result<TurnRecord, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        self.line += 1;
        match self.lines.read_until(b'\n', &mut line) {
            Err(source) => return Some(Err(StoreError::Read { path: self.path.clone(), source })),
            Ok(0) => return None,
            Ok(_) => {}
        }
        match serde_json::from_slice(&line) {
            Ok(turn) => Some(Ok(turn)),
            Err(_) if line.last() != Some(&b'\n') => None,
            Err(source) => Some(Err(StoreError::BadLine { path: self.path.clone(), line: self.line, source })),
        }
    }
}

#[derive(Deserialize)]
struct Versioned {
    schema: u32,
}

/// Looks at the version first: the shape of a newer document may be anything.
fn read_document<T: DeserializeOwned>(path: &Path, known: u32) -> Result<T, StoreError> {
    let bytes = std::fs::read(path).map_err(StoreError::read(path))?;
    let foreign = |source| StoreError::Foreign { path: path.to_owned(), source };
    let Versioned { schema } = serde_json::from_slice(&bytes).map_err(foreign)?;
    if schema > known {
        return Err(StoreError::Newer { path: path.to_owned(), schema, known });
    }
    serde_json::from_slice(&bytes).map_err(foreign)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{context, served};
    use crate::report::{Accumulator, Closing, State};
    use crate::store::{Detail, RunDir};

    fn run_dir() -> (tempfile::TempDir, RunDir) {
        let home = tempfile::tempdir().unwrap();
        let run = RunDir::create(Some(&home.path().join("run")), "x").unwrap();
        (home, run)
    }

    #[test]
    fn a_report_reads_back_and_leaves_no_scratch_file() {
        let (_home, run) = run_dir();
        let report = Accumulator::new(context(1, 2)).finish(Closing::plain(State::Running));
        run.write_report(&report).unwrap();
        run.write_report(&report).unwrap();
        assert_eq!(read_run(run.path()).unwrap(), report);
        assert_eq!(read_run(&run.path().join("run.json")).unwrap(), report);
        assert_eq!(std::fs::read_dir(run.path()).unwrap().count(), 1);
    }

    #[test]
    fn every_line_is_readable_as_soon_as_it_is_appended() {
        let (_home, run) = run_dir();
        let mut log = run.request_log(Detail::Plain).unwrap();
        for session in 0..3 {
            log.append(&served(session, 0, 0, 0)).unwrap();
            assert_eq!(read_records(run.path()).unwrap().count(), session as usize + 1);
        }
        let first = read_records(run.path()).unwrap().next().unwrap().unwrap();
        assert_eq!(first, TurnRecord { gaps: vec![], ..served(0, 0, 0, 0) });
        assert!(run.request_log(Detail::Plain).is_err(), "a second log would overwrite the first");
    }

    #[test]
    fn gaps_are_kept_on_request() {
        let (_home, run) = run_dir();
        run.request_log(Detail::Gaps).unwrap().append(&served(0, 0, 0, 0)).unwrap();
        assert_eq!(read_records(run.path()).unwrap().next().unwrap().unwrap(), served(0, 0, 0, 0));
    }

    #[test]
    fn a_torn_last_line_is_left_out_wherever_it_was_cut_and_a_bad_one_inside_is_named() {
        let (_home, run) = run_dir();
        let line = serde_json::to_string(&served(0, 0, 0, 0)).unwrap();
        let path = run.path().join("requests.jsonl");
        for cut in 0..line.len() {
            std::fs::write(&path, format!("{line}\n{}", &line[..cut])).unwrap();
            assert_eq!(read_records(run.path()).unwrap().filter_map(Result::ok).count(), 1, "cut at {cut}");
        }
        std::fs::write(&path, format!("{line}\n{{}}\n{line}\n")).unwrap();
        let error = read_records(run.path()).unwrap().find_map(Result::err).unwrap();
        assert!(error.to_string().contains("line 2"), "{error}");
    }

    #[test]
    fn what_is_no_run_is_refused_in_one_sentence() {
        let (home, run) = run_dir();
        let said = |path: &Path| read_run(path).unwrap_err().to_string();
        assert!(said(&home.path().join("nowhere")).contains("does not exist"));
        assert!(said(run.path()).contains("holds no run.json"));
        let file = run.path().join("run.json");
        for (text, word) in [("{\"schema\": 9}", "newer"), ("{\"schema\": 1}", "missing field"), ("{\"sch", "EOF")] {
            std::fs::write(&file, text).unwrap();
            assert!(said(run.path()).contains(word), "{}", said(run.path()));
        }
        std::fs::write(home.path().join("ab.json"), "{}").unwrap();
        assert!(said(home.path()).contains("is an experiment"));
    }
}
