//! From the raw schema to the checked specification: defaults, ranges, impossible combinations, features not built yet.
//! After this no stage checks again.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::request::{key_spec, request_spec};
use super::workload::workload_spec;
use super::{
    Api, ArmSpec, ChatLayout, ExperimentSpec, Gaps, Gate, History, Length, LoadSpec, MetricsUrl, Pacing, ProfileError,
    PromptAs, RunSpec, ServerSpec, SimSpec, TimeoutSpec, arm, experiment, raw,
};
use crate::units::{MOST_RANKS, public_address};

pub(super) type Checked<T> = Result<T, ProfileError>;

/// Longest span that a profile may give. Sums of some of them stay far from what a clock can hold.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Sessions a second.
const RATES: RangeInclusive<f64> = 1e-6..=1e6;
/// Shapes of a gamma distribution that floating point can draw from.
const BURSTINESS: RangeInclusive<f64> = 1e-3..=1e6;
/// How many times faster than real time a simulated server may run.
const TIME_SCALES: RangeInclusive<f64> = 1e-3..=1e6;
const MOST_KV_TOKENS: u64 = 1_000_000_000_000;
const MOST_ROUNDS: u32 = 10_000;
/// The metric that is declared where nobody declares one.
pub const PRIMARY: &str = "ttft_ms.mean";
/// 2 %: what one machine seldom holds over an hour by itself.
pub const THRESHOLD: f64 = 0.02;
const THRESHOLDS: RangeInclusive<f64> = 0.0..=1.0;

/// What the profile does not say and the command does.
#[derive(Debug, Clone)]
pub struct Context {
    /// The profile's name.
    pub name: String,
    /// Used when the profile gives none; drawn by the caller, so that resolving stays pure.
    pub drawn_seed: u64,
    /// Several arms must see equal prompts, so later turns default to synthetic history there.
    pub compares_arms: bool,
}

/// Checks one run.
///
/// # Errors
/// A [`ProfileError`] that names the key and the way out.
pub fn run_spec(profile: &raw::Profile, context: &Context) -> Checked<RunSpec> {
    let raw::Profile { schema, workload, key, request, load, timeout, server, sim, slo, experiment: _, arm: _ } =
        profile;
    if schema.is_some_and(|version| version != 1) {
        return Err(ProfileError::value("schema", "this program reads schema = 1"));
    }
    let workload = workload_spec(workload, context)?;
    let spec = RunSpec {
        name: context.name.clone(),
        key: key_spec(key, workload.turns)?,
        request: request_spec(request)?,
        load: load_spec(load)?,
        timeout: timeout_spec(timeout)?,
        server: server_spec(server)?,
        sim: sim_spec(sim)?,
        slo: super::slo::slo(slo)?,
        workload,
    };
    check_combinations(&spec)?;
    Ok(spec)
}

/// Checks an experiment: one run specification, several arms.
///
/// # Errors
/// As [`run_spec`]; also when there are fewer than two arms or two of one name.
pub fn experiment_spec(profile: &raw::Profile, context: &Context) -> Checked<ExperimentSpec> {
    let run = run_spec(profile, context)?;
    let arms = arms(profile)?;
    arm::check_arms(&arms)?;
    let rounds = one_to("experiment.rounds", profile.experiment.rounds.unwrap_or(6), MOST_ROUNDS)?;
    let raw::Experiment { rounds: _, primary, threshold, fail_if: _, server_info_may_differ } = &profile.experiment;
    let threshold = threshold.unwrap_or(THRESHOLD);
    check_threshold(threshold)?;
    Ok(ExperimentSpec {
        run,
        rounds,
        primary: primary.clone().unwrap_or_else(|| PRIMARY.to_owned()),
        threshold,
        fail_if: gates(profile)?,
        server_info_may_differ: server_info_may_differ.clone().unwrap_or_else(experiment::what_may_differ),
        arms,
        aa: false,
    })
}

/// The arms of a sweep, of which one is enough.
///
/// # Errors
/// When there is none, or one is wrong.
pub fn sweep_arms(profile: &raw::Profile) -> Checked<Vec<ArmSpec>> {
    let arms = arms(profile)?;
    check_sweep_arms(&arms)?;
    Ok(arms)
}

/// Checks the arms of a sweep, also those that a file held.
///
/// # Errors
/// When there is none, or two have one name, or one has a name that can be none of a directory.
pub fn check_sweep_arms(arms: &[ArmSpec]) -> Checked<()> {
    if arms.is_empty() {
        let why = "a sweep needs an arm: give --arm NAME=TARGET once or more, or [[arm]] tables";
        return Err(ProfileError::value("arm", why));
    }
    arm::check_names(arms)
}

fn arms(profile: &raw::Profile) -> Checked<Vec<ArmSpec>> {
    profile.arm.iter().enumerate().map(|(at, arm)| arm::resolve_arm(arm, at)).collect()
}

