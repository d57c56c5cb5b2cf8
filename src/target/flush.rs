//! Emptying the server's prefix cache before a block, and looking whether it is empty.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use reqwest::StatusCode;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::join;
use super::reply::{bytes, words};
use crate::record::Place;
use crate::units::Rank;
use crate::wire::Exposition;

/// What the server said to a flush. Even a yes proves nothing under data parallelism: SGLang answers with the status of
/// whichever rank replied first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flush {
    Accepted,
    /// The server has no such route.
    Unsupported,
    /// A router has it, and the servers behind it do not, or it does not say why they failed.
    Unreached(String),
    Refused(String),
}

/// Asks SGLang's `/flush_cache`, letting each rank wait up to `timeout` until it is idle.
pub async fn flush(http: &reqwest::Client, base: &str, timeout: Duration) -> Flush {
    let url = join(base, "/flush_cache");
    let separator = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{separator}timeout={}", timeout.as_secs_f64());
    // The ranks wait in the server; a little more than that here tells a hung server from a busy one.
    let sent = http.post(&url).timeout(timeout + Duration::from_secs(10)).send().await;
    match sent {
        Ok(reply) if reply.status() == StatusCode::PARTIAL_CONTENT => partial(&bytes(reply).await.unwrap_or_default()),
        Ok(reply) if reply.status().is_success() => {
            drop(bytes(reply).await);
            Flush::Accepted
        }
        other => match refusal(other).await {
            Flush::Refused(said) if said.contains(SOME_SERVERS) => Flush::Unreached(said),
            other => other,
        },
    }
}

/// What a vllm-router says when a server behind it fails, for whatever reason; vLLM has no such route.
const SOME_SERVERS: &str = "failed on one or more servers";

/// SMG and sglang-router answer 206 when a server behind them did not flush. One without such a route never will; one that
/// has it is busy.
fn partial(body: &[u8]) -> Flush {
    let said = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let message = said.get("message").and_then(Value::as_str).map(str::to_owned);
    let message = message.unwrap_or_else(|| String::from_utf8_lossy(body).chars().take(200).collect());
    let failed = said.get("failed").and_then(Value::as_array).into_iter().flatten();
    let errors: Vec<&str> = failed.filter_map(|failed| failed.get("error")?.as_str()).collect();
    let has_no_route = |error: &&str| ["HTTP 404", "HTTP 405", "HTTP 501"].iter().any(|status| error.contains(status));
    match errors.into_iter().find(|error| !has_no_route(error)) {
        Some(busy) => Flush::Refused(format!("{message}: {busy}")),
        None => Flush::Unreached(message),
    }
}

/// Asks vLLM's `/reset_prefix_cache` of one server; a router passes it on to one worker only. Recent versions say whether
/// they did it: not while blocks are held.
pub async fn reset(http: &reqwest::Client, base: &str, timeout: Duration) -> Flush {
    let sent = http.post(join(base, "/reset_prefix_cache")).timeout(timeout).send().await;
    match sent {
        Ok(reply) if reply.status().is_success() => {
            let said = serde_json::from_slice::<Value>(&bytes(reply).await.unwrap_or_default()).ok();
            match said.and_then(|said| said.get("success")?.as_bool()) {
                Some(false) => {
                    Flush::Refused("it says \"success\": false, since requests still hold blocks".to_owned())
                }
                Some(true) | None => Flush::Accepted,
            }
        }
        other => refusal(other).await,
    }
}

async fn refusal(sent: reqwest::Result<reqwest::Response>) -> Flush {
    match sent {
        Ok(reply) if matches!(reply.status().as_u16(), 404 | 405 | 501) => Flush::Unsupported,
        Ok(reply) => {
            let status = reply.status();
            Flush::Refused(format!("{status}: {}", words(reply).await))
        }
        Err(why) => Flush::Refused(why.without_url().to_string()),
    }
}

