//! What a step costs: the duration formula and the presets that were fitted to published runs.
//!
//! The subtle thing is the padding. Ranks run in lock-step: a step with prefill anywhere pays for the sum of all tokens,
//! a decode step is padded to the fullest rank, so one crowded rank slows all of them.

use std::time::Duration;

/// Three numbers that give the duration of a lock-step pass over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Of a pass in which every rank decodes (a captured graph).
    pub decode_base: Duration,
    /// Of a pass with prefill on any rank (eager).
    pub prefill_base: Duration,
    /// Per token of the padded batch.
    pub per_token: Duration,
}

/// What one pass has to compute, gathered over the ranks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) ranks: u32,
    pub(super) prefilling: bool,
    /// Prefill tokens and decoding sequences, summed over ranks.
    pub(super) tokens: u64,
    /// Decoding sequences on the fullest rank.
    pub(super) fullest: u64,
}

impl Costs {
    /// `(any prefill ? prefill_base : decode_base) + per_token × T`, where T is the sum of tokens when any rank prefills and
    /// otherwise ranks × the fullest rank's batch (SGLang's `DpPaddingMode`: `SUM_LEN` and `MAX_LEN`).
    #[must_use]
    pub(super) fn duration(&self, load: &Load) -> Duration {
        let (base, tokens) = if load.prefilling {
            (self.prefill_base, load.tokens)
        } else {
            (self.decode_base, u64::from(load.ranks) * load.fullest)
        };
        let nanos = u64::try_from(self.per_token.as_nanos()).unwrap_or(u64::MAX).saturating_mul(tokens);
        base + Duration::from_nanos(nanos)
    }
}

/// A machine and a model, by the name under which their costs were fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    pub name: &'static str,
    pub costs: Costs,
    pub ranks: u16,
    /// Prefill tokens of one rank in one step.
    pub chunk: u32,
    pub kv_tokens: u64,
}

const fn preset(name: &'static str, decode_us: u64, per_token_ns: u64) -> Preset {
    Preset {
        name,
        costs: Costs {
            decode_base: Duration::from_micros(decode_us),
            prefill_base: Duration::from_millis(42),
            per_token: Duration::from_nanos(per_token_ns),
        },
        ranks: 8,
        chunk: 1024,
        kv_tokens: 1_050_000,
    }
}

/// The default comes first.
const PRESETS: [Preset; 3] = [
    // A healthy 8xH100 box: 94.6K prefill tokens a second.
    preset("generic-8xh100", 14_000, 10_600),
    // Fitted to the table of SGLang PR #31170, and to its table of DeepSeek-V4-Flash.
    preset("qwen3.5-122b-8xh100-pr31170", 6_000, 100_000),
    preset("dsv4-flash-8xh100", 12_000, 30_000),
];

/// No such preset, or one whose feature is not built yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PresetError {
    #[error("preset `{0}` is a prefill/decode fleet, which the simulator does not have yet: use generic-8xh100")]
    PrefillDecode(String),
    #[error("unknown preset `{0}`: use one of {names}", names = Preset::names().join(", "))]
    Unknown(String),
}

impl Preset {
    /// Finds a preset by name.
    ///
    /// # Errors
    /// When there is none of that name, or it describes a topology that is not built yet.
    pub fn find(name: &str) -> Result<Self, PresetError> {
        match PRESETS.iter().find(|preset| preset.name == name) {
            Some(preset) => Ok(*preset),
            None if name == "qwen3-14b-2p2d" => Err(PresetError::PrefillDecode(name.into())),
            None => Err(PresetError::Unknown(name.into())),
        }
    }

    /// All names, the default first.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        PRESETS.iter().map(|preset| preset.name).collect()
    }
}

impl Default for Preset {
    fn default() -> Self {
        PRESETS[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pr31170() -> Costs {
        Preset::find("qwen3.5-122b-8xh100-pr31170").unwrap().costs
    }

    #[test]
    fn a_decode_step_is_padded_to_the_fullest_rank() {
        let load = Load { ranks: 8, prefilling: false, tokens: 8, fullest: 8 };
        assert_eq!(pr31170().duration(&load), Duration::from_micros(6_000 + 8 * 8 * 100));
    }

    #[test]
    fn a_step_with_prefill_pays_for_the_sum_of_tokens() {
        let load = Load { ranks: 8, prefilling: true, tokens: 1024 + 24, fullest: 24 };
        assert_eq!(pr31170().duration(&load), Duration::from_micros(42_000 + 1048 * 100));
    }

    #[test]
    fn one_cold_prompt_of_4096_takes_four_chunks() {
        let cost = Preset::default().costs;
        let chunk = cost.duration(&Load { ranks: 8, prefilling: true, tokens: 1024, fullest: 0 });
        assert_eq!(4 * chunk, Duration::from_nanos(4 * 42_000_000 + 4096 * 10_600));
    }

    #[test]
    fn unknown_and_unbuilt_presets_are_refused_differently() {
        assert!(Preset::find("h200").unwrap_err().to_string().contains("generic-8xh100, qwen3.5"));
        assert!(Preset::find("qwen3-14b-2p2d").unwrap_err().to_string().contains("does not have yet"));
    }
}
