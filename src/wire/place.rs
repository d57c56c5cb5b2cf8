//! Who served a reply and where its time went, as fields of events say it.

use serde_json::Value;

/// Dynamo's workers of one request: the same one twice where prefill and decode are not apart.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Workers {
    pub prefill: Option<Worker>,
    pub decode: Option<Worker>,
}

/// One worker. Ids use all 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worker {
    pub id: u64,
    pub dp_rank: Option<u32>,
}

/// Spans by the server's clock, in µs, in their order: before the queue, in it, the prefill, and from its end until the
/// first token was handed to the connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Spans {
    pub intake_us: Option<u32>,
    pub queue_us: Option<u32>,
    pub prefill_us: Option<u32>,
    pub return_us: Option<u32>,
}

/// The instants that SGLang tells with `--enable-metrics`: Unix seconds, but for the queue, a span in seconds.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Stamps {
    pub(super) received: Option<f64>,
    pub(super) queue: Option<f64>,
    pub(super) entered: Option<f64>,
    pub(super) prefilled: Option<f64>,
    pub(super) sent: Option<f64>,
}

impl Stamps {
    /// The queue is told by itself, so what is before it is what the rest leaves.
    pub(super) fn spans(self) -> Spans {
        let Self { received, queue, entered, prefilled, sent } = self;
        let between = |from: Option<f64>, to: Option<f64>| from.zip(to).map(|(from, to)| to - from);
        let before_forward = between(received, entered);
        Spans {
            intake_us: before_forward.zip(queue).and_then(|(both, queue)| micros(both - queue)),
            queue_us: queue.and_then(micros),
            prefill_us: between(entered, prefilled).and_then(micros),
            return_us: between(prefilled, sent).and_then(micros),
        }
    }
}

/// None for a span that runs backwards: then the clock did. Half a microsecond is the grain of such stamps.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be 0 or more; the cast saturates"
)]
fn micros(seconds: f64) -> Option<u32> {
    let us = (seconds * 1e6).round();
    (us >= -1.0).then(|| us.max(0.0) as u32)
}

impl Workers {
    /// Dynamo's `nvext.worker_id`, where it names any.
    pub(super) fn told_in(nvext: &Value) -> Option<Self> {
        let ids = nvext.get("worker_id")?;
        let worker = |id: &str, rank: &str| {
            let dp_rank = ids.get(rank).and_then(Value::as_u64).and_then(|rank| u32::try_from(rank).ok());
            Some(Worker { id: ids.get(id)?.as_u64()?, dp_rank })
        };
        let workers = Self {
            prefill: worker("prefill_worker_id", "prefill_dp_rank"),
            decode: worker("decode_worker_id", "decode_dp_rank"),
        };
        Some(workers).filter(|workers| *workers != Self::default())
    }
}

impl Spans {
    /// Dynamo's `nvext.timing`.
    pub(super) fn told_in(nvext: &Value) -> Self {
        let span = |name: &str| micros(nvext.get("timing")?.get(name)?.as_f64()? / 1e3);
        Self { queue_us: span("prefill_wait_time_ms"), prefill_us: span("prefill_time_ms"), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_become_spans_that_follow_each_other() {
        let stamps = Stamps {
            received: Some(1_795_993_511.458_992_5),
            queue: Some(0.002_606_5),
            entered: Some(1_795_993_511.503_9),
            prefilled: Some(1_795_993_511.513_902_2),
            sent: Some(1_795_993_511.519_528),
        };
        let Spans { intake_us, queue_us, prefill_us, return_us } = stamps.spans();
        let total: u32 = [intake_us, queue_us, prefill_us, return_us].into_iter().map(Option::unwrap).sum();
        assert_eq!((queue_us, prefill_us, return_us), (Some(2_607), Some(10_002), Some(5_626)));
        assert!(total.abs_diff(60_536) <= 2, "{total}: the spans cover all from the request to the first token");
    }

    #[test]
    fn a_clock_that_ran_backwards_tells_nothing() {
        let stamps = Stamps { entered: Some(5.0), prefilled: Some(4.0), sent: Some(4.5), ..Stamps::default() };
        assert_eq!(stamps.spans(), Spans { return_us: Some(500_000), ..Spans::default() });
    }
}
