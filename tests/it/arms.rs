//! Servers that `ab` launches: started, checked and stopped, with the whole process group and nothing else, however the
//! program ends. Servers are `gspbench sim` as an external command; process groups are known by the number that the command
//! writes down.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gspbench::target::{Order, Running};
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process, test_kill_process_group};

use crate::end_to_end::json;
use crate::interrupt::wait_for;

const GSPBENCH: &str = env!("CARGO_BIN_EXE_gspbench");
/// The key that all commands find in their environment.
const KEY: &str = "sk-S3CRETKEY";

/// A directory with a profile, and what its commands wrote down.
struct Lab {
    home: tempfile::TempDir,
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Lab {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// An `[[arm]]` table. Its command notes its process group in a file named like the arm, starts a process that would
    /// stay for minutes, and then does `then`.
    fn arm(&self, name: &str, port: u16, then: &str, more: &str) -> String {
        let pids = self.path(&format!("{name}.pids"));
        let command = format!("echo $$ >> {}; sleep 300 & {then}", pids.display());
        format!(
            "[[arm]]\nname = \"{name}\"\ntarget = \"http://127.0.0.1:{port}\"\nlaunch = '''{command}'''\n\
             stop_timeout = \"20s\"\n{more}\n"
        )
    }

    /// An arm whose command is a simulated server of this speed.
    fn sim_arm(&self, name: &str, scale: u32) -> String {
        let port = free_port();
        let sim = format!("exec {GSPBENCH} sim --port {port} --ranks 2 --time-scale {scale}");
        self.arm(name, port, &sim, "")
    }

    fn profile(&self, arms: &[String]) -> PathBuf {
        let workload = "[workload]\ngroups = 2\nsessions_per_group = 12\nsystem_tokens = 32\nquestion_tokens = 16\n\
                        output_tokens = 20\nseed = 3\n[request]\napi = \"generate\"\n[load]\nmax_concurrency = 4\n\
                        warmup_sessions = 1\n[experiment]\nrounds = 2\n";
        let path = self.path("lab.toml");
        std::fs::write(&path, format!("{workload}{}", arms.concat())).unwrap();
        path
    }

    fn ab(&self, arms: &[String]) -> Child {
        self.ab_of(Command::new(GSPBENCH), arms)
    }

    /// The same, where `command` is what becomes the program.
    fn ab_of(&self, mut command: Command, arms: &[String]) -> Child {
        command.arg("ab").arg(self.profile(arms)).arg("--out").arg(self.path("out"));
        command.env("OPENAI_API_KEY", KEY);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The process groups of an arm, one for each time that its command ran.
    fn groups(&self, arm: &str) -> Vec<Pid> {
        groups(&self.path(&format!("{arm}.pids")))
    }

    /// Round, arm, state and reason of each block on file.
    fn blocks(&self) -> Vec<(u64, String, String, String)> {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let blocks = json(&self.path("out/ab.json"))["blocks"].as_array().unwrap().clone();
        let row = |b: &serde_json::Value| {
            (b["round"].as_u64().unwrap(), text(&b["arm"]), text(&b["state"]), text(&b["reason"]))
        };
        blocks.iter().map(row).collect()
    }
}

fn groups(path: &Path) -> Vec<Pid> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

fn is_gone(group: Pid) -> bool {
    test_kill_process_group(group).is_err()
}

/// Exit code and standard error.
fn end(child: Child) -> (Option<i32>, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn launched_servers_run_for_their_blocks_and_are_gone_at_the_end() {
    let lab = Lab::new();
    let (code, stderr) = end(lab.ab(&[lab.sim_arm("a", 20), lab.sim_arm("b", 20)]));
    assert_eq!(code, Some(0), "{stderr}");
    let ran: Vec<_> = lab.blocks().into_iter().map(|(round, arm, state, _)| (round, arm, state)).collect();
    let block = |round, arm: &str| (round, arm.to_owned(), "complete".to_owned());
    assert_eq!(ran, [block(1, "a"), block(1, "b"), block(2, "b"), block(2, "a")]);
    for arm in ["a", "b"] {
        let groups = lab.groups(arm);
        assert_eq!(groups.len(), 2, "a server for each block");
        assert!(groups.into_iter().all(is_gone), "no process is left at the exit");
        let log = std::fs::read_to_string(lab.path(&format!("out/round-01/{arm}/server.log"))).unwrap();
        assert!(log.contains("listening on"), "{log}");
    }
}

#[test]
fn a_server_that_never_becomes_ready_costs_two_blocks_and_the_others_go_on() {
    let lab = Lab::new();
    let stuck = lab.arm("stuck", free_port(), "echo cannot load the model; wait", "ready_timeout = \"300ms\"");
    let (code, stderr) = end(lab.ab(&[lab.sim_arm("a", 20), stuck, lab.sim_arm("c", 20)]));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("arm `stuck`") && stderr.contains("not ready within 300ms"), "{stderr}");
    let ran: Vec<_> = lab.blocks().into_iter().map(|(round, arm, state, _)| format!("{round} {arm} {state}")).collect();
    let wanted = ["1 a complete", "1 stuck failed", "1 c complete", "1 stuck failed", "2 c complete", "2 a complete"];
    assert_eq!(ran, wanted);
    assert_eq!(json(&lab.path("out/comparison.json"))["rounds"], serde_json::json!([1, 2]));
    assert!(["a", "stuck", "c"].iter().flat_map(|arm| lab.groups(arm)).all(is_gone));
}

#[test]
fn an_interrupt_while_a_server_loads_waits_for_its_end() {
    let lab = Lab::new();
    let child = lab.ab(&[lab.arm("a", free_port(), "wait", ""), lab.sim_arm("b", 20)]);
    wait_for("the command", || lab.groups("a").pop());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let (code, stderr) = end(child);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(lab.groups("a").into_iter().all(is_gone));
    assert_eq!(lab.blocks()[0].2, "interrupted");
}

#[test]
fn a_server_that_ends_before_it_is_ready_is_quoted() {
    let lab = Lab::new();
    let broken = lab.arm("broken", free_port(), "echo out of memory, $OPENAI_API_KEY, $OPENAI_API_KEY >&2; exit 7", "");
    let (code, stderr) = end(lab.ab(&[lab.sim_arm("a", 20), broken]));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("exit status 7") && stderr.contains("out of memory, (hidden), (hidden)"), "{stderr}");
    let file = std::fs::read_to_string(lab.path("out/ab.json")).unwrap();
    assert!(file.contains("out of memory") && !file.contains(KEY) && !stderr.contains(KEY), "{file}");
    assert!(["a", "broken"].iter().flat_map(|arm| lab.groups(arm)).all(is_gone), "also what it had started");
}

#[test]
fn a_command_that_leaves_its_server_in_the_background_is_told_to_stay() {
    let lab = Lab::new();
    let leaves = lab.arm("leaves", free_port(), "sleep 300 &", "");
    let (code, stderr) = end(lab.ab(&[lab.sim_arm("a", 20), leaves]));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("exit status 0") && stderr.contains("must stay"), "{stderr}");
    assert!(["a", "leaves"].iter().flat_map(|arm| lab.groups(arm)).all(is_gone));
}

