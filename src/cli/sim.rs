//! `gspbench sim`: flags to settings, then the server until it is told to stop.

use std::io::Write;
use std::net::IpAddr;
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use futures::future::OptionFuture;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::clock::Clock;
use crate::policy::{Affinity, Fallback, Guard, MaxLoadSkew, Method};
use crate::sim::{Limits, Log, Preset, Settings, Setup, Tokens, serve, start_unix};
use crate::units::Rank;

use super::Exit;
use super::exit::ExitWith;

/// Runs a simulated SGLang server with data-parallel ranks on a port.
///
/// No model and no GPU: replies are fixed words, and their timing comes from a cost model that was fitted to published runs.
/// Caches, queues, chunked prefill, lock-step ranks and the routing policies are simulated per request, so that hit rates
/// and placements are exact. Its chat template adds no token. Prints `listening on http://HOST:PORT` first.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct SimArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 30000)]
    port: u16,
    /// Costs and sizes to start from: generic-8xh100, qwen3.5-122b-8xh100-pr31170 or dsv4-flash-8xh100
    #[arg(long, default_value = "generic-8xh100", value_name = "NAME", value_parser = preset)]
    preset: Preset,
    /// Data-parallel ranks, each with a cache of its own [default: the preset's, 8]
    #[arg(long, visible_alias = "attn-dp-size", value_name = "N")]
    ranks: Option<NonZeroU16>,
    /// How requests are spread: round_robin, total_requests, total_tokens, prefix_match or prefix_affinity
    #[arg(long, default_value = "round_robin", value_name = "METHOD")]
    load_balance_method: Method,
    /// What prefix_affinity does with a request without a key: round_robin, total_requests or total_tokens
    #[arg(long, default_value = "total_tokens", value_name = "METHOD")]
    prefix_affinity_fallback: Fallback,
    /// A rank is passed over when its load is above this many times the mean; at least 1
    #[arg(long, default_value_t, value_name = "FACTOR")]
    prefix_affinity_max_load_skew: MaxLoadSkew,
    /// How many leading prompt tokens make the key of a request that has none
    #[arg(long, default_value = "4096", value_name = "TOKENS")]
    prefix_affinity_hash_tokens: NonZeroUsize,
    /// Send requests without a key to the fallback instead of hashing their prompt
    #[arg(long)]
    prefix_affinity_disable_token_fallback: bool,
    /// What counts as load there: none (a key never leaves its rank), requests, or tokens (the first version of PR #31170)
    #[arg(long, default_value = "requests", value_name = "LOAD")]
    prefix_affinity_guard: Guard,
    /// Run this many times faster than the model says; above 3 the timer's millisecond shows in fast steps
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    time_scale: f64,
    /// Prefill tokens of one rank in one step [default: the preset's, 1024]. SGLang's --chunked-prefill-size is for all ranks
    /// together under DP attention: 1024 here with 8 ranks is 8192 there
    #[arg(long, value_name = "TOKENS")]
    chunk: Option<NonZeroU32>,
    /// Tokens that one rank's cache holds [default: the preset's, 1050000]
    #[arg(long, value_name = "TOKENS")]
    kv_tokens: Option<NonZeroU64>,
    /// Tokens of a cache page; prefixes are shared in whole pages
    #[arg(long, default_value = "1", value_name = "TOKENS")]
    page_size: NonZeroU32,
    /// Running requests of one rank [default: 4096]. SGLang divides its --max-running-requests by the ranks under DP attention
    #[arg(long, value_name = "N")]
    max_running: Option<NonZeroU32>,
    /// Most tokens of prompt and reply together
    #[arg(long, default_value = "131072", value_name = "TOKENS")]
    context_length: NonZeroU32,
    /// Duration of an empty decode step, such as 14ms [default: the preset's]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    decode_base: Option<Duration>,
    /// Duration of an empty step with prefill, such as 42ms [default: the preset's]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    prefill_base: Option<Duration>,
    /// Added per token of the padded batch, such as 10600ns [default: the preset's]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    per_token: Option<Duration>,
    /// Name of the served model
    #[arg(long, default_value = "gspbench-sim", value_name = "NAME")]
    model: String,
    /// Leave cached tokens out of the usage of the OpenAI routes, as SGLang does without --enable-cache-report
    #[arg(long)]
    disable_cache_report: bool,
    /// A tokenizer.json to count with [default: words, one token each]
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Ranks that are out of the live set, such as 3,5
    #[arg(long, value_delimiter = ',', value_name = "RANKS")]
    offline_ranks: Vec<u16>,
    /// Write a JSON line per request: rank, cached tokens, and the instant of each write
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// End when stdin closes, for a parent process that may die
    #[arg(long)]
    exit_with_stdin: bool,
}

fn preset(name: &str) -> Result<Preset, String> {
    Preset::find(name).map_err(|error| error.to_string())
}

