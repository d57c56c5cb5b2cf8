//! Directories of runs and experiments: created once, never overwritten, and valid at every instant.
//!
//! A document is written beside its place and renamed into it; the request log grows by whole lines. So a crash loses at
//! most the line being written, and a reader never sees half a document.

mod dir;
mod error;
mod experiment;
mod foreign;
mod lines;
mod log;
mod read;
mod sweep;

pub use dir::RunDir;
pub use error::StoreError;
pub use experiment::{Block, BlockState, Experiment, ExperimentDir};
pub use foreign::read_foreign;
pub use lines::{LineFile, write_new};
pub use log::{Detail, RequestLog, Rewriting};
pub use read::{Records, read_blocks, read_experiment, read_records, read_run, read_sweep};
pub use sweep::{Sweep, SweepDir, SweepState, SweepStep};

pub(crate) const RUN: &str = "run.json";
const REQUESTS: &str = "requests.jsonl";
const METRICS: &str = "metrics.prom";
const MARKDOWN: &str = "report.md";
const HTML: &str = "report.html";
pub(crate) const EXPERIMENT: &str = "ab.json";
pub(crate) const SWEEP: &str = "sweep.json";
const COMPARISON: &str = "comparison.json";
const REPLIES: &str = "replies.json";