/// Checks again what a file held, which anyone may have changed since it was written.
///
/// # Errors
/// As [`experiment_spec`], for the arms, the rounds and the threshold.
pub fn check_stored(spec: &ExperimentSpec) -> Checked<()> {
    arm::check_arms(&spec.arms)?;
    one_to("experiment.rounds", spec.rounds.get(), MOST_ROUNDS)?;
    check_threshold(spec.threshold)
}

fn check_threshold(threshold: f64) -> Checked<()> {
    if THRESHOLDS.contains(&threshold) {
        return Ok(());
    }
    let why = format!("{threshold}: give the smallest relative change that matters, 0 to 1, such as 0.02 for 2 %");
    Err(ProfileError::value("experiment.threshold", why))
}

/// The gates of a profile.
///
/// # Errors
/// Names the first that is none, and shows the grammar.
pub fn gates(profile: &raw::Profile) -> Checked<Vec<Gate>> {
    profile.experiment.fail_if.iter().flatten().map(|gate| gate.parse()).collect()
}

fn load_spec(raw: &raw::Load) -> Checked<LoadSpec> {
    let cap = raw.max_concurrency.map(|n| at_least_one("load.max_concurrency", n)).transpose()?;
    let burstiness = raw.burstiness.unwrap_or(1.0);
    let gaps = match burstiness {
        f64::INFINITY => Gaps::Even,
        shape if BURSTINESS.contains(&shape) => Gaps::Gamma(shape),
        _ => {
            let why = format!("{burstiness}: give 0.001 to 1000000; 1 is Poisson, inf is evenly spaced");
            return Err(ProfileError::value("load.burstiness", why));
        }
    };
    let pacing = match raw.rate {
        None if raw.burstiness.is_some() => {
            return Err(ProfileError::value("load.burstiness", "it shapes the gaps of a rate: give `load.rate` too"));
        }
        None => Pacing::Closed { sessions: cap.unwrap_or(const { NonZeroU32::new(32).expect("32 is not 0") }) },
        Some(rate) if RATES.contains(&rate) => Pacing::Open { per_second: rate, gaps, sessions: cap },
        Some(rate) => {
            return Err(ProfileError::value(
                "load.rate",
                format!("{rate}: give sessions a second, above 0 (0.000001 to 1000000), or leave it out"),
            ));
        }
    };
    Ok(LoadSpec {
        pacing,
        max_turns_in_flight: raw
            .max_turns_in_flight
            .map(|n| at_least_one("load.max_turns_in_flight", n))
            .transpose()?,
        connections: raw.connections.unwrap_or_default(),
        ramp_up: span("load.ramp_up", raw.ramp_up.as_deref(), Duration::ZERO)?,
        duration: duration(raw.duration.as_deref())?,
        think: span("load.think", raw.think.as_deref(), Duration::ZERO)?,
        warmup_sessions: raw.warmup_sessions.unwrap_or(8),
    })
}

fn duration(text: Option<&str>) -> Checked<Option<Duration>> {
    let given = text.map(|text| span("load.duration", Some(text), Duration::ZERO)).transpose()?;
    if given.is_some_and(|span| span.is_zero()) {
        let why = "a run of 0 sends nothing: give more, as in \"60s\", or leave it out";
        return Err(ProfileError::value("load.duration", why));
    }
    Ok(given)
}

fn timeout_spec(raw: &raw::Timeout) -> Checked<TimeoutSpec> {
    let positive = |key: &str, text: Option<&str>, default| positive_span(key, text, Duration::from_secs(default));
    Ok(TimeoutSpec {
        connect: positive("timeout.connect", raw.connect.as_deref(), 10)?,
        first_byte: positive("timeout.first_byte", raw.first_byte.as_deref(), 600)?,
        idle: positive("timeout.idle", raw.idle.as_deref(), 60)?,
    })
}

/// Between two looks at the server's load.
const LEAST_INTERVAL: Duration = Duration::from_millis(100);

fn server_spec(raw: &raw::Server) -> Checked<ServerSpec> {
    let metrics_urls = raw.metrics_urls.iter().flatten();
    let metrics_urls = metrics_urls.map(|text| MetricsUrl::checked("server.metrics_urls", text));
    if raw.isolate.is_some() && (raw.flush == Some(true) || raw.flush_command.is_some()) {
        let why = "it stands in the place of a flush: give one of them";
        return Err(ProfileError::value("server.isolate", why));
    }
    if raw.flush == Some(false) && raw.flush_command.is_some() {
        let why = "`server.flush` = false leaves the cache as it is: give one of them";
        return Err(ProfileError::value("server.flush_command", why));
    }
    let sample_interval = span("server.sample_interval", raw.sample_interval.as_deref(), Duration::from_secs(1))?;
    if !sample_interval.is_zero() && sample_interval < LEAST_INTERVAL {
        let why = "more than ten looks a second would burden the server: give \"100ms\" or more, or 0 for none";
        return Err(ProfileError::value("server.sample_interval", why));
    }
    Ok(ServerSpec {
        sample_interval,
        metrics_urls: metrics_urls.collect::<Checked<_>>()?,
        flush: raw.flush.unwrap_or(raw.isolate.is_none()),
        flush_command: raw.flush_command.clone(),
        isolate: raw.isolate,
        flush_timeout: span("server.flush_timeout", raw.flush_timeout.as_deref(), Duration::from_secs(60))?,
        ranks: one_to("server.ranks", raw.ranks.unwrap_or(8), MOST_RANKS)?,
        kv_tokens_per_rank: kv_tokens(raw.kv_tokens_per_rank.unwrap_or(1_050_000))?,
    })
}

