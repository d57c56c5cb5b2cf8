//! What stands above every comparison: what was sent, to which servers, by which program, when and where.

use serde::{Deserialize, Serialize};

use super::comparable::host;
use crate::report::{RunReport, Simulated, WorkloadSpec};

/// Of the baseline's first block, and the servers of every arm's first block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Absent where another program wrote the results: it does not say what it sent in our words.
    pub work: Option<Work>,
    /// Those that differ in nothing of this stand together.
    pub servers: Vec<Servers>,
    /// Of this program; the name of another one.
    pub client: String,
    pub debug_build: bool,
    /// RFC 3339.
    pub started_utc: String,
    pub host: String,
}

/// What was asked for in the first round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// The profile's name.
    pub name: String,
    pub workload: WorkloadSpec,
    /// In words.
    pub load: String,
    pub digest: String,
}

/// What the servers of some arms are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Servers {
    pub arms: Vec<String>,
    pub kind: Option<String>,
    pub version: Option<String>,
    pub model: Option<String>,
    pub ranks: Option<u32>,
    /// Absent for real ones.
    pub simulated: Option<Simulated>,
}

impl Setting {
    /// From the first run of the first arm.
    #[must_use]
    pub fn of(arm: &str, first: &RunReport) -> Self {
        let manifest = &first.manifest;
        Self {
            work: first.foreign.is_none().then(|| Work {
                name: manifest.spec.name.clone(),
                workload: manifest.spec.workload.clone(),
                load: manifest.load(),
                digest: first.workload.digest.clone(),
            }),
            servers: vec![of_arm(arm, first)],
            client: first
                .foreign
                .as_ref()
                .map_or_else(|| format!("gspbench {}", manifest.version), |foreign| foreign.tool.clone()),
            debug_build: manifest.debug_build,
            started_utc: manifest.started_utc.clone(),
            host: host(&manifest.host),
        }
    }

    /// Adds the servers of another arm, by its first run.
    pub fn add(&mut self, arm: &str, first: &RunReport) {
        let of = of_arm(arm, first);
        match self.servers.iter_mut().find(|known| Servers { arms: of.arms.clone(), ..(**known).clone() } == of) {
            Some(known) => known.arms.extend(of.arms),
            None => self.servers.push(of),
        }
    }
}

/// From the first block of each arm, the baseline's first.
pub(super) fn setting(firsts: &[(&str, &RunReport)]) -> Option<Setting> {
    let ((arm, first), others) = firsts.split_first()?;
    let mut setting = Setting::of(arm, first);
    others.iter().for_each(|(arm, first)| setting.add(arm, first));
    Some(setting)
}

fn of_arm(arm: &str, report: &RunReport) -> Servers {
    let server = &report.server;
    Servers {
        arms: vec![arm.to_owned()],
        kind: server.kind.clone(),
        version: server.version.clone(),
        model: server.model.clone(),
        ranks: server.ranks,
        simulated: report.simulated(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::context;
    use crate::report::{Accumulator, Closing, State};

    #[test]
    fn arms_of_like_servers_stand_together_and_another_model_apart() {
        let plain = Accumulator::new(context(1, 0)).finish(Closing::plain(State::Complete));
        let mut other = plain.clone();
        other.server.model = Some("other".into());
        let found = setting(&[("a", &plain), ("b", &other), ("c", &plain)]).unwrap();
        let arms: Vec<_> = found.servers.iter().map(|servers| servers.arms.join(" ")).collect();
        assert_eq!(arms, ["a c", "b"]);
        assert_eq!(setting(&[]), None);
    }
}
