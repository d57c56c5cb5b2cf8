//! What a comparison says in sentences: the verdict first.

use super::number::{change, level, plural, told, whole};
use super::page::kinds;
use crate::compare::{Arm, Basis, Comparison, Contrast, Interval, MetricRow, NoiseFloor, Unjudged, Verdict};

/// Two sentences an arm: the primary metric, then the others by their verdict and the failures.
pub(super) fn claims(comparison: &Comparison) -> Vec<[String; 2]> {
    let others = comparison.arms.iter().skip(1).enumerate();
    others.map(|(at, arm)| [primary(comparison, at, arm), rest(comparison, at, arm)]).collect()
}

fn primary(comparison: &Comparison, at: usize, arm: &Arm) -> String {
    let baseline = &comparison.baseline;
    let found = comparison.metrics.iter().find(|row| row.key == comparison.primary);
    let Some((row, contrast)) = found.and_then(|row| Some((row, row.contrasts.get(at)?))) else {
        let why =
            silence(comparison, arm).unwrap_or_else(|| format!("no arm has the primary metric {}", comparison.primary));
        return format!("{} against {baseline} is not judged: {why}.", arm.name);
    };
    if comparison.aa && contrast.geometric_mean.is_some() {
        return of_itself(baseline, arm, row, contrast);
    }
    let name = &arm.name;
    let threshold = format!("±{}", level(comparison.threshold));
    let verdict = match (contrast.verdict, contrast.unjudged) {
        (Some(Verdict::Better), _) => format!("{name} is better than {baseline}: {}.", figures(row, contrast)),
        (Some(Verdict::Worse), _) => format!("{name} is worse than {baseline}: {}.", figures(row, contrast)),
        (Some(Verdict::Same), _) => {
            format!("{name} is as good as {baseline}, within {threshold}: {}.", figures(row, contrast))
        }
        (Some(Verdict::Unclear), _) => {
            let leaning = leaning(row, contrast, comparison.threshold).map_or(String::new(), |how| format!(" ({how})"));
            format!("{name} against {baseline} is unclear{leaning}: {}{}.", figures(row, contrast), way_out(contrast))
        }
        (None, Some(Unjudged::Control)) => {
            format!("{name} is a control, not judged; against {baseline}: {}.", figures(row, contrast))
        }
        // Arms of which one shows nothing may differ too: what failed is the cause.
        (None, Some(Unjudged::NotMeasured | Unjudged::NotComparable)) if silence(comparison, arm).is_some() => {
            format!("{name} against {baseline} is not judged: {}.", silence(comparison, arm).unwrap_or_default())
        }
        (None, Some(Unjudged::NotComparable)) => {
            format!(
                "{name} and {baseline} are NOT COMPARABLE: see the differences; --allow-mismatch judges them all the same."
            )
        }
        (None, why) => format!("{name} against {baseline} is not judged: {}: {}.", row.label, reason(why, row)),
    };
    let doubtful = !comparison.comparable && comparison.mismatch_allowed;
    if doubtful { format!("NOT THE SAME WORK, judged on demand: {verdict}") } else { verdict }
}

/// Of two runs of one server no verdict holds, whatever their figures.
fn of_itself(baseline: &str, arm: &Arm, row: &MetricRow, contrast: &Contrast) -> String {
    let called = match contrast.verdict {
        Some(Verdict::Better) => "; it would be called better, which is a false alarm",
        Some(Verdict::Worse) => "; it would be called worse, which is a false alarm",
        Some(Verdict::Same | Verdict::Unclear) | None => "",
    };
    let name = &arm.name;
    let figures = figures(row, contrast);
    format!("{name} is the same server as {baseline}, and any difference between them is noise: {figures}{called}.")
}

/// How far arms that are one and the same are apart.
pub(super) fn noise(comparison: &Comparison) -> Option<String> {
    let NoiseFloor { rounds, least_ratio, most_ratio, change } = comparison.noise_floor?;
    let label = &comparison.metrics.iter().find(|row| row.key == comparison.primary)?.label;
    let rounds = plural(rounds, "round");
    let within = change.map_or_else(
        || "too few for an interval over rounds".to_owned(),
        |change| format!("a change of {:.1} % is within the interval", change * 100.0),
    );
    Some(format!(
        "noise floor: over {rounds}, {label} of one and the same arm differed by ratios of {least_ratio:.3} to \
         {most_ratio:.3}; {within}"
    ))
}

/// Why nothing of the two can be laid side by side: an arm of which no block can be used, or no round of both.
fn silence(comparison: &Comparison, arm: &Arm) -> Option<String> {
    let baseline = comparison.arms.first()?;
    let silent: Vec<_> = [baseline, arm].into_iter().filter(|arm| !arm.has_valid_round()).map(unusable).collect();
    let is_valid = |arm: &Arm, round| !arm.void_rounds.contains(round) && !arm.unfinished_rounds.contains(round);
    let has_pair = baseline
        .rounds
        .iter()
        .any(|round| arm.rounds.contains(round) && is_valid(baseline, round) && is_valid(arm, round));
    if !silent.is_empty() {
        Some(silent.join("; "))
    } else if !has_pair {
        Some("no round has a valid block of both".to_owned())
    } else {
        None
    }
}

