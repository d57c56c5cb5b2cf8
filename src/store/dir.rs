//! One run's directory.

use std::fs::{File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use super::{Detail, HTML, MARKDOWN, METRICS, REQUESTS, RUN, RequestLog, Rewriting, StoreError};
use crate::report::RunReport;

/// Where results go when no one says otherwise, in the current directory.
const DEFAULT_PARENT: &str = "gspbench-results";

/// A directory that this process created, and so may write to.
#[derive(Debug, Clone)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Creates `path`, or `gspbench-results/<utc>-<label>-<random>`, before the first request is sent.
    ///
    /// # Errors
    /// When the directory exists already or cannot be created.
    pub fn create(path: Option<&Path>, label: &str) -> Result<Self, StoreError> {
        Ok(Self { path: create(path, label)? })
    }

    /// The directory of a run that has ended, to add to it what has become known since.
    #[must_use]
    pub fn of_finished(path: &Path) -> Self {
        Self::at(if path.is_dir() { path } else { path.parent().unwrap_or(path) }.to_owned())
    }

    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the directory away again when nothing was written into it, as after a target that does not answer.
    pub fn remove_if_empty(&self) {
        // The system refuses to remove a directory that holds anything, and then it is to stay.
        let _ = std::fs::remove_dir(&self.path);
    }

    /// Opens `requests.jsonl` for appending.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn request_log(&self, detail: Detail) -> Result<RequestLog, StoreError> {
        RequestLog::create(&self.path.join(REQUESTS), detail)
    }

    /// Opens `requests.jsonl` for being replaced by the same turns with more known of them.
    ///
    /// # Errors
    /// When the file beside it cannot be created.
    pub fn rewrite_requests(&self) -> Result<Rewriting, StoreError> {
        Rewriting::of(&self.path.join(REQUESTS))
    }

    /// Writes `run.json`, replacing an earlier state of the same run.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_report(&self, report: &RunReport) -> Result<(), StoreError> {
        write_json(&self.path.join(RUN), report)
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

    /// Writes `metrics.prom`: first and last scrape of each address, raw.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_raw_metrics(&self, text: &str) -> Result<(), StoreError> {
        replace(&self.path.join(METRICS), text.as_bytes())
    }
}

/// A new directory: the one asked for, or one of a name that no other run has.
pub(super) fn create(path: Option<&Path>, label: &str) -> Result<PathBuf, StoreError> {
    if let Some(path) = path {
        return create_exclusively(path.to_owned());
    }
    loop {
        match create_exclusively(Path::new(DEFAULT_PARENT).join(default_name(label))) {
            Err(StoreError::Exists(_)) => {}
            done => return done,
        }
    }
}

/// Creates the last component and nothing that exists; its parents may exist or not.
pub(super) fn create_exclusively(path: PathBuf) -> Result<PathBuf, StoreError> {
    let parents = path.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or(Ok(()), std::fs::create_dir_all);
    match parents.and_then(|()| std::fs::create_dir(&path)) {
        Ok(()) => Ok(path),
        Err(source) if source.kind() == std::io::ErrorKind::AlreadyExists && path.exists() => {
            Err(StoreError::Exists(path))
        }
        Err(source) => Err(StoreError::Create { path, source }),
    }
}

/// Creates `parent/name`, or `parent/name.2` and so on where what ran there before is to stay.
pub(super) fn create_numbered(parent: &Path, name: &str) -> Result<PathBuf, StoreError> {
    let mut path = parent.join(name);
    for attempt in 2_u32.. {
        match create_exclusively(path) {
            Err(StoreError::Exists(_)) => path = parent.join(format!("{name}.{attempt}")),
            done => return done,
        }
    }
    Err(StoreError::Exists(parent.join(name)))
}

/// Locks a directory against other processes that would write to it, until the file is dropped.
///
/// # Errors
/// When it cannot be opened, or another process still writes to it.
pub(super) fn lock(path: &Path) -> Result<File, StoreError> {
    let lock = File::open(path).map_err(StoreError::read(path))?;
    match lock.try_lock() {
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked(path.to_owned())),
        // An error otherwise is a file system without locks: as before there were any.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(lock),
    }
}

fn default_name(label: &str) -> String {
    let utc = humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace(['-', ':'], "");
    // Randomly keyed in each process: two runs of the same second get two names.
    let random = RandomState::new().hash_one(std::process::id()) & 0xFFFF;
    format!("{utc}-{}-{random:04x}", file_name(label))
}

/// A label as part of a file name on any system: a model or an address may hold `/`, `:` and the like.
pub(super) fn file_name(label: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' };
    let name: String = label.chars().take(60).map(plain).collect();
    match name.trim_matches(['.', '-']) {
        "" => "run".into(),
        kept => kept.into(),
    }
}

pub(super) fn write_json(path: &Path, document: &impl Serialize) -> Result<(), StoreError> {
    let mut bytes =
        serde_json::to_vec_pretty(document).map_err(|error| StoreError::write(path)(std::io::Error::from(error)))?;
    bytes.push(b'\n');
    replace(path, &bytes)
}

/// Writes beside the place and renames into it, so that readers see the old or the new document and nothing between.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    let beside = PathBuf::from(beside);
    std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path)).map_err(StoreError::write(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_with_separators_is_one_plain_name() {
        assert_eq!(file_name("org/name:tag"), "org-name-tag");
        assert_eq!(file_name("http://10.0.0.1:30000/?a=\"<b>\"|*"), "http---10.0.0.1-30000--a---b");
        assert_eq!(file_name("../.."), "run");
        assert_eq!(file_name(&"x".repeat(500)).len(), 60);
    }

    #[test]
    fn an_existing_directory_is_refused_and_named() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("deep/er");
        RunDir::create(Some(&path), "x").unwrap();
        let error = RunDir::create(Some(&path), "x").unwrap_err();
        assert!(matches!(&error, StoreError::Exists(named) if *named == path));
        assert!(error.to_string().contains("--out"));
    }

    #[test]
    fn a_file_in_the_way_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        assert!(matches!(RunDir::create(Some(&file), "x").unwrap_err(), StoreError::Exists(_)));
        assert!(matches!(RunDir::create(Some(&file.join("x")), "x").unwrap_err(), StoreError::Create { .. }));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    }

    #[test]
    fn only_an_empty_directory_is_taken_away() {
        let home = tempfile::tempdir().unwrap();
        let run = RunDir::create(Some(&home.path().join("run")), "x").unwrap();
        run.write_markdown("x").unwrap();
        run.remove_if_empty();
        assert!(run.path().join("report.md").exists());
        std::fs::remove_file(run.path().join("report.md")).unwrap();
        run.remove_if_empty();
        assert!(!run.path().exists());
    }

    #[test]
    fn names_of_the_same_second_differ() {
        let names: std::collections::BTreeSet<_> = (0..8).map(|_| default_name("x")).collect();
        assert!(names.len() > 1);
    }
}
