//! Routing keys: equal in every arm, because they come from the plan and not from the clock.

use super::plan::Plan;
use super::seed::derive;
use crate::profile::KeyScope;

impl Plan {
    /// The routing key of a turn: `g` and 16 hex digits of xxh3-64 over seed, salt, scope and those of group, session
    /// and turn that the scope tells apart; `None` when turns carry no key.
    #[must_use]
    pub fn key(&self, group: u32, session: u32, turn: u32) -> Option<String> {
        let (group, session, turn) = (u64::from(group), u64::from(session), u64::from(turn));
        let (scope, indices) = match self.key.by {
            KeyScope::Group => ("group", [group, 0, 0]),
            KeyScope::Session => ("session", [group, session, 0]),
            KeyScope::Turn => ("turn", [group, session, turn]),
            KeyScope::None => return None,
        };
        let salted = derive(self.workload.seed, "key", &[self.key.salt]);
        Some(format!("g{:016x}", derive(salted, scope, &indices)))
    }
}
