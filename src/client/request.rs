//! One request of a turn: its body with the rank it asks for, the instant it leaves, and how it is sent a second time.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;

use crate::units::Rank;
use crate::workload::Api;

/// One request, which may have to be sent twice.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) url: Arc<str>,
    pub(super) id: String,
    pub(super) key: Option<String>,
    /// The rank that is asked for.
    pub(super) rank: Option<Rank>,
    pub(super) body: Bytes,
    /// The first poll of its first body.
    pub(super) sent: Arc<OnceLock<Instant>>,
}

impl Request {
    /// The same under another id: a server that did see the first one refuses it while it lives.
    pub(super) fn again(mut self, api: Api) -> Self {
        let id = format!("{}-again", self.id);
        let named = |id: &str| format!("\"rid\":\"{id}\"");
        let old = named(&self.id);
        if let Some(at) = memchr::memmem::rfind(&self.body, old.as_bytes()).filter(|_| api == Api::Generate) {
            self.body = [&self.body[..at], named(&id).as_bytes(), &self.body[at + old.len()..]].concat().into();
        }
        Self { id, ..self }
    }
}

/// A body that notes when it is first asked for.
#[derive(Debug)]
pub(super) struct StampedBody {
    pub(super) bytes: Option<Bytes>,
    pub(super) sent: Arc<OnceLock<Instant>>,
}

impl http_body::Body for StampedBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        self.sent.get_or_init(Instant::now);
        Poll::Ready(self.bytes.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

/// The body with the rank that is asked for, where the route reads it there: SGLang's own.
pub(super) fn with_rank(api: Api, rank: Option<Rank>, body: Bytes) -> Bytes {
    match (api, rank) {
        (Api::Generate, Some(rank)) => {
            let field = format!("{{\"routed_dp_rank\":{rank},");
            [field.as_bytes(), body.get(1..).unwrap_or_default()].concat().into()
        }
        _ => body,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_asked_for_where_each_route_reads_it() {
        for api in [Api::Chat, Api::Completions, Api::Generate] {
            let body = with_rank(api, Some(Rank(3)), Bytes::from_static(b"{\"text\":\"a\"}"));
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["text"], "a");
            assert_eq!(body["routed_dp_rank"].as_u64(), (api == Api::Generate).then_some(3));
        }
    }
}