#[test]
fn a_server_that_dies_in_a_block_is_started_again_at_the_end_of_the_round() {
    let lab = Lab::new();
    let child = lab.ab(&[lab.sim_arm("a", 2), lab.sim_arm("b", 2)]);
    let turns = lab.path("out/round-01/b/requests.jsonl");
    wait_for("a turn", || std::fs::read_to_string(&turns).is_ok_and(|text| text.contains('\n')).then_some(()));
    kill_process(lab.groups("b")[0], Signal::KILL).unwrap();
    let (code, stderr) = end(child);
    let blocks = lab.blocks();
    let ran: Vec<_> = blocks.iter().map(|(round, arm, state, _)| format!("{round} {arm} {state}")).collect();
    assert_eq!(ran, ["1 a complete", "1 b failed", "1 b complete", "2 b complete", "2 a complete"], "{stderr}");
    assert!(blocks[1].3.contains("ended during the block: signal 9"), "{}", blocks[1].3);
    assert_eq!(code, Some(0), "the repetition stands for the block: {stderr}");
    assert!(["a", "b"].iter().flat_map(|arm| lab.groups(arm)).all(is_gone));
}

#[test]
fn an_address_at_which_a_server_answers_already_is_refused() {
    let lab = Lab::new();
    let other = crate::end_to_end::Sim::at_speed(20, &["--ranks=2"]);
    let port = other.url.rsplit(':').next().unwrap().parse().unwrap();
    let arms = [lab.sim_arm("a", 20), lab.arm("b", port, "exec sleep 300", "")];
    let (code, stderr) = end(lab.ab(&arms));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains(&other.url) && stderr.contains("before the arm's own is launched"), "{stderr}");
    assert!(lab.groups("b").is_empty(), "it was never started");
    other.stop();
}

