//! Histograms of captured scrapes against a table worked out by hand (`grep` and a calculator over the captures).

use super::*;
use crate::wire::{Exposition, Histograms};

fn read(file: &str) -> Vec<ServerHistogram> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/metrics").join(file);
    let mut read = Histograms::default();
    for sample in Exposition::parse(&std::fs::read_to_string(path).unwrap()).samples {
        read.take(sample, is_known);
    }
    histograms(read.finish())
}

/// A role, a place, samples and their mean in ms.
type Row = (HistogramRole, Option<&'static str>, u32, f64);

/// Those without a sample are not named here.
#[rustfmt::skip]
const PAGES: [(&str, &[Row]); 6] = [
    ("sglang.dp2.metrics.txt", &[
        (E2e, None, 5, 38.369), (E2e, None, 12, 1_039.055), (Itl, None, 1_214, 9.898),
        (QueueTime, Some("rank 0"), 13, 2.753), (QueueTime, Some("rank 1"), 5, 2.068),
        (Ttft, None, 5, 22.637), (Ttft, None, 12, 33.987),
    ]),
    ("vllm.metrics.txt", &[
        (E2e, Some("rank 0"), 27, 1_113.606), (Itl, Some("rank 0"), 1_694, 2.728),
        (PrefillTime, Some("rank 0"), 27, 930.592), (QueueTime, Some("rank 0"), 27, 0.025),
        (Ttft, Some("rank 0"), 28, 912.503),
    ]),
    ("vllm.dp2.metrics.txt", &[
        (E2e, Some("rank 0"), 9, 35.343), (E2e, Some("rank 1"), 9, 29.377),
        (Itl, Some("rank 0"), 27, 5.287), (Itl, Some("rank 1"), 27, 5.735),
        (PrefillTime, Some("rank 0"), 9, 14.815), (PrefillTime, Some("rank 1"), 9, 8.984),
        (QueueTime, Some("rank 0"), 9, 0.160), (QueueTime, Some("rank 1"), 9, 0.074),
        (Ttft, Some("rank 0"), 9, 20.449), (Ttft, Some("rank 1"), 9, 12.697),
    ]),
    ("dynamo.metrics.txt", &[(Itl, None, 78, 5.234), (E2e, None, 18, 137.862), (E2e, None, 1, 0.091), (Ttft, None, 16, 32.657)]),
    ("dynamo.pd.decode_worker.metrics.txt", &[(E2e, None, 3, 156.213), (Itl, None, 3, 5.768), (Ttft, None, 3, 150.440)]),
    ("llamacpp.metrics.txt", &[]),
];

#[test]
fn every_captured_histogram_has_the_count_and_mean_of_the_table() {
    for (file, rows) in PAGES {
        let all = read(file);
        assert!(all.iter().all(|histogram| histogram.cumulative.is_some()), "{file}");
        let seen: Vec<_> = all.iter().filter_map(row).collect();
        assert_eq!(seen.len(), rows.len(), "{file}: {seen:?}");
        for ((role, place, count, mean), wanted) in seen.iter().zip(rows) {
            assert_eq!((*role, place.as_deref(), *count), (wanted.0, wanted.1, wanted.2), "{file}: {seen:?}");
            assert!((mean - wanted.3).abs() < 6e-4, "{file}: {role:?} {mean}, not {}", wanted.3);
        }
    }
}

fn row(histogram: &ServerHistogram) -> Option<(HistogramRole, Option<String>, u32, f64)> {
    let place = histogram.place.as_ref().map(ToString::to_string);
    let count = u32::try_from(histogram.cumulative.as_ref()?.last()?.1).unwrap();
    (count > 0).then(|| (histogram.role, place, count, histogram.sum.unwrap() / f64::from(count) * 1e3))
}

#[test]
fn the_bounds_are_those_of_the_server() {
    let all = read("vllm.metrics.txt");
    let of = |role| all.iter().find(|histogram| histogram.role == role).unwrap().cumulative.clone().unwrap();
    let ttft = of(Ttft);
    assert_eq!((ttft.len(), &ttft[2..5]), (23, &[(0.01, 6), (0.02, 17), (0.04, 26)][..]));
    assert_eq!(of(QueueTime)[0], (0.3, 27));
}

#[test]
fn what_a_node_does_is_told_by_the_labels_of_its_histograms() {
    let of = |kind: &str| {
        let text = format!("sglang:queue_time_seconds_count{{dp_rank=\"3\",engine_type=\"{kind}\"}} 1\n");
        let mut read = Histograms::default();
        Exposition::parse(&text).samples.into_iter().for_each(|sample| drop(read.take(sample, is_known)));
        let histogram = histograms(read.finish()).remove(0);
        (histogram.place.map(|place| place.to_string()), histogram.node.map(|node| node.name()))
    };
    assert_eq!(of("prefill"), (Some("rank 3".to_owned()), Some("prefill")));
    assert_eq!(of("decode"), (Some("rank 3".to_owned()), Some("decode")));
    assert_eq!(of("unified").1, None);
}
