//! What a simulated server is: its ranks, their limits and costs, and how requests are spread. Checked once, here.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::policy::{Affinity, Method};
use crate::units::{MOST_RANKS, Rank};

use super::cost::{Costs, Preset};
use super::rank::Limits;

/// A simulated server, before it is started.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Name of the preset that the costs come from.
    pub preset: &'static str,
    pub costs: Costs,
    pub ranks: u16,
    pub limits: Limits,
    /// Most tokens of prompt and reply together.
    pub context_length: u32,
    pub method: Method,
    pub affinity: Affinity,
    /// Ranks out of the live set.
    pub offline: Vec<Rank>,
    /// How many times faster than the costs say.
    pub time_scale: f64,
    /// The served model's name.
    pub model: String,
    /// Whether the usage of the OpenAI routes tells cached tokens (SGLang's `--enable-cache-report`).
    pub cache_report: bool,
}

/// Settings that make no server.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SettingsError {
    #[error("{0} is 0: give at least 1")]
    Zero(&'static str),
    #[error("time scale {0}: give a number above 0, 0.001 to 1000000 (2 runs twice as fast as the model says)")]
    TimeScale(f64),
    #[error("{0} is {1}: give at most {2}")]
    TooLarge(&'static str, u64, u64),
    #[error("{0} takes {took}: give at most {most}", took = humantime::format_duration(*.1),
            most = humantime::format_duration(*.2))]
    TooSlow(&'static str, Duration, Duration),
    #[error("offline rank {0}: there are only ranks 0 to {last}", last = .1 - 1)]
    NoSuchRank(Rank, u16),
    #[error("all {0} ranks are offline: leave at least one in the live set")]
    NoRank(u16),
}

/// SGLang's own ceiling on running requests of one rank.
const MAX_RUNNING: u32 = 4096;
/// Bounds within which model time and the clock's time can be turned into each other for as long as anyone waits.
const TIME_SCALES: RangeInclusive<f64> = 1e-3..=1e6;
const SLOWEST_STEP: Duration = Duration::from_secs(3_600);
const SLOWEST_TOKEN: Duration = Duration::from_secs(1);
const MOST_KV_TOKENS: u64 = 1_000_000_000_000;

impl From<Preset> for Settings {
    fn from(preset: Preset) -> Self {
        Self {
            preset: preset.name,
            costs: preset.costs,
            ranks: preset.ranks,
            limits: Limits { chunk: preset.chunk, kv_tokens: preset.kv_tokens, page: 1, max_running: MAX_RUNNING },
            context_length: 131_072,
            method: Method::RoundRobin,
            affinity: Affinity::default(),
            offline: vec![],
            time_scale: 1.0,
            model: "gspbench-sim".to_owned(),
            cache_report: true,
        }
    }
}

impl Settings {
    /// Tells what is wrong with these settings.
    ///
    /// # Errors
    /// When no server could run with them.
    pub fn check(&self) -> Result<(), SettingsError> {
        let Limits { chunk, kv_tokens, page, max_running } = self.limits;
        let counts = [
            ("the number of ranks", u64::from(self.ranks)),
            ("the chunk", u64::from(chunk)),
            ("the KV size", kv_tokens),
            ("the page size", u64::from(page)),
            ("the number of running requests", u64::from(max_running)),
            ("the context length", u64::from(self.context_length)),
        ];
        if let Some((what, _)) = counts.into_iter().find(|&(_, count)| count == 0) {
            return Err(SettingsError::Zero(what));
        }
        let limits = [
            ("the number of ranks", u64::from(self.ranks), u64::from(MOST_RANKS)),
            ("the KV size", kv_tokens, MOST_KV_TOKENS),
        ];
        if let Some((what, count, most)) = limits.into_iter().find(|&(_, count, most)| count > most) {
            return Err(SettingsError::TooLarge(what, count, most));
        }
        let Costs { decode_base, prefill_base, per_token } = self.costs;
        let spans = [
            ("an empty decode step", decode_base, SLOWEST_STEP),
            ("an empty prefill step", prefill_base, SLOWEST_STEP),
            ("a token", per_token, SLOWEST_TOKEN),
        ];
        if let Some((what, span, most)) = spans.into_iter().find(|(_, span, most)| span > most) {
            return Err(SettingsError::TooSlow(what, span, most));
        }
        if !TIME_SCALES.contains(&self.time_scale) {
            return Err(SettingsError::TimeScale(self.time_scale));
        }
        if let Some(rank) = self.offline.iter().find(|rank| rank.0 >= self.ranks) {
            return Err(SettingsError::NoSuchRank(*rank, self.ranks));
        }
        if (0..self.ranks).all(|rank| self.offline.contains(&Rank(rank))) {
            return Err(SettingsError::NoRank(self.ranks));
        }
        Ok(())
    }

    /// Most tokens of prompt and reply together: the context, and what one rank's cache can hold.
    #[must_use]
    pub fn longest(&self) -> u64 {
        u64::from(self.context_length).min(self.limits.kv_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_server_are_named() {
        let fine = Settings::from(Preset::default());
        assert_eq!(fine.check(), Ok(()));
        let told = |settings: Settings| settings.check().unwrap_err().to_string();
        assert!(told(Settings { ranks: 0, ..fine.clone() }).contains("number of ranks"));
        assert!(told(Settings { time_scale: f64::NAN, ..fine.clone() }).contains("above 0"));
        for time_scale in [0.0, 1e-9, 1e9, f64::INFINITY] {
            assert!(told(Settings { time_scale, ..fine.clone() }).contains("0.001 to 1000000"));
        }
        assert!(told(Settings { ranks: 4_097, ..fine.clone() }).contains("at most 4096"));
        let limits = Limits { kv_tokens: u64::MAX, ..fine.limits };
        assert!(told(Settings { limits, ..fine.clone() }).contains("the KV size"));
        let far = Duration::from_secs(u64::MAX);
        for costs in [
            Costs { decode_base: far, ..fine.costs },
            Costs { prefill_base: far, ..fine.costs },
            Costs { per_token: far, ..fine.costs },
        ] {
            assert!(told(Settings { costs, ..fine.clone() }).contains("give at most"));
        }
        assert!(told(Settings { offline: vec![Rank(8)], ..fine.clone() }).contains("ranks 0 to 7"));
        assert!(told(Settings { offline: (0..8).map(Rank).collect(), ..fine }).contains("at least one"));
    }
}
