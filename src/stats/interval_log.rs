//! HdrHistogram's interval log: the text form that HDR tools of any language read, merge by tag and plot.

use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::Distribution;

/// One line of the log.
#[derive(Debug, Clone)]
pub struct Interval {
    /// Commas and white space, which the format has no room for, become `_`.
    pub tag: String,
    /// When its samples began.
    pub from: SystemTime,
    pub length: Duration,
    /// In microseconds; of samples above one hour the log knows no more than that.
    pub samples: Distribution,
}

/// The log, a line an interval. Times are seconds since `start`; the maxima in plain sight are in milliseconds, the
/// histograms in microseconds.
#[must_use]
pub fn interval_log(comment: &str, start: SystemTime, intervals: &[Interval]) -> String {
    let (mut out, mut serializer) = (Vec::new(), V2DeflateSerializer::new());
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("[Histogram log format version 1.3]")
        .add_comment(comment)
        .with_start_time(start)
        .with_base_time(start)
        .with_max_value_divisor(1_000.0)
        .begin_log_with(&mut out, &mut serializer)
        .expect("memory takes all bytes");
    for Interval { tag, from, length, samples } in intervals {
        let tag: String = tag.chars().map(|c| if c == ',' || c.is_whitespace() { '_' } else { c }).collect();
        let since = from.duration_since(start).unwrap_or_default();
        log.write_histogram(&samples.histogram(), since, *length, Tag::new(&tag))
            .expect("a histogram of constant bounds fits the format, and memory takes all bytes");
    }
    String::from_utf8(out).expect("comments, tags and base64 are text")
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;

    #[test]
    fn a_log_reads_back_with_its_tags_times_and_counts() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let mut samples = Distribution::default();
        (1..=1000).for_each(|ms| samples.record(ms * 1000, 1));
        let line = |tag: &str, after: u64| Interval {
            tag: tag.into(),
            from: start + Duration::from_secs(after),
            length: Duration::from_millis(2_500),
            samples: samples.clone(),
        };
        let log = interval_log("a\nb", start, &[line("ttft_us.a b,c\n", 0), line("e2e_us.ü", 7)]);
        let entries: Vec<_> = IntervalLogIterator::new(log.as_bytes()).collect::<Result<_, _>>().unwrap();
        let intervals: Vec<_> = entries
            .iter()
            .filter_map(|entry| match entry {
                LogEntry::Interval(interval) => Some(interval),
                _ => None,
            })
            .collect();
        let tags: Vec<_> = intervals.iter().map(|one| one.tag().unwrap().as_str()).collect();
        assert_eq!(tags, ["ttft_us.a_b_c_", "e2e_us.ü"]);
        assert_eq!((intervals[1].start_timestamp().as_secs(), intervals[1].duration().as_millis()), (7, 2_500));
        let bytes = STANDARD.decode(intervals[0].encoded_histogram()).unwrap();
        let read: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
        assert_eq!(read, samples.histogram());
        assert!((intervals[0].max() - 1_000.0).abs() < 1.0, "in milliseconds: {}", intervals[0].max());
    }
}
