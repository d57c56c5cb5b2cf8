//! The server that `selftest` measures against: this program once more, as a child with cores and a clock of its own.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::Exit;
use crate::sim::{Schedule, Written, serve_schedule};

/// How long a line of the log, or the end of the child, may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves an exact schedule and prints what it wrote, a JSON line a reply. Ends when its standard input closes.
#[derive(Debug, clap::Args)]
pub(super) struct TruthArgs {
    /// From a request to its first token, in microseconds
    #[arg(long, value_name = "US")]
    first_us: u64,
    /// Between tokens, in microseconds
    #[arg(long, value_name = "US")]
    interval_us: u64,
}

/// Serves until the parent closes standard input.
///
/// # Errors
/// When no port can be had.
pub(super) fn run(args: &TruthArgs) -> anyhow::Result<Exit> {
    let schedule =
        Schedule { first: Duration::from_micros(args.first_us), interval: Duration::from_micros(args.interval_us) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        say(&format!("http://{}", listener.local_addr()?));
        let log = |written: Written| say(&serde_json::to_string(&written).unwrap_or_default());
        let (mut stdin, mut unread) = (tokio::io::stdin(), Vec::new());
        tokio::select! {
            served = serve_schedule(listener, schedule, log) => served,
            _ = stdin.read_to_end(&mut unread) => Ok(()),
        }
    });
    // Not waiting for threads that still sleep until something is due.
    runtime.shutdown_background();
    served.context("the schedule's server")?;
    Ok(Exit::Ok)
}

/// A parent that has gone needs no line.
fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

/// The child.
#[derive(Debug)]
pub(super) struct Truth {
    pub url: String,
    child: Child,
    log: mpsc::UnboundedReceiver<Written>,
}

impl Truth {
    /// Starts the server and waits for its address.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) async fn start(schedule: Schedule) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("truth-server")
            .args(["--first-us", &schedule.first.as_micros().to_string()])
            .args(["--interval-us", &schedule.interval.as_micros().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("the schedule's server does not start")?;
        let stdout = child.stdout.take().context("the schedule's server has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let url = lines.next_line().await?.context("the schedule's server ended at once")?;
        let (sender, log) = mpsc::unbounded_channel();
        // Read all the time: a full pipe would hold the server's log up.
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(written) = serde_json::from_str(&line) {
                    let _ = sender.send(written);
                }
            }
        });
        Ok(Self { url, child, log })
    }

    /// What was written for the next reply that ended.
    ///
    /// # Errors
    /// When the server has gone or says nothing.
    pub(super) async fn next(&mut self) -> anyhow::Result<Written> {
        let next = tokio::time::timeout(PATIENCE, self.log.recv()).await;
        next.ok().flatten().context("the schedule's server did not log every reply")
    }

    pub(super) async fn stop(mut self) {
        drop(self.child.stdin.take());
        let _ = tokio::time::timeout(PATIENCE, self.child.wait()).await;
    }
}
