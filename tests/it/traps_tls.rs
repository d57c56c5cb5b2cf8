//! Cases behind TLS (B72, B79, B84): a server with a certificate that it signed itself.

use std::io::{BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use gspbench::client::{Dials, Trust};
use gspbench::record::{Failure, Outcome, TurnRecord};
use gspbench::units::Micros;
use gspbench::workload::Api;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::bad_input::{gspbench, small};
use crate::play::{DONE, content, ending, finish, usage};
use crate::scripted::{Scripted, read_request, stream};
use crate::wire_client::{Sender, chat_turn};

/// B72, B79: what a connection takes is before the clock of its first turn, and known by itself; all turns share it one after
/// the other, and nobody shares it by HTTP/2.
#[test]
fn a_handshake_is_in_no_ttft_and_agrees_on_no_shared_connection() {
    let server = Tls::slow();
    let mut sender = Sender::new(Api::Chat, &server.url);
    sender.settings.trust = Trust::Anyone;
    let bench = sender.build();
    let turns: Vec<TurnRecord> = (0..100).map(|number| bench.turn(number).0).collect();
    assert!(turns.iter().all(|turn| (turn.outcome, turn.frames) == (Outcome::Complete, 1)));
    let handshakes = server.handshakes();
    let [handshake] = &handshakes[..] else { panic!("{handshakes:?}") };
    assert_eq!(handshake.requests, 100);
    assert!(handshake.protocol.as_deref().is_none_or(|protocol| protocol == b"http/1.1"), "{handshake:?}");
    let reused = turns.iter().map(|turn| turn.reused_connection.unwrap());
    assert_eq!(reused.collect::<Vec<_>>(), [vec![false], vec![true; 99]].concat());
    let answered = Micros::from(bench.clock.at(handshake.answered));
    assert!(turns.iter().all(|turn| turn.sent_us.unwrap() >= answered), "sent before there was a connection");
    // The server held it back while the client waited for it.
    let Dials { opened, connect, .. } = bench.dials();
    let held_us = handshake.answered.duration_since(handshake.accepted).as_micros();
    assert_eq!((opened, connect.count()), (1, 1));
    assert!(connect.summary().unwrap().max >= precise(held_us), "{connect:?} of {held_us} µs");
    assert!(turns[0].connect_us.unwrap() >= Micros(u64::try_from(held_us).unwrap()));
    assert!(turns[1..].iter().all(|turn| turn.connect_us.is_none() && turn.local_port == turns[0].local_port));
    assert_eq!(turns[0].local_port, Some(handshake.port));
}

/// B72: of a whole run, and shown. The one connection was opened ahead, so no turn waited for it at all.
#[test]
fn a_run_of_one_turn_at_a_time_opens_one_connection_and_says_how_long_that_took() {
    let server = Tls::slow();
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--target", &server.url, "--insecure", "--out=out", "--gsp-prompts-per-group=100"];
    let (_, stdout, stderr) = gspbench(&small(&flags), dir.path());
    let text = std::fs::read_to_string(dir.path().join("out/run.json")).unwrap_or_else(|_| panic!("{stderr}"));
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    let handshakes = server.handshakes();
    let busy: Vec<&Handshake> = handshakes.iter().filter(|handshake| handshake.requests >= 100).collect();
    let [run] = busy[..] else { panic!("{handshakes:?}") };
    let client = &report["client"];
    assert_eq!((run.requests, &client["connections"], &client["redials"]), (100, &1.into(), &0.into()));
    assert_eq!((&client["connect_ms"]["count"], &report["metrics"]["ttft_ms"]["count"]), (&1.into(), &100.into()));
    let held_us = run.answered.duration_since(run.accepted).as_micros();
    assert!(client["connect_ms"]["max"].as_f64().unwrap() * 1e3 >= precise(held_us), "{client} of {held_us} µs");
    let shown = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains("1 connection (HTTP/1.1) · connect time p50 "), "{stdout}");
    let lines = std::fs::read_to_string(dir.path().join("out/requests.jsonl")).unwrap();
    assert!(!lines.contains("connect_us") && lines.matches("\"reused_connection\":true").count() == 100, "{lines}");
    let page = std::fs::read_to_string(dir.path().join("out/report.md")).unwrap();
    assert!(page.contains("connect time p50 "), "{page}");
}

/// B71: who asked for a connection and then got one that another turn had let go went over a kept one, which may have been
/// closed all along.
#[test]
fn a_turn_that_got_a_kept_connection_while_its_own_was_opened_is_sent_again_when_that_is_lost() {
    let used_again = Arc::new(Barrier::new(2));
    let (opens, closes) = (Arc::clone(&used_again), used_again);
    let hello = move |connection| {
        if connection == 1 {
            opens.wait();
        }
    };
    let server = Tls::with(hello, move |connection, before| {
        let is_lost = connection == 0 && before > 0;
        if is_lost {
            closes.wait();
        }
        !is_lost
    });
    let mut sender = Sender::new(Api::Chat, &server.url);
    sender.settings.trust = Trust::Anyone;
    let bench = sender.build();
    let turns = bench.runtime.block_on(async { tokio::join!(bench.send(0), bench.send(1)) });
    let mut turns = [turns.0.0, turns.1.0].map(|turn| (turn.resends, turn.outcome, turn.reused_connection));
    turns.sort_unstable_by_key(|(resends, ..)| *resends);
    assert_eq!(turns, [(0, Outcome::Complete, Some(false)), (1, Outcome::Complete, Some(true))]);
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
    assert!(server.handshakes().is_empty(), "no request was made");
}

