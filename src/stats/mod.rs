//! Numbers about numbers: distributions, quantiles, means. A leaf: it knows no domain words and no other room.
//!
//! The subtle thing: a histogram answers quantiles and nothing else. Count, sum, squares, minimum and maximum are kept
//! exactly beside it, as integers, so that merging gives the same figure in any order and any grouping.

mod bootstrap;
mod buckets;
mod distribution;
mod failures;
mod interval_log;
mod mean;
mod paired;

pub use bootstrap::{Clusters, RESAMPLES, cluster_interval};
pub use buckets::{Bucket, Buckets};
pub use distribution::{DecodeError, Distribution, Quantile, Summary};
pub use failures::quantile_with_failures;
pub use interval_log::{Interval, interval_log};
pub use mean::{exact_quantile, geometric_mean, mean, rounded, variation};
pub use paired::{LogInterval, Standing, sign_flip_floor, sign_flip_p, smallest_effect, t_interval};
