//! What a sweep has shown: of each arm its figures by load, and the highest load that holds the objectives.

use serde::{Deserialize, Serialize};

use super::{Axis, Ladder, Rung, Seen, Stop};
use crate::compare::Setting;
use crate::report::{FindingKind, RunReport, Slo, Stat, State, Verdict};

/// The curves of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    pub axis: Axis,
    pub slo: Option<Slo>,
    /// Share of good turns at which a step holds the objectives.
    pub attainment: Option<f64>,
    pub arms: Vec<Curve>,
    /// What was measured, with what, when and where, as the first step that ran to its end has it; the load is that of all
    /// steps. Absent before there is one.
    #[serde(default)]
    pub setting: Option<Setting>,
    /// The step that the setting's seed and digest are of: each step after it has a seed one above that of the step before.
    #[serde(default)]
    pub setting_step: Option<u32>,
    /// How to run it again, with the seed where it was drawn, and without `--out`.
    #[serde(default)]
    pub command: Option<String>,
}

/// One arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    pub arm: String,
    /// Ascending, one a step: of a step that ran twice, the last run.
    pub points: Vec<Point>,
    /// Void runs of steps that ran again.
    #[serde(default)]
    pub repeated: Vec<Point>,
    /// The highest load that holds the objectives, as do all steps below it; none without objectives, or where the first
    /// step misses them.
    pub holds: Option<Held>,
    /// Why it climbed no further; none while it does, and where the sweep was interrupted.
    pub stopped: Option<Stop>,
}

/// A load that holds the objectives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Held {
    pub level: f64,
    /// Good turns a second at it.
    pub goodput: Option<f64>,
}

/// One step of one arm that ran to its end. Latencies in ms; rates a second; shares 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub step: u32,
    /// Sessions in flight, or sessions a second.
    pub level: f64,
    pub turns: u64,
    pub failed: u64,
    pub request_throughput: Option<f64>,
    pub output_throughput: Option<f64>,
    pub goodput: Option<f64>,
    pub attainment: Option<f64>,
    /// Whether it held the objectives.
    pub holds: Option<bool>,
    pub ttft_p50_ms: Option<f64>,
    pub ttft_p99_ms: Option<f64>,
    pub tpot_p50_ms: Option<f64>,
    pub tpot_p99_ms: Option<f64>,
    pub cache_hit_rate: Option<f64>,
    /// Why its figures may not be used.
    pub voids: Vec<FindingKind>,
}

/// A step with its report.
#[derive(Debug, Clone, Copy)]
pub struct StepResult<'a> {
    pub step: u32,
    pub level: f64,
    pub arm: usize,
    pub report: &'a RunReport,
}

/// What the ladder needs to know of a run.
#[must_use]
pub fn seen(report: &RunReport) -> Seen {
    if report.state != State::Complete || report.validity.verdict == Verdict::Void {
        return Seen::Void;
    }
    let metrics = &report.metrics;
    Seen::Measured { throughput: metrics.request_throughput, attainment: metrics.slo_attainment }
}

impl Point {
    /// The figures of one step.
    #[must_use]
    pub fn new(ladder: &Ladder, result: StepResult<'_>) -> Self {
        let StepResult { step, level, arm: _, report } = result;
        let metrics = &report.metrics;
        Self {
            step,
            level,
            turns: report.totals.complete,
            failed: report.totals.failed,
            request_throughput: metrics.request_throughput,
            output_throughput: metrics.output_throughput,
            goodput: metrics.goodput,
            attainment: metrics.slo_attainment,
            holds: ladder.holds(seen(report)),
            ttft_p50_ms: metrics.ttft_ms.as_ref().map(|ttft| Stat::P50.of(ttft)),
            ttft_p99_ms: metrics.ttft_ms.as_ref().map(|ttft| Stat::P99.of(ttft)),
            tpot_p50_ms: metrics.tpot_ms.as_ref().map(|tpot| Stat::P50.of(tpot)),
            tpot_p99_ms: metrics.tpot_ms.as_ref().map(|tpot| Stat::P99.of(tpot)),
            cache_hit_rate: metrics.cache_hit_rate.value,
            voids: report.validity.voids.iter().map(|void| void.kind).collect(),
        }
    }

    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.voids.is_empty()
    }
}

impl Curves {
    /// Curves of which nothing is known yet.
    #[must_use]
    pub fn new(ladder: &Ladder, slo: Option<Slo>, arms: impl Iterator<Item = String>) -> Self {
        let curve = |arm| Curve { arm, points: vec![], repeated: vec![], holds: None, stopped: None };
        Self {
            axis: ladder.axis,
            slo,
            attainment: ladder.attainment,
            arms: arms.map(curve).collect(),
            setting: None,
            setting_step: None,
            command: None,
        }
    }

    /// Adds a step that ran to its end; one that is there already was void, and gives way.
    pub fn add(&mut self, ladder: &Ladder, result: StepResult<'_>) {
        self.learn(ladder, result);
        let Some(curve) = self.arms.get_mut(result.arm) else { return };
        let void = curve.points.pop_if(|point| point.step == result.step);
        curve.repeated.extend(void);
        curve.points.push(Point::new(ladder, result));
        let held = curve.points.iter().take_while(|point| point.holds == Some(true)).last();
        curve.holds = held.map(|point| Held { level: point.level, goodput: point.goodput });
    }

