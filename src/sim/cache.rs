//! The prefix cache of one rank: a radix tree over token ids, as SGLang keeps it.
//!
//! Running requests pin the path from the root to their node; what is not pinned can be evicted, whole leaves first, the
//! least recently used one first. Lengths are floored to the page size. The tree knows nothing of requests or of time:
//! recency is a counter.

use std::collections::{BTreeSet, HashMap};

/// A node of the tree; valid as long as the node is locked, or until the next eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(usize);

const ROOT: NodeId = NodeId(0);

#[derive(Debug)]
struct Node {
    /// The tokens on the edge from the parent; empty for the root alone.
    edge: Vec<u32>,
    parent: NodeId,
    /// By the first page of the child's edge. Never iterated, so that its order cannot matter.
    children: HashMap<Box<[u32]>, NodeId>,
    /// Running requests whose path goes through here.
    locks: u32,
    used: u64,
}

/// How much of a prompt is held, and by which node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) node: NodeId,
    pub(super) tokens: usize,
}

/// What an insertion did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inserted {
    pub(super) node: NodeId,
    /// Length of the sequence that the tree now holds: the input floored to the page size.
    pub(super) tokens: usize,
    /// How many of them it did not hold before.
    pub(super) new: usize,
}

/// The tree and its counts in tokens.
#[derive(Debug)]
pub(super) struct PrefixCache {
    page: usize,
    nodes: Vec<Node>,
    vacant: Vec<NodeId>,
    /// Unlocked leaves, least recently used first.
    candidates: BTreeSet<(u64, NodeId)>,
    ticks: u64,
    tokens: usize,
    locked: usize,
    evicted: u64,
}

impl PrefixCache {
    /// An empty tree that shares whole pages of `page` tokens (at least 1).
    #[must_use]
    pub(super) fn new(page: usize) -> Self {
        let root = Node { edge: vec![], parent: ROOT, children: HashMap::new(), locks: 1, used: 0 };
        let (vacant, candidates) = (vec![], BTreeSet::new());
        Self { page: page.max(1), nodes: vec![root], vacant, candidates, ticks: 0, tokens: 0, locked: 0, evicted: 0 }
    }

    /// Tokens in the tree that running requests pin.
    #[must_use]
    pub(super) fn locked(&self) -> usize {
        self.locked
    }

    /// Tokens in the tree that could be evicted (parents follow their children).
    #[must_use]
    pub(super) fn evictable(&self) -> usize {
        self.tokens - self.locked
    }

    /// Tokens evicted since the start.
    #[must_use]
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The longest held prefix of `prompt`, whole pages only. Refreshes the path and splits a node that matches in part.
    pub(super) fn longest_prefix(&mut self, prompt: &[u32]) -> Match {
        let (node, tokens) = self.walk(prompt);
        Match { node, tokens }
    }

    /// Holds all whole pages of `sequence`; the part that is new becomes one leaf.
    pub(super) fn insert(&mut self, sequence: &[u32]) -> Inserted {
        let whole = &sequence[..self.floor(sequence.len())];
        let (mut node, held) = self.walk(whole);
        let rest = &whole[held..];
        if !rest.is_empty() {
            let parent = node;
            self.candidates.remove(&(self.nodes[parent.0].used, parent));
            self.ticks += 1;
            let leaf = Node { edge: rest.to_vec(), parent, children: HashMap::new(), locks: 0, used: self.ticks };
            node = self.add(leaf);
            self.nodes[parent.0].children.insert(rest[..self.page].into(), node);
            self.tokens += rest.len();
            self.candidates.insert((self.ticks, node));
        }
        Inserted { node, tokens: whole.len(), new: rest.len() }
    }

    /// Pins the path from the root to `node`.
    pub(super) fn lock(&mut self, mut node: NodeId) {
        while node != ROOT {
            let entry = &mut self.nodes[node.0];
            if entry.locks == 0 {
                self.locked += entry.edge.len();
                self.candidates.remove(&(entry.used, node));
            }
            entry.locks += 1;
            node = entry.parent;
        }
    }

    /// Takes back one `lock` of the same node.
    pub(super) fn unlock(&mut self, mut node: NodeId) {
        while node != ROOT {
            let entry = &mut self.nodes[node.0];
            debug_assert!(entry.locks > 0, "unlock without lock");
            entry.locks -= 1;
            let parent = entry.parent;
            if entry.locks == 0 {
                self.locked -= entry.edge.len();
                self.offer(node);
            }
            node = parent;
        }
    }

