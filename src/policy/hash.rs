//! Hashes of keys and prompts. SGLang does not state the hash of PR #31170, so nobody can foretell a live server's
//! placement from a key; ours is xxh3 of fixed bytes, the same on every machine and in every version.

use std::borrow::Cow;
use std::cmp::Reverse;

use xxhash_rust::xxh3::xxh3_64;

use crate::policy::Affinity;
use crate::units::Rank;

/// Parts the keys made from prompts from those that callers send.
const PROMPT_KEY: &[u8] = b"gspbench prompt\0";

impl Affinity {
    /// What [`rendezvous`] hashes for a request: its routing key if that is not empty, else a digest of the prompt's head,
    /// if that is wanted and there are ids. None: the fallback decides.
    #[must_use]
    pub fn key<'a>(&self, routing_key: Option<&'a str>, prompt: &[u32]) -> Option<Cow<'a, [u8]>> {
        if let Some(key) = routing_key.filter(|key| !key.is_empty()) {
            return Some(Cow::Borrowed(key.as_bytes()));
        }
        if !self.token_fallback || prompt.is_empty() {
            return None;
        }
        let digest = prefix_digest(prompt, self.hash_tokens.get());
        Some(Cow::Owned([PROMPT_KEY, &digest.to_le_bytes()].concat()))
    }
}

/// Live ranks in the order in which a key wants them: descending 64-bit hash of (key ‖ 0x00 ‖ decimal rank id).
///
/// Highest random weight hashing (Thaler and Ravishankar, 1998): each rank's weight depends on its own id alone, so a rank
/// that leaves moves only the keys that it held, and they return with it. Hence ids, never positions in a list.
#[must_use]
pub fn rendezvous(key: &[u8], live: &[Rank]) -> Vec<Rank> {
    let mut bytes = Vec::with_capacity(key.len() + 6);
    bytes.extend_from_slice(key);
    bytes.push(0);
    let mut weighed: Vec<_> = live
        .iter()
        .map(|&rank| {
            bytes.truncate(key.len() + 1);
            bytes.extend_from_slice(rank.to_string().as_bytes());
            (Reverse(xxh3_64(&bytes)), rank)
        })
        .collect();
    weighed.sort_unstable();
    weighed.into_iter().map(|(_, rank)| rank).collect()
}

/// Hash of the first `tokens` ids of a prompt, or of all when it is shorter.
#[must_use]
pub fn prefix_digest(prompt: &[u32], tokens: usize) -> u64 {
    let head = &prompt[..prompt.len().min(tokens)];
    let bytes: Vec<u8> = head.iter().flat_map(|id| id.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranks(n: u16) -> Vec<Rank> {
        (0..n).map(Rank).collect()
    }

    /// The expected values were computed from the definition with another implementation of xxh3 (PyPI's `xxhash`).
    #[test]
    fn the_order_is_the_same_in_every_version_and_on_every_machine() {
        let order = |key: &[u8]| rendezvous(key, &ranks(8)).into_iter().map(|rank| rank.0).collect::<Vec<_>>();
        let affinity = Affinity::default();
        assert_eq!(order(&affinity.key(Some("session-1"), &[]).unwrap()), [2, 0, 3, 4, 1, 5, 6, 7]);
        assert_eq!(order(&affinity.key(None, &[1, 2, 3]).unwrap()), [0, 3, 2, 7, 1, 6, 4, 5]);
        assert_eq!(prefix_digest(&[1, 2, 3], 4096), 0x6bbf_7429_332b_ea48);
    }

    #[test]
    fn an_empty_key_is_none_and_a_prompt_makes_one_only_where_that_is_wanted() {
        let affinity = Affinity::default();
        assert_eq!(affinity.key(Some(""), &[1]), affinity.key(None, &[1]));
        assert_eq!(affinity.key(None, &[]), None);
        assert_eq!(Affinity { token_fallback: false, ..affinity }.key(Some(""), &[1]), None);
    }

    #[test]
    fn a_digest_reads_no_further_than_it_is_told() {
        assert_eq!(prefix_digest(&[1, 2, 3], 2), prefix_digest(&[1, 2, 9, 9], 2));
        assert_ne!(prefix_digest(&[1, 2, 3], 3), prefix_digest(&[1, 2, 9], 3));
        assert_ne!(prefix_digest(&[1], 8), prefix_digest(&[1, 0], 8));
    }

    proptest! {
        #[test]
        fn a_rank_that_leaves_closes_the_gap_and_reorders_no_other(
            key in prop::collection::vec(any::<u8>(), 0..40), n in 1_u16..40, gone in any::<prop::sample::Index>(),
        ) {
            let all = ranks(n);
            let gone = all[gone.index(all.len())];
            let rest: Vec<Rank> = all.iter().copied().filter(|&rank| rank != gone).collect();
            let without: Vec<Rank> = rendezvous(&key, &all).into_iter().filter(|&rank| rank != gone).collect();
            prop_assert_eq!(rendezvous(&key, &rest), without);
        }

        #[test]
        fn the_order_does_not_depend_on_where_a_rank_stands_in_the_list(
            key in "[a-z0-9]{0,20}", mixed in Just(ranks(12)).prop_shuffle(),
        ) {
            prop_assert_eq!(rendezvous(key.as_bytes(), &mixed), rendezvous(key.as_bytes(), &ranks(12)));
        }
    }
}