/// B84: a run that trusts the certificate completes, and who was believed stands in its header, where it is not this host's
/// store.
#[test]
fn the_report_says_whose_certificates_were_trusted() {
    let server = Tls::start();
    let file = tls_file("cert.pem");
    let shown = |trust: &str| {
        let dir = tempfile::tempdir().unwrap();
        let (_, stdout, stderr) = gspbench(&small(&["--target", &server.url, trust, "--out=out"]), dir.path());
        let page = std::fs::read_to_string(dir.path().join("out/report.md")).unwrap_or_else(|_| panic!("{stderr}"));
        let text = std::fs::read_to_string(dir.path().join("out/run.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let totals = &report["totals"];
        assert!(totals["planned"].as_u64() > Some(0) && totals["complete"] == totals["planned"], "{totals}");
        (stdout + &page, report["manifest"]["spec"]["request"].clone())
    };
    let (page, request) = shown("--insecure");
    assert_eq!(page.matches("TLS: any certificate is trusted (--insecure)").count(), 2, "{page}");
    assert_eq!((&request["insecure"], &request["ca_file"]), (&true.into(), &serde_json::Value::Null));
    let (page, request) = shown(&format!("--ca-file={}", file.display()));
    assert_eq!(page.matches("TLS: certificates of ").count(), 2, "{page}");
    assert!(page.contains("cert.pem (--ca-file)"), "{page}");
    assert_eq!((&request["insecure"], request["ca_file"].as_str()), (&false.into(), file.to_str()));
}

fn tls_file(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls").join(name)
}

/// A server behind a certificate that it signed itself.
struct Tls {
    url: String,
    log: Arc<Mutex<Vec<Handshake>>>,
}

/// One that led to a request.
#[derive(Debug, Clone)]
struct Handshake {
    /// Of the client.
    port: u16,
    accepted: Instant,
    /// Before the first word that the client was waiting for.
    answered: Instant,
    /// What it agreed on.
    protocol: Option<Vec<u8>>,
    requests: usize,
}

impl Tls {
    fn start() -> Self {
        Self::with(|_| (), |_, _| true)
    }

    /// Lets each client wait 50 ms for its handshake, as a busy or distant one does.
    fn slow() -> Self {
        Self::with(|_| std::thread::sleep(Duration::from_millis(50)), |_, _| true)
    }

    /// `hello` is told each connection, from 0, whose client has said hello and waits; `answers` each with the number of its
    /// requests before this one, and says whether that is answered, or the connection closed without a word.
    fn with(
        hello: impl Fn(usize) + Send + Sync + 'static,
        answers: impl Fn(usize, usize) -> bool + Send + Sync + 'static,
    ) -> Self {
        let certificate = CertificateDer::from_pem_file(tls_file("cert.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(tls_file("key.pem")).unwrap();
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certificate], key);
        let mut config = config.unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let (config, log) = (Arc::new(config), Arc::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { url: format!("https://{}", listener.local_addr().unwrap()), log: Arc::clone(&log) };
        let (hello, answers) = (Arc::new(hello), Arc::new(answers));
        std::thread::spawn(move || {
            for (at, socket) in listener.incoming().flatten().enumerate() {
                let (config, log) = (Arc::clone(&config), Arc::clone(&log));
                let (hello, answers) = (Arc::clone(&hello), Arc::clone(&answers));
                std::thread::spawn(move || serve(socket, config, || hello(at), |before| answers(at, before), &log));
            }
        });
        server
    }

    fn handshakes(&self) -> Vec<Handshake> {
        self.log.lock().unwrap().clone()
    }
}

/// Answers turns, and knows no other route, until the client closes. One that refuses the certificate sends no request.
fn serve(
    socket: TcpStream,
    config: Arc<ServerConfig>,
    hello: impl Fn(),
    answers: impl Fn(usize) -> bool,
    log: &Mutex<Vec<Handshake>>,
) {
    let accepted = Instant::now();
    let port = socket.peer_addr().unwrap().port();
    socket.set_nodelay(true).unwrap();
    let _ = socket.peek(&mut [0]);
    hello();
    let answered = Instant::now();
    let mut reader = BufReader::new(StreamOwned::new(ServerConnection::new(config).unwrap(), socket));
    let mut at = None;
    while let Some(seen) = read_request(&mut reader) {
        let stream = reader.get_mut();
        let mut log = log.lock().unwrap();
        let at = *at.get_or_insert_with(|| {
            let protocol = stream.conn.alpn_protocol().map(<[u8]>::to_vec);
            log.push(Handshake { port, accepted, answered, protocol, requests: 0 });
            log.len() - 1
        });
        log[at].requests += 1;
        let before = log[at].requests - 1;
        drop(log);
        if !answers(before) {
            return;
        }
        let body = content("a") + &finish("stop") + &usage(10, 1) + DONE;
        let (status, body) = if seen.method == "POST" { ("200 OK", body) } else { ("404 Not Found", String::new()) };
        let reply = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(reply.as_bytes()).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a few ms in µs")]
fn precise(us: u128) -> f64 {
    us as f64
}