impl SimArgs {
    fn settings(&self) -> Settings {
        let mut settings = Settings::from(self.preset);
        let Limits { chunk, kv_tokens, page: _, max_running } = settings.limits;
        settings.ranks = self.ranks.map_or(settings.ranks, NonZeroU16::get);
        settings.limits = Limits {
            chunk: self.chunk.map_or(chunk, NonZeroU32::get),
            kv_tokens: self.kv_tokens.map_or(kv_tokens, NonZeroU64::get),
            page: self.page_size.get(),
            max_running: self.max_running.map_or(max_running, NonZeroU32::get),
        };
        settings.costs.decode_base = self.decode_base.unwrap_or(settings.costs.decode_base);
        settings.costs.prefill_base = self.prefill_base.unwrap_or(settings.costs.prefill_base);
        settings.costs.per_token = self.per_token.unwrap_or(settings.costs.per_token);
        settings.context_length = self.context_length.get();
        settings.method = self.load_balance_method;
        settings.affinity = Affinity {
            fallback: self.prefix_affinity_fallback,
            max_load_skew: self.prefix_affinity_max_load_skew,
            hash_tokens: self.prefix_affinity_hash_tokens,
            token_fallback: !self.prefix_affinity_disable_token_fallback,
            guard: self.prefix_affinity_guard,
        };
        settings.offline = self.offline_ranks.iter().copied().map(Rank).collect();
        settings.time_scale = self.time_scale;
        settings.model.clone_from(&self.model);
        settings.cache_report = !self.disable_cache_report;
        settings
    }
}

/// The command line of a child, to be parsed before there is one.
#[derive(Debug, clap::Parser)]
struct Child {
    #[command(flatten)]
    sim: SimArgs,
}

/// Whether `gspbench sim` would start with these arguments of a parent.
///
/// # Errors
/// One sentence.
pub(super) fn check(arguments: Vec<std::ffi::OsString>) -> Result<(), String> {
    let own = ["sim", "--port=0", "--exit-with-stdin"].map(std::ffi::OsString::from);
    let child = <Child as clap::Parser>::try_parse_from(own.into_iter().chain(arguments)).map_err(|why| {
        let text = why.to_string();
        let sentence: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
        sentence.join(" ").trim_start_matches("error: ").to_owned()
    })?;
    child.sim.settings().check().map_err(|why| why.to_string())
}

/// Serves until a signal, or until stdin closes if asked to.
///
/// # Errors
/// When the port or the log file cannot be had, or the socket fails later.
pub(super) fn run(args: &SimArgs) -> anyhow::Result<Exit> {
    let settings = args.settings();
    settings.check().exit_with(Exit::Usage)?;
    let tokens =
        args.tokenizer.as_deref().map_or_else(|| Ok(Tokens::words()), Tokens::from_file).exit_with(Exit::Usage)?;
    // One thread: the simulator's work is small and ordered, and whoever measures it needs the other cores.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let clock = Clock::wall();
        let start_unix = start_unix(&clock);
        let log = match &args.log {
            Some(path) => Some(
                Log::create(path, &settings, start_unix)
                    .with_context(|| format!("log `{}`: give a file that can be written", path.display()))
                    .exit_with(Exit::Usage)?,
            ),
            None => None,
        };
        let listener = TcpListener::bind((args.host, args.port))
            .await
            .with_context(|| format!("{}:{}: give another --port, or 0 for a free one", args.host, args.port))
            .exit_with(Exit::Usage)?;
        announce(&listener)?;
        let setup = Setup { settings, tokens, log, clock, start_unix };
        serve(listener, setup, stop(args.exit_with_stdin)?).await?;
        Ok(Exit::Ok)
    })
}

/// The first line on stdout is how a parent process finds the port.
fn announce(listener: &TcpListener) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "listening on http://{}", listener.local_addr()?)?;
    Ok(stdout.flush()?)
}

/// Ready at ctrl-c, at SIGTERM, or when stdin closes.
fn stop(with_stdin: bool) -> std::io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let stdin = with_stdin.then(stdin_closed);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = OptionFuture::from(stdin), if with_stdin => {}
        }
    })
}

/// A plain thread, since the runtime would wait for its own read of stdin when it ends by a signal.
fn stdin_closed() -> oneshot::Receiver<()> {
    let (told, closed) = oneshot::channel();
    std::thread::spawn(move || {
        // An error is as good as an end.
        std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()).ok();
        told.send(()).ok();
    });
    closed
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        sim: SimArgs,
    }

    fn settings(line: &str) -> Result<Settings, String> {
        let line = std::iter::once("sim").chain(line.split_whitespace());
        Line::try_parse_from(line).map(|line| line.sim.settings()).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_beat_the_preset() {
        let settings = settings(
            "--preset qwen3.5-122b-8xh100-pr31170 --attn-dp-size 4 --chunk 512 --per-token 50us --prefix-affinity-guard none \
             --load-balance-method prefix_affinity --offline-ranks 1,3",
        )
        .unwrap();
        assert_eq!((settings.ranks, settings.limits.chunk), (4, 512));
        assert_eq!(settings.costs.per_token, Duration::from_micros(50));
        assert_eq!(settings.costs.decode_base, Duration::from_millis(6));
        assert_eq!((settings.method, settings.affinity.guard), (Method::PrefixAffinity, Guard::None));
        assert_eq!(settings.offline, [Rank(1), Rank(3)]);
    }

    #[test]
    fn bad_values_are_refused_with_the_choices() {
        assert!(settings("--preset qwen3-14b-2p2d").unwrap_err().contains("does not have yet"));
        assert!(settings("--load-balance-method fair").unwrap_err().contains("prefix_affinity"));
        assert!(settings("--prefix-affinity-max-load-skew 0.5").unwrap_err().contains("at least 1"));
        assert!(settings("--chunk 0").is_err());
    }
}
