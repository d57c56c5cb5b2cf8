//! From the reports of several arms to a [`Comparison`]: who is side by side with whom, and by which ratio.
//!
//! An arm is compared with the baseline of its own round, which ran the same plan. Over rounds, percentiles come from
//! merged histograms and are never averaged. No verdict is given here yet; its places are kept.

mod comparable;
mod pair;
mod pool;
mod shape;

pub use pair::{BlockResult, CompareError, compare};
pub use shape::{
    Arm, ArmValue, Comparison, Contrast, Difference, Interval, MetricRow, Pooling, RoundRatio, SCHEMA, Verdict,
};
