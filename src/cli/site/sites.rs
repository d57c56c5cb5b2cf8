//! The servers of several arms: those that outlast a block, open at once, and those that are launched for each block.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::FutureExt as _;

use super::start::Launch;
use super::{Opening, Site};
use crate::cli::exit::{Exit, ExitWith as _};
use crate::cli::form::Form;
use crate::cli::interrupt::unless_stopped;
use crate::drive::Stop;
use crate::experiment::offset;
use crate::profile::{ArmSpec, RunSpec};
use crate::report::{RunReport, State, Verdict};
use crate::store::BlockState;
use crate::text::Vocabulary;
use crate::workload::{self, Plan, sent_keys};

/// The output of a launched server, in its block's directory.
const SERVER_LOG: &str = "server.log";

/// The arms of an experiment or a sweep.
#[derive(Clone, Copy)]
pub(crate) struct Arms<'a> {
    pub arms: &'a [ArmSpec],
    pub spec: &'a RunSpec,
    pub vocabulary: &'a Arc<Vocabulary>,
    /// Of servers that someone else runs.
    pub ready_timeout: Duration,
    pub form: Form,
    pub stop: &'a Stop,
}

/// The servers that are open, by the index of their arm.
pub(crate) type Sites = BTreeMap<usize, Site>;

impl Arms<'_> {
    /// Opens the arms whose servers outlast a block.
    ///
    /// # Errors
    /// When one cannot be used; those before it are in `sites`.
    pub(crate) async fn open(&self, sites: &mut Sites) -> anyhow::Result<()> {
        let (_, plan) = self.plan(1, &self.arms[0])?;
        for (at, arm) in self.arms.iter().enumerate().filter(|(_, arm)| arm.launch.is_none()) {
            let spec = self.spec_of(arm);
            let opened = unless_stopped(self.stop, Site::open(&arm.target, self.opening(&spec, None), &plan)).await;
            sites.insert(at, opened.with_context(|| format!("arm `{}`", arm.name))?);
        }
        Ok(())
    }

    /// Does `work` at an arm's server: the one that is open, or one that is launched for it and stopped after it. A launched
    /// server that ends by itself ends the work.
    ///
    /// # Errors
    /// Those of `work`; also when the server cannot be launched, or ends.
    pub(crate) async fn at<T>(
        &self,
        at: usize,
        sites: &Sites,
        home: &Path,
        plan: &Plan,
        work: impl AsyncFnOnce(&Site, &Stop) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let arm = &self.arms[at];
        let done = match (sites.get(&at), &arm.launch) {
            (Some(site), _) => work(site, self.stop).await,
            (None, Some(spec)) => {
                let launch = Launch { spec, log: home.join(SERVER_LOG) };
                let spec = self.spec_of(arm);
                let opening = self.opening(&spec, Some(launch));
                match Site::open(&arm.target, opening, plan).await {
                    Ok(site) => {
                        let stop = self.stop.child();
                        let done = watched(&site, &stop, work(&site, &stop)).await;
                        site.close().await;
                        done
                    }
                    Err(why) => Err(why),
                }
            }
            (None, None) => Err(anyhow::Error::msg("its server was never opened")),
        };
        done.with_context(|| format!("arm `{}`", arm.name))
    }

    /// What an arm runs in a round. Prompts and keys differ from those of the round before, and are equal in every arm that
    /// does not say otherwise.
    ///
    /// # Errors
    /// When the specification has no plan.
    pub(crate) fn plan(&self, round: u32, arm: &ArmSpec) -> anyhow::Result<(RunSpec, Arc<Plan>)> {
        let mut spec = of_round(&self.spec_of(arm), round);
        let plan = workload::plan(&spec, self.vocabulary).exit_with(Exit::Usage)?.for_arm(arm.keys, arm.prompts);
        spec.key.by = sent_keys(spec.key.by, arm.keys);
        Ok((spec, Arc::new(plan)))
    }

    /// With what only this arm's server is asked beside its turns.
    fn spec_of(&self, arm: &ArmSpec) -> RunSpec {
        let mut spec = self.spec.clone();
        spec.server.metrics_urls.extend(arm.metrics_urls.iter().cloned());
        spec
    }

    fn opening<'s>(&'s self, spec: &'s RunSpec, launch: Option<Launch<'s>>) -> Opening<'s> {
        let ready_timeout = launch.as_ref().map_or(self.ready_timeout, |launch| launch.spec.ready_timeout);
        Opening { spec, vocabulary: self.vocabulary, ready_timeout, launch, form: self.form, stop: self.stop }
    }
}

/// Ends the servers that this program started.
pub(crate) async fn close(sites: Sites) {
    for site in sites.into_values() {
        site.close().await;
    }
}

/// Does `work` unless the server ends before it; then what is under way is cut.
async fn watched<T>(site: &Site, stop: &Stop, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut work = std::pin::pin!(work);
    let how = tokio::select! {
        biased;
        how = site.end() => how,
        done = &mut work => match site.end().now_or_never() {
            Some(how) => how,
            None => return done,
        },
    };
    stop.now();
    let why = anyhow::anyhow!("its launched server ended during the block: {how}");
    Err(why).exit_with(Exit::Target)
}

/// The run of one round or step: other prompts and another placement of keys than in the one before, equal in every arm.
pub(crate) fn of_round(run: &RunSpec, round: u32) -> RunSpec {
    let mut spec = run.clone();
    spec.workload.seed = spec.workload.seed.wrapping_add(offset(round));
    spec.key.salt = spec.key.salt.wrapping_add(offset(round));
    spec
}

/// How a block that ran ended.
pub(crate) fn state_of(report: &RunReport) -> BlockState {
    match (report.state, report.validity.verdict) {
        (State::Interrupted, _) => BlockState::Interrupted,
        (State::Running, _) => BlockState::Running,
        (State::Complete, Verdict::Void) => BlockState::Void,
        (State::Complete, Verdict::Valid) => BlockState::Complete,
    }
}
