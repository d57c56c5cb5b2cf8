//! Runs as processes: warm-up, and what cuts them short: signals, kills, time limits, limits of this host
//! (rows B68, B74, B110 to B112, B114 of the traps). Nothing here waits for a time; it waits for what was done.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::end_to_end::Sim;
use crate::scripted::{Answer, Scripted, Seen, chat_stream};

const GSPBENCH: &str = env!("CARGO_BIN_EXE_gspbench");

/// Looks until there is something to see.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(start.elapsed() < Duration::from_secs(120), "no sign of {what}");
        thread::park_timeout(Duration::from_millis(5));
    }
}

struct Started {
    child: Child,
    out: PathBuf,
    _home: tempfile::TempDir,
}

/// How a run ended.
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Many sessions, four at a time, each as long as it takes to make `tokens` tokens.
fn start(words: &[&str], tokens: &str) -> Started {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out");
    let child = Command::new(GSPBENCH)
        .args(words)
        .args(["--gsp-num-groups=2", "--gsp-prompts-per-group=200", "--gsp-system-prompt-len=32"])
        .args(["--gsp-question-len=16", "--gsp-output-len", tokens, "--max-concurrency=4", "--seed=3"])
        .args(["--warmup-requests=0", "--api=generate", "--out"])
        .arg(&out)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    Started { child, out, _home: home }
}

impl Started {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn lines(&self) -> usize {
        std::fs::read_to_string(self.out.join("requests.jsonl")).map_or(0, |text| text.matches('\n').count())
    }

