//! Open files: every turn in flight is a socket. The soft limit is raised to what the load needs before anything is sent,
//! so that this host's limit never looks like a fault of the server.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::exit::{Exit, ExitWith as _};
use crate::profile::{Pacing, RunSpec};
use crate::units::{grouped, plural};
use crate::workload::Plan;

/// Files beside the sockets of turns: results, scrapes, the runtime, connections that are just being closed.
const SPARE: u64 = 64;

/// Raises the soft limit of open files to what the run needs. An open loop without a cap may need as many as it has
/// sessions; it gets what there is.
///
/// # Errors
/// When a load that is limited needs more than the hard limit allows; the message names the value.
pub(super) fn reserve(spec: &RunSpec, plan: &Plan) -> anyhow::Result<()> {
    let (cap, key) = match spec.load.pacing {
        Pacing::Closed { sessions } => (Some(sessions), "--max-concurrency"),
        Pacing::Open { sessions, .. } => (sessions, "--max-concurrency"),
    };
    let turns = spec.load.max_turns_in_flight;
    let (cap, key) = if turns.is_some_and(|turns| cap.is_none_or(|cap| turns < cap)) {
        (turns, "--max-turns-in-flight")
    } else {
        (cap, key)
    };
    let sessions = u64::try_from(plan.sessions.len()).unwrap_or(u64::MAX);
    let in_flight = cap.map_or(sessions, |cap| sessions.min(cap.get().into()));
    let needed = in_flight + SPARE;
    let Rlimit { current: soft, maximum: hard } = getrlimit(Resource::Nofile);
    if soft.is_none_or(|soft| soft >= needed) {
        return Ok(());
    }
    let reachable = hard.map_or(needed, |hard| hard.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(reachable), maximum: hard });
    if (reachable < needed || raised.is_err()) && cap.is_some() {
        let why = format!(
            "{} in flight need {} open files, and the hard limit of this process is {}: raise it (`ulimit -Hn {needed}`, or \
             LimitNOFILE of the service), or lower {key}",
            plural(in_flight, "turn"),
            grouped(needed),
            hard.map_or("none".to_owned(), grouped)
        );
        return Err(anyhow::anyhow!(why)).exit_with(Exit::Usage);
    }
    Ok(())
}
