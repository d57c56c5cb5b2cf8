//! Sessions that run before the measured ones: as long as they, and unlike them in every prompt and key.

use std::time::Duration;

use super::plan::{Plan, SessionPlan};
use super::seed::derive;

impl Plan {
    /// A plan of `sessions` sessions that measures nothing: the lengths and arrivals of the first sessions of this one (in
    /// laps when it has fewer), but texts and keys of another seed, so that nothing it leaves in a cache is found later.
    ///
    /// The digest is empty: a warm-up is compared with nothing.
    #[must_use]
    pub fn warmup(&self, sessions: u32) -> Self {
        let lap = u32::try_from(self.sessions.len()).unwrap_or(u32::MAX).max(1);
        let lap_time = self.sessions.last().and_then(|session| session.arrival);
        let copies = (0..sessions).filter_map(|at| {
            let copy = self.sessions.get((at % lap) as usize)?;
            let laps = at / lap;
            Some(SessionPlan {
                // A session's number is below that of all sessions, so that laps never meet.
                session: copy.session.saturating_add(laps.saturating_mul(lap)),
                arrival: copy.arrival.map(|arrival| arrival + lap_time.unwrap_or(Duration::ZERO) * laps),
                ..copy.clone()
            })
        });
        let mut plan = Self { sessions: copies.collect(), digest: String::new(), ..self.clone() };
        plan.workload.seed = derive(self.workload.seed, "warmup", &[]);
        plan
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use crate::profile::sample::spec;
    use crate::profile::{Gaps, KeyScope, Pacing};
    use crate::text::Vocabulary;
    use crate::workload::{Plan, Prompter, plan};

    fn prompts_and_keys(plan: &Plan) -> (BTreeSet<String>, BTreeSet<String>) {
        let prompter = Prompter::new(Arc::new(plan.clone()), Arc::new(Vocabulary::words()));
        let keys = plan.sessions.iter().map(|s| plan.key(s.group, s.session, 0).unwrap());
        ((0..plan.sessions.len()).map(|at| prompter.prompt(at, 0, &[]).text()).collect(), keys.collect())
    }

    #[test]
    fn no_warmup_prompt_or_key_equals_a_measured_one_and_lengths_are_the_same() {
        for by in [KeyScope::Group, KeyScope::Session, KeyScope::Turn] {
            let mut spec = spec(3, 4, 1, 40, 8, 5);
            (spec.key.by, spec.workload.question_tokens.min) = (by, 3);
            let measured = plan(&spec, &Vocabulary::words()).unwrap();
            let warmup = measured.warmup(30);
            let ((prompts, keys), (warm_prompts, warm_keys)) = (prompts_and_keys(&measured), prompts_and_keys(&warmup));
            assert_eq!(warm_prompts.len(), 30, "laps repeat nothing");
            assert!(prompts.is_disjoint(&warm_prompts) && keys.is_disjoint(&warm_keys));
            assert_eq!(warmup.prompt_tokens(14, 0), measured.prompt_tokens(2, 0));
        }
    }

    #[test]
    fn arrivals_go_on_from_lap_to_lap() {
        let mut spec = spec(1, 4, 1, 40, 8, 5);
        spec.load.pacing = Pacing::Open { per_second: 2.0, gaps: Gaps::Gamma(1.0), sessions: None };
        let warmup = plan(&spec, &Vocabulary::words()).unwrap().warmup(9);
        assert!(warmup.sessions.iter().map(|session| session.arrival.unwrap()).is_sorted());
    }
}
