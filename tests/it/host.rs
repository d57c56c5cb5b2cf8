//! What the client's own host does to a run (rows B70, B73, B80, B113, B114 of the traps): a client that is kept from its
//! cores, ports that run out, connections that pin, memory, a terminal.

use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use gspbench::text::Vocabulary;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

use crate::bad_input::{gspbench, small};
use crate::scripted::{Answer, Scripted, Step, chat_stream};

const GSPBENCH: &str = env!("CARGO_BIN_EXE_gspbench");

/// A chat server that knows no other route.
fn chat(turn: impl Fn() -> Answer + Send + Sync + 'static) -> Scripted {
    Scripted::start(move |seen| match seen.method.as_str() {
        "POST" if seen.path.starts_with("/v1/") => turn(),
        _ => Answer::Whole(404, "application/json", "{}".to_owned()),
    })
}

fn abc() -> Answer {
    Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12))
}

fn run_json(dir: &std::path::Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir.join("out/run.json")).unwrap()).unwrap()
}

/// So many kB of a process: `VmRSS`, `VmHWM`.
fn memory_kib(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Holds a process for 20 ms in each 40 until it ends, as a host does that has no core for it.
fn starve(child: &mut Child) {
    let slice = Duration::from_millis(20);
    while child.try_wait().unwrap().is_none() {
        for signal in [Signal::STOP, Signal::CONT] {
            kill_process(Pid::from_child(child), signal).unwrap();
            let until = Instant::now() + slice;
            while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                thread::park_timeout(left);
            }
        }
    }
}