/// Whether this process, and so its children, ignore a signal, as under `nohup`.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn no_server_outlives_a_signal_or_a_kill() {
    // INT and TERM are heard whatever was inherited; what else is ignored ends nothing, see below.
    let others = [Signal::HUP, Signal::ABORT].into_iter().filter(|signal| !is_ignored(*signal));
    for signal in [Signal::INT, Signal::TERM, Signal::KILL].into_iter().chain(others) {
        let lab = Lab::new();
        let child = lab.ab(&[lab.sim_arm("a", 1), lab.sim_arm("b", 1)]);
        let turns = lab.path("out/round-01/a/requests.jsonl");
        wait_for("a turn", || std::fs::read_to_string(&turns).is_ok_and(|text| text.contains('\n')).then_some(()));
        kill_process(Pid::from_child(&child), signal).unwrap();
        let (code, stderr) = end(child);
        let groups = lab.groups("a");
        assert_eq!(groups.len(), 1);
        if matches!(signal, Signal::INT | Signal::TERM) {
            assert_eq!(code, Some(130), "{stderr}");
            assert!(is_gone(groups[0]), "{signal:?}: gone before the program is");
            assert_eq!(lab.blocks()[0].2, "interrupted");
        } else {
            // A guard ends the group as soon as it sees that the program has gone.
            wait_for("the end of the group", || is_gone(groups[0]).then_some(()));
        }
    }
}

#[test]
fn a_hangup_that_is_ignored_as_under_nohup_ends_neither_the_experiment_nor_its_servers() {
    let lab = Lab::new();
    let mut nohup = Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh", GSPBENCH]);
    let child = lab.ab_of(nohup, &[lab.sim_arm("a", 4), lab.sim_arm("b", 4)]);
    let turns = lab.path("out/round-01/a/requests.jsonl");
    wait_for("a turn", || std::fs::read_to_string(&turns).is_ok_and(|text| text.contains('\n')).then_some(()));
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    let (code, stderr) = end(child);
    // Void at the worst, for how late this busy host was.
    assert!(matches!(code, Some(0 | 4)), "{code:?}: {stderr}");
    assert!(lab.blocks().iter().all(|block| matches!(block.2.as_str(), "complete" | "void")), "{:?}", lab.blocks());
    assert!(["a", "b"].iter().flat_map(|arm| lab.groups(arm)).all(is_gone));
}

/// Starts a command; the file that it writes its group to.
async fn running(home: &Path, then: &str) -> (Running, PathBuf) {
    let (pids, log) = (home.join("pids"), home.join("log"));
    let command = format!("echo $$ > {}; {then}", pids.display());
    let stop_timeout = Duration::from_millis(200);
    let order = Order { program: Path::new(GSPBENCH), command: &command, log: &log, stop_timeout };
    (Running::start(order).await.unwrap(), pids)
}

fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

#[test]
fn no_server_outlives_a_panic() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().to_owned();
    let panicking = std::thread::spawn(move || {
        on_a_runtime(async {
            let (running, pids) = running(&path, "sleep 300 & wait").await;
            wait_for("the command", || groups(&pids).pop());
            assert!(!is_gone(Pid::from_raw(i32::try_from(running.group()).unwrap()).unwrap()));
            panic!("on purpose");
        });
    });
    assert!(panicking.join().is_err());
    let group = groups(&home.path().join("pids"))[0];
    wait_for("the end of the group", || is_gone(group).then_some(()));
}

#[test]
fn a_server_that_ignores_sigterm_is_killed_after_its_time() {
    let home = tempfile::tempdir().unwrap();
    on_a_runtime(async {
        let ready = home.path().join("ready");
        let deaf = format!("trap '' TERM; sleep 300 & touch {}; wait; wait; wait", ready.display());
        let (running, pids) = running(home.path(), &deaf).await;
        wait_for("the trap", || ready.exists().then_some(()));
        running.stop().await;
        assert!(is_gone(groups(&pids)[0]));
    });
}

#[test]
fn nothing_but_the_group_is_stopped() {
    let home = tempfile::tempdir().unwrap();
    let mut bystander = Command::new("sleep").arg("300").process_group(0).spawn().unwrap();
    on_a_runtime(async {
        let left = home.path().join("left");
        let leaving = format!("setsid sh -c 'echo $$ > {}; exec sleep 300' & sleep 300 & wait", left.display());
        let (running, pids) = running(home.path(), &leaving).await;
        let apart = wait_for("the process that leaves the group", || groups(&left).pop());
        running.stop().await;
        assert!(is_gone(groups(&pids)[0]));
        assert!(test_kill_process(apart).is_ok(), "a process of another session is none of the group's");
        kill_process(apart, Signal::KILL).unwrap();
    });
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[test]
fn a_guard_that_is_killed_takes_its_group_along() {
    let home = tempfile::tempdir().unwrap();
    on_a_runtime(async {
        let (running, pids) = running(home.path(), "sleep 300 & wait").await;
        let group = wait_for("the command", || groups(&pids).pop());
        let status = std::fs::read_to_string(format!("/proc/{}/stat", group.as_raw_nonzero())).unwrap();
        let parent: i32 = status.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        kill_process(Pid::from_raw(parent).unwrap(), Signal::KILL).unwrap();
        running.end().await;
        wait_for("the end of the group", || is_gone(group).then_some(()));
        assert!(kill_process_group(group, Signal::KILL).is_err());
    });
}
