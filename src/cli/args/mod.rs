//! Flags that several commands share: what is run, what is written, and what fails a run.

pub(super) mod flags;
pub(super) mod gates;
pub(super) mod ladder;
pub(super) mod output;
pub(super) mod spec;
