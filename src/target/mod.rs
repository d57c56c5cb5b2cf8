//! The system under test as seen from outside a turn: what it is, emptying its cache, its counters, and the simulated
//! server and the commands that this program starts for itself. Nothing here is on the timed path.

mod command;
mod dialect;
mod flush;
mod guard;
mod identify;
mod key;
mod keys;
mod latencies;
mod launch;
mod loads;
mod node;
mod ready;
mod reply;
mod scrape;
mod series;
mod server;
mod url;

pub use command::{Order, Running};
pub use dialect::{Dialect, counters, dialects};
pub use flush::{Flush, evictable, flush, flush_by_command, reset};
pub use guard::guard;
pub use identify::Kind;
pub use key::API_KEY;
pub use keys::{Carried, KeySigns, key_arrived};
pub use launch::{Launched, launch_sim};
pub use node::node_role;
pub use ready::{Readiness, readiness};
pub use scrape::{Scrape, Scraper, summed};
pub use series::{WHOLE_SERVER, watch};
pub use server::{ServerFacts, ask};
pub use url::join;

use crate::units::public_address;

/// A target that cannot be used; every message names the address and the way out.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("{url}: {why}; is the server up, and is this its address?")]
    Unreachable { url: String, why: String },
    #[error("{url}: {why}")]
    Refused { url: String, why: String },
    #[error("the simulated server: {0}")]
    Sim(String),
    /// Its command is not shown: it may hold secrets, and is as long as it likes.
    #[error("the arm's server does not start: {0}")]
    Launch(String),
}

impl TargetError {
    /// Nothing usable answers at `url`, which is shown without what may be secret in it.
    #[must_use]
    pub fn unreachable(url: &str, why: String) -> Self {
        Self::Unreachable { url: public_address(url), why }
    }

    /// What answers at `url` refuses; the address is shown as in [`Self::unreachable`].
    #[must_use]
    pub fn refused(url: &str, why: String) -> Self {
        Self::Refused { url: public_address(url), why }
    }
}
