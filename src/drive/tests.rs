//! The loop on the virtual clock: exact times, no socket.
