//! What all plots share: a frame with a caption, axes, a legend, and the same data as a table.

use super::element::{Element, el};
use super::scale::Scale;
use super::sections;
use crate::render::number::figure as number;
use crate::render::page::Grid;

/// Width of every drawing: that of a phone, so that letters are never scaled below their size.
pub(super) const WIDTH: f64 = 360.0;

/// A plot before it is markup.
#[derive(Debug)]
pub(super) struct Figure {
    pub title: String,
    /// What it shows, in one or two sentences.
    pub says: String,
    pub drawing: Drawing,
}

#[derive(Debug)]
pub(super) enum Drawing {
    Plot {
        height: f64,
        marks: Vec<Element>,
        data: Grid,
    },
    /// Nothing to draw, and why.
    Absent(String),
}

impl Figure {
    pub(super) fn element(self) -> Element {
        let Self { title, says, drawing } = self;
        let head = el("h3").text(title.clone());
        match drawing {
            Drawing::Absent(why) => el("figure")
                .with("class", "absent")
                .child(el("figcaption").child(head).child(el("p").text(says)))
                .child(el("p").text(format!("Not drawn: {why}."))),
            Drawing::Plot { height, marks, data } => {
                let svg = el("svg")
                    .with("viewBox", format!("0 0 {WIDTH} {height}"))
                    .with("role", "img")
                    .with("aria-label", &title)
                    .child(el("title").text(title))
                    .child(el("desc").text(says.clone()))
                    .all(marks);
                let table = el("details").child(el("summary").text("as a table")).child(sections::table(&data));
                el("figure")
                    .with("class", "plot")
                    .child(el("figcaption").child(head).child(el("p").text(says)))
                    .child(svg)
                    .child(table)
            }
        }
    }
}

/// Words in a drawing.
pub(super) fn label(x: f64, y: f64, class: &str, text: impl Into<String>) -> Element {
    el("text").at("x", x).at("y", y).with("class", class).text(text)
}

pub(super) fn line(from: (f64, f64), to: (f64, f64), class: &str) -> Element {
    el("line").at("x1", from.0).at("y1", from.1).at("x2", to.0).at("y2", to.1).with("class", class)
}

/// A line through points; none through fewer than two.
pub(super) fn path(points: &[(f64, f64)], class: &str) -> Option<Element> {
    let steps =
        points.iter().enumerate().map(|(at, (x, y))| format!("{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' }));
    (points.len() > 1).then(|| el("path").with("d", steps.collect::<String>()).with("class", class))
}

pub(super) fn rect(x: f64, y: f64, width: f64, height: f64, class: &str) -> Element {
    el("rect").at("x", x).at("y", y).at("width", width).at("height", height).with("class", class)
}

/// A mark that says what it is when pointed at.
pub(super) fn dot(x: f64, y: f64, radius: f64, class: &str, says: String) -> Element {
    el("circle").at("cx", x).at("cy", y).at("r", radius).with("class", class).child(el("title").text(says))
}

/// Grid lines and labels of a horizontal axis whose line is at `y`, up to `top`.
pub(super) fn x_axis(scale: &Scale, y: f64, top: f64, unit: &str) -> Vec<Element> {
    let ticks = scale.ticks().into_iter().map(|tick| (scale.at(tick), tick));
    let mut marks = vec![line((scale.start(), y), (scale.end(), y), "axis")];
    for (x, tick) in ticks {
        marks.push(line((x, top), (x, y), "grid"));
        marks.push(label(x, y + 13.0, "tick middle", tick_label(tick)));
    }
    marks.push(label(scale.end(), y + 26.0, "tick end", unit));
    marks
}

/// Grid lines and labels of a vertical axis at the left of a drawing, with its unit above.
pub(super) fn y_axis(scale: &Scale, left: f64, right: f64, unit: &str) -> Vec<Element> {
    let mut marks = vec![label(left - 5.0, scale.end() - 7.0, "tick end", unit)];
    for tick in scale.ticks() {
        let y = scale.at(tick);
        marks.push(line((left, y), (right, y), "grid"));
        marks.push(label(left - 5.0, y + 3.5, "tick end", tick_label(tick)));
    }
    marks
}

/// A round value in as few letters as it needs.
fn tick_label(value: f64) -> String {
    let exact = (value * 1e6).round() / 1e6;
    if exact.abs() >= 1_000.0 { number(exact) } else { exact.to_string() }
}

/// Names with their colours, in lines as long as the drawing; and the height that they take.
pub(super) fn legend<'a>(entries: impl Iterator<Item = (String, &'a str)>, left: f64) -> (Vec<Element>, f64) {
    let (mut marks, mut x, mut y) = (vec![], left, 10.0);
    for (class, name) in entries {
        let name = short(name, 28);
        let width = 22.0 + 6.3 * as_float(name.chars().count());
        if x > left && x + width > WIDTH {
            (x, y) = (left, y + 15.0);
        }
        marks.push(rect(x, y - 7.0, 10.0, 4.0, &format!("swatch {class}")));
        marks.push(label(x + 14.0, y, "legend", name));
        x += width;
    }
    (marks, y + 8.0)
}

/// The beginning of a long name.
pub(super) fn short(name: &str, most: usize) -> String {
    if name.chars().count() <= most { name.to_owned() } else { name.chars().take(most - 1).chain(['…']).collect() }
}

#[expect(clippy::cast_precision_loss, reason = "a count of things on one page")]
pub(super) fn as_float(count: usize) -> f64 {
    count as f64
}
