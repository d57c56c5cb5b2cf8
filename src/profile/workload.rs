//! From `[workload]` of a profile to a [`WorkloadSpec`].

use std::num::NonZeroU32;

use super::resolve::{Checked, Context, at_least_one};
use super::{History, Length, Order, Popularity, ProfileError, WorkloadSpec, raw};

/// Sizes, lengths and order of the workload, checked.
pub(super) fn workload_spec(raw: &raw::Workload, context: &Context) -> Checked<WorkloadSpec> {
    if let Some(kind) = raw.kind.as_deref().filter(|kind| *kind != "gsp") {
        return Err(match kind {
            "trace" | "mixture" => ProfileError::not_built(format!("`workload.kind` = \"{kind}\"")),
            _ => ProfileError::value("workload.kind", format!("\"{kind}\" is no kind of workload: give \"gsp\"")),
        });
    }
    let ratio_is_given = raw.range_ratio.is_some();
    let ratio = raw.range_ratio.unwrap_or(1.0);
    if !(0.0..=1.0).contains(&ratio) {
        return Err(ProfileError::value("workload.range_ratio", format!("{ratio} is out of range: give 0 to 1")));
    }
    let length = |key: &str, raw: Option<raw::Length>, default: u32, least: u32| {
        if ratio_is_given && matches!(raw, Some(raw::Length::Between { .. })) {
            let why = "min and max say the range already: leave out `workload.range_ratio`, or give one number";
            return Err(ProfileError::value(key, why));
        }
        length(key, raw.unwrap_or(raw::Length::Exactly(default)), ratio, least)
    };
    let turns = at_least_one("workload.turns", raw.turns.unwrap_or(1))?;
    let groups = at_least_one("workload.groups", raw.groups.unwrap_or(8))?;
    let sessions_per_group = at_least_one("workload.sessions_per_group", raw.sessions_per_group.unwrap_or(12))?;
    if u64::from(groups.get()) * u64::from(sessions_per_group.get()) * u64::from(turns.get()) > 100_000_000 {
        let why = "groups × sessions_per_group × turns is above 100 million turns: give smaller numbers";
        return Err(ProfileError::value("workload.groups", why));
    }
    Ok(WorkloadSpec {
        groups,
        sessions_per_group,
        turns,
        system_tokens: length("workload.system_tokens", raw.system_tokens, 4096, 0)?,
        question_tokens: length("workload.question_tokens", raw.question_tokens, 128, 1)?,
        output_tokens: length("workload.output_tokens", raw.output_tokens, 64, 1)?,
        popularity: popularity(raw.popularity.as_ref())?,
        order: raw.order.unwrap_or(Order::Shuffled),
        history: history(raw.history.as_deref(), turns, context)?,
        seed: raw.seed.unwrap_or(context.drawn_seed),
    })
}

/// A length and `range_ratio` as bench_serving means it: uniform in [max(1, floor(N·r)), N].
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the product is below a u32 and not negative"
)]
fn length(key: &str, raw: raw::Length, ratio: f64, least: u32) -> Checked<Length> {
    let length = match raw {
        raw::Length::Exactly(0) => Length { min: 0, max: 0 },
        raw::Length::Exactly(max) => Length { min: ((f64::from(max) * ratio).floor() as u32).max(1), max },
        raw::Length::Between { min, max } => Length { min, max },
    };
    if length.min < least {
        return Err(ProfileError::value(key, format!("{} tokens are too few: give at least {least}", length.min)));
    }
    if length.max > 10_000_000 {
        return Err(ProfileError::value(
            key,
            format!("{} tokens are above 10 million: no server takes them", length.max),
        ));
    }
    if length.min > length.max {
        let why = format!("min {} is above max {}: exchange them", length.min, length.max);
        return Err(ProfileError::value(key, why));
    }
    Ok(length)
}

fn popularity(raw: Option<&raw::Popularity>) -> Checked<Popularity> {
    match raw {
        None => Ok(Popularity::Uniform),
        Some(raw::Popularity::Word(word)) if word == "uniform" => Ok(Popularity::Uniform),
        Some(raw::Popularity::Zipf(exponent)) if exponent.is_finite() && *exponent >= 0.0 => {
            Ok(Popularity::Zipf(*exponent))
        }
        Some(raw::Popularity::Zipf(exponent)) => {
            Err(ProfileError::value("workload.popularity", format!("zipf exponent {exponent}: give 0 or more")))
        }
        Some(raw::Popularity::Word(word)) => Err(ProfileError::value(
            "workload.popularity",
            format!("\"{word}\" is no popularity: give \"uniform\" or {{ zipf = 1.1 }}"),
        )),
    }
}

fn history(raw: Option<&str>, turns: NonZeroU32, context: &Context) -> Checked<History> {
    match raw {
        None if context.compares_arms && turns.get() > 1 => Ok(History::Synthetic),
        None | Some("real") => Ok(History::Real),
        Some("synthetic") => Ok(History::Synthetic),
        Some("recorded") if context.compares_arms => Ok(History::Recorded),
        Some("recorded") => {
            let why =
                "`gspbench ab` records it from its baseline, one arm alone has none: give \"real\" or \"synthetic\"";
            Err(ProfileError::value("workload.history", why))
        }
        Some(word) => {
            let why = format!("\"{word}\" is no history: give \"real\", \"synthetic\" or \"recorded\"");
            Err(ProfileError::value("workload.history", why))
        }
    }
}
