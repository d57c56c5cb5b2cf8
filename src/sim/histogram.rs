//! Latency histograms with SGLang's bucket bounds, for `/metrics`.

/// Counts per bucket; the last bucket has no upper bound.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

/// Bounds in seconds, as a live server exposes them.
pub const TTFT: &[f64] =
    &[0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0];
pub const INTER_TOKEN: &[f64] = &[
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0,
    2.0, 4.0, 6.0, 8.0,
];
pub const E2E: &[f64] = &[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0, 600.0, 1200.0,
    1800.0, 2400.0,
];
pub const QUEUE: &[f64] = &[
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0, 1200.0, 1400.0, 1600.0,
    1800.0, 2000.0, 2500.0, 3000.0,
];

impl Histogram {
    /// Empty, with these upper bounds.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Adds `times` samples of the same value.
    pub fn observe(&mut self, seconds: f64, times: u32) {
        let bucket = self.bounds.partition_point(|&bound| bound < seconds);
        self.counts[bucket] += u64::from(times);
        self.sum += seconds * f64::from(times);
    }

    /// Upper bounds with the count of samples at or below each; the last bound is infinite.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        }))
    }

    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_on_a_bound_belongs_below_it() {
        let mut histogram = Histogram::new(&[0.1, 0.2]);
        histogram.observe(0.1, 2);
        histogram.observe(0.15, 1);
        histogram.observe(9.0, 1);
        let cumulative: Vec<_> = histogram.cumulative().collect();
        assert_eq!(cumulative, [(0.1, 2), (0.2, 3), (f64::INFINITY, 4)]);
        assert!((histogram.sum() - 9.35).abs() < 1e-12 && histogram.count() == 4);
    }
}