fn sim_spec(raw: &raw::Sim) -> Checked<SimSpec> {
    let time_scale = raw.time_scale.unwrap_or(1.0);
    if !TIME_SCALES.contains(&time_scale) {
        let why = format!("{time_scale}: give how many times faster, above 0 (0.001 to 1000000)");
        return Err(ProfileError::value("sim.time_scale", why));
    }
    Ok(SimSpec {
        preset: raw.preset.clone().unwrap_or_else(|| "generic-8xh100".to_owned()),
        guard: raw.guard.clone().unwrap_or_else(|| "requests".to_owned()),
        time_scale,
    })
}

/// What is fine by itself and impossible together.
fn check_combinations(spec: &RunSpec) -> Checked<()> {
    let is_given = |name: &&String| spec.request.headers.keys().any(|given| given.eq_ignore_ascii_case(name));
    if let Some(name) = spec.key.headers.iter().find(is_given) {
        let why =
            format!("`{name}`: `request.headers` (--header) gives this header a value already: leave one of them out");
        return Err(ProfileError::value("key.headers", why));
    }
    let ids = spec.request.prompt_as == PromptAs::Ids;
    if ids && spec.request.tokenizer.is_none() {
        let why = "ids need a tokenizer, since ids out of its vocabulary can kill a server: give --tokenizer PATH";
        return Err(ProfileError::value("request.prompt_as", why));
    }
    if ids && spec.request.api == Api::Chat {
        return Err(ProfileError::value(
            "request.prompt_as",
            "chat takes text: use api = \"completions\" or \"generate\"",
        ));
    }
    if ids && spec.workload.turns.get() > 1 && spec.workload.history != History::Synthetic {
        let why = "replies come back as text: use history = \"synthetic\" with ids";
        return Err(ProfileError::value("request.prompt_as", why));
    }
    let Length { min, max } = spec.workload.output_tokens;
    if spec.workload.history == History::Recorded && min != max {
        let why = "replies are recorded once and stand in every round, so `workload.output_tokens` must be one length";
        return Err(ProfileError::value("workload.history", why));
    }
    if spec.load.duration.is_some_and(|duration| spec.load.ramp_up >= duration) {
        let why =
            "it takes as long as `load.duration` or longer, so that the load never reaches its height: make it shorter";
        return Err(ProfileError::value("load.ramp_up", why));
    }
    if spec.request.chat_layout == ChatLayout::Merged && spec.request.api != Api::Chat {
        return Err(ProfileError::value("request.chat_layout", "only api = \"chat\" has a layout: leave it out"));
    }
    Ok(())
}

pub(super) fn at_least_one(key: &str, n: u32) -> Checked<NonZeroU32> {
    NonZeroU32::new(n).ok_or_else(|| ProfileError::value(key, "0 leaves nothing to do: give at least 1"))
}

fn one_to(key: &str, n: u32, most: u32) -> Checked<NonZeroU32> {
    let n = at_least_one(key, n)?;
    if n.get() > most {
        return Err(ProfileError::value(key, format!("{n} is too large: give at most {most}")));
    }
    Ok(n)
}

fn kv_tokens(tokens: u64) -> Checked<u64> {
    if !(1..=MOST_KV_TOKENS).contains(&tokens) {
        let why = format!("{tokens} tokens: give what the cache of one rank holds, 1 to {MOST_KV_TOKENS}");
        return Err(ProfileError::value("server.kv_tokens_per_rank", why));
    }
    Ok(tokens)
}

/// Refuses what is no address of a server.
pub(super) fn http_url(key: &str, url: &str) -> Checked<()> {
    let is_http = reqwest::Url::parse(url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
    if !is_http {
        let why = format!("`{}` is no address: give http://HOST:PORT", public_address(url));
        return Err(ProfileError::value(key, why));
    }
    Ok(())
}

/// A timeout that lets something happen.
pub(super) fn positive_span(key: &str, text: Option<&str>, default: Duration) -> Checked<Duration> {
    let span = span(key, text, default)?;
    if span.is_zero() {
        return Err(ProfileError::value(key, "a timeout of 0 lets nothing happen: give more, as in \"60s\""));
    }
    Ok(span)
}

pub(super) fn span(key: &str, text: Option<&str>, default: Duration) -> Checked<Duration> {
    let Some(text) = text else { return Ok(default) };
    let wrong = || ProfileError::value(key, format!("\"{text}\" is no span: write it as \"90s\" or \"1m 30s\""));
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let span = humantime::parse_duration(text).map_err(|_| wrong())?;
    if span > LONGEST {
        return Err(ProfileError::value(key, format!("\"{text}\" is too long: give at most 10 years, as in \"90s\"")));
    }
    Ok(span)
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
