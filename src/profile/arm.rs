//! Arms as they stand on a command line, `NAME=TARGET[;option…]`, and in `[[arm]]` tables.

use std::time::Duration;

use super::resolve::{positive_span, span};
use super::{ArmKeys, ArmPrompts, ArmSpec, LaunchSpec, MetricsUrl, ProfileError, Target, raw};

/// What a large model on slow disks takes to load.
const READY_TIMEOUT: Duration = Duration::from_secs(30 * 60);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

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
    let mut given: Vec<&str> = Vec::new();
    for part in parts {
        let word = part.split_once('=').map_or(part, |(word, _)| word);
        if given.contains(&word) {
            return Err(ProfileError::arm(text, &format!("`{word}` stands there twice: give each option once")));
        }
        given.push(word);
        match part.split_once('=') {
            None if part == "control" => arm.control = Some(true),
            Some(("keys", value)) => arm.keys = Some(value.to_owned()),
            Some(("prompts", value)) => arm.prompts = Some(value.to_owned()),
            Some(("metrics", value)) => arm.metrics = Some(value.to_owned()),
            Some(("launch" | "ready_timeout" | "stop_timeout", _)) => {
                return Err(ProfileError::arm(text, "a server to launch is said in an [[arm]] table of a profile"));
            }
            _ => {
                let why = format!("`{part}` is no option of an arm: there are keys=, prompts=, metrics= and control");
                return Err(ProfileError::arm(text, &why));
            }
        }
    }
    Ok(arm)
}

/// Checks one arm.
///
/// # Errors
/// When a part is missing, unknown or contradicts another.
pub(super) fn resolve_arm(arm: &raw::Arm, at: usize) -> Result<ArmSpec, ProfileError> {
    let raw::Arm { name, target, control, keys, prompts, metrics, launch, ready_timeout, stop_timeout } = arm;
    let label = name.clone().unwrap_or_else(|| format!("arm {}", at + 1));
    let wrong = |what: &str| ProfileError::arm(&label, what);
    let name = name.clone().filter(|name| !name.is_empty()).ok_or_else(|| wrong("give it a `name`"))?;
    check_name(&name)?;
    let target = target.as_deref().ok_or_else(|| wrong("give it a `target`, as in \"sim:round_robin\""))?;
    let target: Target = target.parse()?;
    if launch.is_some() && target.urls().is_empty() {
        return Err(wrong("a simulated target starts its own server: leave `launch` out, or give an http:// target"));
    }
    if launch.is_none() && (ready_timeout.is_some() || stop_timeout.is_some()) {
        return Err(wrong("`ready_timeout` and `stop_timeout` are those of a server to `launch`: give that too"));
    }
    let key = |of: &str| format!("arm.{label}.{of}");
    let launch = launch.as_ref().map(|command| {
        if command.trim().is_empty() {
            return Err(wrong("`launch` is empty: give the command that starts the server"));
        }
        Ok(LaunchSpec {
            command: command.clone(),
            ready_timeout: positive_span(&key("ready_timeout"), ready_timeout.as_deref(), READY_TIMEOUT)?,
            stop_timeout: span(&key("stop_timeout"), stop_timeout.as_deref(), STOP_TIMEOUT)?,
        })
    });
    let metrics_urls = metrics.iter().flat_map(|urls| urls.split(','));
    let metrics_urls = metrics_urls.map(|text| MetricsUrl::checked(&key("metrics"), text)).collect::<Result<_, _>>()?;
    let keys = arm_keys(&key("keys"), keys.as_deref())?;
    let prompts = arm_prompts(&key("prompts"), prompts.as_deref())?;
    Ok(ArmSpec {
        name,
        target,
        // Other work than that of the baseline can be shown beside it and never judged against it.
        control: control.unwrap_or(false) || keys != ArmKeys::Plan || prompts != ArmPrompts::Plan,
        keys,
        prompts,
        metrics_urls,
        launch: launch.transpose()?,
    })
}

fn check_name(name: &str) -> Result<(), ProfileError> {
    if name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) && name.chars().any(|c| c != '.') {
        return Ok(());
    }
    Err(ProfileError::arm(name, "a name is letters, digits, `_`, `-` and `.`: it becomes a folder"))
}

/// Checks what arms must be to one another.
///
/// # Errors
/// When there are fewer than two, two of one name, or no baseline.
pub(super) fn check_arms(arms: &[ArmSpec]) -> Result<(), ProfileError> {
    if arms.len() < 2 {
        let got = arms.len();
        let why = format!("a comparison needs two arms and got {got}: give --arm NAME=TARGET twice, or [[arm]] tables");
        return Err(ProfileError::value("arm", why));
    }
    check_names(arms)?;
    if arms[0].control {
        return Err(ProfileError::arm(&arms[0].name, "the first arm is the baseline and cannot be a control"));
    }
    Ok(())
}

