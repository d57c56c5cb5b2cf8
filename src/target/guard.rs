//! The process between this program and a server that it starts: it holds the server's process group, and ends that group
//! when its own standard input closes. A pipe closes however its writer ends, so that an exit, an error, a signal, a panic
//! and even a SIGKILL of this program leave no server behind.
//!
//! Orphans of the group become children of the guard (Linux's subreaper), and nobody else reaps them. So while a child of it
//! is in the group, the group's number belongs to no one else, and only then is a signal sent to it.

use std::io::{ErrorKind, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, waitpgid};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

/// How often a group that is to end is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// What the system may take to end what was killed; a process that hangs in a driver may take for ever.
const UNKILLABLE: Duration = Duration::from_secs(5);

/// What begins the line that tells the parent the group's number, and the line that tells how its first process ended.
pub(super) const STARTED: &str = "started ";
pub(super) const ENDED: &str = "ended ";
/// The line that tells that the group is empty.
pub(super) const GONE: &str = "gone";

/// What is left of a process group.
enum Left {
    /// Children of this process; none of them has ended unseen.
    Some,
    None,
}

struct Group {
    id: Pid,
    /// How its first process ended.
    ended: Option<WaitStatus>,
}

/// Runs `command` by `sh -c` in a process group of its own, its output appended to `log`, until it ends or standard input
/// closes; then ends the whole group, with SIGTERM and, after `stop_timeout`, SIGKILL. Says on standard output when the
/// command has started and when it has ended.
///
/// # Errors
/// When the log cannot be written or no process be started.
pub async fn guard(command: &str, log: &Path, stop_timeout: Duration) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid()))?;
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut hangup = signal(SignalKind::hangup())?;
    // Before there is a child, so that none ends unseen.
    let mut children = signal(SignalKind::child())?;
    let output = std::fs::File::options().create(true).append(true).open(log)?;
    let first = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0)
        .spawn()?;
    let mut group = Group { id: Pid::from_child(&first), ended: None };
    say(&format!("{STARTED}{}", group.id.as_raw_nonzero()));
    let (mut stdin, mut unread) = (tokio::io::stdin(), [0; 64]);
    while group.ended.is_none() {
        tokio::select! {
            read = stdin.read(&mut unread) => match read {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            },
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = hangup.recv() => break,
            _ = children.recv() => {
                group.reap()?;
            }
        }
    }
    if let Some(status) = group.ended {
        say(&format!("{ENDED}{}", words(status)));
    }
    group.end(stop_timeout).await?;
    say(GONE);
    Ok(())
}

impl Group {
    /// Reaps what has ended.
    fn reap(&mut self) -> std::io::Result<Left> {
        loop {
            match waitpgid(self.id, WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.id => self.ended = Some(status),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(Left::Some),
                Err(rustix::io::Errno::CHILD) => return Ok(Left::None),
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => return Err(why.into()),
            }
        }
    }

    async fn end(mut self, stop_timeout: Duration) -> std::io::Result<()> {
        let asked = Instant::now();
        let mut sent = None;
        loop {
            if matches!(self.reap()?, Left::None) {
                return Ok(());
            }
            let next = if asked.elapsed() < stop_timeout { Signal::TERM } else { Signal::KILL };
            // A process that the group got in the meantime is killed too: SIGKILL is sent again and again.
            if sent != Some(next) || next == Signal::KILL {
                kill_process_group(self.id, next)?;
                sent = Some(next);
            }
            if asked.elapsed() > stop_timeout + UNKILLABLE {
                return Err(std::io::Error::other("its processes outlive SIGKILL"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A parent that has gone needs no line.
fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

fn words(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => "no exit status".to_owned(),
    }
}
