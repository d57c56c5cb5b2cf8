//! HTML and SVG as a tree of elements. Text and attributes are escaped here and nowhere else, so whatever a server, a file
//! or a user calls itself stays text.

use crate::units::steers;
use std::fmt::Display;

/// One element with what is in it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Element {
    name: &'static str,
    attributes: Vec<(&'static str, String)>,
    children: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Element(Element),
    Text(String),
    /// A part of this program, such as the style sheet.
    Verbatim(&'static str),
}

/// An element of that name.
pub(super) fn el(name: &'static str) -> Element {
    Element { name, attributes: vec![], children: vec![] }
}

impl Element {
    pub(super) fn with(mut self, name: &'static str, value: impl Display) -> Self {
        self.attributes.push((name, value.to_string()));
        self
    }

    /// A position or size in the units of the drawing, to a tenth.
    pub(super) fn at(self, name: &'static str, value: f64) -> Self {
        self.with(name, coordinate(value))
    }

    pub(super) fn text(mut self, text: impl Into<String>) -> Self {
        self.children.push(Node::Text(text.into()));
        self
    }

    pub(super) fn verbatim(mut self, text: &'static str) -> Self {
        self.children.push(Node::Verbatim(text));
        self
    }

    pub(super) fn child(mut self, child: Self) -> Self {
        self.children.push(Node::Element(child));
        self
    }

    pub(super) fn all(mut self, children: impl IntoIterator<Item = Self>) -> Self {
        self.children.extend(children.into_iter().map(Node::Element));
        self
    }

    pub(super) fn push_to(&self, out: &mut String) {
        out.push_str(&format!("<{}", self.name));
        for (name, value) in &self.attributes {
            out.push_str(&format!(" {name}=\"{}\"", escaped(value)));
        }
        out.push('>');
        if self.name == "meta" {
            return;
        }
        for child in &self.children {
            match child {
                Node::Element(element) => element.push_to(out),
                Node::Text(text) => out.push_str(&escaped(text)),
                Node::Verbatim(text) => out.push_str(text),
            }
        }
        out.push_str(&format!("</{}>", self.name));
    }
}

/// A number of a drawing.
pub(super) fn coordinate(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if steers(c) => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_and_no_attribute_becomes_markup() {
        let evil = "\"><script>alert('x')</script>&\u{7}\u{202e}";
        let mut out = String::new();
        el("p").with("title", evil).text(evil).push_to(&mut out);
        let safe = "&quot;&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;  ";
        assert_eq!(out, format!("<p title=\"{safe}\">{safe}</p>"));
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!([1.0, 0.26, -0.04].map(coordinate), ["1", "0.3", "-0"]);
    }
}
