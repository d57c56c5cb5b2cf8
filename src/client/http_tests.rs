//! Connections that are opened ahead.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Barrier;

use super::super::body::Asks;
use super::*;

fn client(url: &str) -> Client {
    let request = crate::profile::sample::spec(1, 1, 1, 8, 4, 2).request;
    let settings = Settings {
        url: url.to_owned(),
        shape: Shape { request, model: None, key_field: None, continuous_usage: true, asks: Asks::default() },
        key_headers: vec![],
        headers: BTreeMap::new(),
        api_key: None,
        trust: Trust::Host,
        connect_timeout: Duration::from_secs(10),
        first_byte_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(10),
    };
    Client::new(settings, &Lanes::default(), Clock::wall(), CancellationToken::new()).unwrap()
}

#[tokio::test]
async fn as_many_connections_are_opened_ahead_as_were_asked_for() {
    const ASKED: usize = 5;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/models", listener.local_addr().unwrap());
    let answered = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&answered);
    // No request is answered before all connections are there.
    let all = Arc::new(Barrier::new(ASKED));
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (all, count) = (Arc::clone(&all), Arc::clone(&count));
            tokio::spawn(async move {
                let mut request = [0; 1024];
                assert!(socket.read(&mut request).await.unwrap() > 0);
                all.wait().await;
                count.fetch_add(1, Ordering::SeqCst);
                socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                // Kept open.
                assert!(socket.read(&mut request).await.unwrap() > 0);
            });
        }
    });
    let client = client(&url);
    client.open_ahead(&url, ASKED).await;
    assert_eq!(answered.load(Ordering::SeqCst), ASKED);
    assert_eq!(client.dials(), Dials { opened: ASKED as u64, again: 0 });
}