/// Row B70: whatever keeps the client from its cores, it sees that it was late, and says so before any server is blamed.
#[test]
fn a_client_that_is_kept_from_its_cores_voids_its_own_run() {
    let server = chat(|| {
        let body = chat_stream(&["a", "b", "c"], 12);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: ";
        let whole = format!("{head}{}\r\n\r\n{body}", body.len());
        Answer::Steps(vec![Step::Pause(Duration::from_millis(5)), Step::Write(whole.into_bytes())])
    });
    let home = tempfile::tempdir().unwrap();
    let flags = ["--target", &server.url, "--out", "out", "--gsp-prompts-per-group=100000", "--duration=5s"];
    let mut child = Command::new(GSPBENCH)
        .args(small(&flags))
        .current_dir(home.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    starve(&mut child);
    assert_eq!(child.wait().unwrap().code(), Some(4));
    let report = run_json(home.path());
    let voids = report["validity"]["voids"].as_array().unwrap();
    assert!(voids.iter().all(|void| void["kind"] == "client"), "{voids:?}");
    assert!(voids.iter().any(|void| void["seen"].as_str().unwrap().contains(" lag p99 ")), "{voids:?}");
    assert_eq!(report["totals"]["failed"], 0, "no fault of the server");
}

/// Row B73: 51 ports for 100 sessions, in a network of its own.
#[test]
fn a_turn_without_a_port_is_a_failure_of_the_client() {
    let home = tempfile::tempdir().unwrap();
    let script = "ip link set lo up && echo 40000 40050 > /proc/sys/net/ipv4/ip_local_port_range || exit 99
        mkfifo line hold; \"$0\" sim --port 30000 --ranks 2 --exit-with-stdin < hold > line & exec 3> hold
        read -r _ < line
        \"$0\" \"$@\"";
    let flags = ["run", "--target=http://127.0.0.1:30000", "--out=out", "--max-concurrency=100", "--seed=1"];
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c", script, GSPBENCH])
        .args(flags)
        .args(["--gsp-num-groups=1", "--gsp-prompts-per-group=200", "--gsp-system-prompt-len=8"])
        .args(["--gsp-question-len=4", "--gsp-output-len=16", "--warmup-requests=0"])
        .current_dir(home.path())
        .output();
    let Some(output) = output.ok().filter(|_| home.path().join("out/run.json").exists()) else {
        eprintln!("skipped: this host gives no network namespace of one's own");
        return;
    };
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let report = run_json(home.path());
    let totals = &report["totals"];
    let kinds: Vec<&String> = totals["failed_by_kind"].as_object().unwrap().keys().collect();
    assert_eq!(kinds, ["client_resource"], "{printed}");
    assert!(totals["complete"].as_u64().unwrap() > 0, "{totals}");
    assert_eq!(output.status.code(), Some(4), "{printed}");
    assert!(printed.contains("this host ran out of ports") && printed.contains("port range"), "{printed}");
}

/// Passes each connection to the next of `backends`, as a balancer does that knows no HTTP.
fn balancer(backends: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for (client, backend) in listener.incoming().flatten().zip(backends.iter().cycle()) {
            let server = TcpStream::connect(backend).unwrap();
            let ways = [(client.try_clone(), server.try_clone()), (Ok(server), Ok(client))];
            for (from, to) in ways {
                let (mut from, mut to) = (from.unwrap(), to.unwrap());
                thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    url
}

/// Two backends whose replies say which one they are. They answer turns three at a time, once three are there, so that a
/// client with three in flight has the same use for each of its connections.
fn waves_of_three() -> [Scripted; 2] {
    let (wave, turns) = (Arc::new(Barrier::new(3)), Arc::new(AtomicUsize::new(0)));
    ["a", "b"].map(|name| {
        let (wave, turns) = (Arc::clone(&wave), Arc::clone(&turns));
        chat(move || {
            // The probe comes first, and alone.
            if turns.fetch_add(1, Ordering::SeqCst) > 0 {
                wave.wait();
            }
            let body = chat_stream(&["x", "y", "z"], 12).replace("\"id\":\"x\"", &format!("\"model\":\"{name}\""));
            Answer::Whole(200, "text/event-stream", body)
        })
    })
}

/// Row B80: kept connections pin to the backend that a balancer of connections gave them: the share of each is shown, its skew
/// flagged, and a connection of its own for each turn is the way out.
#[test]
fn turns_behind_a_balancer_of_connections_are_shared_as_these_are_and_the_skew_is_flagged() {
    let run = |more: &[&str]| {
        let backends = waves_of_three();
        let url = balancer(backends.iter().map(|backend| backend.url.replace("http://", "")).collect());
        let dir = tempfile::tempdir().unwrap();
        let flags = ["--target", &url, "--out=out", "--place-field=model", "--model=m", "--sample-interval=0"];
        let load = ["--gsp-num-groups=3", "--gsp-prompts-per-group=100", "--max-concurrency=3"];
        let (_, stdout, stderr) = gspbench(&small(&[&flags[..], &load, more].concat()), dir.path());
        let report = run_json(dir.path());
        assert_eq!(report["totals"]["complete"], 300, "{stderr}");
        let rows = report["ranks"].as_array().unwrap();
        let mut turns: Vec<u64> = rows.iter().map(|row| row["turns"].as_u64().unwrap()).collect();
        turns.sort_unstable();
        assert!(rows.iter().all(|row| stdout.contains(&format!("│ {}", row["place"]["node"].as_str().unwrap()))));
        // The backends have seen the turns that the report says, and the probe beside them.
        assert_eq!(backends.iter().map(|backend| backend.turns().len()).sum::<usize>(), 301);
        let lines = std::fs::read_to_string(dir.path().join("out/requests.jsonl")).unwrap();
        let warnings = report["validity"]["warnings"].as_array().unwrap();
        let skew = warnings.iter().find(|warning| warning["kind"] == "skew").cloned();
        (turns, skew, report["client"].clone(), lines)
    };
    let (turns, skew, client, _) = run(&[]);
    assert_eq!((turns, &client["connections"], &client["redials"]), (vec![100, 200], &3.into(), &0.into()));
    let skew = skew.expect("200 of 300 turns at one of two backends");
    assert!(skew["seen"].as_str().unwrap().contains("served 200 of 300 turns (66.667 %), 1.33 times"), "{skew}");
    assert!(skew["advice"].as_str().unwrap().contains("--connections per_turn"), "{skew}");
    let (turns, skew, client, lines) = run(&["--connections=per_turn"]);
    assert_eq!((turns, skew), (vec![150, 150], None));
    assert_eq!((&client["connections"], &client["redials"]), (&300.into(), &Value::Null));
    assert_eq!(client["connect_ms"]["count"], 300);
    for part in ["\"reused_connection\":false", "\"connect_us\":"] {
        assert_eq!(lines.matches(part).count(), 300, "{part}");
    }
}

/// Row B113: memory of the client over HTTP, at its 2,000th and at its 8,000th turn.
#[test]
fn memory_of_the_client_does_not_grow_with_turns() {
    const LOOKS: [usize; 2] = [2_000, 8_000];
    let (pid, turns) = (Arc::new(AtomicU32::new(0)), AtomicUsize::new(0));
    let looks = Arc::new([const { AtomicUsize::new(0) }; 2]);
    let (client, kept) = (Arc::clone(&pid), Arc::clone(&looks));
    let words: Vec<&str> = vec!["word"; 64];
    let body = chat_stream(&words, 12);
    let server = chat(move || {
        let turn = turns.fetch_add(1, Ordering::SeqCst);
        if let Some(look) = LOOKS.iter().position(|look| *look == turn) {
            let kib = memory_kib(client.load(Ordering::SeqCst), "VmRSS");
            kept[look].store(usize::try_from(kib).unwrap(), Ordering::SeqCst);
        }
        Answer::Whole(200, "text/event-stream", body.clone())
    });
    let home = tempfile::tempdir().unwrap();
    let flags = ["--target", &server.url, "--out=out", "--gsp-prompts-per-group=850", "--gsp-num-turns=10"];
    let mut child = Command::new(GSPBENCH)
        .args(small(&[&flags[..], &["--max-concurrency=4", "--history=synthetic", "--gsp-output-len=64"]].concat()))
        .current_dir(home.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    pid.store(child.id(), Ordering::SeqCst);
    child.wait().unwrap();
    let [early, late] = [0, 1].map(|look| looks[look].load(Ordering::SeqCst));
    println!("KiB at turns {LOOKS:?}: {early}, {late}");
    assert!(early > 0 && late > 0, "the run was too short: {early}, {late}");
    // 50 MiB over 180,000 turns are 291 bytes a turn; an allocator needs some room, a kept record more than a KiB a turn.
    let bytes = late.saturating_sub(early) * 1024 / (LOOKS[1] - LOOKS[0]);
    assert!(bytes < 640, "{bytes} bytes a turn: {early} KiB, then {late} KiB");
}

/// Row B113: texts without end through a tokenizer, none of whose words comes twice.
#[test]
fn memory_of_the_tokenizer_does_not_grow_with_texts() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "host::memory_of_a_tokenizer"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("KiB after"), "{text}");
}

#[test]
#[ignore = "`cargo test` runs it through memory_of_the_tokenizer_does_not_grow_with_texts, in a process of its own"]
fn memory_of_a_tokenizer() {
    const BATCH: u32 = 150;
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bpe-2k.tokenizer.json");
    let vocabulary = Vocabulary::from_file(&file).unwrap();
    let texts = |batch: u32| {
        for text in batch * BATCH..(batch + 1) * BATCH {
            // 1,500 words of 13 letters; a cache of words would keep each.
            let words = (0..1_500_u32).fold(String::new(), |mut words, word| {
                let mut n = u64::from(text * 1_500 + word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                words.push(' ');
                for _ in 0..13 {
                    words.push(char::from(b'a' + u8::try_from(n % 26).unwrap()));
                    n /= 26;
                }
                words
            });
            assert!(vocabulary.count(&words) > 1_500);
        }
        memory_kib(std::process::id(), "VmRSS")
    };
    // A cache of bounded size is full after the first batch of 225,000 words.
    let first = texts(0);
    let last = (1..4).map(texts).fold(first, |_, last| last);
    println!("KiB after {BATCH} texts: {first}; after {}: {last}", 4 * BATCH);
    let bytes = last.saturating_sub(first) * 1024 / u64::from(3 * BATCH * 1_500);
    assert!(bytes < 8, "{bytes} bytes a word: {first} KiB, then {last} KiB");
}

/// Row B114: on a terminal, at most ten redraws a second, however many turns end.
#[test]
fn a_terminal_is_redrawn_at_most_ten_times_a_second() {
    let server = chat(abc);
    let home = tempfile::tempdir().unwrap();
    let Ok(terminal) = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY) else {
        eprintln!("skipped: this host gives no pseudo-terminal");
        return;
    };
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::<u8>::new()).unwrap();
    let slave = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let flags = ["--target", &server.url, "--out=out", "--gsp-prompts-per-group=2000", "--max-concurrency=4"];
    let started = Instant::now();
    let mut child = Command::new(GSPBENCH)
        .args(small(&flags))
        .current_dir(home.path())
        .env("TERM", "xterm")
        .stdout(Stdio::null())
        .stderr(slave)
        .spawn()
        .unwrap();
    let reading = thread::spawn(move || {
        let (mut terminal, mut drawn, mut part) = (File::from(terminal), vec![], [0; 4096]);
        // The last writer gone, the read fails.
        while let Ok(read) = terminal.read(&mut part) {
            drawn.extend_from_slice(&part[..read]);
        }
        String::from_utf8_lossy(&drawn).into_owned()
    });
    assert!(matches!(child.wait().unwrap().code(), Some(0 | 4)));
    let seconds = started.elapsed().as_secs_f64();
    let drawn = reading.join().unwrap();
    let draws = u32::try_from(drawn.matches("/2000 ").count()).unwrap();
    println!("{draws} redraws in {seconds:.2} s of {} turns", run_json(home.path())["totals"]["complete"]);
    assert!(draws >= 2 && drawn.contains("in flight"), "{drawn:?}");
    // Stages before and after the turns are drawn when they come.
    assert!(f64::from(draws) <= seconds / 0.1 + 8.0, "{draws} redraws in {seconds} s");
}
