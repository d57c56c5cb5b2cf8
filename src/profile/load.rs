//! Reading a profile and laying flags over it.

use super::{ProfileError, arm, raw};

/// One flag as a change of the profile's table.
#[derive(Debug, Clone, PartialEq)]
pub enum Override {
    /// A value at a dotted key, said by a flag of this name.
    Set { flag: String, key: String, value: toml::Value },
    /// A further element of the list at a dotted key.
    Push { flag: String, key: String, value: toml::Value },
    /// As if the profile did not say it.
    Unset { key: String },
    /// `--set KEY=VALUE`: the value is TOML, or else a plain word.
    Assign(String),
    /// `--arm NAME=TARGET`: the first one replaces the profile's arms.
    Arm(String),
}

/// Parses `text` (of a profile called `name`) and lays `overrides` over it, in their order.
///
/// # Errors
/// A [`ProfileError`] with line and caret for the file's own mistakes, or with the flag's name for those of flags.
pub fn load(name: &str, text: &str, overrides: &[Override]) -> Result<raw::Profile, ProfileError> {
    let syntax = |why: toml::de::Error| ProfileError::Syntax { name: name.to_owned(), why: why.to_string() };
    let mut profile: raw::Profile = toml::from_str(text).map_err(syntax)?;
    let mut table: toml::Table = text.parse().map_err(syntax)?;
    let mut arms = Vec::new();
    for change in overrides {
        let flag = match change {
            Override::Set { flag, key, value } => {
                set(&mut table, key, value.clone())?;
                flag.clone()
            }
            Override::Push { flag, key, value } => {
                push(&mut table, key, value.clone())?;
                flag.clone()
            }
            Override::Unset { key } => {
                unset(&mut table, key);
                key.clone()
            }
            Override::Assign(text) => {
                let (key, value) = assignment(text)?;
                set(&mut table, &key, value)?;
                format!("--set {text}")
            }
            Override::Arm(text) => {
                arms.push(arm::parse_arm(text)?);
                continue;
            }
        };
        // Read after each change, so that a mistake is charged to its own flag.
        profile = table
            .clone()
            .try_into()
            .map_err(|why: toml::de::Error| ProfileError::Syntax { name: flag, why: why.message().to_owned() })?;
    }
    if !arms.is_empty() {
        profile.arm = arms;
    }
    Ok(profile)
}

/// A value that is wrong, by the name of the flag that said it, if one did: whoever typed `--rounds` need not know its key.
#[must_use]
pub fn by_flag(why: ProfileError, overrides: &[Override]) -> ProfileError {
    let ProfileError::Value { key, why } = why else { return why };
    let last = overrides.iter().rev().find_map(|change| match change {
        Override::Set { flag, key: of, .. } | Override::Push { flag, key: of, .. } if *of == key => Some(Some(flag)),
        // Its words are the key's own.
        Override::Assign(text) if text.split_once('=').is_some_and(|(of, _)| of.trim() == key) => Some(None),
        _ => None,
    });
    match last.flatten() {
        Some(flag) => ProfileError::Flag { flag: flag.clone(), key, why },
        None => ProfileError::Value { key, why },
    }
}

fn assignment(text: &str) -> Result<(String, toml::Value), ProfileError> {
    let (key, value) = text
        .split_once('=')
        .ok_or_else(|| ProfileError::value("--set", format!("`{text}` is no KEY=VALUE, as in workload.groups=16")))?;
    let parsed = format!("value = {value}").parse::<toml::Table>().ok().and_then(|mut table| table.remove("value"));
    Ok((key.trim().to_owned(), parsed.unwrap_or_else(|| toml::Value::String(value.trim().to_owned()))))
}

/// Sets a dotted key.
fn set(table: &mut toml::Table, key: &str, value: toml::Value) -> Result<(), ProfileError> {
    let (at, last) = descend(table, key)?;
    at.insert(last.to_owned(), value);
    Ok(())
}

/// Appends to the list at a dotted key.
fn push(table: &mut toml::Table, key: &str, value: toml::Value) -> Result<(), ProfileError> {
    let (at, last) = descend(table, key)?;
    let list = at.entry(last).or_insert_with(|| toml::Value::Array(vec![]));
    list.as_array_mut().ok_or_else(|| ProfileError::value(key, "it holds a value, no list"))?.push(value);
    Ok(())
}

