//! One file that shows a run or a comparison anywhere: no script, no network, drawings as SVG in the page.
//!
//! Drawings are as wide as a phone and stand side by side where there is room, so that letters keep their size. Each has a
//! description, and its data as a table, for those who cannot see it.

mod arms;
mod cdf;
mod element;
mod figure;
mod heat;
mod over_time;
mod placement;
mod ratios;
mod scale;
mod sections;
mod sweep;
mod tiles;

use arms::Arm;
use element::{Element, el};
use figure::Figure;

use super::page::{Page, Section};
use crate::compare::{BlockResult, Comparison};
use crate::experiment::Curves;
use crate::report::{Latency, RunReport};

/// Colours for light and dark, and what keeps the page within a phone's width.
const STYLE: &str = include_str!("style.css");

/// The page of one run.
#[must_use]
pub fn html_run(report: &RunReport) -> String {
    let arms = arms::of_run(report);
    document(&super::run(report), tiles::of_run(report), plots(&arms))
}

/// The page of a comparison, and of the blocks that it is made from.
#[must_use]
pub fn html_comparison(comparison: &Comparison, blocks: &[BlockResult]) -> String {
    let arms = arms::of_comparison(comparison, blocks);
    let mut groups = vec![("Arms against the baseline", ratios::figures(comparison))];
    groups.extend(plots(&arms));
    document(&super::comparison(comparison), tiles::of_comparison(comparison), groups)
}

/// The page of a sweep.
#[must_use]
pub fn html_sweep(curves: &Curves) -> String {
    document(&super::sweep(curves), tiles::of_sweep(curves), vec![("By load", sweep::figures(curves))])
}

/// Plots that runs and comparisons share, under their heads.
fn plots(arms: &[Arm<'_>]) -> Vec<(&'static str, Vec<Figure>)> {
    let latencies: [&[Latency]; 3] = [&[Latency::Ttft], &[Latency::Itl, Latency::Icl], &[Latency::E2e]];
    vec![
        ("Latency", latencies.map(|of| cdf::figure(arms, of)).into()),
        ("Over time", over_time::figures(arms)),
        ("Places", heat::figures(arms)),
        ("Keys", placement::figures(arms)),
    ]
}

fn document(page: &Page, tiles: Element, groups: Vec<(&'static str, Vec<Figure>)>) -> String {
    let head = el("head").all([
        el("meta").with("charset", "utf-8"),
        el("meta").with("name", "viewport").with("content", "width=device-width, initial-scale=1"),
        el("meta")
            .with("http-equiv", "Content-Security-Policy")
            .with("content", "default-src 'none'; style-src 'unsafe-inline'"),
        el("meta").with("name", "color-scheme").with("content", "light dark"),
        el("title").text(&page.title),
        el("style").verbatim(STYLE),
    ]);
    let group = |(head, figures): (&'static str, Vec<Figure>)| {
        // Pairs stand in pairs.
        let columns = if figures.len() == 1 || figures.len().is_multiple_of(2) { "figures two" } else { "figures" };
        let figures = el("div").with("class", columns).all(figures.into_iter().map(Figure::element));
        el("section").child(el("h2").text(head)).child(figures)
    };
    let is_on_top = |section: &&Section| matches!(section, Section::Claims(_) | Section::Lead(_));
    let top = page.sections.iter().filter(is_on_top).map(sections::element);
    let rest = page.sections.iter().filter(|section| !is_on_top(section)).map(sections::element);
    let figures = el("section").child(el("h2").text("Figures")).all(rest);
    let main = el("main").child(header(&page.title)).all(top).child(tiles);
    let main = main.all(groups.into_iter().map(group)).child(figures);
    let mut out = "<!doctype html>\n".to_owned();
    el("html").with("lang", "en").child(head).child(el("body").child(main)).push_to(&mut out);
    out.push('\n');
    out
}

/// The title's parts: the first is the name of the page, the rest stand below it.
fn header(title: &str) -> Element {
    let (name, rest) = title.split_once(" · ").unwrap_or((title, ""));
    let class = if title.contains("VOID") { "void" } else { "plain" };
    el("header").child(el("h1").text(name)).child(el("p").with("class", class).text(rest))
}

#[cfg(test)]
mod tests;
