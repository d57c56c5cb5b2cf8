//! Gates on the command line and in the profile.

use crate::cli::exit::{Exit, ExitWith as _};
use crate::cli::say;
use crate::profile::{Condition, GATE_GRAMMAR, Gate};
use crate::report::{GateOutcome, RunReport, check_gate, judge_run};

/// Shared by `run`, `ab` and `compare`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct GateArgs {
    #[arg(long, alias = "fail_if", value_name = "GATE", help_heading = "Gate", help = help())]
    fail_if: Vec<Gate>,
}

fn help() -> String {
    format!(
        "End with exit code 5 when this is true: {GATE_GRAMMAR}. `worse` means that the whole interval is worse than the \
         baseline by more than P, and needs `ab` or `compare`. What was not measured does not pass. A path that no run.json has \
         is refused, save below `server.info.`, where each server says what it likes. May be given several times, beside \
         `experiment.fail_if`"
    )
}

impl GateArgs {
    /// Whether the command line has none.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.fail_if.is_empty()
    }

    /// Those of the profile, then those of the command line.
    ///
    /// # Errors
    /// When one asks for what no run.json has: better now than after an hour.
    pub(crate) fn beside(&self, profile: Vec<Gate>) -> anyhow::Result<Vec<Gate>> {
        let gates: Vec<Gate> = profile.into_iter().chain(self.fail_if.iter().cloned()).collect();
        gates.iter().try_for_each(check_gate).map_err(anyhow::Error::msg).exit_with(Exit::Usage)?;
        Ok(gates)
    }

    /// The gates of one run, which has no baseline to be worse than.
    ///
    /// # Errors
    /// As [`Self::beside`]; also when the command line has one that needs a baseline. Those of a profile wait for `ab`.
    pub(crate) fn of_run(&self, profile: Vec<Gate>) -> anyhow::Result<Vec<Gate>> {
        let is_worse = |gate: &Gate| matches!(gate.condition, Condition::Worse(_));
        if let Some(gate) = self.fail_if.iter().find(|gate| is_worse(gate)) {
            let why = format!(
                "`--fail-if '{gate}'`: one run has no baseline to be worse than; give METRIC OP VALUE, or use `ab` or `compare`"
            );
            return Err(anyhow::Error::msg(why)).exit_with(Exit::Usage);
        }
        let (worse, plain): (Vec<_>, Vec<_>) = self.beside(profile)?.into_iter().partition(is_worse);
        for gate in worse {
            say::note(&format!("note: `{gate}` of the profile needs a baseline and is left to `ab` and `compare`"));
        }
        Ok(plain)
    }
}

/// Judges one run, says a line a gate, and tells whether one failed.
pub(crate) fn any_fails(gates: &[Gate], report: &RunReport) -> bool {
    let outcomes: Vec<GateOutcome> = gates.iter().map(|gate| judge_run(gate, report)).collect();
    for GateOutcome { gate, arm: _, passed, seen } in &outcomes {
        say::note(&format!("gate {}: `{gate}`: {seen}", if *passed { "passed" } else { "FAILED" }));
    }
    outcomes.iter().any(|outcome| !outcome.passed)
}