/// Checks that every arm has a name of its own, which can be that of a directory.
///
/// # Errors
/// When one has not.
pub(super) fn check_names(arms: &[ArmSpec]) -> Result<(), ProfileError> {
    for (at, arm) in arms.iter().enumerate() {
        check_name(&arm.name)?;
        if arms[..at].iter().any(|earlier| earlier.name.eq_ignore_ascii_case(&arm.name)) {
            return Err(ProfileError::arm(&arm.name, "two arms have this name; each needs one of its own"));
        }
    }
    Ok(())
}

fn arm_keys(key: &str, word: Option<&str>) -> Result<ArmKeys, ProfileError> {
    match word {
        None | Some("plan") => Ok(ArmKeys::Plan),
        Some("none") => Ok(ArmKeys::None),
        Some("per_turn") => Ok(ArmKeys::PerTurn),
        Some(word) => Err(ProfileError::value(key, format!("\"{word}\": give plan, none or per_turn"))),
    }
}

fn arm_prompts(key: &str, word: Option<&str>) -> Result<ArmPrompts, ProfileError> {
    match word {
        None | Some("plan") => Ok(ArmPrompts::Plan),
        Some("zero_reuse") => Ok(ArmPrompts::ZeroReuse),
        Some(word) => Err(ProfileError::value(key, format!("\"{word}\": give plan or zero_reuse"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(text: &str) -> Result<ArmSpec, ProfileError> {
        resolve_arm(&parse_arm(text)?, 0)
    }

    fn table(text: &str) -> Result<ArmSpec, ProfileError> {
        resolve_arm(&toml::from_str(text).unwrap(), 0)
    }

    #[test]
    fn an_arm_is_a_name_a_target_and_options() {
        let bare = arm("bare=http://h:1?a=b;control").unwrap();
        assert_eq!((bare.name.as_str(), bare.target), ("bare", Target::Url("http://h:1?a=b".into())));
        assert!(bare.control);
        let full = arm("a=pin:oracle,ranks=2@http://h:1;keys=per_turn;metrics=http://h:2,decode=http://h:3/m").unwrap();
        assert_eq!((full.keys, full.prompts), (ArmKeys::PerTurn, ArmPrompts::Plan));
        let given: Vec<_> = full.metrics_urls.into_iter().map(String::from).collect();
        assert_eq!(given, ["http://h:2", "decode=http://h:3/m"]);
        assert_eq!(arm("a=sim:round_robin;keys=none").unwrap().keys, ArmKeys::None);
        let wrong = [
            "http://h:1",
            "a=sim:x;colour=red",
            "a=sim:x;keys=some",
            "a=sim:x;prompts=few",
            "a=sim:x;metrics=h",
            "a=sim:x;keys=none;keys=plan",
            "a=sim:x;control;control",
            "..=sim:x",
            ".=sim:x",
        ];
        for wrong in wrong {
            assert!(arm(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_arm_with_other_keys_or_prompts_is_a_control() {
        let control = |text: &str| arm(text).unwrap().control;
        assert!(
            ["keys=none", "keys=per_turn", "prompts=zero_reuse"].iter().all(|of| control(&format!("a=sim:x;{of}")))
        );
        assert!(!control("a=sim:x") && !control("a=sim:x;keys=plan;prompts=plan;metrics=http://h"));
    }

    #[test]
    fn a_command_needs_an_address_and_timeouts_need_a_command() {
        let full = "name = \"a\"\ntarget = \"http://h:1\"\nlaunch = \"serve --port 1\"\nready_timeout = \"5m\"\nstop_timeout = \"0\"";
        let launch = table(full).unwrap().launch.unwrap();
        assert_eq!((launch.command.as_str(), launch.ready_timeout.as_secs()), ("serve --port 1", 300));
        assert_eq!(launch.stop_timeout, Duration::ZERO);
        let said = |text: &str| table(text).unwrap_err().to_string();
        assert!(said("name = \"a\"\ntarget = \"sim:round_robin\"\nlaunch = \"x\"").contains("leave `launch` out"));
        assert!(said("name = \"a\"\ntarget = \"http://h:1\"\nstop_timeout = \"1s\"").contains("`launch`"));
        assert!(said("name = \"a\"\ntarget = \"http://h:1\"\nlaunch = \" \"").contains("empty"));
        assert!(said(&full.replace("5m", "0")).contains("arm.a.ready_timeout"));
        assert!(arm("a=http://h:1;launch=x").unwrap_err().to_string().contains("[[arm]]"));
    }
}