    fn end(&mut self) -> Ended {
        let status = self.child.wait().unwrap();
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        Ended { code: status.code(), stdout, stderr }
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn report(dir: &Path) -> (Option<i32>, String, String) {
    let output = Command::new(GSPBENCH).arg("report").arg(dir).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Row B111: the first signal ends the sending, the report is written and says so.
#[test]
fn the_first_signal_lets_turns_end_writes_the_report_and_exits_130() {
    for signal in [Signal::INT, Signal::TERM] {
        let sim = Sim::at_speed(4, &["--ranks=2"]);
        let mut run = start(&["run", "--target", &sim.url], "40");
        wait_for("finished turns", || (run.lines() >= 6).then_some(()));
        run.signal(signal);
        let ended = run.end();
        assert_eq!(ended.code, Some(130), "{}", ended.stderr);
        assert!(
            ended.stdout.contains("interrupted") && ended.stdout.contains("Request throughput"),
            "{}",
            ended.stdout
        );
        let report = json(&run.out.join("run.json"));
        assert_eq!((&report["state"], &report["ended_by"]), (&"interrupted".into(), &"interrupt".into()));
        let totals = &report["totals"];
        let [complete, cancelled] = ["complete", "cancelled"].map(|key| totals[key].as_u64().unwrap());
        // What was under way ended well within the grace: nothing was cut. A line of another turn is of one that waited
        // for its slot when the signal came.
        assert_eq!((complete + cancelled, totals["failed"].as_u64()), (400, Some(0)));
        let lines = std::fs::read_to_string(run.out.join("requests.jsonl")).unwrap();
        let turns = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let (ended, unsent): (Vec<_>, Vec<_>) = turns.partition(|turn| turn["outcome"] == "complete");
        assert_eq!(complete, ended.len() as u64);
        assert!(unsent.iter().all(|turn| turn["sent_us"].is_null()), "{unsent:?}");
        assert!((6..400).contains(&complete));
        sim.stop();
    }
}

#[test]
fn after_the_grace_what_is_under_way_is_cut_and_its_tokens_count_in_rates_only() {
    let sim = Sim::at_speed(1, &["--ranks=2"]);
    let mut run = start(&["run", "--target", &sim.url, "--grace=300ms"], "4000");
    wait_for("the measured part", || run.out.join("requests.jsonl").exists().then_some(()));
    run.signal(Signal::INT);
    let ended = run.end();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    let report = json(&run.out.join("run.json"));
    assert_eq!((&report["totals"]["complete"], &report["totals"]["cancelled"]), (&0.into(), &400.into()));
    assert!(report["metrics"]["ttft_ms"].is_null());
    sim.stop();
}

/// Row B111: the second signal ends the program at once, whatever the grace; the files can be read.
#[test]
fn the_second_signal_stops_at_once_and_leaves_readable_files() {
    let sim = Sim::at_speed(1, &["--ranks=2"]);
    let mut run = start(&["run", "--target", &sim.url, "--grace=1h"], "100000");
    wait_for("the measured part", || run.out.join("requests.jsonl").exists().then_some(()));
    run.signal(Signal::INT);
    // The first one has been taken when its note is there.
    let mut stderr = run.child.stderr.take().unwrap();
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains("a second signal stops at once") {
        let mut byte = [0];
        assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
        said.push(byte[0]);
    }
    run.signal(Signal::TERM);
    assert_eq!(run.child.wait().unwrap().code(), Some(130));
    assert_eq!(json(&run.out.join("run.json"))["state"], "running");
    let (code, stdout, said) = report(&run.out);
    assert_eq!(code, Some(0), "{said}");
    assert!(stdout.contains("Successful requests") && said.contains("did not end"), "{said}");
    sim.stop();
}

/// A kill loses at most the line being written.
#[test]
fn what_a_killed_run_had_finished_is_reported_from_its_lines() {
    let sim = Sim::at_speed(4, &["--ranks=2"]);
    let mut run = start(&["run", "--target", &sim.url], "20");
    wait_for("finished turns", || (run.lines() >= 8).then_some(()));
    run.child.kill().unwrap();
    assert_eq!(run.end().code, None);
    let text = std::fs::read_to_string(run.out.join("requests.jsonl")).unwrap();
    let whole = text.matches('\n').count();
    for line in text.lines().take(whole) {
        serde_json::from_str::<Value>(line).unwrap();
    }
    let (code, stdout, stderr) = report(&run.out);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains(&format!("{whole} turns")) && stdout.contains(&format!("{whole} of 400")), "{stdout}");
    sim.stop();
}

#[test]
fn a_signal_before_anything_was_sent_leaves_nothing_behind() {
    // Nobody listens there: the program waits for its server.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let mut run = start(&["run", "--target", &url, "--ready-check-timeout-sec=600"], "5");
    wait_for("its directory", || run.out.exists().then_some(()));
    // The handler of signals is set right after the directory is there: until it is, a signal would just end the process.
    wait_for("its threads", || {
        let threads = std::fs::read_dir(format!("/proc/{}/task", run.child.id())).unwrap().count();
        (threads > 1).then_some(())
    });
    wait_for("its handler of signals", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", run.child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?.trim().to_owned();
        // Bit 14 is SIGTERM, the second to be set.
        (u64::from_str_radix(&caught, 16).unwrap() & (1 << 14) != 0).then_some(())
    });
    run.signal(Signal::INT);
    let ended = run.end();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(ended.stderr.contains("before anything was measured"), "{}", ended.stderr);
    assert!(!run.out.exists());
}

#[test]
fn an_experiment_that_is_interrupted_compares_its_finished_rounds() {
    let arms = ["--arm", "rr=sim:round_robin,time-scale=20", "--arm", "pa=sim:prefix_affinity,time-scale=20"];
    let mut run = start(&[&["ab", "--rounds=50", "--set=workload.sessions_per_group=6"], &arms[..]].concat(), "6");
    wait_for("the second round", || run.out.join("round-02/pa/requests.jsonl").exists().then_some(()));
    run.signal(Signal::INT);
    let ended = run.end();
    assert_eq!(ended.code, Some(130), "{}", ended.stderr);
    assert!(ended.stdout.contains("rr") && ended.stdout.contains("Mean TTFT"), "{}", ended.stdout);
    assert!(ended.stdout.contains("INTERRUPTED after 1 of 50 rounds: go on with"), "{}", ended.stdout);
    let comparison = json(&run.out.join("comparison.json"));
    assert_eq!(comparison["interrupted"]["rounds_planned"], 50);
    let rounds = comparison["rounds"].clone();
    assert_eq!(rounds[0], 1);
    let blocks = json(&run.out.join("ab.json"))["blocks"].clone();
    let state = |at: usize| blocks[at]["state"].as_str().unwrap().to_owned();
    assert_eq!((state(0).as_str(), state(1).as_str(), state(99).as_str()), ("complete", "complete", "planned"));
}

#[test]
fn a_run_ends_with_its_duration_and_says_so() {
    let sim = Sim::at_speed(4, &["--ranks=2"]);
    let mut run = start(&["run", "--target", &sim.url, "--duration=1500ms", "--ramp-up=200ms"], "30");
    let ended = run.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("ended by its duration"), "{}", ended.stdout);
    let report = json(&run.out.join("run.json"));
    assert_eq!((&report["state"], &report["ended_by"]), (&"complete".into(), &"duration".into()));
    let totals = &report["totals"];
    assert_eq!(totals["complete"].as_u64().unwrap() + totals["cancelled"].as_u64().unwrap(), 400);
    for key in ["runtime_lag_ms", "cpu_cores", "own_lag_ms"] {
        assert!(!report["client"][key].is_null(), "{key}");
    }
    assert_eq!(report["client"]["in_flight"]["max"], 4);
    sim.stop();
}

