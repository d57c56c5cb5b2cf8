//! Quantiles and intervals. A leaf: no domain words.
