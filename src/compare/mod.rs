//! From the reports of several arms to a [`Comparison`]: who is side by side with whom, and by which ratio.
//!
//! An arm is compared with the baseline of its own round, which ran the same plan. Over rounds, percentiles come from
//! merged histograms and are never averaged. How sure a ratio is comes from how the rounds differ.

mod comparable;
mod cost;
mod doubt;
mod gate;
mod info;
mod judge;
mod pair;
mod pool;
mod setting;
mod settings;
mod shape;
mod within;

pub use doubt::{Doubt, planned_doubt};
pub use gate::{Planned, planned_obstacle};
pub use pair::{BlockResult, CompareError, compare};
pub use setting::{Servers, Setting, Work};
pub use settings::{Settings, Turns, no_turns};
pub use shape::{
    Arm, ArmValue, Basis, Comparison, Contrast, Cost, Difference, InfoDifference, Interrupted, Interval, MetricRow,
    NoiseFloor, Pair, Pooling, RoundRatio, SCHEMA, SignFlip, Unjudged, Verdict,
};
