//! Files outside of result directories, which the user names: a new document, or a file of lines that grows.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::StoreError;

/// Writes a document that does not exist yet, in the place that `flag` gave.
///
/// # Errors
/// When it exists, or cannot be written.
pub fn write_new(path: &Path, text: &str, flag: &'static str) -> Result<(), StoreError> {
    let mut file = File::create_new(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => StoreError::FileExists(path.to_owned()),
        _ => StoreError::write_file(path, flag)(source),
    })?;
    file.write_all(text.as_bytes()).map_err(|source| {
        // Part of a document would be taken for it, and be in the way of the next try.
        let _ = std::fs::remove_file(path);
        StoreError::write_file(path, flag)(source)
    })
}

/// A file that gets a line a run, from any number of programs.
#[derive(Debug)]
pub struct LineFile {
    file: File,
    path: PathBuf,
    flag: &'static str,
}

impl LineFile {
    /// Opens it, as `flag` names it, before anything is measured, so that a wrong name costs nothing.
    ///
    /// # Errors
    /// When it cannot be opened for appending.
    pub fn open(path: &Path, flag: &'static str) -> Result<Self, StoreError> {
        let file = File::options().append(true).create(true).open(path);
        Ok(Self { file: file.map_err(StoreError::write_file(path, flag))?, path: path.to_owned(), flag })
    }

    /// Appends a line in one write; lines that other programs append stay whole.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn append(&self, line: &str) -> Result<(), StoreError> {
        let line = format!("{}\n", line.trim_end());
        (&self.file).write_all(line.as_bytes()).map_err(StoreError::write_file(&self.path, self.flag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_never_overwritten_and_lines_are_added_to_what_is_there() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        write_new(&path, "mine\n", "--output").unwrap();
        assert!(matches!(write_new(&path, "other", "--output").unwrap_err(), StoreError::FileExists(_)));
        let open = |path: &Path| LineFile::open(path, "--output-file");
        open(&path).unwrap().append("one").unwrap();
        open(&path).unwrap().append("two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine\none\ntwo\n");
        assert!(open(&home.path().join("no/where")).is_err());
    }
}
