//! Replies for recorded history: the workload's lengths with other prompts, sent once to the baseline and not measured.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Block;
use crate::cli::exit::{Exit, ExitWith as _};
use crate::profile::History;
use crate::record::TurnId;
use crate::target::TargetError;

impl Block<'_> {
    /// The text of every reply, by session in the plan's order and by turn.
    ///
    /// The prompts are those of a warm-up: a cache that keeps them knows none of the measured ones.
    ///
    /// # Errors
    /// When a turn fails, or a signal ends the sending: a hole would be another conversation in each arm.
    pub(crate) async fn record(&self) -> anyhow::Result<Vec<Vec<String>>> {
        let mut plan = self.plan.warmup(u32::try_from(self.plan.sessions.len()).unwrap_or(u32::MAX));
        plan.workload.history = History::Real;
        let sessions = plan.sessions.clone();
        let heard = Arc::new(Mutex::new(BTreeMap::new()));
        let keeping = Arc::clone(&heard);
        let keep = move |turn: &crate::record::TurnRecord, text: &str| {
            if turn.outcome.is_complete() {
                let mut heard = keeping.lock().unwrap_or_else(PoisonError::into_inner);
                heard.insert(turn.turn_id(), text.to_owned());
            }
        };
        let seen = self.rehearse(&self.lanes()?, plan, keep).await.exit_with(Exit::Target)?;
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        let mut replies = Vec::with_capacity(sessions.len());
        for session in sessions {
            let turns = 0..u32::try_from(session.turns.len()).unwrap_or(u32::MAX);
            let texts =
                turns.map(|turn| heard.remove(&TurnId { group: session.group, session: session.session, turn }));
            let Some(texts) = texts.collect::<Option<Vec<String>>>() else {
                let why = seen.failure.unwrap_or_else(|| "was not sent".to_owned());
                let why = format!("no history can be recorded, a turn failed {why}");
                return Err(TargetError::refused(&self.site.base, why)).exit_with(Exit::Target);
            };
            replies.push(texts);
        }
        Ok(replies)
    }
}
