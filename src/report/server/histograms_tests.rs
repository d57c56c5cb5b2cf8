use super::*;
use crate::units::Rank;

use HistogramRole::{PrefillTime, QueueTime, Ttft};

/// A histogram in seconds, of a rank or none.
fn histogram(role: HistogramRole, rank: Option<u16>, counts: &[(f64, u64)], sum: f64) -> ServerHistogram {
    ServerHistogram {
        name: format!("{role:?}"),
        labels: rank.map(|rank| ("dp_rank".to_owned(), rank.to_string())).into_iter().collect(),
        role,
        place: rank.map(|rank| Place::Rank(Rank(rank))),
        node: None,
        cumulative: Some(counts.to_vec()),
        sum: Some(sum),
    }
}

const INF: f64 = f64::INFINITY;

fn facts(address: &str, histograms: Vec<HistogramDelta>) -> ServerFacts {
    ServerFacts { address: Some(address.into()), histograms, ..ServerFacts::default() }
}

/// All that one address counted since it showed nothing.
fn page(source: &str, seen: &[ServerHistogram]) -> Vec<HistogramDelta> {
    HistogramDelta::between(source, Some(&[]), Some(seen))
}

/// B109
#[test]
fn the_growth_has_count_sum_mean_and_bounds_of_its_quantiles() {
    let before = histogram(Ttft, None, &[(0.1, 2), (0.5, 4), (INF, 100)], 60.0);
    let after = histogram(Ttft, None, &[(0.1, 6), (0.5, 13), (INF, 110)], 63.5);
    let delta = HistogramDelta::between("http://h", Some(&[before]), Some(&[after])).remove(0);
    assert_eq!((delta.before, delta.after, delta.count), (Some(100), Some(110), Some(10)));
    assert_eq!((delta.sum_ms, delta.mean_ms), (Some(3_500.0), Some(350.0)));
    assert_eq!(delta.p50_ms, Some(Between { from: 100.0, to: Some(500.0) }));
    assert_eq!(delta.p99_ms, Some(Between { from: 500.0, to: None }));
    let counts: Vec<_> = delta.buckets.iter().map(|bucket| bucket.count).collect();
    assert_eq!(counts, [4, 5, 1]);
    let again: HistogramDelta = serde_json::from_value(serde_json::to_value(&delta).unwrap()).unwrap();
    assert_eq!(again, delta);
}

/// Whatever two addresses show, a comparison of their pages takes no longer than to read them: with each series looked for in
/// all others this would not end.
#[test]
fn pages_of_many_series_that_are_almost_alike_are_compared() {
    let page = |source: &str, last: u64| -> Vec<HistogramDelta> {
        let series = |n: u64| ServerHistogram {
            labels: BTreeMap::from([("tenant".to_owned(), n.to_string())]),
            ..histogram(Ttft, None, &[(1.0, 2), (INF, if n == 2_999 { last } else { 2 })], 1.0)
        };
        page(source, &(0..3_000).map(series).collect::<Vec<_>>())
    };
    let facts = |last| facts("http://h", [page("http://h", 2), page("http://w", last)].concat());
    assert_eq!((facts(2).clocks()[0].count, facts(3).clocks()[0].count), (6_000, 6_000));
}

/// A run.json of a histogram that no number holds can be read again.
#[test]
fn a_bound_that_overflows_makes_its_histogram_unknown() {
    let delta =
        page("http://h", &[histogram(Ttft, None, &[(0.1, 2), (1e300, 5), (1e307, 7), (INF, 9)], 3.0)]).remove(0);
    assert_eq!((delta.count, delta.buckets.len()), (None, 0));
    let again: HistogramDelta = serde_json::from_value(serde_json::to_value(&delta).unwrap()).unwrap();
    assert_eq!(again, delta);
}