/// Row B74: 200 in flight with room for 64 files; the soft limit is raised, and the hard one is told.
#[test]
fn the_limit_of_open_files_is_raised_or_the_run_refused_with_the_value() {
    let sim = Sim::start(&["--ranks=2"]);
    let limited = |hard: u32| {
        let home = tempfile::tempdir().unwrap();
        let run = format!("ulimit -Sn 64; ulimit -Hn {hard}; exec \"$0\" \"$@\"");
        let output = Command::new("sh")
            .args(["-c", &run, GSPBENCH, "run", "--target", &sim.url, "--gsp-num-groups=1"])
            .args(["--gsp-prompts-per-group=200", "--gsp-system-prompt-len=8", "--gsp-question-len=8"])
            .args(["--gsp-output-len=4", "--max-concurrency=200", "--seed=1", "--out=out"])
            .current_dir(home.path())
            .output()
            .unwrap();
        let totals = home
            .path()
            .join("out/run.json")
            .exists()
            .then(|| json(&home.path().join("out/run.json"))["totals"].clone());
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned(), totals)
    };
    let (code, stderr, totals) = limited(4_096);
    assert_eq!((code, totals.unwrap()["complete"].as_u64()), (Some(0), Some(200)), "{stderr}");
    let (code, stderr, totals) = limited(80);
    assert!(code == Some(2) && totals.is_none(), "{stderr}");
    for part in ["264 open files", "is 80", "--max-concurrency"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
    sim.stop();
}

