//! Who served what, and what it found: the tables behind the line on affinity.

use super::number::{figure, or_dash, percent, plural, whole, word};
use super::page::{Grid, Section};
use super::places::statistic;
use crate::report::{
    Affinity, Attribution, Band, CounterRole, HotKey, Place, PlaceSource, RunReport, Side, Spilled, Stat, Summary,
    TtftSplit,
};
use crate::units::NodeRole;

/// The table of the parts of TTFT that the server tells, and what a proxy makes of TTFT.
pub(super) fn ttft(report: &RunReport) -> Vec<Section> {
    let split = report.ttft_split.as_ref().map(|split| Section::Table(parts(split)));
    let mode = mode(&report.affinity.attribution).map(|mode| Section::Lines(vec![mode.to_owned()]));
    split.into_iter().chain(mode).collect()
}

fn parts(split: &TtftSplit) -> Grid {
    let TtftSplit { turns: _, intake_ms, queue_ms, prefill_ms, return_ms, outside_ms } = split;
    let mut grid = Grid::new(["TTFT, as its server tells (ms)", "mean", "p50", "p99", "samples"]);
    let rows = [
        ("before the queue", intake_ms),
        ("queue", queue_ms),
        ("prefill", prefill_ms),
        ("return of the first token", return_ms),
        ("outside the server", outside_ms),
    ];
    for (name, summary) in rows {
        let Some(summary) = summary else { continue };
        let of = |stat| statistic(summary, stat);
        grid.row([name.to_owned(), of(Stat::Mean), of(Stat::P50), of(Stat::P99), whole(summary.count)]);
    }
    grid
}

/// Modes of a proxy in front of prefill and decode nodes differ in what passes before the first token.
fn mode(attribution: &Attribution) -> Option<&'static str> {
    match attribution.source? {
        PlaceSource::ReplyId => Some(
            "TTFT behind vllm-router's prefill/decode: the whole round trip to the prefill node and the decode node's first \
             step; cached tokens are the prefill node's. It does not compare with another proxy or mode",
        ),
        _ => None,
    }
}

/// Tables of one row a place, key, band, or counter of transfers.
pub(super) fn tables(report: &RunReport) -> Vec<Section> {
    let affinity = &report.affinity;
    let parts = [by_place(report), bands(affinity), hot_keys(&affinity.hot_keys), fetched(report)];
    let details = |(summary, tables): (&str, Vec<Grid>)| Section::Details { summary: summary.into(), tables };
    parts.into_iter().filter(|(_, tables)| !tables.is_empty()).map(details).collect()
}

fn by_place(report: &RunReport) -> (&'static str, Vec<Grid>) {
    let affinity = &report.affinity;
    let mut grid = Grid::new(["place", "keys", "turns off their key's main place", "spilled turns"]);
    let rows = report.ranks.iter().zip(&affinity.keys_per_rank).zip(&affinity.off_majority_per_rank);
    for ((row, keys), off) in rows {
        let spilled = |spilled: &Spilled| {
            whole(spilled.by_place.iter().find(|at| at.place == row.place).map_or(0, |at| at.turns))
        };
        // Turns that spilled, none of them at a place that is told: no place has a number, and none has 0.
        let told = affinity.spilled.as_ref().filter(|all| all.turns == 0 || !all.by_place.is_empty());
        grid.row([row.place.to_string(), whole(*keys), whole(*off), or_dash(told, spilled)]);
    }
    ("Keys per place", if grid.rows.is_empty() { vec![] } else { vec![grid] })
}

fn bands(affinity: &Affinity) -> (&'static str, Vec<Grid>) {
    let numbered = |head: &str, bands: &[Band]| {
        let mut grid = band_grid(head);
        for band in bands {
            let name =
                if band.from == band.to { band.from.to_string() } else { format!("{}–{}", band.from, band.to) };
            band_row(&mut grid, name, band.turns, band.share, band.hit_rate, band.ttft_ms.as_ref());
        }
        grid
    };
    let mut cached = band_grid("in the cache");
    for band in &affinity.by_cached {
        band_row(&mut cached, word(&band.cached), band.turns, band.share, band.hit_rate, band.ttft_ms.as_ref());
    }
    let by_turn = numbered("turn of its session", &affinity.by_turn);
    let by_group = numbered("group, most popular first", &affinity.by_popularity);
    let tables = [by_turn, cached, by_group].into_iter().filter(|grid| grid.rows.len() > 1);
    ("Turns by number, by what they found, by popularity", tables.collect())
}

fn band_grid(head: &str) -> Grid {
    Grid::new([head, "turns", "share %", "hit %", "TTFT p50 (ms)", "TTFT p99 (ms)"])
}

fn band_row(grid: &mut Grid, name: String, turns: u64, share: f64, hit_rate: Option<f64>, ttft: Option<&Summary>) {
    let ttft = |stat| or_dash(ttft, |summary| statistic(summary, stat));
    grid.row([name, whole(turns), percent(share), or_dash(hit_rate, percent), ttft(Stat::P50), ttft(Stat::P99)]);
}

fn hot_keys(keys: &[HotKey]) -> (&'static str, Vec<Grid>) {
    let mut grid = Grid::new(["key", "turns", "share %", "places", "main place", "turns off it"]);
    for HotKey { key, turns, share, places, main_place, off_majority_turns } in keys {
        let main = or_dash(main_place.as_ref(), ToString::to_string);
        let off = or_dash(main_place.as_ref(), |_| whole(*off_majority_turns));
        grid.row([key.clone(), whole(*turns), percent(*share), whole(*places), main, off]);
    }
    // Of turns that no one places, the plan knows as much.
    let is_placed = keys.iter().any(|key| key.places > 0);
    ("Keys of most turns", if grid.rows.len() > 1 && is_placed { vec![grid] } else { vec![] })
}