#[test]
fn what_is_not_known_is_null_and_never_0() {
    let seen = histogram(Ttft, None, &[(0.1, 4), (INF, 10)], 3.5);
    let unreadable = ServerHistogram { cumulative: None, ..seen.clone() };
    let restarted = histogram(Ttft, None, &[(0.1, 3), (INF, 30)], 90.0);
    let [seen, unreadable, restarted] = [seen, unreadable, restarted].map(|one| vec![one]);
    let cases: [(Option<&[_]>, Option<&[_]>); 6] = [
        (None, Some(&seen)),
        (Some(&seen), None),
        (Some(&seen), Some(&restarted)),
        (Some(&unreadable), Some(&seen)),
        (Some(&seen), Some(&unreadable)),
        (Some(&seen), Some(&[])),
    ];
    for (before, after) in cases {
        let delta = HistogramDelta::between("http://h", before, after).remove(0);
        assert_eq!((delta.count, delta.sum_ms, delta.mean_ms), (None, None, None), "{before:?} {after:?}");
        assert_eq!((delta.p50_ms, delta.p99_ms, delta.buckets.len()), (None, None, 0));
        // And no part stands for the whole.
        let other = page("http://h", &[histogram(Ttft, Some(1), &[(0.1, 1), (INF, 1)], 0.05)]).remove(0);
        assert_eq!(facts("http://h", vec![delta, other]).clocks(), []);
    }
    let still = HistogramDelta::between("http://h", Some(&seen), Some(&seen)).remove(0);
    assert_eq!((still.count, still.sum_ms, still.mean_ms, still.p50_ms), (Some(0), None, None, None));
    assert_eq!(facts("http://h", vec![still]).clocks(), []);
    assert_eq!(HistogramDelta::between("http://h", None, None), []);
    // One that first shows after the run began has started from nothing.
    assert_eq!(page("http://h", &seen)[0].count, Some(10));
}

#[test]
fn ranks_count_together_one_without_a_sample_takes_nothing_away_and_unequal_bounds_have_no_quantile() {
    let ranks = [
        histogram(QueueTime, Some(0), &[(0.0, 1), (0.001, 3), (INF, 3)], 0.001),
        histogram(QueueTime, Some(1), &[(0.0, 0), (0.001, 0), (INF, 0)], 0.0),
        histogram(QueueTime, Some(2), &[(0.0, 0), (0.001, 0), (INF, 1)], 0.009),
    ];
    let clock = facts("http://h", page("http://h", &ranks)).clocks().remove(0);
    assert_eq!((clock.role, clock.count, clock.mean_ms), (QueueTime, 4, Some(2.5)));
    assert_eq!(clock.p50_ms, Some(Between { from: 0.0, to: Some(1.0) }));
    assert_eq!(clock.p99_ms, Some(Between { from: 1.0, to: None }));
    let across = [ranks[0].clone(), histogram(QueueTime, Some(2), &[(0.0005, 1), (INF, 1)], 0.0003)];
    let clock = facts("http://h", page("http://h", &across)).clocks().remove(0);
    assert_eq!((clock.count, clock.mean_ms, clock.p50_ms), (4, Some(0.325), None));
}

#[test]
fn the_targets_own_clock_outweighs_that_of_further_addresses_unless_it_shows_a_workers_page() {
    let of = |source: &str, sum| page(source, &[histogram(Ttft, None, &[(1.0, 2), (INF, 2)], sum)]);
    let workers = || [of("http://w0", 0.2), of("http://w1", 0.4)].concat();
    let mean = |facts: ServerFacts| facts.own_clock(Ttft)?.mean_ms;
    assert_eq!(mean(facts("http://router", workers())), Some(150.0));
    let own = page("http://router", &[histogram(Ttft, None, &[(1.0, 4), (INF, 4)], 0.8)]);
    assert_eq!(mean(facts("http://router", [own, workers()].concat())), Some(200.0));
    assert_eq!(mean(facts("http://router", [of("http://router", 0.2), workers()].concat())), Some(150.0));
    let alone = facts("http://router", of("http://router", 0.2));
    assert_eq!(mean(ServerFacts { kind: Some("vllm-router".into()), ..alone.clone() }), None);
    assert_eq!(mean(alone), Some(100.0));
}

#[test]
fn where_prefill_and_decode_are_apart_each_side_has_its_clock() {
    use NodeRole::{Decode, Prefill};
    let of = |source: &str, node, role, sum| {
        page(source, &[ServerHistogram { node: Some(node), ..histogram(role, None, &[(1.0, 2), (INF, 2)], sum) }])
    };
    let both = |role| [of("http://p", Prefill, role, 0.2), of("http://d", Decode, role, 0.6)].concat();
    let facts = facts("http://router", [both(Ttft), both(QueueTime), both(PrefillTime)].concat());
    let sides: Vec<_> = facts.clocks().iter().map(|clock| (clock.role, clock.node, clock.mean_ms)).collect();
    let sides_of = |role| [(role, Some(Prefill), Some(100.0)), (role, Some(Decode), Some(300.0))];
    assert_eq!(sides, [sides_of(Ttft), sides_of(QueueTime), sides_of(PrefillTime)].concat());
    assert_eq!(facts.own_clock(QueueTime).unwrap().mean_ms, Some(100.0));
    assert_eq!(facts.own_clock(Ttft), None);
}
