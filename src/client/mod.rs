//! The turn machine (pure: bytes and instants in, facts out) and one turn over HTTP.
