//! The simulated server as a child process: it ends when its standard input closes, so it cannot outlive this program,
//! however that ends.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::TargetError;

/// How long a child may take to say its address.
const START: Duration = Duration::from_secs(20);
/// How long a child may take to end after its standard input has closed.
const STOP: Duration = Duration::from_secs(5);

/// A server that this program started.
#[derive(Debug)]
pub struct Launched {
    child: Child,
    /// Its base URL.
    pub url: String,
}

/// Starts `gspbench sim` with these arguments on a free port and waits until it says its address.
///
/// # Errors
/// When it cannot be started, ends at once, or says no address in 20 s.
pub async fn launch_sim(arguments: impl IntoIterator<Item = OsString>) -> Result<Launched, TargetError> {
    let program = std::env::current_exe().map_err(|why| TargetError::Sim(format!("this program's own path: {why}")))?;
    let mut child = Command::new(program)
        .arg("sim")
        .args(["--port", "0", "--exit-with-stdin"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        // A terminal sends its interrupt to the whole group; the server has to outlast the turns under way.
        .process_group(0)
        .spawn()
        .map_err(|why| TargetError::Sim(format!("it does not start: {why}")))?;
    let stdout = child.stdout.take().ok_or_else(|| TargetError::Sim("it has no output".to_owned()))?;
    let mut lines = BufReader::new(stdout).lines();
    let first = tokio::time::timeout(START, lines.next_line()).await;
    let address = match first {
        Ok(Ok(Some(line))) => line.split("http://").nth(1).map(|rest| format!("http://{}", rest.trim())),
        Ok(_) => None,
        Err(_) => return Err(TargetError::Sim(format!("no address within {}", humantime::format_duration(START)))),
    };
    match address {
        Some(url) => Ok(Launched { child, url }),
        None => Err(TargetError::Sim(last_words(child).await)),
    }
}

impl Launched {
    /// Closes its standard input and waits until it has ended; kills it when it does not.
    pub async fn stop(mut self) {
        drop(self.child.stdin.take());
        if tokio::time::timeout(STOP, self.child.wait()).await.is_err() {
            // Dropping kills it; a process that is gone already is what we want.
            let _ = self.child.kill().await;
        }
    }
}

/// Why a child ended: what it wrote to its standard error.
pub(super) async fn last_words(child: Child) -> String {
    match tokio::time::timeout(STOP, child.wait_with_output()).await {
        Ok(Ok(output)) => {
            let words = String::from_utf8_lossy(&output.stderr);
            words.trim().trim_start_matches("error: ").to_owned()
        }
        _ => "it ended without a word".to_owned(),
    }
}
