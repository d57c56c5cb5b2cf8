//! Bytes: the SSE decoder and the frames of each API. A leaf: it knows no clock, no turn and no server.

mod fields;
pub mod frame;
mod histogram;
mod json;
mod place;
mod prometheus;
mod sse;
mod template;

pub use histogram::{Histogram, Histograms, bucket_of};
pub use place::{Spans, Worker, Workers};
pub use prometheus::{Exposition, Sample};
pub use sse::{Excess, SseDecoder};
pub use template::{Counts, Delta, Event, OpenAiEvents, SharedTemplate};
