//! The clap tree, one file a subcommand. The only place that wires stages together.

mod exit;
pub mod sim;

pub use exit::Exit;

/// Parses the command line, runs one command and says how the program ends.
#[must_use]
pub fn main() -> Exit {
    Exit::Ok
}
