//! Goodput by bench_serving's definitions, for its line: TPOT is (E2E − TTFT) / (n − 1) or 0 for one token, E2E runs to the
//! end of the stream, and all turns that were sent are counted.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::profile::Slo;
use crate::record::TurnRecord;
use crate::report::{ratio, rounded};
use crate::units::Micros;

/// Turns so far against the limits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Good {
    slo: Slo,
    sent: u64,
    good: u64,
    /// By the limit's name.
    met: BTreeMap<&'static str, u64>,
}

impl Good {
    pub(super) fn new(slo: Slo) -> Self {
        Self { slo, sent: 0, good: 0, met: slo.limits().map(|(name, _)| (name, 0)).collect() }
    }

    /// Adds a complete or failed turn.
    pub(super) fn add(&mut self, turn: &TurnRecord) {
        self.sent += 1;
        let Some((ttft, tpot, e2el)) = times(turn).filter(|_| turn.outcome.is_complete()) else { return };
        let mut is_good = true;
        for (name, limit) in self.slo.limits() {
            let ms = match name {
                "ttft" => ttft,
                "tpot" => tpot,
                _ => e2el,
            };
            *self.met.entry(name).or_default() += u64::from(ms <= limit);
            is_good &= ms <= limit;
        }
        self.good += u64::from(is_good);
    }

    #[expect(clippy::cast_precision_loss, reason = "turns stay below 2^53")]
    pub(super) fn push_to(&self, line: &mut Map<String, Value>, seconds: Option<f64>) {
        let share = |turns: u64| ratio(turns, self.sent);
        let by_metric: BTreeMap<_, _> = self.met.iter().map(|(name, turns)| (*name, share(*turns))).collect();
        let limits: BTreeMap<_, _> = self.slo.limits().collect();
        line.insert("goodput_slos_ms".into(), json!(limits));
        line.insert("request_goodput".into(), json!(seconds.map(|seconds| rounded(self.good as f64 / seconds))));
        line.insert("slo_attainment".into(), json!(share(self.good)));
        line.insert("slo_attainment_by_metric".into(), json!(by_metric));
    }
}

/// TTFT, TPOT and E2E in ms.
fn times(turn: &TurnRecord) -> Option<(f64, f64, f64)> {
    let ttft = turn.ttft().map(Micros::as_ms)?;
    let e2el = turn.done_us.or(turn.last_us)?.since(turn.sent_us?).as_ms();
    let tokens = turn.output_tokens.filter(|tokens| *tokens > 1);
    Some((ttft, tokens.map_or(0.0, |tokens| (e2el - ttft) / f64::from(tokens - 1)), e2el))
}
