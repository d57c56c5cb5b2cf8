//! Means and ratios of a few values.

use super::Quantile;

/// The arithmetic mean; none of nothing.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a slice has fewer than 2^53 elements")]
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// exp(mean(ln x)); none of nothing, and none when a value is not above zero, since a ratio of zero has no logarithm.
#[must_use]
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: Option<Vec<f64>> = values.iter().map(|v| (v.is_finite() && *v > 0.0).then(|| v.ln())).collect();
    mean(&logs?).map(f64::exp)
}

/// Coefficient of variation: population standard deviation over mean; none of nothing or of a mean of zero.
#[must_use]
pub fn variation(values: &[f64]) -> Option<f64> {
    let centre = mean(values).filter(|m| *m != 0.0)?;
    let squares: Vec<f64> = values.iter().map(|v| (v - centre).powi(2)).collect();
    Some(mean(&squares)?.sqrt() / centre)
}

/// The smallest value that at least the share `q` of all values does not exceed (nearest rank, the rule of HDR
/// histograms, so that both agree but for the bucket width). `sorted` must be in ascending order.
#[must_use]
pub fn exact_quantile(sorted: &[f64], q: Quantile) -> Option<f64> {
    let count = u64::try_from(sorted.len()).ok()?;
    sorted.get(usize::try_from(q.rank_of(count)?).ok()?).copied()
}

/// Rounded to six decimals: more than any clock here can tell, and short enough that JSON gives the same value back.
#[must_use]
pub fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_geometric_mean_of_ratios_is_symmetric_in_gain_and_loss() {
        assert!((geometric_mean(&[2.0, 0.5]).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), None);
        assert_eq!(geometric_mean(&[1.0, 0.0]), None);
        assert_eq!(geometric_mean(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn variation_is_zero_for_equal_loads_and_absent_without_load() {
        assert_eq!(variation(&[64.0; 8]), Some(0.0));
        assert_eq!(variation(&[0.0; 8]), None);
        assert!((variation(&[0.0, 2.0]).unwrap() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn an_exact_quantile_is_a_value_of_the_set() {
        let values: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!(exact_quantile(&values, Quantile::P50), Some(500.0));
        assert_eq!(exact_quantile(&values, Quantile::P99), Some(990.0));
        assert_eq!(exact_quantile(&[7.0], Quantile::P99), Some(7.0));
        assert_eq!(exact_quantile(&[], Quantile::P50), None);
    }
}
