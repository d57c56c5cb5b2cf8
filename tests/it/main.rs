//! The one integration-test binary. `#[cfg(test)]` is always true here; it lets clippy see that helpers are test code too.

#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod end_to_end;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod policy;
#[cfg(test)]
mod report;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod selftest;
#[cfg(test)]
mod sim_http;
#[cfg(test)]
mod sim_model;
#[cfg(test)]
mod sim_server;
#[cfg(test)]
mod sim_serving;
#[cfg(test)]
mod workload;