/// Row B110: two runs of the same moment and name; one of them gets the folder, and the other says what to do.
#[test]
fn two_runs_of_one_folder_never_share_it() {
    // A server each: two clients of one would see each other's traffic in its counters.
    let sims = [Sim::start(&["--ranks=2"]), Sim::start(&["--ranks=2"])];
    let home = tempfile::tempdir().unwrap();
    let both = |more: &str| {
        let children = sims.each_ref().map(|sim| {
            let mut command = Command::new(GSPBENCH);
            command.args(["run", "--target", &sim.url, "--gsp-num-groups=1", "--gsp-prompts-per-group=2", "--seed=1"]);
            command.args(["--gsp-system-prompt-len=8", "--gsp-question-len=8", "--gsp-output-len=2", more]);
            command.current_dir(home.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        children.map(|child| child.wait_with_output().unwrap())
    };
    let same = both("--out=same");
    let mut codes = same.each_ref().map(|output| output.status.code());
    codes.sort_unstable();
    assert_eq!(codes, [Some(0), Some(2)]);
    let refused = same.iter().find(|output| output.status.code() == Some(2)).unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--out"));
    // Row B112: a name with separators is one folder, here two of them; the name itself is in the file.
    let tag = "--tag=org/name:tag|\"<x>\"";
    for output in both(tag) {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let names: Vec<_> = std::fs::read_dir(home.path().join("gspbench-results")).unwrap().map(Result::unwrap).collect();
    assert_eq!(names.len(), 2);
    for entry in names {
        let name = entry.file_name().into_string().unwrap();
        assert!(
            name.contains("org-name-tag") && !name.contains(['/', '\\', ':', '*', '?', '"', '<', '>', '|']),
            "{name}"
        );
        let argv = json(&entry.path().join("run.json"))["manifest"]["argv"].clone();
        assert!(argv.as_array().unwrap().contains(&tag.into()));
    }
    sims.into_iter().for_each(Sim::stop);
}

/// Row B114: nothing is drawn where nobody looks.
#[test]
fn no_bar_is_drawn_on_what_is_no_terminal() {
    let sim = Sim::at_speed(4, &["--ranks=2"]);
    let mut run = start(&["run", "--target", &sim.url, "--duration=1s"], "4");
    let ended = run.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains(['\r', '\u{1b}']), "{:?}", ended.stderr);
    sim.stop();
}

/// Row B68: the warm-up runs at the measured concurrency, with prompts and keys of its own, and is in no figure.
#[test]
fn a_warm_up_keeps_the_limit_shares_no_prompt_and_is_not_measured() {
    let (in_flight, arrived) = (AtomicUsize::new(0), (Mutex::new(0_usize), Condvar::new()));
    let highest = Arc::new(AtomicUsize::new(0));
    let peak = Arc::clone(&highest);
    let server = Scripted::start(move |seen| {
        if seen.method != "POST" || !seen.path.starts_with("/v1") {
            return Answer::Whole(404, "application/json", "{}".to_owned());
        }
        peak.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let mut count = arrived.0.lock().unwrap();
        *count += 1;
        arrived.1.notify_all();
        // After the probe, the first eight are answered when all of them are there.
        let order = *count;
        let waiting = |count: &mut usize| (2..=9).contains(&order) && *count < 9;
        drop(arrived.1.wait_timeout_while(count, Duration::from_secs(60), waiting).unwrap());
        in_flight.fetch_sub(1, Ordering::SeqCst);
        Answer::Whole(200, "text/event-stream", chat_stream(&["a", "b", "c"], 12))
    });
    let home = tempfile::tempdir().unwrap();
    let output = Command::new(GSPBENCH)
        .args(["run", "--target", &server.url, "--gsp-num-groups=1", "--gsp-prompts-per-group=100", "--out=out"])
        .args(["--gsp-system-prompt-len=8", "--gsp-question-len=4", "--gsp-output-len=3", "--seed=1"])
        .args(["--warmup-requests=8", "--max-concurrency=8"])
        .current_dir(home.path())
        .output()
        .unwrap();
    assert!(home.path().join("out/run.json").exists(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(highest.load(Ordering::SeqCst), 8);
    let turns = server.turns();
    assert_eq!(turns.len(), 1 + 8 + 100, "one probe");
    let of = |part: &[Seen], what: fn(&Seen) -> String| part.iter().map(what).collect::<BTreeSet<_>>();
    let parts: [fn(&Seen) -> String; 2] =
        [|seen| seen.json()["messages"].to_string(), |seen| seen.header("x-smg-routing-key").unwrap().to_owned()];
    for what in parts {
        assert!(of(&turns[1..9], what).is_disjoint(&of(&turns[9..], what)));
    }
    let report = json(&home.path().join("out/run.json"));
    assert_eq!((&report["totals"]["complete"], &report["metrics"]["ttft_ms"]["count"]), (&100.into(), &100.into()));
}