/// `all blocks of a are void: errors`.
fn unusable(arm: &Arm) -> String {
    let (name, kinds) = (&arm.name, kinds(arm.voids.iter().map(|(_, void)| void.kind)));
    match (arm.void_rounds.len(), arm.unfinished_rounds.len()) {
        (1, 0) => format!("the only block of {name} is void: {kinds}"),
        (_, 0) => format!("all blocks of {name} are void: {kinds}"),
        (0, _) => format!("no block of {name} has ended"),
        (_, _) => format!("no block of {name} can be used: void ({kinds}) or not at their end"),
    }
}

fn reason(why: Option<Unjudged>, row: &MetricRow) -> String {
    match why {
        Some(Unjudged::FewSamples) => format!("fewer than {} samples", whole(row.least_samples)),
        Some(Unjudged::FewRounds) => {
            "no interval: fewer than three rounds, and their turns are not at hand or do not make this figure"
                .to_owned()
        }
        _ => "no round of both arms has it above zero".to_owned(),
    }
}

/// `Mean TTFT (ms) -45.4 %, 95 % interval -48.1 to -42.5 % over 6 rounds, sign-flip p 0.031 (the least that 6 rounds can give)`.
fn figures(row: &MetricRow, contrast: &Contrast) -> String {
    let mean = contrast.geometric_mean.map_or(String::new(), |ratio| format!(" {} %", change(ratio)));
    let interval = contrast.interval.map_or(String::new(), |interval| format!(", {}", interval_words(interval)));
    let rounds = contrast.ratios.iter().filter(|round| round.ratio.is_some()).count();
    let counted = plural(u64::try_from(rounds).unwrap_or(u64::MAX), "round");
    let over = match contrast.interval.map(|interval| interval.basis) {
        Some(Basis::WithinOneRun) => format!(" within {counted}, which says nothing of the next run"),
        Some(Basis::Rounds) | None => format!(" over {counted}"),
    };
    let p = contrast.sign_flip.map_or(String::new(), |flip| {
        let is_least = flip.p <= flip.floor;
        let floor = if is_least {
            "the least that so many rounds can give".to_owned()
        } else {
            format!("at least {:.3}", flip.floor)
        };
        format!(", sign-flip p {:.3} ({floor})", flip.p)
    });
    format!("{}{mean}{interval}{over}{p}", row.label)
}

fn interval_words(interval: Interval) -> String {
    let Interval { low, high, level: sure, basis: _ } = interval;
    format!("{} interval {} to {} %", level(sure), change(low), change(high))
}

/// `slower, but perhaps by less than 2 %`, where that much is known of an unclear row.
fn leaning(row: &MetricRow, contrast: &Contrast, threshold: f64) -> Option<String> {
    let word = match (contrast.leans_up()?, row.unit == "ms") {
        (true, true) => "slower",
        (false, true) => "faster",
        (true, false) => "higher",
        (false, false) => "lower",
    };
    Some(format!("{word}, but perhaps by less than {}", level(threshold)))
}

fn way_out(contrast: &Contrast) -> String {
    contrast.smallest_effect.map_or_else(
        || "; run three rounds or more".to_owned(),
        |effect| format!("; these rounds would see a change of {} or more; run more of them for less", level(effect)),
    )
}

fn rest(comparison: &Comparison, at: usize, arm: &Arm) -> String {
    let judged = || comparison.metrics.iter().filter(|row| row.judged && row.key != comparison.primary);
    let named = |wanted: Option<Verdict>| -> Vec<String> {
        let of = |row: &&MetricRow| row.contrasts.get(at).is_some_and(|contrast| contrast.verdict == wanted);
        let name = |row: &MetricRow| {
            let leaning = row.contrasts.get(at).and_then(|contrast| leaning(row, contrast, comparison.threshold));
            let name = row.name();
            leaning.map_or_else(|| name.to_owned(), |how| format!("{name} ({how})"))
        };
        judged().filter(of).map(name).collect()
    };
    let lists = [
        ("better", named(Some(Verdict::Better))),
        ("worse", named(Some(Verdict::Worse))),
        ("the same", named(Some(Verdict::Same))),
        ("unclear", named(Some(Verdict::Unclear))),
        ("not judged", named(None)),
    ];
    let said: Vec<_> = lists
        .iter()
        .filter(|(_, labels)| !labels.is_empty())
        .map(|(word, labels)| format!("{word}: {}", labels.join(", ")))
        .collect();
    let failed = |arm: &Arm| format!("{} of {}", told(arm.failed), told(arm.planned));
    let baseline =
        comparison.arms.first().map_or(String::new(), |baseline| format!(" (baseline {})", failed(baseline)));
    let whose = if comparison.aa { "Others, by noise alone" } else { "Others" };
    let others = if said.is_empty() { String::new() } else { format!("{whose}: {}. ", said.join("; ")) };
    format!("{others}Failed requests: {}{baseline}.", failed(arm))
}
