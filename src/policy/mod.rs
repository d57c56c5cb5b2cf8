//! Routing policies as pure functions of (key or prompt, live ranks, loads). The simulator's DP controller uses them, and
//! the client when it pins turns itself; nothing here knows a clock, a socket or a session.
//!
//! SGLang's names are kept: `round_robin`, `total_requests`, `total_tokens` (0.5.23), `prefix_match` (PR #26612) and
//! `prefix_affinity` (PR #31170). [`choose`] holds the choices, [`Chooser`] takes them by one method for whoever knows the
//! loads, and [`Controller`] keeps what SGLang believes of these: the loads it was told, and its own guess of what it has
//! sent since.
//!
//! ```
//! use gspbench::policy::{Affinity, Arrival, Controller, Method};
//!
//! let mut controller = Controller::new(Method::PrefixAffinity, Affinity::default(), 8);
//! let turn = Arrival { key: Some("session-1"), ..Arrival::default() };
//! let first = controller.dispatch(&turn)?;
//! assert_eq!(controller.dispatch(&turn)?.rank, first.rank);
//! assert!(controller.dispatch(&turn)?.spilled(), "two requests are all that an idle server lets one rank have");
//! # Ok::<(), gspbench::policy::NoRank>(())
//! ```

pub mod choose;
mod chooser;
mod controller;
mod hash;
mod method;

pub use choose::{Load, RoundRobin};
pub use chooser::{Arrival, Chooser, Dispatch};
pub use controller::{Controller, NoRank, REFRESH_INTERVAL, Snapshot};
pub use hash::{prefix_digest, rendezvous};
pub use method::{Affinity, BadSkew, Fallback, Guard, MaxLoadSkew, Method, UnknownName};