/// What nodes fetched from each other, as their own counters say it: no counter of today tells a session's first hand-over
/// from a later one.
fn fetched(report: &RunReport) -> (&'static str, Vec<Grid>) {
    let mut grid = Grid::new(["counter", "of", "growth"]);
    let counters = report.server.counters.iter().filter(|counter| counter.role == Some(CounterRole::Fetched));
    for counter in counters {
        let labels: Vec<_> = counter.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let name = format!("{} {}", counter.name, labels.join(" "));
        grid.row([name.trim_end().to_owned(), counter.source.clone(), or_dash(counter.delta, figure)]);
    }
    ("Fetched from other nodes", if grid.rows.is_empty() { vec![] } else { vec![grid] })
}

/// Which nodes' counters prompts were compared with, where prefill and decode are apart.
pub(super) fn compared(report: &RunReport) -> Option<String> {
    let nodes = report.server.told_nodes();
    let has_prefill = nodes.iter().any(|(role, _)| *role == NodeRole::Prefill);
    let nodes: Vec<_> = nodes.into_iter().map(|(role, source)| format!("{} {source}", role.name())).collect();
    (!nodes.is_empty()).then(|| {
        let nodes = nodes.join(", ");
        let compared = match has_prefill {
            true => "replies are compared with the prefill side alone",
            false => "prompts are compared with no counter, since no prefill node's was read",
        };
        format!("prefill and decode are apart, and both count each prompt: {compared} ({nodes})")
    })
}

/// Sessions that moved, and the two sides of pairs.
pub(super) fn moves(affinity: &Affinity) -> Vec<String> {
    let place = |place: &Option<Place>| or_dash(place.as_ref(), Place::short);
    let examples: Vec<_> = affinity
        .split_examples
        .iter()
        .map(|split| format!("{} {}", split.session, split.places.iter().map(place).collect::<Vec<_>>().join(",")))
        .collect();
    let examples = (!examples.is_empty()).then(|| format!("sessions that moved, by turn: {}", examples.join(" · ")));
    let side = |name: &str, side: &Side| {
        format!("{name} {} % sticky, {}", or_dash(side.stickiness, percent), plural(side.moves, "move"))
    };
    let sides = affinity.sides.map(|sides| {
        format!(
            "pairs: {} · {} (each first turn and each move of a decode node brings it the session's KV)",
            side("prefill", &sides.prefill),
            side("decode", &sides.decode)
        )
    });
    examples.into_iter().chain(sides).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::record::{CounterRole, Place, PlaceSource, ServerTimes, TurnRecord};
    use crate::render::{run, terminal};
    use crate::report::tests::{context, served};
    use crate::report::{Accumulator, Closing, CounterDelta, ServerSide, State};

    fn fetched(status: &str, delta: f64) -> CounterDelta {
        CounterDelta {
            source: "http://d0".into(),
            name: "pegaflow_rdma_fetch_total".into(),
            labels: BTreeMap::from([("status".into(), status.into())]),
            role: Some(CounterRole::Fetched),
            place: None,
            node: None,
            before: Some(1.0),
            after: Some(1.0 + delta),
            delta: Some(delta),
        }
    }

    #[test]
    fn a_run_over_pairs_shows_sides_moves_transfers_and_what_its_ttft_is() {
        let mut accumulator = Accumulator::new(context(2, 4));
        for (session, turn, decode) in [(0, 0, "d0"), (0, 1, "d1"), (1, 0, "d0"), (1, 1, "d0")] {
            accumulator.add(&TurnRecord {
                turn,
                place: Some(Place::Pair { prefill: "p0".into(), decode: decode.into() }),
                place_source: Some(PlaceSource::ReplyId),
                server_times: Some(ServerTimes { prefill_us: Some(40_000), ..ServerTimes::default() }),
                ..served(session, 0, 0, 0)
            });
        }
        let counters = vec![fetched("success", 33.0), fetched("failed", 0.0)];
        let server = ServerSide { counters, ..ServerSide::default() };
        let report = accumulator.finish(Closing { server, ..Closing::plain(State::Complete) });
        let text = terminal(&run(&report));
        for words in [
            "sessions that moved, by turn: g0-s0 p0→d0,p0→d1",
            "pairs: prefill 100.0 % sticky, 0 moves · decode 50.0 % sticky, 1 move",
            "TTFT behind vllm-router's prefill/decode: the whole round trip to the prefill node",
            "│ pegaflow_rdma_fetch_total status=success  http://d0   33.00 │",
            "│ prefill                         40.00  40.00  ~40.00        4 │",
            "│ p0 → d1 ",
        ] {
            assert!(text.contains(words), "`{words}` is not in:\n{text}");
        }
        assert!(!text.contains("before the queue"), "what no server told has no row:\n{text}");
    }

    #[test]
    fn keys_of_which_no_turn_has_a_place_have_no_table() {
        let shown = |place: Option<Place>| {
            let mut accumulator = Accumulator::new(context(2, 4));
            for session in 0..4 {
                accumulator.add(&TurnRecord {
                    key: Some(format!("k{}", session % 2)),
                    place: place.clone(),
                    ..served(session, 0, 0, 0)
                });
            }
            let report = accumulator.finish(Closing::plain(State::Complete));
            assert_eq!(report.affinity.hot_keys.len(), 2);
            terminal(&run(&report)).contains("Keys of most turns")
        };
        assert!(!shown(None));
        assert!(shown(Some(Place::Node("w".into()))));
    }
}
