//! The pure step machine: N ranks that begin and end every step together.
//!
//! No clock and no sockets: the caller asks for a step at an instant, lets its duration pass, and commits it. Between the
//! two, requests may arrive and be aborted. Same calls, same events.

use std::time::Duration;

use super::cost::{Costs, Load};
use super::job::{Event, Job, JobId};
use super::rank::{Counts, Limits, RankState, Snapshot};

/// N ranks in lock-step.
#[derive(Debug)]
pub struct Engine {
    costs: Costs,
    ranks: Vec<RankState>,
    is_stepping: bool,
    steps: u64,
}

impl Engine {
    #[must_use]
    pub fn new(ranks: u16, limits: Limits, costs: Costs) -> Self {
        let ranks = (0..ranks).map(|id| RankState::new(id, limits)).collect();
        Self { costs, ranks, is_stepping: false, steps: 0 }
    }

    /// Hands a request to a rank; it is seen by the first step that begins at or after its arrival.
    pub fn submit(&mut self, rank: u16, job: Job) {
        debug_assert!(
            !job.prompt.is_empty() && !job.output.is_empty(),
            "the front end refuses empty prompts and replies"
        );
        self.ranks[usize::from(rank)].receive(job);
    }

    /// Plans a step on all ranks and says how long it takes; `None` when there is nothing to do now.
    pub fn begin(&mut self, now: Duration, events: &mut Vec<Event>) -> Option<Duration> {
        debug_assert!(!self.is_stepping, "begin within a step");
        let ranks = u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        let mut load = Load { ranks, ..Load::default() };
        for rank in &mut self.ranks {
            let share = rank.plan(now, events);
            load.prefilling |= share.prefill > 0;
            load.tokens += share.prefill + share.decode;
            load.fullest = load.fullest.max(share.decode);
        }
        if load.tokens == 0 {
            // An idle scheduler publishes all the time, so what the controller reads is never stale.
            self.ranks.iter_mut().for_each(|rank| rank.publish(now));
            return None;
        }
        self.is_stepping = true;
        let took = self.costs.duration(&load);
        self.ranks.iter_mut().for_each(|rank| rank.spend(took));
        Some(took)
    }

    /// Ends the step that was begun: tokens come out and computed prompts become visible.
    pub fn commit(&mut self, now: Duration, events: &mut Vec<Event>) {
        debug_assert!(self.is_stepping, "commit without begin");
        self.is_stepping = false;
        self.steps += 1;
        self.ranks.iter_mut().for_each(|rank| rank.commit(now, events));
    }