    /// Evicts whole leaves until at least `wanted` tokens are freed or nothing unlocked is left. Says how many were freed.
    pub(super) fn evict(&mut self, wanted: usize) -> usize {
        let mut freed = 0;
        while freed < wanted {
            let Some((_, id)) = self.candidates.pop_first() else { break };
            freed += self.remove(id);
        }
        self.evicted += freed as u64;
        freed
    }

    /// Forgets everything. Only for a rank without running requests.
    pub(super) fn clear(&mut self) {
        let (evicted, page) = (self.evicted, self.page);
        *self = Self::new(page);
        self.evicted = evicted;
    }

    /// Length of the whole pages in `tokens`.
    #[must_use]
    pub(super) fn floor(&self, tokens: usize) -> usize {
        tokens / self.page * self.page
    }

    fn walk(&mut self, prompt: &[u32]) -> (NodeId, usize) {
        let (mut node, mut held) = (ROOT, 0);
        while let Some(first) = prompt.get(held..held + self.page) {
            let Some(&child) = self.nodes[node.0].children.get(first) else { break };
            let edge = &self.nodes[child.0].edge;
            let same = edge.iter().zip(&prompt[held..]).take_while(|(a, b)| a == b).count();
            let same = self.floor(same);
            held += same;
            node = if same < edge.len() { self.split(child, same) } else { child };
            self.touch(node);
        }
        (node, held)
    }

    fn touch(&mut self, id: NodeId) {
        self.ticks += 1;
        let old = std::mem::replace(&mut self.nodes[id.0].used, self.ticks);
        if self.candidates.remove(&(old, id)) {
            self.candidates.insert((self.ticks, id));
        }
    }

    /// Puts the first `at` tokens of a node's edge on a new parent. The old id keeps the tail, so that locks held by id
    /// still pin the whole path.
    fn split(&mut self, id: NodeId, at: usize) -> NodeId {
        let (parent, locks, used) = {
            let node = &self.nodes[id.0];
            (node.parent, node.locks, node.used)
        };
        let tail = self.nodes[id.0].edge.split_off(at);
        let head = std::mem::replace(&mut self.nodes[id.0].edge, tail);
        let (first, next) = (head[..self.page].into(), self.nodes[id.0].edge[..self.page].into());
        let upper = self.add(Node { edge: head, parent, children: HashMap::from([(next, id)]), locks, used });
        self.nodes[id.0].parent = upper;
        self.nodes[parent.0].children.insert(first, upper);
        upper
    }

    fn add(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.vacant.pop() {
            self.nodes[id.0] = node;
            return id;
        }
        self.nodes.push(node);
        NodeId(self.nodes.len() - 1)
    }

    /// Makes a node a candidate for eviction if it is an unlocked leaf.
    fn offer(&mut self, id: NodeId) {
        let node = &self.nodes[id.0];
        if id != ROOT && node.locks == 0 && node.children.is_empty() {
            self.candidates.insert((node.used, id));
        }
    }

