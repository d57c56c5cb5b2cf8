//! Which places served which group: one dark cell a row is affinity, an even row is round robin.

use super::arms::{Arm, Run};
use super::element::{Element, el};
use super::figure::{Drawing, Figure, WIDTH, as_float, label, short};
use super::heat::{cell, key};
use crate::render::number::{whole, word};
use crate::render::page::Grid;
use crate::report::{Placement, RunReport};

const LEFT: f64 = 62.0;
const RIGHT: f64 = WIDTH - 14.0;
const TOP: f64 = 44.0;
/// Places that a drawing has room for.
const MOST_PLACES: usize = 64;
/// Cells wider and higher than this hold their number.
const ROOM: (f64, f64) = (17.0, 11.0);

/// A plot an arm, of its first run: the next round has other keys.
pub(super) fn figures(arms: &[Arm<'_>]) -> Vec<Figure> {
    arms.iter().filter_map(|arm| Some(figure(arm, arm.runs.first()?))).collect()
}

fn figure(arm: &Arm<'_>, run: &Run<'_>) -> Figure {
    let Placement { groups, more_groups, off_majority_turns: _ } = &run.report.placement;
    let places = run.report.ranks.len();
    let more =
        if *more_groups > 0 { format!(" {} more groups are not shown.", whole(*more_groups)) } else { String::new() };
    let says = format!(
        "Turns of each group at each place, {}. {} Darker: a larger share of the group.{more}",
        run.name(),
        keys(run.report)
    );
    let drawing = if groups.is_empty() {
        Drawing::Absent("no turn names its place, or an older version wrote the files".into())
    } else if places > MOST_PLACES {
        Drawing::Absent(format!("{places} places have no room in one drawing"))
    } else {
        drawing(run.report)
    };
    Figure { title: format!("Where keys went: {}", arm.name), says, drawing }
}

fn keys(report: &RunReport) -> String {
    match word(&report.affinity.key_by).as_str() {
        "group" => "Each group has one key.".to_owned(),
        "none" => "Turns carried no key.".to_owned(),
        scope => format!("Within a group, each {scope} has a key of its own."),
    }
}

fn drawing(report: &RunReport) -> Drawing {
    let (groups, ranks) = (&report.placement.groups, &report.ranks);
    let names: Vec<String> = ranks.iter().map(|row| row.place.to_string()).collect();
    let size = ((RIGHT - LEFT) / as_float(names.len()), (320.0 / as_float(groups.len())).clamp(5.0, 16.0));
    let top = |at: usize| TOP + size.1 * as_float(at);
    let mut marks = key("all");
    for (at, name) in names.iter().enumerate().filter(|(at, _)| size.0 >= ROOM.0 || at % 8 == 0) {
        let name = name.strip_prefix("rank ").unwrap_or(name);
        let x = LEFT + size.0 * (as_float(at) + 0.5);
        marks.push(label(x, TOP - 5.0, "tick middle", short(name, 6)));
    }
    marks.push(label(LEFT - 5.0, TOP - 5.0, "tick end", "place"));
    for (at, group) in groups.iter().enumerate() {
        if size.1 >= 9.0 || at % 4 == 0 {
            marks.push(label(LEFT - 5.0, top(at) + size.1 / 2.0 + 3.5, "tick end", format!("group {}", group.group)));
        }
        let all = group.turns.iter().sum::<u64>();
        for (column, turns) in group.turns.iter().enumerate() {
            let x = LEFT + size.0 * as_float(column);
            marks.extend(turns_cell((x, top(at)), size, *turns, all));
        }
    }
    Drawing::Plot { height: top(groups.len()) + 6.0, marks, data: data(report, names) }
}

/// A cell with its number, where there is room; nothing for no turns.
#[expect(clippy::cast_precision_loss, reason = "turns stay below 2^53")]
fn turns_cell((x, y): (f64, f64), size: (f64, f64), turns: u64, all: u64) -> Vec<Element> {
    if turns == 0 {
        return vec![];
    }
    let share = turns as f64 / all as f64;
    let mut marks = vec![cell(x, y, (size.0 - 1.0, size.1), share).child(el("title").text(whole(turns)))];
    if size.0 >= ROOM.0 && size.1 >= ROOM.1 {
        let class = if share > 0.5 { "inside dark middle" } else { "inside middle" };
        marks.push(label(x + size.0 / 2.0, y + size.1 / 2.0 + 3.0, class, turns.to_string()));
    }
    marks
}

fn data(report: &RunReport, names: Vec<String>) -> Grid {
    let row = |group: &crate::report::GroupPlaces| {
        std::iter::once(format!("group {}", group.group)).chain(group.turns.iter().map(|turns| whole(*turns))).collect()
    };
    Grid {
        header: std::iter::once("turns".to_owned()).chain(names).collect(),
        rows: report.placement.groups.iter().map(row).collect(),
        marks: vec![],
    }
}
