//! What an error of the HTTP stack means: whose fault, in the words of [`Failure`].

use std::error::Error;
use std::io;

use super::machine::End;
use crate::record::Failure;

/// Out of file descriptors (process, system), of ports, of buffers, of memory: this host's limits on Linux.
const RESOURCE_ERRNOS: [i32; 5] = [24, 23, 99, 105, 12];

/// The end of an attempt that the HTTP stack gave up on.
pub(super) fn end(error: &reqwest::Error) -> End {
    let (failure, cause) = classify(error);
    End::Failed(failure, cause)
}

/// Whether the connection broke before the head of the reply, so that a pooled one may have been closed all along.
pub(super) fn is_lost(error: &reqwest::Error) -> bool {
    !error.is_timeout() && matches!(classify(error).0, Failure::Reset | Failure::Truncated)
}

/// The kind of a transport error, and its innermost cause in words.
#[must_use]
pub fn classify(error: &reqwest::Error) -> (Failure, String) {
    let chain: Vec<&(dyn Error + 'static)> = std::iter::successors(error.source(), |cause| (*cause).source()).collect();
    let io = chain.iter().rev().find_map(|cause| cause.downcast_ref::<io::Error>());
    let cause = chain.last().map_or_else(|| error.to_string(), ToString::to_string);
    let says = |words: &[&str]| chain.iter().any(|c| words.iter().any(|w| c.to_string().to_lowercase().contains(w)));
    let failure = match io {
        Some(io) if io.raw_os_error().is_some_and(|errno| RESOURCE_ERRNOS.contains(&errno)) => Failure::ClientResource,
        _ if error.is_connect() && says(&["certificate", "tls", "handshake"]) => Failure::Tls,
        _ if error.is_connect() => Failure::Connect,
        Some(io) if matches!(io.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => Failure::Reset,
        Some(io) if io.kind() == io::ErrorKind::UnexpectedEof => Failure::Truncated,
        _ if says(&["incomplete", "unexpected eof", "end of file before message"]) => Failure::Truncated,
        _ if says(&["connection closed", "connection reset", "broken pipe"]) => Failure::Reset,
        _ => Failure::Protocol,
    };
    (failure, if error.is_connect() && error.is_timeout() { format!("no connection in time: {cause}") } else { cause })
}