    /// Takes what was measured from the first run of each arm.
    fn learn(&mut self, ladder: &Ladder, StepResult { step, level: _, arm, report }: StepResult<'_>) {
        let Some(curve) = self.arms.get(arm).filter(|curve| curve.points.is_empty()) else { return };
        if let Some(setting) = &mut self.setting {
            setting.add(&curve.arm, report);
            return;
        }
        let mut setting = Setting::of(&curve.arm, report);
        let loads = ladder.levels.loads(ladder.axis);
        setting.work.iter_mut().for_each(|work| work.load.clone_from(&loads));
        self.setting = Some(setting);
        self.setting_step = Some(step);
        self.command = report.command_of(step);
    }

    /// Says why arms climb no further.
    pub fn stop(&mut self, ladder: &Ladder, past: &[Rung]) {
        for (at, curve) in self.arms.iter_mut().enumerate() {
            curve.stopped = ladder.stop(at, past);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Levels;
    use crate::report::tests::context;
    use crate::report::{Accumulator, Closing};

    fn curves(attained: &[Option<f64>]) -> Curves {
        curves_of((1_u32..).zip(attained.iter().copied()))
    }

    fn curves_of(runs: impl Iterator<Item = (u32, Option<f64>)>) -> Curves {
        let levels = Levels::Given(vec![1.0, 2.0, 4.0, 8.0]);
        let ladder = Ladder { axis: Axis::Rate, levels, attainment: Some(0.9), arms: 1 };
        let mut curves = Curves::new(&ladder, None, ["a".to_owned()].into_iter());
        for (step, attained) in runs {
            let mut report = Accumulator::new(context(1, 2)).finish(Closing::plain(State::Complete));
            report.validity.verdict = if attained.is_some() { Verdict::Valid } else { Verdict::Void };
            report.metrics.slo_attainment = attained.or(Some(1.0));
            report.metrics.goodput = Some(f64::from(step));
            let level = ladder.levels.level(step).unwrap();
            curves.add(&ladder, StepResult { step, level, arm: 0, report: &report });
        }
        curves
    }

    #[test]
    fn the_highest_load_that_holds_has_no_step_below_it_that_does_not() {
        let held = |attained: &[Option<f64>]| curves(attained).arms[0].holds.map(|held| (held.level, held.goodput));
        assert_eq!(held(&[Some(1.0), Some(0.9), Some(0.89), Some(1.0)]), Some((2.0, Some(2.0))));
        assert_eq!(held(&[Some(0.5), Some(1.0)]), None);
        assert_eq!(held(&[Some(1.0), None, Some(1.0)]), Some((1.0, Some(1.0))), "of a void step nothing is known");
        assert_eq!(held(&[]), None);
    }

    #[test]
    fn what_was_measured_is_that_of_the_first_step_with_the_load_of_all_and_the_seed_that_was_drawn() {
        let levels = Levels::Given(vec![1.0, 2.0, 4.0]);
        let ladder = Ladder { axis: Axis::Rate, levels, attainment: None, arms: 2 };
        let mut curves = Curves::new(&ladder, None, ["a".to_owned(), "b".to_owned()].into_iter());
        // Step 1 could not be run.
        for (step, arm) in [(2, 1), (2, 0), (3, 0), (3, 1)] {
            let mut report = Accumulator::new(context(1, 2)).finish(Closing::plain(State::Complete));
            report.manifest.argv = ["gspbench", "sweep", "--out", "x"].map(str::to_owned).into();
            report.manifest.spec.workload.seed = 41 + u64::from(step);
            report.server.model = Some(format!("m{arm}"));
            curves.add(&ladder, StepResult { step, level: 1.0, arm, report: &report });
        }
        let setting = curves.setting.unwrap();
        let servers: Vec<_> = setting.servers.iter().map(|of| (of.arms.join(" "), of.model.as_deref())).collect();
        assert_eq!(servers, [("b".to_owned(), Some("m1")), ("a".to_owned(), Some("m0"))]);
        let work = setting.work.unwrap();
        assert_eq!((work.load.as_str(), work.workload.seed, curves.setting_step), ("1, 2, 4 sessions/s", 43, Some(2)));
        assert_eq!(curves.command.as_deref(), Some("gspbench sweep --seed 42"));
    }

    #[test]
    fn a_repeated_step_is_one_point_and_its_void_run_is_kept_beside() {
        let curves = curves_of([(1, Some(1.0)), (2, None), (2, Some(0.95)), (3, None), (3, None)].into_iter());
        let steps = |points: &[Point]| points.iter().map(|point| (point.step, point.holds)).collect::<Vec<_>>();
        assert_eq!(steps(&curves.arms[0].points), [(1, Some(true)), (2, Some(true)), (3, None)]);
        assert_eq!(steps(&curves.arms[0].repeated), [(2, None), (3, None)]);
        assert_eq!(curves.arms[0].holds.map(|held| held.level), Some(2.0));
    }
}
