//! The load of each place again and again: from `/v1/loads`, which costs SGLang no scheduler round trip, else from the gauges
//! of `/metrics`. It runs on a connection of its own and never delays a turn; a question that is not answered in time
//! leaves a hole in the series.

use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::join;
use crate::clock::Clock;
use crate::record::{Place, PlaceLoad};
use crate::units::{Micros, Rank};
use crate::wire::{Exposition, Sample};

/// Samples kept of each place; when there are more, every second one goes and the period doubles.
const MOST_SAMPLES: usize = 3_600;

/// Loads kept of all places together: a fleet of hundreds of ranks is sampled more thinly.
const MOST_LOADS: usize = 64 * MOST_SAMPLES;

/// The place of a gauge that names none.
pub const WHOLE_SERVER: &str = "server";

/// Where a server tells its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Loads,
    Metrics,
}

/// What a server said to one question.
#[derive(Debug, Clone, PartialEq)]
enum Answer {
    Told(Vec<PlaceLoad>),
    /// It answered, and tells no load here.
    Nothing,
    /// It did not answer in time, or not at all: it may tell its load the next time.
    Silent,
}

/// Samples the places behind `base` once a `period` until `stop`, which also cuts a question that is still open.
pub async fn watch(
    http: reqwest::Client,
    base: String,
    period: Duration,
    clock: Clock,
    stop: CancellationToken,
) -> Vec<PlaceLoad> {
    let mut series = Series::default();
    let sampling = sample(&http, &base, period, &clock, &mut series);
    tokio::select! {
        () = stop.cancelled() => {}
        () = sampling => {}
    }
    series.samples
}

/// Ends only when the server tells its load nowhere.
async fn sample(http: &reqwest::Client, base: &str, period: Duration, clock: &Clock, series: &mut Series) {
    // An answer older than this would stand at the wrong instant.
    let patience = period.mul_f64(0.9);
    let mut source = Source::Loads;
    let mut due = clock.now();
    loop {
        clock.sleep_until(due).await;
        let at: Micros = clock.now().into();
        let mut answer = ask(http, base, source, patience, at).await;
        if answer == Answer::Nothing && series.samples.is_empty() && source == Source::Loads {
            source = Source::Metrics;
            answer = ask(http, base, source, patience, at).await;
        }
        match answer {
            Answer::Told(loads) => series.add(loads),
            // Asking again would only be noise on the server.
            Answer::Nothing if series.samples.is_empty() => return,
            Answer::Nothing | Answer::Silent => {}
        }
        due = (due + period * series.stride).max(clock.now());
    }
}

/// A series that never grows beyond its limits.
#[derive(Debug)]
struct Series {
    samples: Vec<PlaceLoad>,
    /// Instants so far, and how many periods lie between two.
    instants: usize,
    stride: u32,
}

impl Default for Series {
    fn default() -> Self {
        Self { samples: vec![], instants: 0, stride: 1 }
    }
}

impl Series {
    fn add(&mut self, loads: Vec<PlaceLoad>) {
        self.samples.extend(loads);
        self.instants += 1;
        if self.instants < MOST_SAMPLES && self.samples.len() < MOST_LOADS {
            return;
        }
        // The last one stays, so that the next lies one new period after it.
        let mut seen: Vec<Micros> = self.samples.iter().map(|sample| sample.t_us).collect();
        seen.dedup();
        let skipped = (seen.len() + 1) % 2;
        let kept: std::collections::BTreeSet<Micros> = seen.into_iter().skip(skipped).step_by(2).collect();
        self.samples.retain(|sample| kept.contains(&sample.t_us));
        self.instants = kept.len();
        self.stride *= 2;
    }
}

async fn ask(http: &reqwest::Client, base: &str, source: Source, patience: Duration, at: Micros) -> Answer {
    let url = match source {
        Source::Loads => join(base, "/v1/loads"),
        Source::Metrics => super::scrape::metrics_url(base),
    };
    let Ok(reply) = http.get(url).timeout(patience).send().await else { return Answer::Silent };
    // A busy server may refuse for now; only one that does not know the question will never answer it.
    if reply.status().is_server_error() {
        return Answer::Silent;
    }
    if !reply.status().is_success() {
        return Answer::Nothing;
    }
    let Ok(body) = super::reply::bytes(reply).await else { return Answer::Silent };
    let loads = match source {
        Source::Loads => serde_json::from_slice(&body).map_or_else(|_| vec![], |loads| from_loads(&loads, at)),
        Source::Metrics => from_gauges(&Exposition::parse_those(&String::from_utf8_lossy(&body), is_gauge), at),
    };
    if loads.is_empty() { Answer::Nothing } else { Answer::Told(loads) }
}

