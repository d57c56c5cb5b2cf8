//! The one integration-test binary. `#[cfg(test)]` is always true here; it lets clippy see that helpers are test code too.

#[cfg(test)]
mod arms;
#[cfg(test)]
mod attribution;
#[cfg(test)]
mod audit;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod captures;
#[cfg(test)]
mod cold_start;
#[cfg(test)]
mod end_to_end;
#[cfg(test)]
mod experiment;
#[cfg(test)]
mod exports;
#[cfg(test)]
mod host;
#[cfg(test)]
mod interrupt;
#[cfg(test)]
mod judge;
#[cfg(test)]
mod keys_seen;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod load;
#[cfg(test)]
mod own_clock;
#[cfg(test)]
mod pin;
#[cfg(test)]
mod play;
#[cfg(test)]
mod policy;
#[cfg(test)]
mod progress;
#[cfg(test)]
mod reconcile;
#[cfg(test)]
mod report;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod selftest;
#[cfg(test)]
mod server_side;
#[cfg(test)]
mod sim_http;
#[cfg(test)]
mod sim_model;
#[cfg(test)]
mod sim_server;
#[cfg(test)]
mod sim_serving;
#[cfg(test)]
mod small_runs;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod traps_endless;
#[cfg(test)]
mod traps_figures;
#[cfg(test)]
mod traps_framing;
#[cfg(test)]
mod traps_lanes;
#[cfg(test)]
mod traps_metrics;
#[cfg(test)]
mod traps_output;
#[cfg(test)]
mod traps_program;
#[cfg(test)]
mod traps_random;
#[cfg(test)]
mod traps_refused;
#[cfg(test)]
mod traps_replies;
#[cfg(test)]
mod traps_router;
#[cfg(test)]
mod traps_rows;
#[cfg(test)]
mod traps_socket;
#[cfg(test)]
mod traps_tls;
#[cfg(test)]
mod wire_client;
#[cfg(test)]
mod workload;
