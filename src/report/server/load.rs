//! The load of each place over a run, from the server's own gauges.

use std::collections::BTreeMap;

use crate::record::{Place, PlaceLoad};
use crate::stats::rounded;

/// Mean and largest of a gauge's samples, each of which stands for a second of the run. What a gauge did between two
/// samples is not in them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    pub mean: f64,
    pub max: f64,
}

/// One place's load, as far as its server tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadRow {
    pub place: Place,
    pub samples: u64,
    /// Requests.
    pub running: Option<Level>,
    /// Requests.
    pub queued: Option<Level>,
    /// Share of the KV cache that live requests hold, 0…1.
    pub kv_usage: Option<Level>,
    /// Share of the prompt tokens of the last prefill batch before each sample, 0…1: no average over requests.
    pub hit_rate: Option<Level>,
}

/// One row a place, in the order of places. `kv_tokens_per_rank` turns tokens into a share where only tokens are told.
#[must_use]
pub fn loads(series: &[PlaceLoad], kv_tokens_per_rank: Option<u64>) -> Vec<LoadRow> {
    let mut places: BTreeMap<&Place, Vec<&PlaceLoad>> = BTreeMap::new();
    for load in series {
        places.entry(&load.place).or_default().push(load);
    }
    let capacity = kv_tokens_per_rank.filter(|tokens| *tokens > 0).map(as_f64);
    let usage = |load: &PlaceLoad| load.kv_usage.or_else(|| Some(as_f64(load.kv_used?) / capacity?));
    let row = |(place, loads): (&Place, Vec<&PlaceLoad>)| LoadRow {
        place: place.clone(),
        samples: loads.len() as u64,
        running: level(loads.iter().filter_map(|load| load.running).map(as_f64)),
        queued: level(loads.iter().filter_map(|load| load.waiting).map(as_f64)),
        kv_usage: level(loads.iter().filter_map(|load| usage(load))),
        hit_rate: level(loads.iter().filter_map(|load| load.hit_rate)),
    };
    places.into_iter().map(row).collect()
}

fn level(samples: impl Iterator<Item = f64>) -> Option<Level> {
    let samples: Vec<f64> = samples.collect();
    let max = samples.iter().copied().reduce(f64::max)?;
    Some(Level { mean: rounded(samples.iter().sum::<f64>() / as_f64(samples.len() as u64)), max })
}

#[expect(clippy::cast_precision_loss, reason = "requests and tokens stay below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Micros, Rank};

    fn load(rank: u16, second: u64, running: Option<u64>, kv_used: Option<u64>) -> PlaceLoad {
        let place = Place::Rank(Rank(rank));
        PlaceLoad { running, kv_used, ..PlaceLoad::unknown(Micros(second * 1_000_000), place) }
    }

    #[test]
    fn each_place_has_the_mean_and_the_largest_of_its_own_samples() {
        let series = [
            load(1, 0, Some(2), Some(500)),
            load(0, 0, Some(0), None),
            load(1, 1, Some(5), Some(250)),
            load(0, 1, None, None),
        ];
        let rows = loads(&series, Some(1_000));
        assert_eq!(
            rows.iter().map(|row| (row.place.to_string(), row.samples)).collect::<Vec<_>>(),
            [("rank 0".to_owned(), 2), ("rank 1".to_owned(), 2)]
        );
        assert_eq!(rows[0].running, Some(Level { mean: 0.0, max: 0.0 }), "a sample that tells nothing is no zero");
        assert_eq!(rows[1].running, Some(Level { mean: 3.5, max: 5.0 }));
        assert_eq!((rows[0].kv_usage, rows[1].kv_usage), (None, Some(Level { mean: 0.375, max: 0.5 })));
        assert_eq!((rows[1].queued, rows[1].hit_rate), (None, None));
    }

    #[test]
    fn tokens_are_no_share_of_a_cache_of_unknown_size() {
        assert_eq!(loads(&[load(0, 0, None, Some(500))], None)[0].kv_usage, None);
        assert_eq!(loads(&[load(0, 0, None, Some(500))], Some(0))[0].kv_usage, None);
        let told = PlaceLoad { kv_usage: Some(0.25), ..load(0, 0, None, Some(500)) };
        assert_eq!(loads(&[told], Some(1_000))[0].kv_usage.unwrap().max, 0.25, "its own word first");
    }
}
