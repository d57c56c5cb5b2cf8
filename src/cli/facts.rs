//! Small conversions between stages: what one knows, in the words of the next.

use std::sync::Arc;

use super::site::Site;
use crate::client::resolved;
use crate::profile::{LoadSpec, Pacing, RunSpec};
use crate::record::{Place, TurnRecord};
use crate::report::{ObservedOracle, Oracle, RoundRobinOracle, ServerFacts, WorkloadFacts, hide_fields, metrics};
use crate::text::{TextError, Vocabulary};
use crate::units::{plural, public_address};
use crate::workload::{self, Observing, Plan, Prompter, RouterKey};

/// How a reply without usage is counted.
#[derive(Debug, Clone)]
pub(super) enum Estimate {
    /// By the tokenizer in use.
    Tokenizer(Arc<Vocabulary>),
    /// One token a frame: the best that can be said without one.
    Frames,
}

/// The vocabulary that a run's prompts are made of.
///
/// # Errors
/// When the tokenizer file is none.
pub(super) fn vocabulary(spec: &RunSpec) -> Result<Vocabulary, TextError> {
    spec.request.tokenizer.as_deref().map_or_else(|| Ok(Vocabulary::words()), Vocabulary::from_file)
}

pub(super) fn estimate(spec: &RunSpec, vocabulary: &Arc<Vocabulary>) -> Estimate {
    if spec.request.tokenizer.is_some() { Estimate::Tokenizer(Arc::clone(vocabulary)) } else { Estimate::Frames }
}

/// Whether the server left the output of a complete reply uncounted.
pub(super) fn lacks_count(turn: &TurnRecord) -> bool {
    turn.output_tokens.is_none() && turn.outcome.is_complete()
}

/// Gives a reply that [lacks its count](lacks_count) one of our own, marked as such. Encoding text takes a thread of its
/// own: other streams must not wait for it.
pub(super) async fn fill_estimate(mut turn: TurnRecord, text: String, estimate: Estimate) -> (TurnRecord, String) {
    turn.output_estimated = true;
    let Estimate::Tokenizer(vocabulary) = estimate else {
        turn.output_tokens = Some(turn.frames);
        return (turn, text);
    };
    let shared: Arc<str> = text.into();
    let counting = Arc::clone(&shared);
    let counted = tokio::task::spawn_blocking(move || vocabulary.count(&counting)).await;
    // A tokenizer that panics on a text leaves the frames to count by.
    turn.output_tokens = Some(counted.unwrap_or(turn.frames));
    (turn, shared.as_ref().to_owned())
}

/// What the plan of `prompter` says, with the reuse that it allows over `ranks` ranks under this load.
pub(super) fn workload(prompter: &Prompter, load: &LoadSpec, ranks: u32) -> WorkloadFacts {
    let plan = &**prompter.plan();
    let limit = match load.pacing {
        Pacing::Closed { sessions } => Some(sessions.get()),
        Pacing::Open { .. } => None,
    };
    let totals = plan.totals();
    let round_robin = workload::round_robin(plan, ranks);
    WorkloadFacts {
        digest: plan.digest.clone(),
        groups: u32::try_from(totals.groups).unwrap_or(u32::MAX),
        sessions: totals.sessions,
        turns: totals.turns,
        prompt_tokens: totals.prompt_tokens,
        output_tokens: totals.output_tokens,
        distinct_prompts: totals.distinct_prompts,
        router_key: RouterKey::of(prompter),
        oracle: Oracle {
            ideal_reuse: Some(workload::ideal(plan).ratio),
            round_robin: Some(RoundRobinOracle {
                ranks,
                reuse: round_robin.reuse,
                cold_pairs: round_robin.cold_pairs,
                split_share: round_robin.split_share,
            }),
            observed: None,
            aliasing: workload::aliasing(plan, limit, ranks),
        },
    }
}

/// Reuse that the places seen so far allow; none when no place is known.
pub(super) fn observed(observing: &Observing<Place>) -> Option<ObservedOracle> {
    let observed = observing.observed();
    (observed.cold_pairs > 0).then_some(ObservedOracle { reuse: observed.reuse, cold_pairs: observed.cold_pairs })
}

pub(super) fn server(site: &Site) -> ServerFacts {
    let facts = &site.facts;
    let mut info = facts.info.clone();
    info.iter_mut().for_each(hide_fields);
    ServerFacts {
        address: Some(public_address(&site.base)),
        other_addresses: site.others.iter().map(|base| public_address(base)).collect(),
        resolved: site.bases().filter_map(|base| resolved(base)).collect(),
        kind: facts.kind.map(|kind| kind.name().to_owned()),
        version: facts.version.clone(),
        model: site.model.clone(),
        ranks: facts.ranks,
        load_balance_method: facts.load_balance_method.clone(),
        kv_tokens_per_rank: facts.kv_tokens_per_rank,
        kv_tokens_total: facts
            .kv_tokens_per_rank
            .zip(facts.ranks)
            .and_then(|(tokens, ranks)| tokens.checked_mul(ranks.into())),
        page_tokens: facts.page_tokens,
        untold: site.probed.untold.clone(),
        info,
        ..ServerFacts::default()
    }
}

/// The run in one line, before it starts.
pub(super) fn headline(spec: &RunSpec, plan: &Plan) -> String {
    let totals = plan.totals();
    format!(
        "{}: {}, {}, {} with {}, {}, {}, {}, seed {}, workload {}",
        spec.name,
        plural(totals.groups, "group"),
        plural(totals.sessions, "session"),
        plural(totals.turns, "turn"),
        plural(totals.distinct_prompts, "distinct prompt"),
        plural(totals.prompt_tokens, "prompt token"),
        plural(totals.output_tokens, "output token"),
        spec.load,
        spec.workload.seed,
        plan.digest,
    )
}

/// What to say to a primary metric that does not exist.
pub(super) fn unknown_metric(key: &str) -> String {
    let known: Vec<&str> = metrics().iter().map(|metric| &*metric.key).collect();
    format!("`experiment.primary`: `{key}` is no metric; choose one of: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::path::Path;
    use std::sync::mpsc;
    use std::task::Poll;

    use super::*;
    use crate::record::Outcome;
    use crate::report::tests::ended;

    /// Row B70 of the traps: while the only thread for such work is taken, a count stays undone, though its lane has nothing
    /// else to do.
    #[test]
    fn text_is_encoded_on_no_thread_that_carries_streams() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bpe-2k.tokenizer.json");
        let vocabulary = Arc::new(Vocabulary::from_file(&file).unwrap());
        let text = vocabulary.passage(1, 0, 12).text.to_string();
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (free, taken) = mpsc::channel::<()>();
            let taking = tokio::task::spawn_blocking(move || taken.recv());
            let turn = TurnRecord { output_tokens: None, ..ended(0, 0, Outcome::Complete) };
            let mut counting = std::pin::pin!(fill_estimate(turn, text, Estimate::Tokenizer(vocabulary)));
            let is_waiting =
                std::future::poll_fn(|context| Poll::Ready(counting.as_mut().poll(context).is_pending())).await;
            assert!(is_waiting, "counted by who asked");
            free.send(()).unwrap();
            let (turn, _) = counting.await;
            assert_eq!((turn.output_tokens, turn.output_estimated), (Some(12), true));
            taking.await.unwrap().unwrap();
        });
    }
}
