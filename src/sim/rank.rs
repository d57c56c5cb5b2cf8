//! One data-parallel rank: its queue, its running batch and its share of the KV cache.
//!
//! A rank plans a step and later commits it; how long the step takes is the engine's business. Prompts become visible to
//! others when their chunk is committed, so two requests of one step never share. A request is admitted only when its
//! whole remaining need fits, which is why nothing is ever retracted.

use std::collections::VecDeque;
use std::time::Duration;

use super::cache::{NodeId, PrefixCache};
use super::job::{Event, Job, JobId};

/// The limits of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Prefill tokens in one step.
    pub chunk: u32,
    pub kv_tokens: u64,
    pub page: u32,
    pub max_running: u32,
}

/// What the rank tells the DP controller, and when it said so.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    pub at: Duration,
    pub running: u32,
    pub waiting: u32,
    /// Slots that live requests hold, each shared prefix once.
    pub used_tokens: u64,
    /// Plus the full length of what waits.
    pub total_tokens: u64,
}

/// Counters since the start, and gauges of now.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Counts {
    pub running: u64,
    pub waiting: u64,
    pub waiting_tokens: u64,
    pub used_tokens: u64,
    pub free_tokens: u64,
    pub evictable_tokens: u64,
    pub evicted_tokens: u64,
    pub prefill_input: u64,
    pub prefill_hit: u64,
    /// Steps in which this rank prefilled, whole.
    pub prefill_busy: Duration,
    pub decoded: u64,
    pub last_hit_rate: f64,
}

#[derive(Debug)]
struct Active {
    job: Job,
    cached: usize,
    /// Tokens of prompt and output whose KV has a slot.
    computed: usize,
    /// How many of them are in the tree and pinned by `node`.
    shared: usize,
    node: NodeId,
    generated: usize,
    is_aborted: bool,
}

impl Active {
    /// Slots that it will still take: the KV of the last output token never exists.
    fn outstanding(&self) -> usize {
        (self.job.prompt.len() + self.job.output.len() - 1).saturating_sub(self.computed)
    }

    fn private(&self) -> usize {
        self.computed - self.shared
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Work {
    #[default]
    Idle,
    Prefill,
    Decode,
}

/// What a planned step adds to the load of the whole fleet.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) prefill: u64,
    pub(super) decode: u64,
}

/// A rank between or within steps.
#[derive(Debug)]
pub(super) struct RankState {
    id: u16,
    limits: Limits,
    cache: PrefixCache,
    inbox: VecDeque<Job>,
    waiting: VecDeque<Job>,
    /// In this step's prefill batch; between steps at most one, whose prompt is cut by the chunk.
    prefilling: Vec<Active>,
    running: Vec<Active>,
    work: Work,
    /// Slots of live requests outside the tree.
    private: usize,
    published: Snapshot,
    steps_since_published: u32,
    counts: Counts,
}

/// Decode steps between two load snapshots (SGLang's `--load-snapshot-publish-interval`).
const PUBLISH_EVERY: u32 = 15;

impl RankState {
    #[must_use]
    pub(super) fn new(id: u16, limits: Limits) -> Self {
        Self {
            id,
            limits,
            cache: PrefixCache::new(limits.page as usize),
            inbox: VecDeque::new(),
            waiting: VecDeque::new(),
            prefilling: vec![],
            running: vec![],
            work: Work::Idle,
            private: 0,
            published: Snapshot::default(),
            steps_since_published: 0,
            counts: Counts::default(),
        }
    }

    /// Counts the step that was planned, once its length is known.
    pub(super) fn spend(&mut self, took: Duration) {
        if self.work == Work::Prefill {
            self.counts.prefill_busy += took;
        }
    }

    /// Puts a request into the socket; the scheduler sees it at the next step.
    pub(super) fn receive(&mut self, job: Job) {
        self.inbox.push_back(job);
    }

    /// When the next unseen request arrives.
    #[must_use]
    pub(super) fn next_arrival(&self) -> Option<Duration> {
        self.inbox.front().map(|job| job.arrival)
    }

