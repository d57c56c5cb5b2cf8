//! Routing policies as pure functions of (key or prompt, live ranks, loads). The simulator's DP controller uses them, and
//! the client when it pins turns itself; nothing here knows a clock, a socket or a session.
//!
//! SGLang's names are kept: `round_robin`, `total_requests`, `total_tokens` (0.5.23), `prefix_match` (PR #26612) and
//! `prefix_affinity` (PR #31170).
