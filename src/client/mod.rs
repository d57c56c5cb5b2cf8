//! The turn machine (pure: bytes and instants in, facts out) and one turn over HTTP around it.

mod body;
mod deadline;
mod http;
mod machine;
mod network;

pub use body::{Shape, encode};
pub use http::{Client, ClientError, Settings, common_headers, transport};
pub use machine::{End, Machine};
pub use network::classify;
