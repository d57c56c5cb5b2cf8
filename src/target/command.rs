//! A server as a command: started behind a guard, watched, and stopped with its whole process group and nothing else.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::watch;

use super::TargetError;
use super::guard::{ENDED, GONE, STARTED};

/// What the guard itself may take, beside the server.
const GUARD: Duration = Duration::from_secs(20);
/// So much of a log's end is shown with an error.
const LAST_WORDS: u64 = 600;

/// What is to be started.
#[derive(Debug, Clone)]
pub struct Order<'a> {
    /// This program: the guard is its own subcommand.
    pub program: &'a Path,
    /// For `sh -c`.
    pub command: &'a str,
    /// Gets the output of the command.
    pub log: &'a Path,
    /// From SIGTERM to SIGKILL.
    pub stop_timeout: Duration,
}

/// A command under way. Dropping it ends its process group in the background.
#[derive(Debug)]
pub struct Running {
    guard: Child,
    group: Pid,
    log: PathBuf,
    stop_timeout: Duration,
    /// How the first process of the group ended.
    ended: watch::Receiver<Option<String>>,
}

impl Running {
    /// Starts the command.
    ///
    /// # Errors
    /// When no process can be started or the log not be written.
    pub async fn start(order: Order<'_>) -> Result<Self, TargetError> {
        let Order { program, command, log, stop_timeout } = order;
        let refused = TargetError::Launch;
        let mut guard = Command::new(program)
            .arg("guard")
            .arg("--stop-timeout-ms")
            .arg(stop_timeout.as_millis().to_string())
            .arg("--log")
            .arg(log)
            .arg("--")
            .arg(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A terminal sends its interrupt to the whole group, and the guard has to outlast it.
            .process_group(0)
            .spawn()
            .map_err(|why| refused(format!("its guard: {why}")))?;
        let stdout = guard.stdout.take().ok_or_else(|| refused("its guard has no output".to_owned()))?;
        let mut lines = BufReader::new(stdout).lines();
        let group = match tokio::time::timeout(GUARD, lines.next_line()).await {
            Ok(Ok(Some(line))) => line.strip_prefix(STARTED).and_then(|id| Pid::from_raw(id.parse().ok()?)),
            _ => None,
        };
        let Some(group) = group else {
            return Err(refused(super::launch::last_words(guard).await));
        };
        let (sender, ended) = watch::channel(None);
        tokio::spawn(follow(lines, group, sender));
        Ok(Self { guard, group, log: log.to_owned(), stop_timeout, ended })
    }

    /// The number of its process group.
    #[must_use]
    pub fn group(&self) -> u32 {
        self.group.as_raw_nonzero().get().unsigned_abs()
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<String> {
        self.ended.borrow().clone()
    }

    /// Waits until it has ended; says how, with the last words of its log.
    pub async fn end(&self) -> String {
        let mut ended = self.ended.clone();
        let how = match ended.wait_for(Option::is_some).await {
            Ok(how) => how.clone().unwrap_or_default(),
            Err(_) => std::future::pending().await,
        };
        let said = tail(&self.log);
        let log = self.log.display();
        if said.is_empty() { format!("{how}; `{log}` is empty") } else { format!("{how}; `{log}` ends: {said}") }
    }

    /// Ends the whole process group and waits until it has gone.
    pub async fn stop(mut self) {
        drop(self.guard.stdin.take());
        if tokio::time::timeout(self.stop_timeout + GUARD, self.guard.wait()).await.is_err() {
            // It has had its time: a guard that hangs holds nothing any more.
            let _ = self.guard.kill().await;
        }
    }
}

/// Passes on how the command ends. A guard that was killed leaves its group behind, which then ends here.
async fn follow(mut lines: Lines<BufReader<ChildStdout>>, group: Pid, ended: watch::Sender<Option<String>>) {
    let (mut how, mut is_gone) = (None, false);
    while let Ok(Some(line)) = lines.next_line().await {
        is_gone |= line == GONE;
        if let Some(said) = line.strip_prefix(ENDED) {
            how = Some(said.to_owned());
            ended.send_replace(how.clone());
        }
    }
    if !is_gone {
        // An error says that it had ended all the same.
        let _ = kill_process_group(group, Signal::KILL);
    }
    ended.send_replace(how.or_else(|| Some("stopped".to_owned())));
}

/// The end of a log in one line.
fn tail(log: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(log)?;
        let length = file.metadata()?.len();
        // More than is shown: of a key that lies across the cut, an end would be left.
        file.seek(SeekFrom::Start(length.saturating_sub(2 * LAST_WORDS)))?;
        let mut bytes = Vec::new();
        file.take(2 * LAST_WORDS).read_to_end(&mut bytes)?;
        let bytes = super::key::hidden(bytes);
        let shown = bytes.len().saturating_sub(usize::try_from(LAST_WORDS).unwrap_or(usize::MAX));
        Ok(String::from_utf8_lossy(&bytes[shown..]).split_whitespace().collect::<Vec<_>>().join(" "))
    };
    read().unwrap_or_default()
}
