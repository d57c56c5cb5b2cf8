//! Cases behind TLS (B72, B79, B84): a server with a certificate that it signed itself.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use gspbench::client::Trust;
use gspbench::record::{Failure, Outcome};
use gspbench::workload::Api;

use crate::bad_input::{gspbench, small};
use crate::play::{DONE, content, ending, finish, usage};
use crate::scripted::{Scripted, stream};
use crate::wire_client::{Sender, chat_turn};

/// B72, B79: what a connection takes is before the clock of its first turn; and nobody shares it by HTTP/2.
#[test]
fn a_handshake_is_in_no_ttft_and_agrees_on_no_shared_connection() {
    let server = Tls::start();
    let mut sender = Sender::new(Api::Chat, &server.url);
    sender.settings.trust = Trust::Anyone;
    let bench = sender.build();
    let turn = bench.turn(0).0;
    assert_eq!(((turn.outcome, turn.frames), turn.reused_connection), ((Outcome::Complete, 1), Some(false)));
    let began = server.handshakes.lock().unwrap().clone();
    assert!(turn.sent_us.unwrap() >= bench.clock.at(began[0].0).into(), "sent before there was a connection");
    assert!(began[0].1.as_deref().is_none_or(|protocol| protocol == b"http/1.1"), "{began:?}");
}

/// B84
#[test]
fn a_certificate_of_its_own_is_refused_until_it_is_trusted() {
    let server = Tls::start();
    let turn = |trust: Trust| {
        let mut sender = Sender::new(Api::Chat, &server.url);
        sender.settings.trust = trust;
        sender.build().turn(0).0
    };
    let refused = turn(Trust::Host);
    assert_eq!(refused.outcome, Outcome::Failed(Failure::Tls));
    assert!(refused.detail.unwrap().contains("certificate"));
    for trust in [Trust::Anyone, Trust::File(tls_file("cert.pem"))] {
        let turn = turn(trust);
        assert_eq!((turn.outcome, turn.frames), (Outcome::Complete, 1));
    }
    let plain = Scripted::start(|_| stream([content("a"), ending(10, 1)]));
    let not_tls = chat_turn(&plain.url.replace("http:", "https:")).0;
    assert_eq!(not_tls.outcome, Outcome::Failed(Failure::Tls));
}

/// B84: the program stops before its first turn, says why, and names the ways out.
#[test]
fn a_run_stops_at_a_certificate_that_nobody_vouches_for() {
    let server = Tls::start();
    let dir = tempfile::tempdir().unwrap();
    let (exit, _, stderr) = gspbench(&small(&["--target", &server.url, "--ready-check-timeout-sec=2"]), dir.path());
    assert_eq!(exit, 3, "{stderr}");
    for part in ["certificate", "--insecure", "--ca-file"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    assert!(server.handshakes.lock().unwrap().is_empty(), "no request was made");
}

fn tls_file(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls").join(name)
}

/// A server behind a certificate that it signed itself.
struct Tls {
    url: String,
    /// When each handshake began that led to a request, and the protocol that it agreed on.
    handshakes: Handshakes,
}

type Handshakes = Arc<Mutex<Vec<(Instant, Option<Vec<u8>>)>>>;

impl Tls {
    fn start() -> Self {
        use std::io::{Read as _, Write as _};

        use rustls::pki_types::pem::PemObject as _;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};

        let certificate = CertificateDer::from_pem_file(tls_file("cert.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(tls_file("key.pem")).unwrap();
        let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
        let mut config = config.unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let config = Arc::new(config);
        let handshakes = Handshakes::default();
        let log = Arc::clone(&handshakes);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let began = Instant::now();
                let connection = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = rustls::StreamOwned::new(connection, socket);
                let body = content("a") + &finish("stop") + &usage(10, 1) + DONE;
                let reply =
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
                // The request is small enough to come in one record; a client that refuses the certificate ends here.
                if stream.read(&mut [0; 16 << 10]).is_ok() {
                    log.lock().unwrap().push((began, stream.conn.alpn_protocol().map(<[u8]>::to_vec)));
                    let _ = stream.write_all(reply.as_bytes());
                    stream.conn.send_close_notify();
                    let _ = stream.flush();
                }
            }
        });
        Self { url, handshakes }
    }
}
