//! Results of other programs, read into the shape of our reports as far as they go. Absent stays absent.

mod aiperf;
mod fields;
mod serving;

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::StoreError;
use crate::report::{
    Accumulator, Closing, Context, Foreign, Manifest, Oracle, RunReport, RunSpec, ServerFacts, State, WorkloadFacts,
};

/// The file of records in a directory that AIPerf wrote.
const AIPERF: &str = "profile_export.jsonl";

/// The runs that a file of another program holds: bench_serving's JSONL one a line, a vLLM result or AIPerf's records one.
/// None when `path` is a directory of ours, or none of theirs. `spec` stands where nothing is known.
///
/// # Errors
/// When the file cannot be read, or is no result of these programs.
pub fn read_foreign(path: &Path, spec: &RunSpec) -> Result<Option<Vec<RunReport>>, StoreError> {
    let Some(file) = file_of(path) else { return Ok(None) };
    let text = std::fs::read_to_string(&file).map_err(StoreError::read(&file))?;
    let documents = documents(&file, &text)?;
    // Our own file was named, and not its directory.
    if documents.iter().any(|document| document.get("schema").is_some()) {
        return Ok(None);
    }
    let unknown = || StoreError::UnknownResult(file.clone());
    let first = documents.first().ok_or_else(unknown)?;
    if aiperf::is_record(first) {
        return Ok(Some(vec![aiperf::run(&documents, spec)]));
    }
    let runs: Option<Vec<_>> = documents.iter().map(|document| serving::run(document, spec)).collect();
    runs.map(Some).ok_or_else(unknown)
}

fn file_of(path: &Path) -> Option<PathBuf> {
    if path.is_file() {
        return Some(path.to_owned());
    }
    Some(path.join(AIPERF)).filter(|file| file.is_file())
}

/// The JSON documents of a file: one for all of it, or one a line.
fn documents(file: &Path, text: &str) -> Result<Vec<Value>, StoreError> {
    let text = fields::strict(text);
    if let Ok(whole) = serde_json::from_str(&text) {
        return Ok(vec![whole]);
    }
    let lines = (1_u64..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(line, text)| {
            serde_json::from_str(text).map_err(|source| StoreError::BadResult { path: file.to_owned(), line, source })
        })
        .collect()
}

/// A report of which nothing is known but where it comes from.
fn blank(foreign: Foreign, spec: &RunSpec) -> RunReport {
    let manifest = Manifest { version: foreign.tool.clone(), ..Manifest::of(spec.clone()) };
    let workload = WorkloadFacts {
        digest: String::new(),
        groups: 0,
        sessions: 0,
        turns: 0,
        prompt_tokens: 0,
        output_tokens: 0,
        distinct_prompts: 0,
        router_key: None,
        oracle: Oracle::default(),
    };
    let context = Context { manifest, workload, server: ServerFacts::default() };
    let mut report = Accumulator::new(context).finish(Closing::plain(State::Complete));
    report.server.cold = None;
    report.validity.voids.clear();
    report.validity.warnings = vec![foreign.finding()];
    report.foreign = Some(foreign);
    report
}

#[cfg(test)]
mod tests;