    /// When the next request arrives that no step has seen yet.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Duration> {
        self.ranks.iter().filter_map(RankState::next_arrival).min()
    }

    /// Drops a request and its locks. Says whether it was still here.
    pub fn abort(&mut self, id: JobId) -> bool {
        self.ranks.iter_mut().any(|rank| rank.abort(id))
    }

    /// Empties the cache of a rank that is idle; says whether it was.
    pub fn flush(&mut self, rank: u16) -> bool {
        self.ranks[usize::from(rank)].flush()
    }

    /// What each rank last told the controller.
    pub fn published(&self) -> impl Iterator<Item = Snapshot> + '_ {
        self.ranks.iter().map(RankState::published)
    }

    /// What each rank counts.
    pub fn counts(&self) -> impl Iterator<Item = Counts> + '_ {
        self.ranks.iter().map(RankState::counts)
    }

    /// Steps committed.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::cost::Preset;
    use super::*;

    fn limits(chunk: u32, kv_tokens: u64, page: u32) -> Limits {
        Limits { chunk, kv_tokens, page, max_running: 64 }
    }

    fn engine(ranks: u16, limits: Limits) -> Engine {
        Engine::new(ranks, limits, Preset::find("qwen3.5-122b-8xh100-pr31170").unwrap().costs)
    }

    fn job(id: u64, prompt: &[u32], output: u32) -> Job {
        let output: Arc<[u32]> = (0..output).map(|index| 1_000_000 + index).collect();
        Job { id: JobId(id), prompt: prompt.into(), output, arrival: Duration::ZERO }
    }

    /// Steps until nothing is left; returns the events with the instant of each step's end.
    fn drain(engine: &mut Engine, mut now: Duration) -> Vec<(Duration, Event)> {
        let (mut log, mut events) = (vec![], vec![]);
        while let Some(took) = engine.begin(now, &mut events) {
            log.extend(events.drain(..).map(|event| (now, event)));
            now += took;
            engine.commit(now, &mut events);
            log.extend(events.drain(..).map(|event| (now, event)));
        }
        log
    }

    fn cached(log: &[(Duration, Event)]) -> BTreeMap<u64, u32> {
        let admitted = log.iter().filter_map(|(_, event)| match event {
            Event::Admitted { job, cached, .. } => Some((job.0, *cached)),
            Event::Token { .. } => None,
        });
        admitted.collect()
    }

    #[test]
    fn a_lone_cold_prompt_takes_its_chunks_and_then_a_step_a_token() {
        let mut engine = engine(8, limits(1024, 100_000, 1));
        let prompt: Vec<u32> = (0..4096).collect();
        engine.submit(0, job(1, &prompt, 3));
        let times: Vec<_> = drain(&mut engine, Duration::ZERO).iter().map(|(at, _)| at.as_micros()).collect();
        let (prefill, decode) = (4 * (42_000 + 1024 * 100), 6_000 + 8 * 100);
        assert_eq!(times, [0, prefill, prefill + decode, prefill + 2 * decode]);
    }

    #[test]
    fn time_in_prefill_is_counted_on_the_rank_that_prefills() {
        let mut engine = engine(2, limits(1024, 100_000, 1));
        engine.submit(0, job(1, &(0..4096).collect::<Vec<_>>(), 3));
        let _ = drain(&mut engine, Duration::ZERO);
        let busy: Vec<_> = engine.counts().map(|counts| counts.prefill_busy.as_micros()).collect();
        assert_eq!(busy, [4 * (42_000 + 1024 * 100), 0]);
    }

    #[test]
    fn prefill_on_one_rank_stalls_decoding_on_all_others() {
        let mut engine = engine(2, limits(1024, 100_000, 1));
        engine.submit(0, job(1, &[1, 2, 3], 3));
        let mut events = vec![];
        let took = engine.begin(Duration::ZERO, &mut events).unwrap();
        engine.commit(took, &mut events);
        engine.submit(1, job(2, &(0..500).collect::<Vec<_>>(), 1));
        let took = engine.begin(took, &mut events).unwrap();
        assert_eq!(took, Duration::from_micros(42_000 + (500 + 1) * 100), "eager, and the sum of 500 and 1 tokens");
    }

    #[test]
    fn the_last_prompt_token_is_computed_even_if_all_is_cached() {
        let mut engine = engine(1, limits(1024, 100_000, 1));
        engine.submit(0, job(1, &[1, 2, 3, 4], 2));
        let _ = drain(&mut engine, Duration::ZERO);
        engine.submit(0, job(2, &[1, 2, 3, 4], 1));
        assert_eq!(cached(&drain(&mut engine, Duration::ZERO))[&2], 3);
    }

    #[test]
    fn a_reply_is_cached_but_for_its_last_token() {
        let mut engine = engine(1, limits(1024, 100_000, 1));
        let first = job(1, &[1, 2, 3, 4], 10);
        let history = [&first.prompt[..], &first.output[..], &[7, 8]].concat();
        engine.submit(0, first);
        let _ = drain(&mut engine, Duration::ZERO);
        engine.submit(0, job(2, &history, 1));
        assert_eq!(cached(&drain(&mut engine, Duration::ZERO))[&2], 4 + 10 - 1);
    }

    #[test]
    fn requests_of_one_step_do_not_share_but_a_chunk_is_visible_to_the_next_step() {
        let mut engine = engine(1, limits(8, 100_000, 1));
        let prompt: Vec<u32> = (0..8).collect();
        for id in 1..=3 {
            engine.submit(0, job(id, &prompt[..4], 1));
        }
        let cached = cached(&drain(&mut engine, Duration::ZERO));
        assert_eq!((cached[&1], cached[&2]), (0, 0), "both fit into the first step");
        assert_eq!(cached[&3], 3);
    }

    #[test]
    fn an_abort_frees_all_that_the_request_held() {
        let mut engine = engine(1, limits(4, 100, 1));
        engine.submit(0, job(1, &[1, 2, 3, 4, 5, 6, 7, 8], 50));
        engine.submit(0, job(2, &[9, 9, 9], 45));
        let mut events = vec![];
        let took = engine.begin(Duration::ZERO, &mut events).unwrap();
        assert!(engine.abort(JobId(1)) && engine.abort(JobId(2)) && !engine.abort(JobId(3)));
        engine.commit(took, &mut events);
        let counts = engine.counts().next().unwrap();
        assert_eq!((counts.running, counts.waiting, counts.used_tokens), (0, 0, 0));
        assert_eq!(counts.evictable_tokens, 4, "the chunk that was computed stays for others");
        assert_eq!(engine.begin(took, &mut events), None);
    }

    #[test]
    fn what_does_not_fit_waits_until_it_does() {
        let mut engine = engine(1, limits(1024, 40, 1));
        engine.submit(0, job(1, &[1; 20], 10));
        engine.submit(0, job(2, &[2; 20], 10));
        let log = drain(&mut engine, Duration::ZERO);
        let last_of_first =
            log.iter().position(|(_, event)| matches!(event, Event::Token { job: JobId(1), is_last: true, .. }));
        let second = log.iter().position(|(_, event)| matches!(event, Event::Admitted { job: JobId(2), .. }));
        assert!(last_of_first < second);
        assert!(engine.counts().next().unwrap().evicted_tokens > 0);
    }

    proptest! {
        #[test]
        fn requests_tokens_and_slots_are_conserved(
            page in 1_u32..5,
            chunk in 1_u32..40,
            kv_tokens in 60_u64..200,
            jobs in prop::collection::vec((0_u16..3, prop::collection::vec(0_u32..3, 1..30), 1_u32..12, any::<bool>()), 1..30),
        ) {
            let run = || {
                let mut engine = engine(3, limits(chunk, kv_tokens, page));
                let mut aborted = vec![];
                for (id, (rank, prompt, output, is_aborted)) in (0..).zip(&jobs) {
                    engine.submit(*rank, job(id, prompt, *output));
                    if *is_aborted && id % 3 == 0 {
                        aborted.push(JobId(id));
                    }
                }
                let (mut now, mut events, mut log) = (Duration::ZERO, vec![], vec![]);
                while let Some(took) = engine.begin(now, &mut events) {
                    now += took;
                    if let Some(id) = aborted.pop() {
                        engine.abort(id);
                    }
                    engine.commit(now, &mut events);
                    log.extend(events.drain(..).map(|event| (now, event)));
                    for counts in engine.counts() {
                        let held = counts.used_tokens + counts.evictable_tokens + counts.free_tokens;
                        assert_eq!(held, kv_tokens, "slots are used, evictable or free");
                    }
                }
                (engine, log)
            };
            let (engine, log) = run();
            for counts in engine.counts() {
                prop_assert_eq!((counts.running, counts.waiting, counts.used_tokens), (0, 0, 0));
            }
            let cached = cached(&log);
            for (id, (_, prompt, output, is_aborted)) in (0_u64..).zip(&jobs) {
                let tokens: Vec<u32> = log.iter().filter_map(|(_, event)| match event {
                    Event::Token { job, index, .. } if job.0 == id => Some(*index),
                    _ => None,
                }).collect();
                prop_assert!(tokens.iter().copied().eq(1..=u32::try_from(tokens.len()).unwrap()));
                if !(*is_aborted && id % 3 == 0) {
                    prop_assert_eq!(tokens.len(), *output as usize);
                    prop_assert!((cached[&id] as usize) < prompt.len());
                }
            }
            if jobs.iter().all(|(.., is_aborted)| !is_aborted) {
                let prompts: u64 = jobs.iter().map(|(_, prompt, ..)| prompt.len() as u64).sum();
                let computed: u64 = engine.counts().map(|counts| counts.prefill_input + counts.prefill_hit).sum();
                prop_assert_eq!(computed, prompts);
            }
            prop_assert_eq!(format!("{log:?}"), format!("{:?}", run().1), "same calls, same events");
        }
    }
}
