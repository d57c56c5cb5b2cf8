//! From values to places on paper, and which values are worth a label.

/// A mapping of values to positions. Values outside are drawn at the border.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scale {
    kind: Kind,
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Linear,
    Log,
}

impl Scale {
    /// Equal distances for equal differences, from the first position to the second.
    pub(super) fn linear(values: (f64, f64), positions: (f64, f64)) -> Self {
        let to = if values.1 > values.0 { values.1 } else { values.0 + 1.0 };
        Self { kind: Kind::Linear, from: values.0, to, start: positions.0, end: positions.1 }
    }

    /// Equal distances for equal ratios. Values at or below zero have no place on it and are drawn at its start.
    pub(super) fn log(values: (f64, f64), positions: (f64, f64)) -> Self {
        let from = values.0.max(1e-6);
        let to = values.1.max(from * 1.5);
        Self { kind: Kind::Log, from, to, start: positions.0, end: positions.1 }
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let share = match self.kind {
            Kind::Linear => (value - self.from) / (self.to - self.from),
            Kind::Log => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
        };
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }

    pub(super) fn start(&self) -> f64 {
        self.start
    }

    pub(super) fn end(&self) -> f64 {
        self.end
    }

    /// Two to seven round values within the scale.
    pub(super) fn ticks(&self) -> Vec<f64> {
        match self.kind {
            Kind::Linear => self.linear_ticks(),
            Kind::Log => self.log_ticks(),
        }
    }

    fn linear_ticks(&self) -> Vec<f64> {
        let rough = (self.to - self.from) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let first = (self.from / step - 1e-9).ceil();
        (0..=10).map(|n| (first + f64::from(n)) * step).take_while(|tick| *tick <= self.to + step * 1e-9).collect()
    }

    /// 1, 2 and 5 of each power of ten, or only the powers where those would be too many.
    fn log_ticks(&self) -> Vec<f64> {
        let within = |tick: &f64| (self.from * 0.999..=self.to * 1.001).contains(tick);
        for mantissas in [&[1.0, 1.5, 2.0, 3.0, 5.0, 7.0][..], &[1.0, 2.0, 5.0], &[1.0]] {
            let powers = (-6..=12).map(|power| 10_f64.powi(power));
            let ticks: Vec<f64> =
                powers.flat_map(|power| mantissas.iter().map(move |m| m * power)).filter(within).collect();
            if ticks.len() <= 6 {
                return if ticks.len() >= 2 { ticks } else { self.ends() };
            }
        }
        self.ends()
    }

    /// In three digits, where no round value is within.
    fn ends(&self) -> Vec<f64> {
        let digits = |value: f64| 10_f64.powf(2.0 - value.log10().floor());
        [self.from, self.to].map(|value| (value * digits(value)).round() / digits(value)).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_scale_are_where_they_were_asked_for() {
        for scale in [Scale::linear((10.0, 20.0), (0.0, 100.0)), Scale::log((10.0, 20.0), (0.0, 100.0))] {
            assert_eq!((scale.at(10.0), scale.at(20.0), scale.at(-5.0), scale.at(1e9)), (0.0, 100.0, 0.0, 100.0));
        }
        assert!((Scale::log((1.0, 100.0), (0.0, 10.0)).at(10.0) - 5.0).abs() < 1e-9);
        assert_eq!(Scale::linear((3.0, 3.0), (0.0, 1.0)).at(3.0), 0.0, "one value is a scale too");
    }

    #[test]
    fn labels_are_few_round_and_inside() {
        assert_eq!(Scale::linear((0.0, 31.0), (0.0, 1.0)).ticks(), [0.0, 10.0, 20.0, 30.0]);
        assert_eq!(Scale::log((90.0, 2_100.0), (0.0, 1.0)).ticks(), [100.0, 200.0, 500.0, 1_000.0, 2_000.0]);
        for (from, to) in [(0.5, 0.6), (1.0, 1e9), (1e-3, 2e-3), (700.0, 701.0)] {
            for scale in [Scale::linear((from, to), (0.0, 1.0)), Scale::log((from, to), (0.0, 1.0))] {
                assert!((2..=11).contains(&scale.ticks().len()), "{from} {to} {:?}", scale.ticks());
            }
        }
    }
}
