//! What was measured, in a few sentences.

use super::number::{plural, whole};
use crate::compare::{Servers, Setting, Work};
use crate::report::{Length, Popularity, Simulated};

/// Whose seed and digest a setting names, and whether others follow it, each with a seed of its own.
#[derive(Debug, Clone, Copy)]
pub(super) enum First {
    Only,
    Round,
    Step(u32),
}

impl First {
    fn seeds(self) -> String {
        match self {
            Self::Only => String::new(),
            Self::Round => " in round 1 and one more in each round after it".to_owned(),
            Self::Step(step) => format!(" in step {step} and one more in each step after it"),
        }
    }
}

/// A line for the work, one for each kind of server, one for the client.
pub(super) fn lines(setting: &Setting, first: First) -> Vec<String> {
    let Setting { work, servers, client, debug_build, started_utc, host } = setting;
    let work = work.iter().map(|work| of_work(work, first));
    let is_one = servers.len() == 1;
    let servers = servers.iter().map(|of| of_servers(of, is_one));
    let build = if *debug_build { " (debug build)" } else { "" };
    let date: String = started_utc.chars().take_while(|c| *c != 'T').collect();
    let parts = [format!("{client}{build}"), date, host.clone()];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    work.chain(servers).chain([format!("measured by {}", parts.join(" · "))]).collect()
}

fn of_work(work: &Work, first: First) -> String {
    let Work { name, workload, load, digest } = work;
    let seeds = first.seeds();
    let popularity = match workload.popularity {
        Popularity::Uniform => String::new(),
        Popularity::Zipf(exponent) => format!(", popularity zipf {exponent}"),
    };
    format!(
        "workload {name}: {} × {} × {}{popularity} · {} + {} tokens in, {} out · {load} · seed {}{seeds} · digest {digest}",
        plural(workload.groups.get().into(), "group"),
        plural(workload.sessions_per_group.get().into(), "session"),
        plural(workload.turns.get().into(), "turn"),
        length(workload.system_tokens),
        length(workload.question_tokens),
        length(workload.output_tokens),
        workload.seed,
    )
}

fn length(length: Length) -> String {
    let Length { min, max } = length;
    if min == max { whole(min.into()) } else { format!("{} to {}", whole(min.into()), whole(max.into())) }
}

fn of_servers(servers: &Servers, is_only: bool) -> String {
    let Servers { arms, kind, version, model, ranks, simulated } = servers;
    let whose = if is_only { "servers".to_owned() } else { format!("servers of {}", arms.join(", ")) };
    let kind = kind.as_ref().map(|kind| version.as_ref().map_or(kind.clone(), |version| format!("{kind} {version}")));
    let ranks = ranks.map(|ranks| plural(ranks.into(), "rank"));
    let known: Vec<_> = kind.into_iter().chain(model.clone()).chain(ranks).chain(simulated.as_ref().map(how)).collect();
    format!("{whose}: {}", if known.is_empty() { "unknown".to_owned() } else { known.join(" · ") })
}

/// What a reader must know of figures that no GPU made.
pub(super) fn how(simulated: &Simulated) -> String {
    let Simulated { preset, time_scale } = simulated;
    let scale = time_scale.map(|scale| {
        #[expect(clippy::float_cmp, reason = "1 is what is written when nothing is scaled")]
        let is_real = scale == 1.0;
        if is_real { "time scale 1".to_owned() } else { format!("model time runs {scale} times as fast") }
    });
    let parts: Vec<_> = preset.clone().into_iter().chain(scale).collect();
    let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    format!("SIMULATED{parts}: figures of a model, not of GPUs")
}
