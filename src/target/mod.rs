//! The system under test as seen from outside a turn: probe, flush, scrape, launch and stop.
