//! A request inside the simulator, and what happens to it.

use std::sync::Arc;
use std::time::Duration;

/// Names a request inside the simulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

/// A request as the engine sees it. The reply is known beforehand, one id per output token.
#[derive(Debug, Clone)]
pub struct Job {
    pub id: JobId,
    pub prompt: Arc<[u32]>,
    pub output: Arc<[u32]>,
    pub arrival: Duration,
}

/// What happened to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Its first chunk is being computed; `cached` prompt tokens were found.
    Admitted { job: JobId, rank: u16, cached: u32, queued: Duration },
    /// Its `index`-th token (from 1) exists.
    Token { job: JobId, index: u32, is_last: bool },
}
