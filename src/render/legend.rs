//! What stands below the table of a comparison: how its columns were computed, and why two of them may seem to differ.

use super::judged::value;
use super::number::{change, level};
use crate::compare::{Arm, Basis, Comparison, MetricRow};

/// How the columns were computed.
pub(super) fn legend(comparison: &Comparison) -> String {
    let intervals = || comparison.metrics.iter().flat_map(|row| &row.contrasts).filter_map(|of| of.interval);
    let is_based_on = |basis| intervals().any(|interval| interval.basis == basis);
    let how = match (is_based_on(Basis::Rounds), is_based_on(Basis::WithinOneRun)) {
        (true, false) => "Student's t on the logarithms of the rounds' ratios",
        (true, true) => {
            "Student's t on the logarithms of the rounds' ratios or, with fewer than three rounds, groups and sessions \
             drawn again, so within one run"
        }
        (false, true) => "groups and sessions of these runs drawn again, so within one run",
        (false, false) => {
            return "Δ: arm over the baseline of the same round; no interval, so nothing is claimed".to_owned();
        }
    };
    format!(
        "Δ: arm over the baseline of the same round, geometric mean of the rounds. Interval: {how}, {}. Verdict: the whole \
         interval against ±{}{}",
        levels(comparison),
        level(comparison.threshold),
        leaning(comparison)
    )
}

/// `95 % for the primary metric, 99.4 % for the others`; by arm, where arms have others.
fn levels(comparison: &Comparison) -> String {
    let of_arm = |at: usize, primary: bool| {
        let rows = comparison.metrics.iter().filter(|row| (row.key == comparison.primary) == primary);
        let contrasts = rows.filter_map(|row| row.contrasts.get(at));
        contrasts.filter_map(|contrast| contrast.interval).map(|interval| level(interval.level)).next()
    };
    let phrase = |primary: bool, what: &str| {
        let mut groups: Vec<(String, Vec<String>)> = vec![];
        for (at, arm) in comparison.arms.iter().skip(1).enumerate() {
            let Some(level) = of_arm(at, primary) else { continue };
            match groups.iter_mut().find(|(of, _)| *of == level) {
                Some((_, arms)) => arms.push(title(arm)),
                None => groups.push((level, vec![title(arm)])),
            }
        }
        let is_one = groups.len() == 1;
        let of = |arms: &[String]| if is_one { String::new() } else { format!(" of {}", arms.join(" and ")) };
        groups.iter().map(|(level, arms)| format!("{level} for {what}{}", of(arms))).collect::<Vec<_>>()
    };
    [phrase(true, "the primary metric"), phrase(false, "the others")].concat().join(", ")
}

fn title(arm: &Arm) -> String {
    format!("{}{}", arm.name, if arm.control { " (control)" } else { "" })
}

/// What `unclear` means where the interval leaves no doubt that there is a difference.
fn leaning(comparison: &Comparison) -> String {
    let judged = comparison.metrics.iter().filter(|row| row.judged);
    if !judged.flat_map(|row| &row.contrasts).any(|contrast| contrast.leans_up().is_some()) {
        return String::new();
    }
    let threshold = level(comparison.threshold);
    format!("; unclear with all of it on one side of 0: there is a difference, but perhaps one below {threshold}")
}

/// The judged rows whose Δ points the other way than the two values beside it, and how that can be.
pub(super) fn crossing(comparison: &Comparison) -> Option<String> {
    let several = comparison.arms.len() > 2;
    let mut rows = vec![];
    for row in comparison.metrics.iter().filter(|row| row.judged) {
        for at in (0..row.contrasts.len()).filter(|at| crosses(row, *at)) {
            let of = comparison.arms.get(at + 1).filter(|_| several);
            let of = of.map_or(String::new(), |arm| format!(" of {}", arm.name));
            rows.push(format!("{}{of}", row.name()));
        }
    }
    (!rows.is_empty()).then(|| {
        format!(
            "Δ points the other way than the two values beside it for {}: values are of all rounds together, where a \
             round with larger figures weighs more; in Δ each round's ratio weighs the same",
            rows.join(", ")
        )
    })
}

/// As shown: what rounding hides contradicts nothing.
fn crosses(row: &MetricRow, at: usize) -> bool {
    let (base, other) = (&row.arms[0], &row.arms[at + 1]);
    let mean = row.contrasts[at].geometric_mean;
    let Some(((from, to), mean)) = base.value.zip(other.value).zip(mean) else { return false };
    let is_seen = value(row, base) != value(row, other) && change(mean) != change(1.0);
    is_seen && (to - from) * (mean - 1.0) < 0.0
}