fn unset(table: &mut toml::Table, key: &str) {
    if let Ok((at, last)) = descend(table, key) {
        at.remove(last);
    }
}

/// The table that holds a dotted key, made on the way, and the key's last step. Only the first two steps are tables of
/// the schema; a header's name may hold a dot of its own.
fn descend<'a, 'k>(table: &'a mut toml::Table, key: &'k str) -> Result<(&'a mut toml::Table, &'k str), ProfileError> {
    let is_free_form = key.starts_with("request.headers.") || key.starts_with("request.extra_body.");
    let mut steps: Vec<&str> = key.splitn(if is_free_form { 3 } else { usize::MAX }, '.').collect();
    let last = steps.pop().unwrap_or(key);
    let mut at = table;
    for step in steps {
        let next = at.entry(step).or_insert_with(|| toml::Table::new().into());
        at = next.as_table_mut().ok_or_else(|| ProfileError::value(key, format!("`{step}` holds a value, no keys")))?;
    }
    Ok((at, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(text: &str, overrides: &[Override]) -> Result<raw::Profile, ProfileError> {
        load("p.toml", text, overrides)
    }

    fn flag(key: &str, value: impl Into<toml::Value>) -> Override {
        Override::Set { flag: "--flag".into(), key: key.into(), value: value.into() }
    }

    #[test]
    fn a_flag_beats_the_file() {
        let profile = with("[workload]\ngroups = 4", &[flag("workload.groups", 9), flag("load.rate", 2.5)]).unwrap();
        assert_eq!(profile.workload.groups, Some(9));
        assert_eq!(profile.load.rate, Some(2.5));
    }

    #[test]
    fn a_mistake_is_charged_to_the_file_with_its_line_or_to_the_flag_with_its_name() {
        let file = with("[workload]\ngrups = 4", &[]).unwrap_err().to_string();
        assert!(file.contains("p.toml") && file.contains("grups") && file.contains("line 2"), "{file}");
        let flag = with("", &[Override::Assign("workload.grups=4".into())]).unwrap_err().to_string();
        assert!(flag.contains("--set workload.grups=4") && flag.contains("unknown field"), "{flag}");
        let typed = with("", &[Override::Assign("workload.groups=many".into())]).unwrap_err().to_string();
        assert!(typed.contains("--set workload.groups=many") && typed.contains("many"), "{typed}");
    }

    #[test]
    fn set_takes_toml_values_and_plain_words() {
        let sets = ["workload.order=grouped", "workload.system_tokens={ min = 3, max = 5 }", "request.model=org/name"];
        let profile = with("", &sets.map(|text| Override::Assign(text.into()))).unwrap();
        assert_eq!(profile.workload.order, Some(super::super::Order::Grouped));
        assert_eq!(profile.workload.system_tokens, Some(raw::Length::Between { min: 3, max: 5 }));
        assert_eq!(profile.request.model.as_deref(), Some("org/name"));
    }

    #[test]
    fn a_value_that_is_wrong_is_charged_to_the_last_that_said_it() {
        let say = |changes: &[Override], key| by_flag(ProfileError::value(key, "0 is too few"), changes).to_string();
        let (rounds, set) = (flag("experiment.rounds", 0), Override::Assign("experiment.rounds = 0".into()));
        assert_eq!(
            say(std::slice::from_ref(&rounds), "experiment.rounds"),
            "`--flag` (`experiment.rounds`): 0 is too few"
        );
        assert_eq!(say(std::slice::from_ref(&rounds), "load.rate"), "`load.rate`: 0 is too few");
        assert_eq!(say(&[rounds.clone(), set.clone()], "experiment.rounds"), "`experiment.rounds`: 0 is too few");
        assert!(say(&[set, rounds], "experiment.rounds").starts_with("`--flag`"));
    }

    #[test]
    fn arms_of_flags_replace_those_of_the_file() {
        let text = "[[arm]]\nname = \"a\"\ntarget = \"sim:round_robin\"";
        assert_eq!(with(text, &[]).unwrap().arm.len(), 1);
        let arms = ["x=sim:round_robin", "y=sim:prefix_affinity"].map(|arm| Override::Arm(arm.into()));
        let names: Vec<_> = with(text, &arms).unwrap().arm.into_iter().filter_map(|arm| arm.name).collect();
        assert_eq!(names, ["x", "y"]);
    }
}
