//! Seeds from seeds: every random choice of a plan has a generator of its own, named by a domain and its indices, so that
//! one more session, or another option, changes no choice but its own.

use std::hash::Hasher;

use xxhash_rust::xxh3::Xxh3Default;

use crate::profile::Length;

/// xxh3-64 over the seed, the domain (its length first) and the indices, all little-endian 64-bit.
pub(super) fn derive(seed: u64, domain: &str, indices: &[u64]) -> u64 {
    let mut hash = Xxh3Default::new();
    hash.update(&seed.to_le_bytes());
    hash.update(&(domain.len() as u64).to_le_bytes());
    hash.update(domain.as_bytes());
    for index in indices {
        hash.update(&index.to_le_bytes());
    }
    hash.finish()
}

/// A fraction in [0, 1) from 64 random bits.
#[expect(clippy::cast_precision_loss, reason = "53 bits are exact in an f64")]
pub(super) fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A length drawn uniformly from `min..=max`.
pub(super) fn length(bits: u64, Length { min, max }: Length) -> u32 {
    let choices = u128::from(max.saturating_sub(min)) + 1;
    let offset = (u128::from(bits) * choices) >> 64;
    min.saturating_add(u32::try_from(offset).expect("an offset below 2^32, since the bits are below 2^64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_and_its_indices_never_run_into_each_other() {
        let all = [
            derive(1, "key", &[2, 3]),
            derive(1, "key", &[3, 2]),
            derive(1, "key", &[2]),
            derive(1, "keys", &[2, 3]),
            derive(2, "key", &[2, 3]),
        ];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn lengths_reach_both_ends_and_go_no_further() {
        let range = Length { min: 3, max: 6 };
        assert_eq!((length(0, range), length(u64::MAX, range)), (3, 6));
        assert_eq!(length(u64::MAX, Length { min: 0, max: u32::MAX }), u32::MAX);
        assert_eq!(length(u64::MAX / 2, Length { min: 7, max: 7 }), 7);
    }

    #[test]
    fn fractions_stay_below_one() {
        assert!(fraction(u64::MAX) < 1.0 && fraction(0).abs() < f64::EPSILON);
    }
}
