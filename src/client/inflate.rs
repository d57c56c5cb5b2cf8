//! A reply that is compressed although nobody asked for it: decoded as it comes, and noted, since a compressor holds tokens
//! back. (reqwest would decode it too, but hide that it did.)

use std::io::Write;

use flate2::write::MultiGzDecoder;
use reqwest::header::{CONTENT_ENCODING, HeaderMap};

/// How the bytes of a body become those of the reply.
pub(super) enum Inflate {
    Plain,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
}

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum InflateError {
    #[error("the reply is encoded as `{0}`, though only identity was asked for")]
    Unknown(String),
    #[error("the gzip of the reply is broken: {0}")]
    Broken(#[from] std::io::Error),
}

impl Inflate {
    /// What these headers say.
    ///
    /// # Errors
    /// When the encoding is neither identity nor gzip.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, InflateError> {
        let encoding =
            headers.get(CONTENT_ENCODING).map(|value| String::from_utf8_lossy(value.as_bytes()).to_lowercase());
        match encoding.as_deref().map(str::trim) {
            None | Some("" | "identity") => Ok(Self::Plain),
            Some("gzip" | "x-gzip") => Ok(Self::Gzip(Box::new(MultiGzDecoder::new(Vec::new())))),
            Some(other) => Err(InflateError::Unknown(other.to_owned())),
        }
    }

    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// Hands what `bytes` stand for to `read`, as far as it can be known by now.
    ///
    /// # Errors
    /// When they are no gzip.
    pub(super) fn feed(&mut self, bytes: &[u8], read: impl FnOnce(&[u8])) -> Result<(), InflateError> {
        match self {
            Self::Plain => read(bytes),
            Self::Gzip(decoder) => {
                decoder.write_all(bytes)?;
                decoder.flush()?;
                read(&std::mem::take(decoder.get_mut()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip() -> Inflate {
        let headers = HeaderMap::from_iter([(CONTENT_ENCODING, "gzip".parse().unwrap())]);
        Inflate::of(&headers).unwrap()
    }

    #[test]
    fn what_was_flushed_is_read_at_once_however_it_is_cut() {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(b"data: a\n\n").unwrap();
        encoder.flush().unwrap();
        let flushed = encoder.get_ref().len();
        encoder.write_all(b"data: b\n\n").unwrap();
        let wire = encoder.finish().unwrap();
        for size in 1..wire.len() {
            let (mut inflate, mut text, mut at_flush) = (gzip(), String::new(), String::new());
            let mut seen = 0;
            for piece in wire.chunks(size) {
                inflate.feed(piece, |bytes| text += std::str::from_utf8(bytes).unwrap()).unwrap();
                seen += piece.len();
                if seen >= flushed && at_flush.is_empty() {
                    at_flush.clone_from(&text);
                }
            }
            assert!(at_flush.starts_with("data: a\n\n"), "pieces of {size}");
            assert_eq!(text, "data: a\n\ndata: b\n\n");
        }
    }

    #[test]
    fn what_is_no_gzip_is_an_error_and_identity_is_plain() {
        assert!(gzip().feed(b"data: a\n\ndata: b\n\n", |_| ()).is_err());
        let of = |name: &str| Inflate::of(&HeaderMap::from_iter([(CONTENT_ENCODING, name.parse().unwrap())]));
        assert!(of("identity").is_ok_and(|inflate| inflate.is_plain()));
        assert!(of("br").is_err());
    }
}
