//! Numbers for people: three to four significant digits, thousands in groups, a dash for what is absent.

use serde::Serialize;

use crate::units::grouped_float;
pub(super) use crate::units::{grouped as whole, plural};

/// What stands for an absent value.
pub(super) const ABSENT: &str = "–";

/// Three to four significant digits.
pub(super) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 999.5 => return grouped_float(value),
        size if size >= 99.95 => 1,
        size if size >= 0.9995 || size == 0.0 => 2,
        size if size >= 0.09995 => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// A share as per cent, without the sign.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

/// A ratio as a change in per cent, with its sign and without the unit.
pub(super) fn change(ratio: f64) -> String {
    let percent = format!("{:+.1}", (ratio - 1.0) * 100.0);
    if percent == "-0.0" { "+0.0".to_owned() } else { percent }
}

/// A share as per cent, with the unit: `95 %`, `99.4 %`.
pub(super) fn level(share: f64) -> String {
    format!("{} %", format!("{:.1}", share * 100.0).trim_end_matches(".0"))
}

/// A value, or a dash.
pub(super) fn or_dash<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| ABSENT.to_owned(), show)
}

/// A count; where another program wrote the result, it may not be told.
pub(super) fn told(count: Option<u64>) -> String {
    count.map_or_else(|| "not recorded".to_owned(), whole)
}

/// The word by which a file names this value.
pub(super) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => ABSENT.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_to_four_significant_digits() {
        let shown = [0.0, 0.012_34, 0.123_4, 1.234, 12.34, 123.4, 999.6, 1_234.4, 1_234_567.0, -1_234.0].map(figure);
        assert_eq!(
            shown,
            ["0.00", "0.0123", "0.123", "1.23", "12.34", "123.4", "1,000", "1,234", "1,234,567", "-1,234"]
        );
        assert_eq!([0, 999, 1_000, 2_162_688].map(whole), ["0", "999", "1,000", "2,162,688"]);
    }

    #[test]
    fn changes_have_a_sign_and_levels_no_needless_digit() {
        assert_eq!([0.546, 1.0, 0.9999, 12.0].map(change), ["-45.4", "+0.0", "+0.0", "+1100.0"]);
        assert_eq!([0.95, 0.993_75, 0.02].map(level), ["95 %", "99.4 %", "2 %"]);
    }

    #[test]
    fn absent_is_no_zero() {
        assert_eq!(or_dash(None::<f64>, figure), "–");
        assert_eq!(or_dash(Some(0.0), figure), "0.00");
    }
}