/// SGLang's `/v1/loads`: an entry a rank, each with its own `dp_rank`.
fn from_loads(loads: &Value, at: Micros) -> Vec<PlaceLoad> {
    let number = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_u64);
    let entries = loads.get("loads").and_then(Value::as_array).into_iter().flatten();
    entries
        .filter_map(|entry| {
            let rank = number(entry, "dp_rank").and_then(|rank| u16::try_from(rank).ok())?;
            Some(PlaceLoad {
                t_us: at,
                place: Place::Rank(Rank(rank)),
                running: number(entry, "num_running_reqs"),
                waiting: number(entry, "num_waiting_reqs"),
                kv_used: number(entry, "num_used_tokens"),
                kv_usage: entry.get("token_usage").and_then(Value::as_f64),
                hit_rate: entry.get("cache_hit_rate").and_then(Value::as_f64),
            })
        })
        .collect()
}

/// What a gauge says of a place.
#[derive(Clone, Copy)]
enum Gauge {
    Running,
    Waiting,
    KvUsed,
    KvUsage,
    HitRate,
}

/// Gauges by name, with the label that names the place; without one, the whole server is the place.
const GAUGES: &[(&str, Gauge, &str)] = &[
    ("sglang:num_running_reqs", Gauge::Running, "dp_rank"),
    ("sglang:num_queue_reqs", Gauge::Waiting, "dp_rank"),
    ("sglang:num_used_tokens", Gauge::KvUsed, "dp_rank"),
    ("sglang:token_usage", Gauge::KvUsage, "dp_rank"),
    ("sglang:cache_hit_rate", Gauge::HitRate, "dp_rank"),
    ("vllm:num_requests_running", Gauge::Running, "engine"),
    ("vllm:num_requests_waiting", Gauge::Waiting, "engine"),
    ("vllm:kv_cache_usage_perc", Gauge::KvUsage, "engine"),
    ("llamacpp:requests_processing", Gauge::Running, ""),
    ("llamacpp:requests_deferred", Gauge::Waiting, ""),
    ("smg_worker_requests_active", Gauge::Running, "worker"),
    ("vllm_router_running_requests", Gauge::Running, "worker"),
];

fn is_gauge(name: &str) -> bool {
    GAUGES.iter().any(|(known, ..)| *known == name)
}

fn from_gauges(exposition: &Exposition, at: Micros) -> Vec<PlaceLoad> {
    let mut loads: Vec<PlaceLoad> = vec![];
    for sample in exposition.samples.iter().filter(|sample| sample.value.is_finite()) {
        let Some((_, gauge, label)) = GAUGES.iter().find(|(name, ..)| *name == sample.name) else { continue };
        let place = place(sample, label);
        let at_place = loads.iter().position(|load| load.place == place).unwrap_or_else(|| {
            loads.push(PlaceLoad::unknown(at, place));
            loads.len() - 1
        });
        gauge.set(&mut loads[at_place], sample.value);
    }
    loads
}

fn place(sample: &Sample, label: &str) -> Place {
    match sample.labels.get(label) {
        Some(name) => name.parse().map_or_else(|_| Place::Node(name.clone()), |rank| Place::Rank(Rank(rank))),
        None => Place::Node(WHOLE_SERVER.to_owned()),
    }
}

