//! What a simulated server is: its ranks, their limits and costs, and how requests are spread. Checked once, here.

use crate::policy::{Affinity, Method};
use crate::units::Rank;

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
}

/// Settings that make no server.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SettingsError {
    #[error("{0} is 0: give at least 1")]
    Zero(&'static str),
    #[error("time scale {0}: give a finite number above 0 (2 runs twice as fast as the model says)")]
    TimeScale(f64),
    #[error("offline rank {0}: there are only ranks 0 to {last}", last = .1 - 1)]
    NoSuchRank(Rank, u16),
    #[error("all {0} ranks are offline: leave at least one in the live set")]
    NoRank(u16),
}

/// SGLang's own ceiling on running requests of one rank.
const MAX_RUNNING: u32 = 4096;

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
        if !(self.time_scale.is_finite() && self.time_scale > 0.0) {
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
        assert!(told(Settings { offline: vec![Rank(8)], ..fine.clone() }).contains("ranks 0 to 7"));
        assert!(told(Settings { offline: (0..8).map(Rank).collect(), ..fine }).contains("at least one"));
    }
}
