//! gspbench measures what session affinity is worth: a load generator and A/B judge for LLM servers whose prefix cache is
//! split over data-parallel ranks or over prefill/decode nodes.
//!
//! Data flows one way; each arrow is one plain struct, and each stage runs alone.
//!
//! ```text
//! profile + flags ─► RunSpec ─► Plan ─► drive ─► TurnRecord* ─► RunReport ─► Comparison ─► text, files
//!  (cli, profile)   (checked) (workload)  │(client)  (record)     (report)     (compare)     (render)
//!                                         └─ target: probe, flush, scrape /metrics and /v1/loads, launch
//! ```
//!
//! A folder is a stage. [`stats`], [`units`], [`wire`], [`policy`], [`clock`] and [`lanes`] are leaves: `clock` is the only
//! time that others know, wall or virtual, and lanes are the threads that carry streams. [`experiment`] says which block comes
//! next, [`store`] keeps runs and experiments on disk, [`text`] makes prompts of exact lengths. [`sim`] is a server of its own
//! that shares no wire code with the client, since a shared mistake would be invisible.

pub mod cli;
pub mod client;
pub mod clock;
pub mod compare;
pub mod drive;
pub mod experiment;
pub mod lanes;
pub mod policy;
pub mod profile;
pub mod record;
pub mod render;
pub mod report;
pub mod sim;
pub mod stats;
pub mod store;
pub mod target;
pub mod text;
pub mod units;
pub mod wire;
pub mod workload;