impl Gauge {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "gauges of requests and tokens are small counts"
    )]
    fn set(self, load: &mut PlaceLoad, value: f64) {
        let count = (value.max(0.0)) as u64;
        match self {
            Self::Running => load.running = Some(count),
            Self::Waiting => load.waiting = Some(count),
            Self::KvUsed => load.kv_used = Some(count),
            Self::KvUsage => load.kv_usage = Some(value),
            Self::HitRate => load.hit_rate = Some(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(name: &str) -> String {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
        std::fs::read_to_string(path).unwrap()
    }

    fn load(rank: u16, running: u64, waiting: u64, kv_used: u64, hit_rate: f64) -> PlaceLoad {
        PlaceLoad {
            t_us: Micros(5),
            place: Place::Rank(Rank(rank)),
            running: Some(running),
            waiting: Some(waiting),
            kv_used: Some(kv_used),
            kv_usage: Some(0.0),
            hit_rate: Some(hit_rate),
        }
    }

    #[test]
    fn the_loads_of_a_real_server_are_read_by_their_own_rank() {
        let loads = serde_json::from_str(&data("sglang/dp2.loads.json")).unwrap();
        assert_eq!(from_loads(&loads, Micros(5)), [load(0, 0, 0, 0, 0.0), load(1, 0, 0, 0, 0.0)]);
    }

    #[test]
    fn gauges_of_real_servers_are_read_by_rank() {
        let read = |name| from_gauges(&Exposition::parse(&data(name)), Micros(5));
        let mut sglang = read("metrics/sglang.dp2.metrics.txt");
        sglang.sort_by(|a, b| a.place.cmp(&b.place));
        assert_eq!(sglang, [load(0, 0, 0, 0, 0.993_788_819_875_776_4), load(1, 0, 0, 161, 0.0)]);
        let vllm = read("metrics/vllm.dp2.metrics.txt");
        assert_eq!(vllm.iter().map(|load| (load.running, load.waiting)).collect::<Vec<_>>(), [(Some(0), Some(0)); 2]);
        assert_eq!(read("metrics/llamacpp.metrics.txt")[0].place, Place::Node("server".into()));
    }

    /// B109
    #[test]
    fn a_gauge_that_is_not_a_number_is_absent_and_not_0() {
        let text = "vllm:num_requests_running{engine=\"0\"} NaN\nvllm:num_requests_waiting{engine=\"0\"} 2\n# EOF";
        let loads = from_gauges(&Exposition::parse(text), Micros(5));
        assert_eq!(loads, [PlaceLoad { waiting: Some(2), ..PlaceLoad::unknown(Micros(5), Place::Rank(Rank(0))) }]);
    }

    /// Answers `/v1/loads`, but holds the first question for ever; cancels `stop` once it has answered.
    async fn slow_at_first(stop: CancellationToken) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let mut head = [0; 1_024];
            let (mut held, _) = listener.accept().await.unwrap();
            assert!(held.read(&mut head).await.unwrap() > 0);
            let (mut asked, _) = listener.accept().await.unwrap();
            assert!(asked.read(&mut head).await.unwrap() > 0);
            let body = r#"{"loads":[{"dp_rank":3,"num_running_reqs":7}]}"#;
            let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            asked.write_all(reply.as_bytes()).await.unwrap();
            // The next question shows that this answer was taken in.
            assert!(asked.read(&mut head).await.unwrap() > 0);
            stop.cancel();
            std::future::pending::<()>().await;
        });
        base
    }

    #[tokio::test]
    async fn a_question_that_is_never_answered_leaves_a_hole_and_not_an_end() {
        let stop = CancellationToken::new();
        let base = slow_at_first(stop.clone()).await;
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let series = watch(http, base, Duration::from_secs(1), Clock::wall(), stop).await;
        let seen: Vec<_> = series.iter().map(|load| (load.place.clone(), load.running)).collect();
        assert_eq!(seen, [(Place::Rank(Rank(3)), Some(7))]);
    }

    #[test]
    fn the_loads_of_many_ranks_together_are_bounded_too() {
        let mut series = Series::default();
        for second in 0..2_000 {
            let at = Micros(second * 1_000_000);
            series.add((0..1_000).map(|rank| PlaceLoad { t_us: at, ..load(rank, 1, 0, 0, 0.0) }).collect());
            assert!(series.samples.len() < MOST_LOADS);
        }
        assert!(series.stride > 1);
    }

    #[test]
    fn a_long_series_is_thinned_evenly_and_never_grows_beyond_its_limit() {
        let mut series = Series::default();
        let mut second = 0_u64;
        for _ in 0..20_000 {
            let at = Micros(second * 1_000_000);
            series.add(vec![
                PlaceLoad { t_us: at, ..load(0, 1, 0, 0, 0.0) },
                PlaceLoad { t_us: at, ..load(1, 1, 0, 0, 0.0) },
            ]);
            second += u64::from(series.stride);
            assert!(series.instants < MOST_SAMPLES && series.samples.len() == 2 * series.instants);
        }
        let ranks = series.samples.iter().filter(|sample| sample.place == Place::Rank(Rank(0)));
        let gaps: std::collections::BTreeSet<u64> =
            ranks.collect::<Vec<_>>().windows(2).map(|pair| pair[1].t_us.0 - pair[0].t_us.0).collect();
        assert_eq!(gaps.len(), 1, "evenly spaced: {gaps:?}");
    }
}