    /// No request anywhere on this rank.
    #[must_use]
    pub(super) fn is_idle(&self) -> bool {
        self.inbox.is_empty() && self.waiting.is_empty() && self.prefilling.is_empty() && self.running.is_empty()
    }

    /// Empties the cache if the rank is idle; says whether it was.
    pub(super) fn flush(&mut self) -> bool {
        let is_idle = self.is_idle();
        if is_idle {
            self.cache.clear();
        }
        is_idle
    }

    /// Drops a request: at once when it waits, at the next commit when it runs. Says whether it was here.
    pub(super) fn abort(&mut self, id: JobId) -> bool {
        let before = self.inbox.len() + self.waiting.len();
        self.inbox.retain(|job| job.id != id);
        self.waiting.retain(|job| job.id != id);
        let running = self.prefilling.iter_mut().chain(&mut self.running).find(|active| active.job.id == id);
        if let Some(active) = running {
            active.is_aborted = true;
            return true;
        }
        before != self.inbox.len() + self.waiting.len()
    }

    /// Decides the next step: prefill first (the cut prompt, then first come first served), else decode.
    pub(super) fn plan(&mut self, now: Duration, events: &mut Vec<Event>) -> Share {
        while self.inbox.front().is_some_and(|job| job.arrival <= now) {
            self.waiting.extend(self.inbox.pop_front());
        }
        let prefill = self.plan_prefill(now, events);
        if prefill > 0 {
            self.work = Work::Prefill;
            return Share { prefill, decode: 0 };
        }
        self.work = if self.running.is_empty() { Work::Idle } else { Work::Decode };
        for index in 0..self.running.len() {
            // The new token's predecessor gets its KV in this step.
            self.allocate(1);
            self.running[index].computed += 1;
        }
        Share { prefill: 0, decode: self.running.len() as u64 }
    }

    fn plan_prefill(&mut self, now: Duration, events: &mut Vec<Event>) -> u64 {
        let mut budget = self.limits.chunk as usize;
        let (mut input, mut hit) = (0, 0);
        if let Some(cut) = self.prefilling.first() {
            let tokens = budget.min(cut.job.prompt.len() - cut.computed);
            self.allocate(tokens);
            self.prefilling[0].computed += tokens;
            budget -= tokens;
            input += tokens;
        }
        while budget > 0 && self.running.len() + self.prefilling.len() < self.limits.max_running as usize {
            let Some(active) = self.admit() else { break };
            let tokens = budget.min(active.job.prompt.len() - active.cached);
            let (job, cached) = (active.job.id, active.cached);
            let queued = now.saturating_sub(active.job.arrival);
            events.push(Event::Admitted { job, rank: self.id, cached: count(cached), queued });
            self.prefilling.push(active);
            self.allocate(tokens);
            if let Some(last) = self.prefilling.last_mut() {
                last.computed += tokens;
            }
            budget -= tokens;
            input += tokens;
            hit += cached;
        }
        self.counts.prefill_input += input as u64;
        self.counts.prefill_hit += hit as u64;
        if input > 0 {
            self.counts.last_hit_rate = ratio(hit, input + hit);
        }
        input as u64
    }

    /// Takes the first waiting request if all that it will need fits; pins what is cached of its prompt. The last prompt
    /// token is always computed, since its output is the first new token.
    fn admit(&mut self) -> Option<Active> {
        let job = self.waiting.front()?;
        let found = self.cache.longest_prefix(&job.prompt[..job.prompt.len() - 1]);
        let need = job.prompt.len() - found.tokens + job.output.len();
        self.cache.lock(found.node);
        let reserved: usize = self.prefilling.iter().chain(&self.running).map(Active::outstanding).sum();
        if self.free() + self.cache.evictable() < reserved + need {
            self.cache.unlock(found.node);
            return None;
        }
        let job = self.waiting.pop_front()?;
        let (cached, node) = (found.tokens, found.node);
        Some(Active { job, cached, computed: cached, shared: cached, node, generated: 0, is_aborted: false })
    }