/// Runs a command of the user's that empties the cache, with the target's address as `GSPBENCH_TARGET`. Its exit code tells
/// whether it did. One that is not waited for any longer is ended with all that it started: it must not empty the cache of a
/// later block.
pub async fn flush_by_command(command: &str, base: &str, timeout: Duration) -> Flush {
    let child = tokio::process::Command::new("sh")
        .args(["-c", command])
        .env("GSPBENCH_TARGET", base)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    let child = match child {
        Ok(child) => child,
        Err(why) => return Flush::Refused(why.to_string()),
    };
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    match tokio::time::timeout(timeout, child.wait_with_output()).await {
        Err(_) => Flush::Refused(format!("it did not end within {}", humantime::format_duration(timeout))),
        Ok(Err(why)) => Flush::Refused(why.to_string()),
        Ok(Ok(output)) => {
            // What it left running on purpose is its own affair.
            group.0 = None;
            let said = String::from_utf8_lossy(&output.stderr);
            match output.status.success() {
                true => Flush::Accepted,
                false => Flush::Refused(format!("{}: {}", output.status, said.lines().last().unwrap_or_default())),
            }
        }
    }
}

/// A process group that is killed when this is dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It may have ended by itself.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Cached tokens that no request holds, by rank, where the server shows them.
#[must_use]
pub fn evictable(exposition: &Exposition) -> BTreeMap<Place, f64> {
    let of_a_cache = exposition.samples.iter().filter(|sample| sample.name == "sglang:kv_evictable_tokens");
    let mut places = BTreeMap::new();
    for sample in of_a_cache.filter(|sample| sample.value.is_finite()) {
        // Without data parallelism there is no label, and one cache.
        let Ok(rank) = sample.labels.get("dp_rank").map_or("0", String::as_str).parse() else { continue };
        *places.entry(Place::Rank(Rank(rank))).or_insert(0.0) += sample.value;
    }
    places
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[test]
    fn the_evictable_tokens_of_a_real_server_are_told_by_rank() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/metrics/sglang.dp2.metrics.txt");
        let found = evictable(&Exposition::parse(&std::fs::read_to_string(path).unwrap()));
        let ranks = [(0, 1_675.0), (1, 142.0)].map(|(rank, tokens)| (Place::Rank(Rank(rank)), tokens));
        assert_eq!(found, BTreeMap::from(ranks));
        assert!(evictable(&Exposition::parse("vllm:num_requests_running 0\n")).is_empty());
    }

    #[test]
    fn a_router_that_says_partial_has_flushed_nothing_that_could_be_relied_on() {
        let of = |errors: &[&str]| {
            let failed: Vec<_> =
                errors.iter().map(|error| serde_json::json!({"worker": "w", "error": error})).collect();
            let said = serde_json::json!({"message": "0 succeeded, 2 failed", "failed": failed});
            partial(said.to_string().as_bytes())
        };
        let said = Flush::Unreached("0 succeeded, 2 failed".into());
        assert_eq!(of(&["flush_cache failed: HTTP 404 Not Found", "HTTP 405 Method Not Allowed"]), said);
        assert_eq!(of(&[]), said);
        let busy = of(&["HTTP 404 Not Found", "HTTP 400 Bad Request"]);
        assert_eq!(busy, Flush::Refused("0 succeeded, 2 failed: HTTP 400 Bad Request".into()));
        assert_eq!(partial(b"two of three"), Flush::Unreached("two of three".into()));
    }

    #[tokio::test]
    async fn a_command_flushes_when_it_ends_well_and_in_time() {
        let run = |command: &'static str, ms| flush_by_command(command, "http://h:1", Duration::from_millis(ms));
        assert_eq!(run("test \"$GSPBENCH_TARGET\" = http://h:1", 60_000).await, Flush::Accepted);
        let Flush::Refused(why) = run("echo first >&2; echo no such rank >&2; exit 3", 60_000).await else { panic!() };
        assert!(why.contains('3') && why.contains("no such rank") && !why.contains("first"), "{why}");
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_is_ended_with_all_that_it_started() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut reader = tokio::net::unix::pipe::Receiver::from_owned_fd(reader.into()).unwrap();
        // Both hold the writing end: the reading ends when both have ended.
        let command = format!("(sleep 600 & sleep 600) >/proc/{}/fd/{}", std::process::id(), writer.as_raw_fd());
        let Flush::Refused(why) = flush_by_command(&command, "http://h:1", Duration::from_millis(300)).await else {
            panic!()
        };
        assert!(why.contains("300ms"), "{why}");
        drop(writer);
        let read = tokio::time::timeout(Duration::from_secs(10), reader.read_u8()).await;
        assert_eq!(read.expect("both have ended").unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
