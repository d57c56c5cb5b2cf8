//! The load of each place once a second: from `/v1/loads`, which costs SGLang no scheduler round trip, else from the gauges
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

const PERIOD: Duration = Duration::from_secs(1);
/// An answer older than this would stand at the wrong second.
const PATIENCE: Duration = Duration::from_millis(900);
/// Samples kept of each place; when there are more, every second one goes and the period doubles.
const MOST_SAMPLES: usize = 3_600;

/// Where a server tells its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Loads,
    Metrics,
}

/// Samples the places behind `base` until `stop`.
pub async fn watch(http: reqwest::Client, base: String, clock: Clock, stop: CancellationToken) -> Vec<PlaceLoad> {
    let mut series = Series::default();
    let mut source = Source::Loads;
    let mut due = clock.now();
    loop {
        let stopped = tokio::select! {
            () = stop.cancelled() => true,
            () = clock.sleep_until(due) => false,
        };
        if stopped {
            return series.samples;
        }
        let at: Micros = clock.now().into();
        let mut loads = ask(&http, &base, source, at).await;
        if loads.is_empty() && series.samples.is_empty() && source == Source::Loads {
            source = Source::Metrics;
            loads = ask(&http, &base, source, at).await;
        }
        if loads.is_empty() && series.samples.is_empty() {
            // It tells neither; asking every second would only be noise on the server.
            return vec![];
        }
        series.add(loads);
        due = (due + PERIOD * series.stride).max(clock.now());
    }
}

/// A series that never grows beyond its limit.
#[derive(Debug)]
struct Series {
    samples: Vec<PlaceLoad>,
    /// Instants so far, and how many seconds lie between two.
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
        if self.instants < MOST_SAMPLES {
            return;
        }
        // The last one stays, so that the next lies one new period after it.
        let mut seen: Vec<Micros> = self.samples.iter().map(|sample| sample.t_us).collect();
        seen.dedup();
        let kept: std::collections::BTreeSet<Micros> = seen.into_iter().skip(1).step_by(2).collect();
        self.samples.retain(|sample| kept.contains(&sample.t_us));
        self.instants = kept.len();
        self.stride *= 2;
    }
}

async fn ask(http: &reqwest::Client, base: &str, source: Source, at: Micros) -> Vec<PlaceLoad> {
    let route = match source {
        Source::Loads => "/v1/loads",
        Source::Metrics => "/metrics",
    };
    let Ok(reply) = http.get(join(base, route)).timeout(PATIENCE).send().await else { return vec![] };
    if !reply.status().is_success() {
        return vec![];
    }
    let Ok(body) = super::reply::bytes(reply).await else { return vec![] };
    match source {
        Source::Loads => serde_json::from_slice(&body).map_or_else(|_| vec![], |loads| from_loads(&loads, at)),
        Source::Metrics => from_gauges(&Exposition::parse(&String::from_utf8_lossy(&body)), at),
    }
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
    HitRate,
}

/// Gauges by name, with the label that names the place; without one, the whole server is the place.
const GAUGES: &[(&str, Gauge, &str)] = &[
    ("sglang:num_running_reqs", Gauge::Running, "dp_rank"),
    ("sglang:num_queue_reqs", Gauge::Waiting, "dp_rank"),
    ("sglang:num_used_tokens", Gauge::KvUsed, "dp_rank"),
    ("sglang:cache_hit_rate", Gauge::HitRate, "dp_rank"),
    ("vllm:num_requests_running", Gauge::Running, "engine"),
    ("vllm:num_requests_waiting", Gauge::Waiting, "engine"),
    ("llamacpp:requests_processing", Gauge::Running, ""),
    ("llamacpp:requests_deferred", Gauge::Waiting, ""),
    ("smg_worker_requests_active", Gauge::Running, "worker"),
    ("vllm_router_running_requests", Gauge::Running, "worker"),
];

fn from_gauges(exposition: &Exposition, at: Micros) -> Vec<PlaceLoad> {
    let mut loads: Vec<PlaceLoad> = vec![];
    for sample in exposition.samples.iter().filter(|sample| sample.value.is_finite()) {
        let Some((_, gauge, label)) = GAUGES.iter().find(|(name, ..)| *name == sample.name) else { continue };
        let place = place(sample, label);
        let at_place = loads.iter().position(|load| load.place == place).unwrap_or_else(|| {
            let empty = PlaceLoad { t_us: at, place, running: None, waiting: None, kv_used: None, hit_rate: None };
            loads.push(empty);
            loads.len() - 1
        });
        gauge.set(&mut loads[at_place], sample.value);
    }
    loads
}

fn place(sample: &Sample, label: &str) -> Place {
    match sample.labels.get(label) {
        Some(name) => name.parse().map_or_else(|_| Place::Node(name.clone()), |rank| Place::Rank(Rank(rank))),
        None => Place::Node("server".to_owned()),
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