    fn allocate(&mut self, tokens: usize) {
        let free = self.free();
        if free < tokens {
            self.cache.evict(tokens - free);
        }
        self.private += tokens;
    }

    fn free(&self) -> usize {
        let held = self.cache.locked() + self.cache.evictable() + self.private;
        usize::try_from(self.limits.kv_tokens).unwrap_or(usize::MAX).saturating_sub(held)
    }

    /// Ends the step: publishes the load as it was before (as SGLang does), then the tokens.
    pub(super) fn commit(&mut self, now: Duration, events: &mut Vec<Event>) {
        self.steps_since_published += 1;
        if self.work == Work::Prefill || self.steps_since_published >= PUBLISH_EVERY {
            self.publish(now);
        }
        match self.work {
            Work::Idle => {}
            Work::Prefill => self.commit_prefill(events),
            Work::Decode => self.commit_decode(events),
        }
    }

    fn commit_prefill(&mut self, events: &mut Vec<Event>) {
        for mut active in std::mem::take(&mut self.prefilling) {
            let is_cut = active.computed < active.job.prompt.len();
            if active.is_aborted {
                self.release(active);
            } else if is_cut {
                self.share(&mut active);
                self.prefilling.push(active);
            } else {
                self.share(&mut active);
                self.emit(active, events);
            }
        }
    }

    fn commit_decode(&mut self, events: &mut Vec<Event>) {
        for active in std::mem::take(&mut self.running) {
            if active.is_aborted {
                self.release(active);
            } else {
                self.counts.decoded += 1;
                self.emit(active, events);
            }
        }
    }

    /// Gives out one token; the request then goes on, or leaves with its last one.
    fn emit(&mut self, mut active: Active, events: &mut Vec<Event>) {
        active.generated += 1;
        let is_last = active.generated == active.job.output.len();
        events.push(Event::Token { job: active.job.id, index: count(active.generated), is_last });
        if is_last {
            self.release(active);
        } else {
            self.running.push(active);
        }
    }

    /// Leaves what was computed to the cache, for others to find or evict.
    fn release(&mut self, mut active: Active) {
        self.share(&mut active);
        self.cache.unlock(active.node);
        self.private -= active.private();
    }

    /// Puts the computed tokens into the tree and pins them. Slots of what the tree held already are freed.
    fn share(&mut self, active: &mut Active) {
        let prompt = &active.job.prompt;
        let inserted = if active.computed <= prompt.len() {
            self.cache.insert(&prompt[..active.computed])
        } else {
            let output = &active.job.output[..active.computed - prompt.len()];
            self.cache.insert(&[prompt, output].concat())
        };
        self.cache.lock(inserted.node);
        self.cache.unlock(active.node);
        active.node = inserted.node;
        self.private -= inserted.tokens - active.shared;
        active.shared = inserted.tokens;
    }

    /// Writes the load where the controller reads it.
    pub(super) fn publish(&mut self, now: Duration) {
        self.steps_since_published = 0;
        let used_tokens = (self.cache.locked() + self.private) as u64;
        self.published = Snapshot {
            at: now,
            running: count(self.running.len()),
            waiting: count(self.waiting.len()),
            used_tokens,
            total_tokens: used_tokens + self.waiting_tokens(),
        };
    }

    /// The last published load.
    #[must_use]
    pub(super) fn published(&self) -> Snapshot {
        self.published
    }

    fn waiting_tokens(&self) -> u64 {
        self.waiting.iter().map(|job| job.prompt.len() as u64).sum()
    }

    #[must_use]
    pub(super) fn counts(&self) -> Counts {
        Counts {
            running: (self.running.len() + self.prefilling.len()) as u64,
            waiting: (self.waiting.len() + self.inbox.len()) as u64,
            waiting_tokens: self.waiting_tokens(),
            used_tokens: (self.cache.locked() + self.private) as u64,
            free_tokens: self.free() as u64,
            evictable_tokens: self.cache.evictable() as u64,
            evicted_tokens: self.cache.evicted(),
            ..self.counts
        }
    }
}

fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^53")]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}
