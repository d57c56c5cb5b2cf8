//! Looking into documents whose shape another program decides.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::report::{Distribution, Latency, RunReport, Summary};

/// Python writes numbers that JSON does not have: here they become words, outside of strings.
pub(super) fn strict(text: &str) -> String {
    let (mut out, mut rest, mut in_string) = (String::with_capacity(text.len()), text, false);
    while let Some(c) = rest.chars().next() {
        let word = ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| !in_string && rest.starts_with(word));
        let taken = match word {
            Some(word) => {
                out.push_str(&format!("\"{word}\""));
                word.len()
            }
            // What is escaped ends no string.
            None if in_string && c == '\\' => {
                let next = rest[1..].chars().next().map_or(0, char::len_utf8);
                out.push_str(&rest[..=next]);
                1 + next
            }
            None => {
                in_string ^= c == '"';
                out.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    out
}

/// A finite number.
pub(super) fn number(document: &Value, key: &str) -> Option<f64> {
    document.get(key)?.as_f64().filter(|value| value.is_finite())
}

pub(super) fn count(document: &Value, key: &str) -> Option<u64> {
    document.get(key)?.as_u64()
}

/// A word, or a number as a word.
pub(super) fn word(document: &Value, key: &str) -> Option<String> {
    match document.get(key)? {
        Value::String(word) if !word.is_empty() => Some(word.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The summary that a document gives with keys such as `mean_ttft_ms`; a figure it lacks is no number, and shown as
/// absent. None without a mean.
pub(super) fn summary(document: &Value, name: &str, count: u64) -> Option<Summary> {
    let get = |stat: &str| number(document, &format!("{stat}_{name}_ms"));
    let or_nan = |value: Option<f64>| value.unwrap_or(f64::NAN);
    Some(Summary {
        count,
        mean: get("mean")?,
        std: or_nan(get("std")),
        min: f64::NAN,
        p50: or_nan(get("median").or_else(|| get("p50"))),
        p90: or_nan(get("p90")),
        p95: or_nan(get("p95")),
        p99: or_nan(get("p99")),
        max: or_nan(get("max")),
    })
}

/// The samples of a latency in milliseconds, as a report keeps them: the histogram, from which the summary comes too.
pub(super) fn keep(report: &mut RunReport, latency: Latency, samples_ms: impl Iterator<Item = f64>) -> Option<Summary> {
    let mut samples = Distribution::default();
    samples_ms.filter(|ms| ms.is_finite() && *ms >= 0.0).for_each(|ms| samples.record_nanos(nanos(ms), 1));
    let summary = samples.summary()?.scaled(1e-3);
    let histograms: &mut BTreeMap<String, String> = &mut report.histograms;
    histograms.insert(latency.histogram_key(), samples.encode());
    Some(summary)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive span; casts saturate")]
fn nanos(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}
