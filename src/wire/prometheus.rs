//! Prometheus and OpenMetrics text, as real servers write it: escapes, commas and braces inside quotes, colons in names,
//! timestamps, exemplars, NaN, no final newline. A line that cannot be read is counted, never guessed at.

use std::collections::BTreeMap;

/// One sample. Histogram buckets, sums and counts are samples like any other.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// May be NaN or infinite, as exporters write them.
    pub value: f64,
}

/// A whole scrape.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Exposition {
    pub samples: Vec<Sample>,
    /// Lines that are neither blank, comment nor sample.
    pub unreadable: usize,
}

impl Exposition {
    /// Reads a scrape.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self::parse_those(text, |_| true)
    }

    /// Reads the samples whose name is wanted; the others cost no memory, and their lines are no fault.
    #[must_use]
    pub fn parse_those(text: &str, is_wanted: impl Fn(&str) -> bool) -> Self {
        let mut samples = vec![];
        let unreadable = Self::each(text, is_wanted, |sample| samples.push(sample));
        Self { samples, unreadable }
    }

    /// Hands over every sample whose name is wanted, and returns how many lines could not be read: for pages of which most
    /// is not kept as it is.
    pub fn each(text: &str, is_wanted: impl Fn(&str) -> bool, mut take: impl FnMut(Sample)) -> usize {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut unreadable = 0;
        for line in lines.filter(|line| Self::name(line).is_none_or(&is_wanted)) {
            match sample(line) {
                Some(sample) => take(sample),
                None => unreadable += 1,
            }
        }
        unreadable
    }

    /// The name of the sample on this line; none of a comment and of what is no sample.
    #[must_use]
    pub fn name(line: &str) -> Option<&str> {
        let line = line.trim_start();
        let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))?;
        Some(&line[..end]).filter(|name| !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()))
    }
}

fn sample(line: &str) -> Option<Sample> {
    let name = Exposition::name(line)?;
    let rest = line[name.len()..].trim_start();
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inner) => labels(inner)?,
        None => (BTreeMap::new(), rest),
    };
    // A timestamp or an exemplar may follow the value.
    let value = rest.split_ascii_whitespace().next()?;
    Some(Sample { name: name.to_owned(), labels, value: number(value)? })
}

/// Reads `name="value",…}` and returns what follows the brace.
fn labels(text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    let mut rest = text.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, after) = rest.split_once('=')?;
        let (value, after) = quoted(after.trim_start())?;
        labels.insert(name.trim().to_owned(), value);
        let after = after.trim_start();
        rest = after
            .strip_prefix(',')
            .map_or_else(|| after.starts_with('}').then_some(after), |r| Some(r.trim_start()))?;
    }
}

/// Reads a quoted string with its escapes and returns what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let inner = text.strip_prefix('"')?;
    let mut value = String::new();
    let mut chars = inner.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &inner[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            _ => value.push(c),
        }
    }
    None
}

/// A value as exporters write it.
pub(super) fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        _ if text.eq_ignore_ascii_case("nan") => Some(f64::NAN),
        _ => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Sample {
        let read = Exposition::parse(line);
        assert_eq!((read.samples.len(), read.unreadable), (1, 0), "{line}");
        read.samples[0].clone()
    }

    #[test]
    fn names_labels_and_values_are_read_as_real_servers_write_them() {
        let sample = one(r#"sglang:prefill_effective_tokens_total{dp_rank="3",mode="device_hit"} 4096.0"#);
        assert_eq!((sample.name.as_str(), sample.value), ("sglang:prefill_effective_tokens_total", 4096.0));
        assert_eq!(sample.labels["dp_rank"], "3");
        let odd = one(r#"a{x="q\"u\\o\nte, b=\"c\" }",y="",} 1e3 1395066363000"#);
        assert_eq!((odd.labels["x"].as_str(), odd.value), ("q\"u\\o\nte, b=\"c\" }", 1000.0));
        assert_eq!(one("up 1").labels.len(), 0);
        assert_eq!(one("b { le = \"+Inf\" } 4 # {trace=\"x\"} 0.5").labels["le"], "+Inf");
    }

    /// B109
    #[test]
    fn a_histogram_is_read_in_any_order_with_timestamps_twins_and_no_final_newline() {
        let read = Exposition::parse(
            "h_bucket{le=\"+Inf\"} 10\nh_bucket{le=\"0.1\"} 4 1395066363000\nh_bucket{le=\"0.5\"} 9\nh_sum{a=\"x\"} 3.5\n\
             h_count{a=\"x\"} 10\nh_created{a=\"x\"} 1.7e9\ng NaN\nl{p=\"a \\\"b\\\",\\n}c\"} 1\n# EOF",
        );
        assert_eq!((read.samples.len(), read.unreadable), (8, 0));
        let of = |name: &str, label: (&str, &str)| {
            read.samples
                .iter()
                .find(|s| s.name == name && s.labels.get(label.0).is_some_and(|v| v == label.1))
                .unwrap()
                .value
        };
        let buckets = ["+Inf", "0.1", "0.5"].map(|le| of("h_bucket", ("le", le)).to_string());
        assert_eq!(buckets, ["10", "4", "9"]);
        assert_eq!([of("h_sum", ("a", "x")), of("h_count", ("a", "x"))].map(|v| v.to_string()), ["3.5", "10"]);
        assert_eq!(of("l", ("p", "a \"b\",\n}c")).to_string(), "1");
        assert!(read.samples.iter().any(|sample| sample.name == "g" && sample.value.is_nan()));
    }

    #[test]
    fn samples_that_nobody_wants_are_neither_kept_nor_a_fault() {
        let read = Exposition::parse_those("a 1\nb{x=\"\n  a{y=\"z\"} 2\nab 3\n<html>\n", |name| name == "a");
        assert_eq!(read.samples.iter().map(|sample| sample.value.to_string()).collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(read.unreadable, 1, "what has no name may have been wanted");
        assert_eq!(
            (Exposition::name("# HELP a b"), Exposition::name("7up 1"), Exposition::name("a")),
            (None, None, None)
        );
    }

    #[test]
    fn not_a_number_is_a_value_and_rubbish_is_counted() {
        assert!(one("fwd_occupancy NaN").value.is_nan());
        assert!(one("x +Inf").value.is_infinite());
        let read = Exposition::parse("# HELP a b\n# TYPE a counter\n\na 1\n<html>\na{b=\"c} 2\n7up 3\na\n# EOF");
        assert_eq!((read.samples.len(), read.unreadable), (1, 4));
    }
}
