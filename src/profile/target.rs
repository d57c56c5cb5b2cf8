//! Targets and arms as they stand on a command line: `http://host:port`, `sim:POLICY[,key=value…]`,
//! `NAME=TARGET[;control]`.

use std::collections::BTreeMap;

use super::{ArmSpec, ProfileError, Target, raw};
use crate::units::public_address;

impl std::str::FromStr for Target {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with("http://") || text.starts_with("https://") {
            reqwest::Url::parse(text).map_err(|why| ProfileError::target(text, &why.to_string()))?;
            let (base, query) = text.split_once('?').map_or((text, None), |(base, query)| (base, Some(query)));
            let base = base.trim_end_matches('/');
            return Ok(Self::Url(query.map_or_else(|| base.to_owned(), |query| format!("{base}?{query}"))));
        }
        if let Some(sim) = text.strip_prefix("sim:") {
            return sim_target(text, sim);
        }
        if text.starts_with("pin:") {
            return Err(ProfileError::not_built(format!("the target `{text}`: pinned placement")));
        }
        Err(ProfileError::target(text, "a target is http://HOST:PORT, https://HOST or sim:POLICY"))
    }
}

fn sim_target(text: &str, sim: &str) -> Result<Target, ProfileError> {
    let mut parts = sim.split(',');
    let policy = parts.next().unwrap_or_default().trim();
    if policy.is_empty() {
        return Err(ProfileError::target(text, "name a policy, as in sim:round_robin"));
    }
    let mut settings = BTreeMap::new();
    for part in parts {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| ProfileError::target(text, "settings after the policy are key=value, by commas"))?;
        settings.insert(key.trim().replace('_', "-"), value.trim().to_owned());
    }
    Ok(Target::Sim { policy: policy.to_owned(), settings })
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // Shown and stored in many places, so it tells no secret.
            Self::Url(url) => f.write_str(&public_address(url)),
            Self::Sim { policy, settings } => {
                write!(f, "sim:{policy}")?;
                settings.iter().try_for_each(|(key, value)| write!(f, ",{key}={value}"))
            }
        }
    }
}

/// Reads `NAME=TARGET[;option…]`, the form of `--arm`.
///
/// # Errors
/// When a part is missing or unknown.
pub(super) fn parse_arm(text: &str) -> Result<raw::Arm, ProfileError> {
    let wrong = || ProfileError::arm(text, "give NAME=TARGET, as in affinity=sim:prefix_affinity");
    let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
    let mut parts = rest.split(';');
    let target = parts.next().filter(|target| !target.is_empty()).ok_or_else(wrong)?;
    let mut arm = raw::Arm { name: Some(name.to_owned()), target: Some(target.to_owned()), ..raw::Arm::default() };
    for part in parts {
        match part.split_once('=') {
            None if part == "control" => arm.control = Some(true),
            Some(("keys", value)) => arm.keys = Some(value.to_owned()),
            Some(("prompts", value)) => arm.prompts = Some(value.to_owned()),
            Some(("metrics", value)) => arm.metrics = Some(value.to_owned()),
            _ => return Err(ProfileError::arm(text, &format!("`{part}` is no option of an arm"))),
        }
    }
    Ok(arm)
}

/// Checks one arm.
pub(super) fn resolve_arm(arm: &raw::Arm, at: usize) -> Result<ArmSpec, ProfileError> {
    let raw::Arm { name, target, control, keys, prompts, metrics, launch, ready_timeout, stop_timeout } = arm;
    let label = name.clone().unwrap_or_else(|| format!("arm {}", at + 1));
    let missing = |what: &str| ProfileError::arm(&label, what);
    let unbuilt = [
        ("keys", keys),
        ("prompts", prompts),
        ("metrics", metrics),
        ("launch", launch),
        ("ready_timeout", ready_timeout),
        ("stop_timeout", stop_timeout),
    ];
    if let Some((option, _)) = unbuilt.into_iter().find(|(_, value)| value.is_some()) {
        return Err(ProfileError::not_built(format!("`{option}` of arm `{label}`")));
    }
    let name = name.clone().filter(|name| !name.is_empty()).ok_or_else(|| missing("give it a `name`"))?;
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
        return Err(missing("a name is letters, digits, `_`, `-` and `.`: it becomes a folder"));
    }
    let target = target.as_deref().ok_or_else(|| missing("give it a `target`, as in \"sim:round_robin\""))?;
    Ok(ArmSpec { name, target: target.parse()?, control: control.unwrap_or(false) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_loses_its_trailing_slash_and_keeps_path_and_query() {
        let cases = [
            ("http://h:1", "http://h:1"),
            ("http://h:1/", "http://h:1"),
            ("http://h:1/api/v1/", "http://h:1/api/v1"),
            ("http://h:1/api/v1/?k=1", "http://h:1/api/v1?k=1"),
            ("http://[::1]:8001/v1", "http://[::1]:8001/v1"),
        ];
        for (text, base) in cases {
            assert_eq!(text.parse::<Target>().unwrap(), Target::Url(base.into()));
        }
        for wrong in
            ["http://", "https:///", "localhost:1", "sim:", "sim:round_robin,ranks", "pin:round_robin@http://h"]
        {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_simulated_target_reads_back_from_its_text() {
        let target: Target = "sim:prefix_affinity,ranks=4,kv_tokens=9000".parse().unwrap();
        assert_eq!(target.to_string(), "sim:prefix_affinity,kv-tokens=9000,ranks=4");
        assert_eq!(target.to_string().parse::<Target>().unwrap(), target);
    }

    #[test]
    fn an_arm_is_a_name_a_target_and_options() {
        let arm = parse_arm("bare=http://h:1?a=b;control").unwrap();
        assert_eq!(arm.name.as_deref(), Some("bare"));
        assert_eq!(arm.target.as_deref(), Some("http://h:1?a=b"));
        assert_eq!(arm.control, Some(true));
        assert!(parse_arm("http://h:1").is_err());
        assert!(parse_arm("a=sim:round_robin;colour=red").is_err());
    }
}
