//! Reading a control reply: its server may be broken, so it is read up to a limit and never whole on trust.

use std::io::Read as _;

use flate2::read::MultiGzDecoder;
use reqwest::Response;
use reqwest::header::CONTENT_ENCODING;

/// Largest control reply that is read. The scrape of a fleet of hundreds of ranks has some 5 MB.
const MOST: usize = 16 << 20;

/// A reply that is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplyError {
    #[error("the reply is larger than {MOST} bytes and was not read")]
    TooLarge,
    #[error("the reply broke off")]
    Broken(#[from] reqwest::Error),
    #[error("the reply is encoded as gzip and cannot be decoded: {0}")]
    Compressed(#[from] std::io::Error),
}

/// The body of a reply.
///
/// # Errors
/// When it is larger than 16 MiB, breaks off, or is no gzip though it says so.
pub(super) async fn bytes(mut reply: Response) -> Result<Vec<u8>, ReplyError> {
    // Nobody asked for it, but proxies do it.
    let is_gzip = reply.headers().get(CONTENT_ENCODING).is_some_and(|value| value == "gzip");
    let mut body = Vec::new();
    while let Some(chunk) = reply.chunk().await? {
        if body.len() + chunk.len() > MOST {
            return Err(ReplyError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    let plain = if is_gzip { inflated(&body)? } else { body };
    Ok(super::key::hidden(plain))
}

fn inflated(body: &[u8]) -> Result<Vec<u8>, ReplyError> {
    let mut plain = Vec::new();
    MultiGzDecoder::new(body).take(MOST as u64 + 1).read_to_end(&mut plain)?;
    if plain.len() > MOST { Err(ReplyError::TooLarge) } else { Ok(plain) }
}

/// The first words of a reply that is only quoted.
pub(super) async fn words(mut reply: Response) -> String {
    /// Longest quotation, in bytes.
    const QUOTED: usize = 500;
    let mut body = Vec::new();
    while body.len() < QUOTED {
        match reply.chunk().await {
            Ok(Some(chunk)) => body.extend_from_slice(&chunk[..chunk.len().min(QUOTED)]),
            _ => break,
        }
    }
    // Before it is cut: half of a key is no longer found.
    let mut body = super::key::hidden(body);
    body.truncate(QUOTED);
    String::from_utf8_lossy(&body).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// The reply of a server that writes `kib` KiB, or for ever, and never says how many.
    async fn reply(kib: usize) -> Response {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/metrics", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 1_024];
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await;
            for _ in 0..kib {
                // The reader leaves when it has had enough.
                if stream.write_all(&[b'x'; 1_024]).await.is_err() {
                    return;
                }
            }
        });
        reqwest::Client::builder().no_proxy().build().unwrap().get(url).send().await.unwrap()
    }

    #[test]
    fn gzip_is_read_up_to_the_same_limit() {
        let packed = |length: usize| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut encoder, &vec![b'x'; length]).unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(inflated(&packed(MOST)).unwrap().len(), MOST);
        assert!(matches!(inflated(&packed(MOST + 1)), Err(ReplyError::TooLarge)));
        assert!(matches!(inflated(b"plain"), Err(ReplyError::Compressed(_))));
    }

    #[tokio::test]
    async fn a_reply_without_an_end_is_no_answer() {
        assert_eq!(bytes(reply(3).await).await.unwrap().len(), 3 * 1_024);
        assert_eq!(bytes(reply(MOST / 1_024).await).await.unwrap().len(), MOST);
        assert!(matches!(bytes(reply(usize::MAX).await).await, Err(ReplyError::TooLarge)));
        assert_eq!(words(reply(usize::MAX).await).await.len(), 500);
    }
}
