//! The turn machine (pure: bytes and instants in, facts out) and one turn over HTTP around it.

mod body;
mod dial;
mod ending;
mod http;
mod inflate;
mod machine;
mod network;
mod transport;

pub use body::{Shape, encode};
pub use http::{Aim, Client, Settings};
pub use machine::{End, Machine};
pub use network::classify;
pub use transport::{ClientError, Trust, common_headers, transport};
