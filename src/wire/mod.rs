//! Bytes: SSE decoder, frames of each API, Prometheus exposition. A leaf.
