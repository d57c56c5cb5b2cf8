//! Connections that are opened ahead.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::super::body::Asks;
use super::*;
use crate::record::{Outcome, TurnId};
use crate::units::Micros;

fn client(url: &str) -> Client {
    let request = crate::profile::sample::spec(1, 1, 1, 8, 4, 2).request;
    let settings = Settings {
        url: url.to_owned(),
        shape: Shape { request, model: None, key_field: None, continuous_usage: true, asks: Asks::default() },
        key_headers: vec![],
        headers: BTreeMap::new(),
        api_key: None,
        trust: Trust::Host,
        connections: Connections::Kept,
        connect_timeout: Duration::from_secs(10),
        first_byte_timeout: Duration::from_secs(10),
        idle_timeout: Duration::from_secs(10),
    };
    Client::new(settings, &Lanes::default(), Clock::wall(), CancellationToken::new()).unwrap()
}

/// More than a lane opens in one wave. Each server counts its connections and the requests on them.
#[tokio::test]
async fn as_many_connections_are_opened_ahead_at_each_address_as_were_asked_for_and_nothing_is_sent() {
    const ASKED: usize = WAVE + 5;
    let servers = [server().await, server().await];
    let client = client(&servers[0].url);
    for server in &servers {
        client.open_ahead(&server.url, ASKED).await;
    }
    let Dials { opened, again, connect } = client.dials();
    assert_eq!((opened, again, connect.count()), (2 * ASKED as u64, ASKED as u64, opened));
    // Turns find them: at their own address, and as long as there are any.
    for (at, server) in servers.iter().enumerate() {
        for turn in 0..=ASKED {
            let id = TurnId { group: 0, session: u32::try_from(turn).unwrap(), turn: 0 };
            let record = TurnRecord::planned(format!("r-{at}-{turn}"), id, None, Micros(0), 1);
            let aim = Aim { url: Some(server.url.as_str().into()), place: None };
            let (record, text) = client.send(record, Bytes::from("{}"), aim).await;
            assert_eq!((record.outcome, record.status), (Outcome::Complete, Some(200)), "{:?}", record.detail);
            assert_eq!(text, server.url, "the reply of the server that was asked");
            assert_eq!(record.reused_connection, Some(turn < ASKED));
        }
        assert_eq!(server.accepted.load(Ordering::SeqCst), ASKED + 1);
        assert_eq!(server.requests.load(Ordering::SeqCst), ASKED + 1);
    }
}

struct Server {
    url: String,
    accepted: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

/// Answers one request on each connection, with its own address as the text, and closes it.
async fn server() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/completions", listener.local_addr().unwrap());
    let server = Server { url: url.clone(), accepted: Arc::default(), requests: Arc::default() };
    let (accepted, requests) = (Arc::clone(&server.accepted), Arc::clone(&server.requests));
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            accepted.fetch_add(1, Ordering::SeqCst);
            let (requests, url) = (Arc::clone(&requests), url.clone());
            tokio::spawn(async move {
                let mut request = [0; 4096];
                if socket.read(&mut request).await.unwrap_or(0) == 0 {
                    return;
                }
                requests.fetch_add(1, Ordering::SeqCst);
                let events = format!(
                    "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{url}\"}},\"finish_reason\":\"stop\"}}]}}\n\ndata: [DONE]\n\n"
                );
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
                socket.write_all(format!("{head}{events}").as_bytes()).await.unwrap();
            });
        }
    });
    server
}
