//! Whether the servers of a run were simulated ones, and how.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::shape::RunReport;
use crate::profile::Target;

/// A simulated server: its figures are those of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Simulated {
    /// The costs it computes with.
    pub preset: Option<String>,
    /// How many times faster than its model it runs, so that every latency is that much shorter.
    pub time_scale: Option<f64>,
}

impl RunReport {
    /// How the server was simulated, as it says itself, or as it was started; none of a real server.
    #[must_use]
    pub fn simulated(&self) -> Option<Simulated> {
        let told = self.server.info.as_ref().and_then(|info| info.get("gspbench_sim"));
        if let Some(told) = told {
            let preset = told.get("preset").and_then(Value::as_str).map(str::to_owned);
            return Some(Simulated { preset, time_scale: told.get("time_scale").and_then(Value::as_f64) });
        }
        let Some(Target::Sim { settings, .. }) = &self.manifest.target else { return None };
        let own = &self.manifest.spec.sim;
        let preset = settings.get("preset").unwrap_or(&own.preset).clone();
        let time_scale = settings.get("time-scale").map_or(Some(own.time_scale), |scale| scale.parse().ok());
        Some(Simulated { preset: Some(preset), time_scale })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::tests::context;
    use crate::report::{Accumulator, Closing, State};

    #[test]
    fn a_server_is_simulated_when_it_says_so_or_was_started_as_one() {
        let mut report = Accumulator::new(context(1, 0)).finish(Closing::plain(State::Complete));
        let how =
            |preset: &str, time_scale| Some(Simulated { preset: Some(preset.into()), time_scale: Some(time_scale) });
        assert_eq!(report.simulated(), None);
        report.server.info = Some(json!({"tp_size": 8}));
        assert_eq!(report.simulated(), None);
        report.manifest.target = Some("sim:round_robin,time-scale=3".parse().unwrap());
        assert_eq!(report.simulated(), how("generic-8xh100", 3.0));
        report.server.info = Some(json!({"gspbench_sim": {"preset": "other", "time_scale": 2.0}}));
        assert_eq!(report.simulated(), how("other", 2.0));
    }
}