    fn remove(&mut self, id: NodeId) -> usize {
        let edge = std::mem::take(&mut self.nodes[id.0].edge);
        let parent = self.nodes[id.0].parent;
        self.nodes[parent.0].children.remove(&edge[..self.page]);
        self.vacant.push(id);
        self.tokens -= edge.len();
        self.offer(parent);
        edge.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_prefix_is_found_after_a_split_and_both_tails_stay() {
        let mut cache = PrefixCache::new(1);
        assert_eq!(cache.insert(&[1, 2, 3, 4]).new, 4);
        assert_eq!(cache.insert(&[1, 2, 8, 9]).new, 2);
        assert_eq!(cache.longest_prefix(&[1, 2, 3, 7]).tokens, 3);
        assert_eq!(cache.longest_prefix(&[1, 2, 8, 9, 5]).tokens, 4);
        assert_eq!(cache.evictable(), 6);
    }

    #[test]
    fn pages_are_shared_whole_or_not_at_all() {
        let mut cache = PrefixCache::new(4);
        assert_eq!(cache.insert(&[1, 2, 3, 4, 5, 6]), Inserted { node: NodeId(1), tokens: 4, new: 4 });
        assert_eq!(cache.longest_prefix(&[1, 2, 3, 9]).tokens, 0);
        cache.insert(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(cache.longest_prefix(&[1, 2, 3, 4, 5, 6, 7, 9]).tokens, 4);
        assert_eq!(cache.longest_prefix(&[1, 2, 3, 4, 5, 6, 7, 8, 9]).tokens, 8);
    }

    #[test]
    fn the_least_recently_used_leaf_goes_first_whole_and_its_parent_follows() {
        let mut cache = PrefixCache::new(1);
        cache.insert(&[1, 2, 3]);
        cache.insert(&[1, 2, 4, 5]);
        cache.insert(&[9]);
        cache.longest_prefix(&[1, 2, 3]);
        assert_eq!(cache.evict(1), 2, "the leaf 4 5 is the oldest and goes whole");
        assert_eq!(cache.evict(1), 1, "then 9");
        assert_eq!(cache.longest_prefix(&[1, 2, 3]).tokens, 3);
        assert_eq!(cache.evict(2), 3, "the leaf 3, and then its childless parent");
        assert_eq!((cache.evictable(), cache.evicted()), (0, 6));
    }

    #[test]
    fn a_lock_pins_the_whole_path_through_a_later_split() {
        let mut cache = PrefixCache::new(1);
        let held = cache.insert(&[1, 2, 3, 4]).node;
        cache.lock(held);
        cache.insert(&[1, 2, 7]);
        assert_eq!((cache.locked(), cache.evictable()), (4, 1));
        assert_eq!(cache.evict(99), 1);
        cache.unlock(held);
        assert_eq!((cache.locked(), cache.evict(99)), (0, 4));
    }

    /// What the tree must agree with: the set of held sequences' prefixes, as plain data.
    fn naive_match(held: &[Vec<u32>], prompt: &[u32], page: usize) -> usize {
        let common = |seq: &Vec<u32>| seq.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        held.iter().map(|seq| common(seq) / page * page).max().unwrap_or(0)
    }

    fn naive_tokens(held: &[Vec<u32>], page: usize) -> usize {
        let pages = |seq: &Vec<u32>| (1..=seq.len() / page).map(|n| seq[..n * page].to_vec()).collect::<Vec<_>>();
        held.iter().flat_map(pages).collect::<BTreeSet<_>>().len() * page
    }

    proptest! {
        #[test]
        fn the_tree_holds_exactly_the_prefixes_that_were_inserted(
            page in 1_usize..4,
            sequences in prop::collection::vec(prop::collection::vec(0_u32..3, 0..12), 1..24),
        ) {
            let mut cache = PrefixCache::new(page);
            let mut held: Vec<Vec<u32>> = vec![];
            for sequence in sequences {
                let before = naive_match(&held, &sequence, page);
                prop_assert_eq!(cache.longest_prefix(&sequence).tokens, before);
                let inserted = cache.insert(&sequence);
                prop_assert_eq!(inserted.tokens, sequence.len() / page * page);
                prop_assert_eq!(inserted.new, inserted.tokens - before);
                prop_assert_eq!(cache.longest_prefix(&sequence).tokens, inserted.tokens);
                held.push(sequence);
                prop_assert_eq!(cache.evictable(), naive_tokens(&held, page));
            }
        }

        #[test]
        fn locked_tokens_survive_any_eviction_and_everything_else_goes(
            sequences in prop::collection::vec((prop::collection::vec(0_u32..3, 1..12), any::<bool>()), 1..24),
            wanted in 1_usize..40,
        ) {
            let mut cache = PrefixCache::new(1);
            let mut locked = vec![];
            for (sequence, lock) in sequences {
                let node = cache.insert(&sequence).node;
                if lock {
                    cache.lock(node);
                    locked.push((sequence, node));
                }
            }
            let kept: Vec<_> = locked.iter().map(|(sequence, _)| sequence.clone()).collect();
            let evictable = cache.evictable();
            prop_assert!(cache.evict(wanted) >= wanted.min(evictable));
            cache.evict(usize::MAX);
            prop_assert_eq!((cache.evictable(), cache.locked()), (0, naive_tokens(&kept, 1)));
            for (sequence, node) in locked {
                prop_assert_eq!(cache.longest_prefix(&sequence).tokens, sequence.len());
                cache.unlock(node);
            }
            prop_assert_eq!(cache.locked(), 0);
            cache.evict(usize::MAX);
            prop_assert_eq!(cache.evictable(), 0);
        }
    }
}
