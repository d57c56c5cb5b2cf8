//! The turn machine (pure: bytes and instants in, facts out) and one turn over HTTP around it.

mod arrivals;
mod body;
mod detail;
mod dial;
mod ending;
mod http;
mod inflate;
mod machine;
mod names;
mod network;
mod place;
mod reply;
mod request;
mod room;
mod secrets;
mod transport;

pub use body::{Asks, CachedDetails, Shape, encode};
pub use dial::Dials;
pub use http::{Aim, Client, Settings};
pub use machine::{End, Machine};
pub use names::resolved;
pub use network::classify;
pub use place::{LoggedRequest, logged_request};
pub use transport::{ClientError, Trust, common_headers, transport};
